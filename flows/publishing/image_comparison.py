"""Two images compared: their packages, and how much of the newer one a host has that holds the older."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from flows.core.formatting import some
from flows.images.manifests import Manifest
from flows.images.registry import Registry
from flows.publishing import evidence

MOST_NAMED = 8
# Packages that bear in their names what they are of.
_VERSIONED = (
    ("Python", re.compile(r"(?:deb|rpm)/python(\d+)\.(\d+)")),
    ("CUDA", re.compile(r"(?:deb|rpm)/cuda-cudart-(\d+)-(\d+)")),
)
_SYSTEMS = {"deb/base-files": "Debian", "rpm/centos-stream-release": "CentOS Stream"}


@dataclass(frozen=True)
class Changes:
    """The differences between the packages of two images: name → version, or the old and the new version."""

    added: Mapping[str, str]
    removed: Mapping[str, str]
    changed: Mapping[str, tuple[str, str]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        words = (
            *_headlines(self),
            *(f"+{_bare(name)} {version}" for name, version in self.added.items()),
            *(f"-{_bare(name)}" for name in self.removed),
            *(f"{_bare(name)} {old} → {new}" for name, (old, new) in self.changed.items()),
        )
        return some(words, MOST_NAMED)


@dataclass(frozen=True)
class Comparison:
    """The differences between an older image and a newer one.

    Attributes:
        old: digest of the older.
        new: digest of the newer.
        packages: the differences between their packages.
        layers: how many layers the newer has.
        layers_shared: how many of these the older has, too.
        bytes_shared: how many bytes (compressed) these are.
        bytes_to_pull: bytes (compressed) that a host downloads that has the older and wants the newer.
    """

    old: str
    new: str
    packages: Changes
    layers: int
    layers_shared: int
    bytes_shared: int
    bytes_to_pull: int


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    """The differences between `old` and `new`."""
    return Changes(
        added={name: new[name] for name in sorted(new.keys() - old.keys())},
        removed={name: old[name] for name in sorted(old.keys() - new.keys())},
        changed={name: (old[name], new[name]) for name in sorted(old.keys() & new.keys()) if old[name] != new[name]},
    )


def compare(registry: Registry, old: Manifest, new: Manifest) -> Comparison:
    """The differences between `old` and `new`, and the bytes that a host with `old` must pull for `new`."""
    old_layers = {str(part["digest"]) for part in old.parts}
    shared = [part for part in new.document["layers"] if part["digest"] in old_layers]
    return Comparison(
        old=old.digest,
        new=new.digest,
        packages=changes(evidence.packages(registry, old.digest), evidence.packages(registry, new.digest)),
        layers=len(new.document["layers"]),
        layers_shared=len(shared),
        bytes_shared=sum(int(part["size"]) for part in shared),
        bytes_to_pull=sum(
            {str(p["digest"]): int(p["size"]) for p in new.parts if p["digest"] not in old_layers}.values()
        ),
    )


def _headlines(changes: Changes) -> Iterator[str]:
    """Changes that people have to know before those of packages: another Python, CUDA or release of the system."""
    for what, pattern in _VERSIONED:
        old, new = (_versions(pattern, names) for names in (changes.removed, changes.added))
        if old != new and ((old and new) or changes.changed):  # else nobody knows what the one of them has
            yield f"{what} {old or 'none'} → {new or 'none'}"
    for name, (before, after) in changes.changed.items():
        old, new = before.partition(".")[0], after.partition(".")[0]
        if name in _SYSTEMS and old != new:
            yield f"{_SYSTEMS[name]} {old} → {new}"


def _versions(pattern: re.Pattern[str], names: Iterable[str]) -> str:
    versions = {".".join(match.groups()) for match in map(pattern.fullmatch, names) if match}
    return ", ".join(sorted(versions))


def _bare(name: str) -> str:
    return name.partition("/")[2]
