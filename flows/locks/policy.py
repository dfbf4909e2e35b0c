"""Changes that a lock may make while a release lives: patches, and what the release's file excepts. Pure.

pipenv takes no constraints. So what it is given is a Pipfile made for it: the bundle's own, in which every package of
the release's first lock is named within its bounds, those too that only others need. The result is checked against the
bounds all the same, and a package that the release didn't begin with needs an exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from flows.catalog.model import Release
from flows.catalog.pins import Reach, Waiver
from flows.core.errors import RefitError
from flows.locks.pipfile import FIRST_CATEGORY, as_text
from flows.locks.python_lockfile import LockChange, change


@dataclass(frozen=True)
class Bounds:
    """How far the packages of one lock may move.

    Attributes:
        release: the release that says so.
        first: category → package → version that the release began with.
        reach: package → how far it may move; the others move by patches.
        waivers: the release's exceptions.
    """

    release: str
    first: Mapping[str, Mapping[str, str]]
    reach: Mapping[str, Reach] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()

    @property
    def began_with(self) -> dict[str, str]:
        """Package → version over all categories."""
        return {name: version for packages in self.first.values() for name, version in packages.items()}

    def range(self, package: str) -> str:
        """Where a package may be; empty: the release doesn't know it."""
        if waiver := next((waiver for waiver in self.waivers if waiver.package == package), None):
            return waiver.range
        version = self.began_with.get(package)
        return bound(version, self.reach.get(package, Reach.patch)) if version else ""


class Forbidden(RefitError):
    """A lock that moves what its release holds, or brings what it doesn't know."""


def bounds(release: Release, bundle: str, python: str) -> Bounds | None:
    """How far a release lets the packages of a bundle's lock move; none: it isn't cut, or began without that lock."""
    first = release.pins.began_with(bundle, python)
    return Bounds(release.name, first, release.pins.reach, release.pins.waivers) if first else None


def bound(version: str, reach: Reach) -> str:
    """The versions to which a package may move that began with this one, e.g. `==2.32.*,>=2.32.5`."""
    began = Version(version)
    numbers = {Reach.patch: 2, Reach.minor: 1, Reach.any: 0}[reach]
    epoch = f"{began.epoch}!" if began.epoch else ""
    kept = ".".join(str(number) for number in (*began.release, 0)[:numbers])
    return f"=={epoch}{kept}.*,>={began.public}" if kept else f">={began.public}"


def is_calendar(version: str) -> bool:
    """Whether a version begins with a year: its numbers say when it was made, and not what has changed."""
    return 1990 <= Version(version).release[0] < 2200


def bounded(
    pipfile: Mapping[str, Any],
    categories: Sequence[str],
    bounds: Bounds,
    astray: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """The text of the Pipfile that is locked in the place of a bundle's own.

    A package is named in every category that has it: pipenv resolves each by itself, and passes on what came out of
    the first one alone.

    Args:
        pipfile: the bundle's own, as plain data.
        categories: which of its sections hold packages.
        bounds: how far each package may move.
        astray: category → packages that nobody names, to be held within their exceptions all the same.
    """
    requirements = {category: _narrowed(pipfile[category], bounds) for category in categories}
    for category, packages in (*bounds.first.items(), *astray.items()):
        section = requirements.setdefault(category if category in categories else FIRST_CATEGORY, {})
        named = {_plain(name) for name in section}
        section.update((name, bounds.range(name)) for name in packages if name not in named)
    return as_text({**pipfile, **requirements})


def astray(bounds: Bounds, now: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """The packages that are out of their exceptions because nobody names them: new ones, that only others need.

    Such a package can't be named before: whether it is needed at all shows only when all is resolved.

    Args:
        bounds: how far packages may move.
        now: category → package → version of what was resolved.

    Returns:
        category → those of its packages; empty: there are none.
    """
    new = {waiver.package for waiver in bounds.waivers} - bounds.began_with.keys()
    violations: dict[str, tuple[str, ...]] = {}
    for category, packages in now.items():
        names = sorted(name for name in new & packages.keys() if not _admits(bounds.range(name), packages[name]))
        violations |= {category: tuple(names)} if names else {}
    return violations


def check(bounds: Bounds, now: Mapping[str, str]) -> None:
    """Hold a lock (package → version) against its bounds.

    Raises:
        Forbidden: a package is out of them, or new.
    """
    ranges = {name: bounds.range(name) for name in sorted(now)}
    out = {name: text for name, text in ranges.items() if text and not _admits(text, now[name])}
    new = [name for name, text in ranges.items() if not text]
    if not out and not new:
        return
    lines = [
        *(f"  {name} would be {now[name]}, but may be {text}" for name, text in out.items()),
        *(f"  {name} {now[name]} would be new" for name in new),
    ]
    examples = [f"  - {_example(name, now[name])}" for name in (*out, *new)]
    raise Forbidden(
        f"Release {bounds.release} forbids this lock: inside a release only patches move.",
        why="\n".join(lines),
        hint="\n".join(
            (
                f"change the Pipfile; or except it in releases/{bounds.release}.yaml, with a reason and a last day:",
                "exceptions:",
                *examples,
            )
        ),
    )


def held(bounds: Bounds, now: Mapping[str, str], free: Mapping[str, str]) -> LockChange:
    """The changes of a lock without bounds that its release doesn't allow.

    Args:
        bounds: how far packages may move.
        now: package → version of the lock within them.
        free: the same of one without them.
    """
    changes = change(now, free)
    moved = {name: move for name, move in changes.moved.items() if not _admits(bounds.range(name), move[1])}
    return LockChange(moved, {name: version for name, version in changes.added.items() if not bounds.range(name)}, {})


def _plain(name: str) -> str:
    """A package's name as locks know it, without the extras that a Pipfile may write behind it."""
    return canonicalize_name(name.partition("[")[0])


def _admits(text: str, version: str) -> bool:
    return SpecifierSet(text).contains(version, prereleases=True)


def _example(name: str, version: str) -> str:
    return f'{{package: {name}, range: "{bound(version, Reach.patch)}", reason: …, expires: YYYY-MM-DD}}'


def _narrowed(packages: Mapping[str, Any], bounds: Bounds) -> dict[str, Any]:
    """The requirements of a section, within bounds. An exception is the release's last word, so it stands alone."""
    narrowed: dict[str, Any] = {}
    excepted = {waiver.package for waiver in bounds.waivers}
    for name, requirement in packages.items():
        plain = _plain(name)
        own = requirement.get("version", "*") if isinstance(requirement, Mapping) else requirement
        parts = [bounds.range(plain)] if plain in excepted else [bounds.range(plain), own]
        version = ",".join(part for part in parts if part not in ("", "*")) or "*"
        narrowed[name] = {**requirement, "version": version} if isinstance(requirement, Mapping) else version
    return narrowed
