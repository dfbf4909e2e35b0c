"""Release files: the profiles of a release, and whether all of their parts are there. Pure: files are read already."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from flows.catalog import tag
from flows.catalog.model import (
    Catalog,
    CudaName,
    HomePath,
    Mount,
    Name,
    Only,
    Profile,
    PythonName,
    Release,
    Resources,
    Size,
)
from flows.catalog.pins import FirstLock, PackageName, Pins, Reach, Waiver
from flows.core import documents
from flows.core.cron import Schedule
from flows.core.documents import Document, Mistake
from flows.core.settings.policy import SessionPolicy


class Choice(Document):
    """One profile of a release, as it is written in the release's file."""

    ide: Name
    bundle: Name
    os: Name
    python: PythonName
    cuda: CudaName | Literal[""] = Field("", description="Level of CUDA that it has, e.g. runtime; empty: none.")
    size_budget: Size | None = Field(None, description="How large its image may be (compressed), e.g. 450 MB.")
    migration: SessionPolicy = Field(SessionPolicy(), description="How its sessions are moved, if not as all others.")
    resources: Resources = Field(Resources(), description="Limits of each of its sessions on their machine.")
    volumes: tuple[Mount, ...] = Field(
        (), description="Volumes that its sessions have beside their homes: NAME:/path[:ro]."
    )
    secrets: tuple[HomePath, ...] = Field(
        (), max_length=100, description="Files and folders in a home that are one session's alone: clones lack them."
    )

    @property
    def stem(self) -> str:
        """The profile's stem."""
        return tag.stem(cuda=bool(self.cuda), ide=self.ide, bundle=self.bundle, os=self.os, python=self.python)


class ReleaseFile(Document):
    """`releases/<name>.yaml`."""

    release: str
    nightly: Schedule | None = Field(None, description="When its images are brought up to date: cron, in UTC.")
    supported_until: date | None = Field(None, description="The last day (UTC) on which they are; none: for ever.")
    cutoff: date | None = Field(None, description="Packages are locked as they were before that day (UTC).")
    migration: SessionPolicy = Field(SessionPolicy(), description="How sessions of all its profiles are moved.")
    profiles: tuple[Choice, ...] = Field(min_length=1)
    retired: Mapping[str, str] = Field(
        {}, description="Profiles that this release or an older one had, and which of this one takes the place of each."
    )
    reach: Mapping[PackageName, Reach] = Field({}, description="How far packages may move, if not by patches alone.")
    exceptions: tuple[Waiver, ...] = Field(
        (), description="Exceptions: packages that may leave the bounds of the first lock."
    )


def assemble(file: ReleaseFile, catalog: Catalog, first: FirstLock | None = None) -> Release:
    """The release that a file without mistakes describes; `first` is its first lock, if it is cut."""
    profiles = tuple(_profile(choice, file, catalog) for choice in file.profiles)
    pins = Pins(first, file.reach, file.exceptions)
    night = file.nightly or ""
    return Release(file.release, profiles, night, file.supported_until, pins, file.cutoff, dict(file.retired))


def _profile(choice: Choice, file: ReleaseFile, catalog: Catalog) -> Profile:
    return Profile(
        stem=choice.stem,
        release=file.release,
        cuda_level=choice.cuda,
        ide=catalog.ides[choice.ide],
        bundle=catalog.bundles[choice.bundle],
        base=catalog.bases[choice.os],
        python=choice.python,
        size_budget=choice.size_budget,
        migration=choice.migration.over(file.migration),
        resources=choice.resources,
        volumes=choice.volumes,
        secrets=choice.secrets,
    )


def mistakes(
    path: Path, text: str, file: ReleaseFile, catalog: Catalog, names: Mapping[str, Collection[str]]
) -> Iterator[Mistake]:
    """Names in a release file that aren't there, or are there twice.

    Args:
        path: where the file lies.
        text: its content, from which the lines are told.
        file: the same, read.
        catalog: the recipes that have no mistakes.
        names: `ide`, `bundle` and `os` → the names of all recipes of that kind, with mistakes or without.
    """
    node = documents.compose(text, path)
    yield from _misnamed(path, documents.line_of(node, ("release",)), file.release)
    yield from _excepted_twice(path, node, file.exceptions)
    yield from _lost(path, node, file)
    seen: dict[str, int] = {}
    for index, choice in enumerate(file.profiles):
        line = documents.line_of(node, ("profiles", index))
        if choice.stem in seen:
            yield Mistake(path, line, f"{choice.stem} stands already in line {seen[choice.stem]}", "keep one of them")
        seen.setdefault(choice.stem, line)
        wrong = list(_missing(choice, catalog, names))
        near = nearest_possible(choice, catalog) if wrong else None
        nearest = f"; the nearest that is possible: {near.stem}" if near else ""
        for key, what, hint in wrong:
            yield Mistake(
                path, documents.line_of(node, ("profiles", index, key)), what, f"{hint}{nearest}".removeprefix("; ")
            )


