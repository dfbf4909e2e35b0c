"""Decides which changes by hand become part of a bundle, and why others don't. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from flows.authoring.capture.facts import OWN, Capture, Choice, Given, Installed, Left, Package, Place, Reason, Source

MOST_NAMED = 200  # characters of a name that somebody else has written
MOST_FILE = 64 << 10  # bytes of a file that a bundle holds as text of an instruction
# It marks every package as asked for (seen with uv 0.13), so of its packages those count that no other one needs.
_MARKS_ALL = "uv"
# Each environment has them, whether or not a person asked for them.
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
_EXTRA = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9])?", re.ASCII)
# apt takes a name with a minus at its end for a package to be removed.
_SYSTEM = re.compile(r"[A-Za-z0-9]([A-Za-z0-9+._-]{0,126}[A-Za-z0-9+._])?", re.ASCII)
_FILE = re.compile(r"/(etc|usr/local)(/[A-Za-z0-9._+-]+)+", re.ASCII)
_IN_HOME = "it lies in the home, which moves along with the session"


def decide(installed: Installed, given: Given, choice: Choice, files: Iterable[str] = ()) -> Capture:
    """Decide what of a session becomes part of a bundle.

    Args:
        installed: the installed packages and files that were seen in the session.
        given: its image and its bundle.
        choice: the person's choice.
        files: files and folders outside of the home that were made or changed by hand.
    """
    packages, left = _python(installed, given, choice)
    places = [place for place in installed.places if not _passed_over(place, installed, choice)]
    extras = {name: some for place in places for name, some in extras_of(place.packages, given.distributions).items()}
    system, others = _system(installed, given)
    taken, unused = _files(choice, files)
    left += [*others, *unused, *_in_home(installed)]
    left += [Left(Source.environment, "the home", Reason.out_of_bounds, why) for why in installed.missed]
    clipped = (replace(change, name=change.name[:MOST_NAMED], why=change.why[:MOST_NAMED]) for change in left)
    return Capture(
        choice.name,
        given.bundle,
        given.python,
        dict(sorted(packages.items())),
        system,
        taken,
        tuple(clipped),
        {name: extras[name] for name in sorted(packages) if name in extras},
    )


def specifier(version: str) -> str:
    """The versions that a Pipfile asks for of a package that was there in this one: later fixes of it count, too.

    Raises:
        InvalidVersion: it is no version.
    """
    parsed = Version(version)
    if len(parsed.release) == 1:  # `~=5` says nothing
        return f"=={parsed.public}" if parsed.is_prerelease or parsed.is_postrelease else f"=={parsed.public}.*"
    return f"~={parsed.public}"


def wishes(packages: Iterable[Package]) -> tuple[dict[str, str], dict[str, str]]:
    """The packages of an environment that a person asked for.

    Returns canonical name → version of those that an index may have, and name → why of the others.
    """
    versions: dict[str, str] = {}
    others: dict[str, str] = {}
    for package in _asked_for(packages):
        try:
            name, _ = _asked(package)
        except _Unusable as error:
            others[package.name[:MOST_NAMED]] = error.why[:MOST_NAMED]
            continue
        if package.requested and name not in _TOOLS:
            if package.url:
                others[name] = f"it came from {package.url}"[:MOST_NAMED]
            else:
                versions[name] = package.version
    return versions, others


def extras_of(packages: Iterable[Package], image: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The extras with which packages were asked for: canonical name → extras.

    Nothing notes them. But a package that no person asked for, that no other one needs and that the image doesn't have
    came along with an extra: with one of which all is there, the smallest first.
    """
    readable = {str(canonicalize_name(package.name)): package for package in packages if not package.problem}
    needed = {str(canonicalize_name(need)) for package in readable.values() for need in package.needs}
    alone = {name for name, package in readable.items() if not package.requested} - needed - _TOOLS
    unexplained = alone - {str(canonicalize_name(name)) for name in image}
    chosen: dict[str, tuple[str, ...]] = {}
    for name, package in sorted(readable.items()):
        if not package.requested:
            continue
        for extra, needs in sorted(_by_extra(package).items(), key=lambda pair: (len(pair[1]), pair[0])):
            if needs & unexplained and needs <= readable.keys():
                unexplained -= needs
                chosen[name] = (*chosen.get(name, ()), extra)
    return chosen


def _by_extra(package: Package) -> dict[str, set[str]]:
    needs: dict[str, set[str]] = {}
    for extra, need in package.extras:
        if _EXTRA.fullmatch(extra):
            needs.setdefault(extra, set()).add(str(canonicalize_name(need)))
    return needs


def without(capture: Capture, names: Collection[str], reason: Reason, why: str) -> Capture:
    """A capture without these Python packages, which are told with the reason."""
    packages = {name: version for name, version in capture.packages.items() if name not in names}
    left = (Left(Source.python, name, reason, why) for name in sorted(capture.packages.keys() & {*names}))
    return replace(capture, packages=packages, left=(*capture.left, *left))


def missing_in(
    packages: Iterable[str], system: Iterable[str], python: Iterable[str], installed: Collection[str]
) -> tuple[Left, ...]:
    """The captured packages that an image doesn't have which was built of them: by name, since fixes may have come.

    Args:
        packages: canonical names of the captured Python packages.
        system: names of the captured system packages.
        python: names of the image's Python packages.
        installed: names of its system packages.
    """
    chosen_names = {str(canonicalize_name(name)) for name in python}
    lost = [Left(Source.python, name, Reason.lost) for name in packages if name not in chosen_names]
    return (*lost, *(Left(Source.system, name, Reason.lost) for name in system if name not in installed))


