"""Facts about the changes by hand in a session, before anything is decided: plain data. Pure.

All texts were written by others: they are data until `packages` has checked them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OWN = "."  # the path by which the packages beside the image's own are called


class Source(StrEnum):
    """The kind of a thing that a person installed."""

    python = "Python package"
    system = "system package"
    environment = "environment"
    vscode = "VS Code extension"
    r = "R package"
    npm = "npm package"
    kernel = "Jupyter kernel"
    file = "file"


class Reason(StrEnum):
    """A code for why something is not captured."""

    not_chosen = "not-chosen"
    direct_url = "direct-url"
    unusable_name = "unusable-name"
    unreadable = "unreadable"
    unmarked = "unmarked"
    other_python = "other-python"
    in_bundle = "in-bundle"
    twice = "twice"
    not_in_index = "not-in-index"
    in_home = "in-home"
    too_large = "too-large"
    removed = "removed"
    out_of_bounds = "out-of-bounds"
    lost = "lost"


@dataclass(frozen=True)
class Package:
    """An installed Python package.

    Attributes:
        name: as its metadata say.
        version: as its metadata say.
        requested: whether its installer noted that a person asked for it (`REQUESTED`, PEP 376).
        installer: the program that installed it, as it says itself.
        needs: names of the packages that it needs, those of extras left out.
        extras: of what it needs for its extras alone: the extra, and the name of the package.
        url: where it came from, if that isn't an index.
        problem: why its metadata can't be read; empty: they can.
    """

    name: str
    version: str = ""
    requested: bool = False
    installer: str = ""
    needs: tuple[str, ...] = ()
    extras: tuple[tuple[str, str], ...] = ()
    url: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Place:
    """A folder of Python packages.

    Attributes:
        path: of the environment, below the home; `.` for the image's own packages; `.local` for those of `pip --user`.
        python: minor version of its Python, e.g. `3.11`; empty: unknown.
        packages: those in it.
    """

    path: str
    python: str
    packages: tuple[Package, ...] = ()


@dataclass(frozen=True)
class Installed:
    """Everything of a session that a capture looks at.

    Attributes:
        python: minor version of the image's Python.
        places: folders of Python packages: the image's first, then those of the home.
        system: system packages that were installed by name; none: the package manager doesn't tell.
        others: kind → names of what lies in the home.
        missed: why not everything was looked at.
    """

    python: str
    places: tuple[Place, ...] = ()
    system: tuple[str, ...] | None = None
    others: Mapping[Source, tuple[str, ...]] = field(default_factory=dict)
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """The image of a session, and the bundle that it is made of.

    Attributes:
        bundle: name of the bundle.
        python: its folder for the image's Python, e.g. `py311`.
        distributions: Python packages of the image: name → version.
        system: system packages of the image: name → version.
        said: names that the Pipfiles of the bundle, or of those that it extends, ask for.
    """

    bundle: str
    python: str
    distributions: Mapping[str, str]
    system: Mapping[str, str]
    said: frozenset[str]


@dataclass(frozen=True)
class Choice:
    """The word of a person on what is taken only if they say so.

    Attributes:
        name: of the new bundle.
        environments: paths of environments of the home.
        files: path → content of files below /etc and /usr/local.
    """

    name: str
    environments: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Left:
    """Something that is not captured: its kind, its name, the code of the reason, and more about that in words."""

    source: Source
    name: str
    reason: Reason
    why: str = ""


@dataclass(frozen=True)
class Capture:
    """The content of a bundle beyond the one that it extends.

    Attributes:
        name: of the bundle.
        extends: the bundle that it extends.
        python: the folder of its Pipfile, e.g. `py311`.
        packages: canonical name → what its Pipfile asks for, e.g. `~=2.1.0`.
        system: names of system packages.
        files: path → content of files.
        left: all that is not captured, with reasons.
        extras: canonical name → its extras, of those packages that have some.
    """

    name: str
    extends: str
    python: str
    packages: Mapping[str, str]
    system: tuple[str, ...]
    files: Mapping[str, bytes]
    left: tuple[Left, ...]
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.packages or self.system or self.files)