def why_not(choice: Choice, catalog: Catalog) -> list[str]:
    """Why a profile can't be made, reason by reason; empty: it can."""
    names = {"ide": catalog.ides, "bundle": catalog.bundles, "os": catalog.bases}
    return [f"{what} ({hint})" if hint else what for _, what, hint in _missing(choice, catalog, names)]


def nearest_possible(choice: Choice, catalog: Catalog) -> Choice | None:
    """The profile that can be made and has most in common with one that can't; none: nothing can be made."""
    pythons = sorted({python for base in catalog.bases.values() for python in base.config.pythons})
    levels = ("", *(catalog.cuda.levels if catalog.cuda else ()))
    kinds = {"ide": catalog.ides, "bundle": catalog.bundles, "os": catalog.bases, "python": pythons, "cuda": levels}
    every = [Choice.model_validate(dict(zip(kinds, names, strict=True))) for names in product(*kinds.values())]

    def distance(other: Choice) -> tuple[int, list[bool]]:
        """CUDA is changed first, then the Python, then the system: people give them up most easily in this order."""
        changed = [getattr(choice, kind) != getattr(other, kind) for kind in kinds]
        return sum(changed), changed

    return next((other for other in sorted(every, key=distance) if not why_not(other, catalog)), None)


def _excepted_twice(path: Path, node: yaml.Node | None, waivers: Iterable[Waiver]) -> Iterator[Mistake]:
    """A package may be in one range only: of two, nobody could tell which one holds."""
    seen: dict[str, int] = {}
    for index, waiver in enumerate(waivers):
        line = documents.line_of(node, ("exceptions", index))
        if waiver.package in seen:
            what = f"{waiver.package} is excepted already in line {seen[waiver.package]}"
            yield Mistake(path, line, what, "keep one of them, with a range that says all")
        seen.setdefault(waiver.package, line)


def _lost(path: Path, node: yaml.Node | None, file: ReleaseFile) -> Iterator[Mistake]:
    """Retired profiles that are there, or that lead to none: nobody would be led on a second time."""
    stems = {choice.stem for choice in file.profiles}
    for old, new in file.retired.items():
        line = documents.line_of(node, ("retired", old))
        if old in stems:
            yield Mistake(path, line, f"{old} is retired, and among the profiles", "take it out of one of them")
        if new not in stems:
            yield Mistake(path, line, f"{old} leads to {new!r}, which is no profile here", nearest(new, stems))


def _misnamed(path: Path, line: int, release: str) -> Iterator[Mistake]:
    if not tag.is_release(release):
        yield Mistake(path, line, f"{release!r} is not a year and a letter", "write 2026a, for instance")
    elif release != path.stem:
        yield Mistake(path, line, f"the release {release!r} is not called like its file", f"write {path.stem!r}")


def _missing(choice: Choice, catalog: Catalog, names: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str, str]]:
    """The key in the file, what is wrong with its value, and how to mend it."""
    for kind in ("ide", "bundle", "os"):
        name = getattr(choice, kind)
        if name not in names[kind]:
            yield kind, f"there is no {kind} {name!r}", nearest(name, names[kind])
    base, bundle, ide = catalog.bases.get(choice.os), catalog.bundles.get(choice.bundle), catalog.ides.get(choice.ide)
    if base and choice.python not in base.config.pythons:
        yield "python", f"{base.name} has no {choice.python!r}", nearest(choice.python, base.config.pythons)
    if bundle and choice.python not in bundle.pythons:
        yield "python", f"bundle {bundle.name} has no {choice.python!r}", nearest(choice.python, bundle.pythons)
    elif bundle and ide and ide.config.category and ide.config.category not in bundle.categories[choice.python]:
        pipfile = bundle.pythons[choice.python] / "Pipfile"
        yield "ide", f"{pipfile} has no [{ide.config.category}] for the packages of this IDE", "add that section"
    levels = catalog.cuda.levels if catalog.cuda else {}
    if choice.cuda and choice.cuda not in levels:
        yield "cuda", f"there is no level {choice.cuda!r} of CUDA", nearest(choice.cuda, levels)
    elif choice.cuda and catalog.cuda:
        yield from _unfit(choice, "CUDA", catalog.cuda.only)
    for recipe, rules in ((ide, ide and ide.config.only), (bundle, bundle and bundle.only)):
        yield from _unfit(choice, recipe.name if recipe else "", rules or ())


def _unfit(choice: Choice, owner: str, rules: Iterable[Only]) -> Iterator[tuple[str, str, str]]:
    """Parts of a profile that don't go with one of its recipes, by the rules of that recipe."""
    for rule in rules:
        for kind in ("ide", "bundle", "os", "python", "cuda"):
            if (allowed := getattr(rule, kind)) and getattr(choice, kind) not in allowed:
                words = " or ".join(name or "none" for name in allowed)
                yield kind, f"{owner} goes only with {kind} {words}: {rule.because}", ""


def nearest(name: str, choices: Collection[str]) -> str:
    """How to mend a name that is not known."""
    near = get_close_matches(name, choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(choices) or 'none'}"