def _python(installed: Installed, given: Given, choice: Choice) -> tuple[dict[str, str], list[Left]]:
    packages: dict[str, str] = {}
    left: list[Left] = []
    image = {str(canonicalize_name(name)): version for name, version in given.distributions.items()}
    for place in installed.places:
        if problem := _passed_over(place, installed, choice):
            left.append(problem)
            continue
        for package in _asked_for(place.packages):
            _take(package, image, given, packages, left)
        if place.path != OWN and place.packages and not any(package.requested for package in place.packages):
            why = "its installer noted of no package that a person asked for it"
            left.append(Left(Source.environment, place.path, Reason.unmarked, why))
    return packages, left


def _passed_over(place: Place, installed: Installed, choice: Choice) -> Left | None:
    if place.path == OWN:
        return None
    if place.path not in choice.environments:
        why = f"{_count(place)} asked for; `--environment` takes them, and without it they stay in the home"
        return Left(Source.environment, place.path, Reason.not_chosen, why)
    if place.python != installed.python:
        why = f"it is of Python {place.python or '?'}, and the image has {installed.python}"
        return Left(Source.environment, place.path, Reason.other_python, why)
    return None


def _count(place: Place) -> str:
    number = sum(package.requested for package in place.packages)
    return "1 package was" if number == 1 else f"{number} packages were"


def _asked_for(packages: Iterable[Package]) -> Iterator[Package]:
    """The packages without those that only came along with others."""
    packages = tuple(packages)
    needed = {canonicalize_name(need) for other in packages for need in other.needs if not _same(need, other.name)}
    for package in packages:
        if package.installer != _MARKS_ALL or canonicalize_name(package.name) not in needed:
            yield package


def _same(one: str, other: str) -> bool:
    return canonicalize_name(one) == canonicalize_name(other)


def _take(package: Package, image: Mapping[str, str], given: Given, packages: dict[str, str], left: list[Left]) -> None:
    """Add a package to those that are captured, or to those that are left with the reason."""
    try:
        name, version = _asked(package)
    except _Unusable as error:
        left.append(Left(Source.python, package.name, error.reason, error.why))
        return
    if not package.requested or name in _TOOLS or image.get(name) == package.version:
        return
    if package.url:
        why = f"it came from {package.url}, and a bundle takes packages of an index alone"
        left.append(Left(Source.python, name, Reason.direct_url, why))
    elif name in given.said:
        why = f"{given.bundle} asks for it, and the session has {package.version}"
        left.append(Left(Source.python, name, Reason.in_bundle, why))
    elif packages.setdefault(name, version) != version:
        why = f"{packages[name]} is taken, and {package.version} is here, too"
        left.append(Left(Source.python, name, Reason.twice, why))


class _Unusable(Exception):
    """A package that no Pipfile could name."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason, self.why = reason, why


def _asked(package: Package) -> tuple[str, str]:
    """The canonical name of a package, and what a Pipfile asks for of it."""
    if package.problem:
        raise _Unusable(Reason.unreadable, package.problem)
    try:
        name, version = str(canonicalize_name(package.name, validate=True)), specifier(package.version)
    except (InvalidName, InvalidVersion):
        why = f"name or version {package.version!r} is none by Python's rules"
        raise _Unusable(Reason.unusable_name, why) from None
    if len(name) + len(version) > MOST_NAMED:
        raise _Unusable(Reason.unusable_name, "name and version are too long")
    return name, version


def _system(installed: Installed, given: Given) -> tuple[tuple[str, ...], list[Left]]:
    if installed.system is None:
        return (), [
            Left(Source.system, "all", Reason.unreadable, "the package manager doesn't tell what was asked for")
        ]
    new = sorted({*installed.system} - given.system.keys())
    good = tuple(name for name in new if _SYSTEM.fullmatch(name))
    why = "it is no name of a package"
    return good, [Left(Source.system, name, Reason.unusable_name, why) for name in new if name not in good]


def _files(choice: Choice, files: Iterable[str]) -> tuple[dict[str, bytes], list[Left]]:
    taken: dict[str, bytes] = {}
    left: list[Left] = []
    for path, content in sorted(choice.files.items()):
        if not is_file_name(path):
            why = "a bundle takes files below /etc and /usr/local whose path has letters, digits and ._+- alone"
            left.append(Left(Source.file, path, Reason.unusable_name, why))
        elif len(content) > MOST_FILE:
            left.append(Left(Source.file, path, Reason.too_large, f"a bundle holds {MOST_FILE >> 10} KiB of a file"))
        else:
            taken[path] = content
    below = [path for path in files if PurePosixPath(path).is_relative_to("/etc") or path.startswith("/usr/local/")]
    left += [
        Left(Source.file, path, Reason.not_chosen, "`--file` takes it") for path in below if path not in choice.files
    ]
    return taken, left


def is_file_name(path: str) -> bool:
    """Whether a file of this path may become part of a bundle."""
    return bool(_FILE.fullmatch(path)) and len(path) <= MOST_NAMED and not {".", ".."} & {*path.split("/")}


def _in_home(installed: Installed) -> list[Left]:
    return [
        Left(source, name, Reason.in_home, _IN_HOME) for source, names in installed.others.items() for name in names
    ]
