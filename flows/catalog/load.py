"""Finds all recipes and releases below a folder, and all mistakes in them at once.

Nothing is listed in code: a recipe is there because its folder is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from flows.catalog import lineage, npm, tag, tree
from flows.catalog import release as releases
from flows.catalog.model import (
    Base,
    BaseConfig,
    Bundle,
    Catalog,
    CudaConfig,
    Ide,
    IdeConfig,
    Profile,
    Release,
    python_version,
)
from flows.catalog.pins import FirstLock, first_lock_file
from flows.catalog.release import ReleaseFile, nearest
from flows.core import documents
from flows.core.documents import Document, Mistake, Mistakes
from flows.core.errors import RefitError, UnknownName

CUDA = "cuda"  # in base/, but no operating system
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")
_PYTHON = re.compile(r"py3[0-9]+")
_OF_BUNDLES = ("packages", "builder")  # the categories that no IDE has
_NO_CATEGORY = {"source", "requires", "scripts", "pipfile", "pipenv"}

Recipe = TypeVar("Recipe", Base, Bundle, Ide)
Model = TypeVar("Model", bound=Document)


def load_catalog(root: Path) -> Catalog:
    """All recipes and releases below `root`.

    Raises:
        NoCatalog: none is there.
        Mistakes: all that are in any of them.
    """
    if not root.is_dir():
        tree.require(root)
    if odd := list(tree.mistakes(root)):
        raise Mistakes(odd)  # what follows walks and reads
    finder = _Finder()
    bases = finder.recipes(_named(root / "base", without=CUDA), finder.base)
    bundles = finder.recipes(finder.numbered(root / "bundles"), finder.bundle)
    ides = finder.recipes(finder.numbered(root / "ides"), finder.ide)
    finder.categories(_whole(bundles), ides)
    bundles = finder.extended(bundles)
    catalog = Catalog(
        root, _whole(bases), _whole(bundles), _whole(ides), releases={}, cuda=finder.cuda(root / "base" / CUDA)
    )
    names: dict[str, Collection[str]] = {"ide": ides, "bundle": bundles, "os": bases}
    finder.rules(catalog, names)
    files = finder.releases(root / "releases", catalog, names)
    firsts = {file.release: finder.first_lock(root, file.release) for file in files if tag.is_release(file.release)}
    if finder.mistakes:
        raise Mistakes(finder.mistakes)
    return replace(catalog, releases={f.release: releases.assemble(f, catalog, firsts[f.release]) for f in files})


def newest_release(root: Path) -> str:
    """The release that is meant where none is named; nothing is read of it.

    Raises:
        NoCatalog: `root` has no catalog.
        RefitError: the catalog below `root` has none.
    """
    if not (root / "releases").is_dir():
        tree.require(root)
    if names := [file.stem for file in (root / "releases").glob("*.yaml") if tag.is_release(file.stem)]:
        return max(names)
    raise RefitError(
        "There is no release.", why=f"{root / 'releases'} has no file of one.", hint="name one, or write one."
    )


def release(catalog: Catalog, name: str) -> Release:
    """A release by its name.

    Raises:
        UnknownName: there is none.
    """
    if name not in catalog.releases:
        raise UnknownName("release", name, catalog.releases, where=str(catalog.root / "releases"))
    return catalog.releases[name]


def profile(catalog: Catalog, release_name: str, stem: str) -> Profile:
    """A profile of a release by its stem, e.g. `jupyter-minimal-deb12-py311`.

    Raises:
        UnknownName: there is no such release, or the profile is not in it.
    """
    profiles = {profile.stem: profile for profile in release(catalog, release_name).profiles}
    if stem not in profiles:
        raise UnknownName("profile", stem, profiles, where=f"release {release_name}")
    return profiles[stem]


def _whole(recipes: Mapping[str, Recipe | None]) -> dict[str, Recipe]:
    return {name: recipe for name, recipe in recipes.items() if recipe is not None}


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def _named(path: Path, without: str) -> list[tuple[str, Path]]:
    return [(folder.name, folder) for folder in _folders(path) if folder.name != without]


def _line(text: str, start: str) -> int:
    """The first line that begins so, counted from 1; 1: none does."""
    return next((number for number, line in enumerate(text.splitlines(), 1) if line.startswith(start)), 1)


class _Finder:
    """Reads folders and files, and remembers each mistake instead of stopping at it."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def wrong(self, file: Path, line: int, what: str, hint: str = "") -> None:
        self.mistakes.append(Mistake(file, line, what, hint))

    def numbered(self, path: Path) -> list[tuple[str, Path]]:
        """The recipes of a folder in the order of their numbers, which are no part of their names."""
        numbered: list[tuple[int, str, Path]] = []
        for folder in _folders(path):
            if match := lineage.NUMBERED.fullmatch(folder.name):
                numbered.append((int(match[1]), match[2], folder))
            else:
                self.wrong(folder, 0, "this folder has no number", f"call it 1-{folder.name}: its place in menus")
        return [(name, folder) for _, name, folder in sorted(numbered)]

    def recipes(
        self, folders: Iterable[tuple[str, Path]], read: Callable[[str, Path], Recipe | None]
    ) -> dict[str, Recipe | None]:
        """Name → recipe, in the order of menus; none in the place of one that has mistakes."""
        recipes: dict[str, Recipe | None] = {}
        for name, folder in folders:
            if not tag.is_name(name):
                what = f"the name {name!r} has something other than a-z and 0-9, or more than 30 of these"
                self.wrong(folder, 0, what, "rename the folder")
            elif name in recipes:
                self.wrong(folder, 0, f"there is another recipe {name!r} beside this one", "rename one of the two")
            else:
                before = len(self.mistakes)
                recipe = read(name, folder)
                recipes[name] = recipe if len(self.mistakes) == before else None
        return recipes

    def base(self, name: str, folder: Path) -> Base | None:
        self.entries(folder, {"base.yaml", "base.snippet.j2", "display.txt", "files", "os-packages.txt"})
        self.present(folder / "base.snippet.j2")
        packages, display = self.packages(folder / "os-packages.txt"), self.display(folder)
        config = self.document(folder / "base.yaml", BaseConfig)
        return Base(name, folder, display, config, packages) if config else None

    def cuda(self, folder: Path) -> CudaConfig | None:
        """The levels of CUDA that stand on bases, if this catalog has any."""
        if not folder.is_dir():
            return None
        self.entries(folder, {"check.j2", "cuda.snippet.j2", "rpm.snippet.j2", "cuda.yaml", "files", "locks"})
        self.present(folder / "cuda.snippet.j2")
        config = self.document(folder / "cuda.yaml", CudaConfig)
        for lock in sorted({level.lock for level in config.levels.values() if level.lock} if config else ()):
            self.present(folder / "locks" / f"{lock}.txt")
        return config

    def bundle(self, name: str, folder: Path) -> Bundle:
        pythons = {path.name: path for path in _folders(folder) if _PYTHON.fullmatch(path.name)}
        self.entries(folder, {lineage.CONFIG, "builder", "custom", "display.txt", "os", *pythons})
        if not pythons:
            self.wrong(folder, 0, "there is no folder for any Python", "add py311/ with a Pipfile")
        if (folder / "custom").is_dir():
            self.present(folder / "custom" / "custom.snippet.j2")
        packages = self.packages(folder / "os" / "os-packages.txt") if (folder / "os").is_dir() else ()
        categories = {python: self.pipfile(path / "Pipfile", python) for python, path in pythons.items()}
        compilers = self.builder(folder / "builder") if (folder / "builder").is_dir() else ()
        return Bundle(name, folder, self.display(folder), packages, pythons, categories, compilers=compilers)

    def builder(self, folder: Path) -> tuple[str, ...]:
        """The system packages with which a bundle's Python packages are made that have no wheel."""
        self.entries(folder, {"builder.snippet.j2", "environment.txt", "os-packages.txt", "sources.txt"})
        self.present(folder / "sources.txt")
        return self.packages(folder / "os-packages.txt") if (folder / "os-packages.txt").exists() else ()

    def extended(self, bundles: Mapping[str, Bundle | None]) -> dict[str, Bundle | None]:
        """Bundles together with what they have of those that they extend."""
        return {name: bundle and self._with_ancestors(bundle, bundles) for name, bundle in bundles.items()}

    def _with_ancestors(self, bundle: Bundle, bundles: Mapping[str, Bundle | None]) -> Bundle | None:
        try:
            line = lineage.lineage(bundle.folder)
        except Mistakes as error:
            self.mistakes.extend(error.mistakes)
            return None
        parts = [part for part in bundles.values() if part and part.folder in line]
        for part in parts:
            for python in sorted(bundle.pythons.keys() - part.pythons):
                hint = f"add {part.folder.name}/{python}, or take this folder away"
                self.wrong(bundle.folder / python, 0, f"{part.name}, which it extends, has no {python}", hint)
        parts.sort(key=lambda part: line.index(part.folder))
        packages = tuple(dict.fromkeys(package for part in parts for package in part.packages))
        compilers = tuple(dict.fromkeys(package for part in parts for package in part.compilers))
        categories = {
            python: tuple(dict.fromkeys(name for part in parts for name in part.categories.get(python, ())))
            for python in bundle.pythons
        }
        only = tuple(rule for folder in line for rule in lineage.config(folder).only)
        return replace(bundle, packages=packages, categories=categories, only=only, lineage=line, compilers=compilers)

    def categories(self, bundles: Mapping[str, Bundle], ides: Mapping[str, Ide | None]) -> None:
        """Refuses a category that no IDE has: its packages would never be installed, and nobody would know."""
        categories = [*_OF_BUNDLES, *(ide.config.category for ide in _whole(ides).values() if ide.config.category)]
        if not all(ides.values()):
            return  # it may be that of one with mistakes
        for bundle in bundles.values():
            for python, names in bundle.categories.items():
                file = bundle.pythons[python] / "Pipfile"
                for name in (name for name in names if name not in categories):
                    line = _line(self.text(file), f"[{name}]")
                    self.wrong(file, line, f"no IDE has the category {name!r}", nearest(name, categories))

    def rules(self, catalog: Catalog, names: Mapping[str, Collection[str]]) -> None:
        """Refuses a rule that names what isn't there: it would forbid more than its author meant."""
        written = [(ide.folder / "ide.yaml", ide.config.only) for ide in catalog.ides.values()]
        written += [(b.folder / lineage.CONFIG, lineage.config(b.folder).only) for b in catalog.bundles.values()]
        for file, only in written:
            node = documents.compose(self.text(file), file) if only else None
            for index, rule in enumerate(only):
                for kind, members in names.items():
                    for name in sorted(set(getattr(rule, kind)) - set(members)):
                        line = documents.line_of(node, ("only", index, kind))
                        self.wrong(file, line, f"there is no {kind} {name!r}", nearest(name, members))

    def ide(self, name: str, folder: Path) -> Ide | None:
        self.entries(folder, {"display.txt", "files", "ide.yaml", "npm", "os", f"{name}.snippet.j2"})
        self.present(folder / f"{name}.snippet.j2")
        if (folder / "npm").is_dir():
            self.npm(folder / "npm")
        packages = self.packages(folder / "os" / "os-packages.txt") if (folder / "os").is_dir() else ()
        display, config = self.display(folder), self.document(folder / "ide.yaml", IdeConfig)
        return Ide(name, folder, display, config, packages) if config else None

    def npm(self, folder: Path) -> None:
        """Packages that npm installs have to be locked, each package with its hash."""
        self.entries(folder, {"npm.snippet.j2", "package.json", "package-lock.json"})
        self.present(folder / "package.json")
        lock = folder / "package-lock.json"
        if text := self.text(lock):
            self.mistakes.extend(npm.mistakes(lock, text))

    def releases(self, folder: Path, catalog: Catalog, names: Mapping[str, Collection[str]]) -> list[ReleaseFile]:
        files: list[ReleaseFile] = []
        for path in sorted(path for path in folder.glob("*") if path.suffix in (".yml", ".lock")):
            if not path.with_suffix(".yaml").exists():
                self.wrong(path, 0, "nothing reads this", f"a release is in {path.stem}.yaml")
        for path in sorted(folder.glob("*.yaml")):
            if file := self.document(path, ReleaseFile):
                files.append(file)
                self.mistakes.extend(releases.mistakes(path, self.text(path), file, catalog, names))
        return files

    def first_lock(self, root: Path, release: str) -> FirstLock | None:
        path = first_lock_file(root, release)
        return self.document(path, FirstLock) if path.exists() else None

    def entries(self, folder: Path, allowed: Collection[str]) -> None:
        """Refuses what nothing reads: it is a misspelt name, and would be missed in silence."""
        for path in folder.iterdir():
            if path.name not in allowed and not path.name.startswith("."):
                self.wrong(path, 0, "nothing reads this", nearest(path.name, sorted(allowed)))

    def present(self, path: Path) -> bool:
        if not path.is_file():
            self.wrong(path, 0, "this file is missing")
        return path.is_file()

    def text(self, path: Path) -> str:
        if self.present(path):
            try:
                return documents.bounds.read_text(path)
            except (OSError, UnicodeDecodeError) as error:
                self.mistakes.append(documents.unreadable(path, error))
        return ""

    def document(self, path: Path, model: type[Model]) -> Model | None:
        try:
            return documents.read(path, model)
        except Mistakes as error:
            self.mistakes.extend(error.mistakes)
            return None

    def display(self, folder: Path) -> str:
        path = folder / "display.txt"
        lines = self.text(path).strip().splitlines()
        if path.is_file() and len(lines) != 1:
            self.wrong(path, 1, "this must be one line of text", "write what menus show")
        return lines[0] if lines else ""

    def packages(self, path: Path) -> tuple[str, ...]:
        """System packages, one a line; `#` begins a comment."""
        seen: dict[str, int] = {}
        for number, line in enumerate(self.text(path).splitlines(), start=1):
            name = line.partition("#")[0].strip()
            if name and not _PACKAGE.fullmatch(name):
                self.wrong(
                    path, number, f"{name!r} is not the name of a package", "one name a line; # begins a comment"
                )
            elif name in seen:
                self.wrong(path, number, f"{name!r} stands already in line {seen[name]}", "keep one of them")
            elif name:
                seen[name] = number
        return tuple(seen)

    def pipfile(self, path: Path, python: str) -> tuple[str, ...]:
        """The categories of a Pipfile."""
        before = len(self.mistakes)
        text = self.text(path)
        is_valid = len(self.mistakes) == before
        try:
            content = documents.parse_toml(text, path)
        except Mistakes as error:
            self.mistakes.extend(error.mistakes)
            return ()
        required = content.get("requires")
        if is_valid and (not isinstance(required, dict) or required.get("python_version") != python_version(python)):
            line = _line(text, "python_version")
            line_of_python = f'python_version = "{python_version(python)}"'
            self.wrong(
                path, line, f"it must require the Python of its folder, {python}", f"below [requires]: {line_of_python}"
            )
        if is_valid and "source" not in content and not (path.parents[1] / lineage.CONFIG).exists():
            self.wrong(path, 1, "it has no [[source]]", "say where packages come from")
        return tuple(name for name in content if name not in _NO_CATEGORY)
