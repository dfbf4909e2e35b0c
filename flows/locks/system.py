"""Exact versions of the system packages of a base, as the distribution's mirror has them now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flows.catalog.model import Base
from flows.core.atomic_files import write_whole
from flows.core.settings import Settings
from flows.locks import apt, dnf


@dataclass(frozen=True)
class _Family:
    """How the packages of a family of distributions are resolved.

    Attributes:
        state: the state of the mirror now; as long as it stays, so do the resolved versions.
        simulate: all packages that a base's own packages bring, as `name=version`, sorted.
        sources: the files by which an image knows its mirrors: path in the build context → content.
    """

    state: Callable[[Base, Settings], Mapping[str, str]]
    simulate: Callable[[Base, Settings], tuple[str, ...]]
    sources: Callable[[Base], Mapping[str, bytes]]


_FAMILIES = {
    "deb": _Family(apt.state, apt.simulate, apt.files),
    "rpm": _Family(dnf.state, dnf.simulate, dnf.files),
}


def resolve(base: Base, settings: Settings) -> tuple[str, ...]:
    """All packages that `base` installs, as `name=version`, sorted; of rpm as `name=epoch:version-release.arch`.

    The result holds until the mirror has something new: until then a call costs only a look at the mirror.

    Raises:
        RefitError: the mirror doesn't answer, or has not all of the packages.
    """
    family = _FAMILIES[base.config.family]
    inputs = {"packages": sorted(base.packages), "state": family.state(base, settings)}
    name = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    note = settings.folder("cache", "system") / f"{base.name}-{name}.json"
    if note.exists():
        return tuple(json.loads(note.read_text()))
    exact = family.simulate(base, settings)
    write_whole(note, json.dumps(exact, indent=1))
    return exact


def sources(base: Base) -> Mapping[str, bytes]:
    """The files by which an image knows the public mirrors of its distribution: path in the build context → content."""
    return _FAMILIES[base.config.family].sources(base)
