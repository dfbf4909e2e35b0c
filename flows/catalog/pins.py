"""Version rules of a release: the versions that it began with, how far each package may move, and the exceptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from flows.core import documents
from flows.core.documents import Document, Mistake
from flows.core.lazily import lazily

with lazily(globals()):
    from packaging.specifiers import SpecifierSet
    from packaging.utils import canonicalize_name
    from packaging.version import Version


def _version(text: str) -> str:
    Version(text)
    return text


def _canonical(name: str) -> str:
    return canonicalize_name(name)


def _range(text: str) -> str:
    SpecifierSet(text)
    return text


PackageName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"), AfterValidator(_canonical)
]
ExactVersion = Annotated[str, AfterValidator(_version)]
Range = Annotated[str, StringConstraints(min_length=1), AfterValidator(_range)]
Packages = Mapping[PackageName, ExactVersion]


class Reach(StrEnum):
    """How far a package may move while a release lives: its third number and what follows, its second, anything."""

    patch = "patch"
    minor = "minor"
    any = "any"


class Waiver(Document):
    """An exception of a release: a package that may be somewhere else than its first lock says, why, and how long."""

    package: PackageName
    range: Range = Field(description='Versions that it may have, e.g. ">=2.7,<3".')
    reason: str = Field(min_length=1, description="Why: the number of a CVE, for instance.")
    expires: date = Field(description="The last day (UTC) on which this holds.")


class FirstLock(Document):
    """`releases/<name>.lock`: bundle → Python → category → package → the version that the release began with."""

    bundles: Mapping[str, Mapping[str, Mapping[str, Packages]]] = {}


@dataclass(frozen=True)
class Pins:
    """The version rules of a release.

    Attributes:
        first: the versions that it began with; none: it isn't cut yet, and everything may move.
        reach: package → how far it may move; the others move by patches.
        waivers: the exceptions.
    """

    first: FirstLock | None = None
    reach: Mapping[str, Reach] = field(default_factory=dict)
    waivers: tuple[Waiver, ...] = ()

    def began_with(self, bundle: str, python: str) -> Mapping[str, Mapping[str, str]]:
        """Category → package → version of a bundle's first lock; empty: it has none yet, and everything may move."""
        return self.first.bundles.get(bundle, {}).get(python, {}) if self.first else {}


def first_lock_file(root: Path, release: str) -> Path:
    """Where a release's first lock is written down, in the catalog below `root`."""
    return root / "releases" / f"{release}.lock"


def expired(path: Path, text: str, waivers: tuple[Waiver, ...], on: date) -> Iterator[Mistake]:
    """The exceptions of a release file that no longer hold on that day, with their lines; `text` stands in `path`."""
    node = documents.compose(text, path)
    for number, waiver in enumerate(waivers):
        if waiver.expires < on:
            line = documents.line_of(node, ("exceptions", number, "expires"))
            what = f"the exception for {waiver.package} ({waiver.reason}) held until {waiver.expires}"
            yield Mistake(path, line, what, "take it out, or give it another day for a good reason")
