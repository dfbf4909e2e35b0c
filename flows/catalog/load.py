"""Finds all recipes and releases below a folder, and all mistakes in them at once.

Nothing is listed in code: a recipe is there because its folder is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from flows import documents
from flows.catalog import release as releases
from flows.catalog import tag
from flows.catalog.model import (
    Base,
    BaseConfig,
    Bundle,
    Catalog,
    Ide,
    IdeConfig,
    Profile,
    Release,
    python_version,
)
from flows.catalog.release import ReleaseFile, nearest
from flows.documents import Document, Mistake, Mistakes
from flows.errors import UnknownName

# The folders of a catalog.
PARTS = ("base", "bundles", "ides", "snippets", "releases")
_NUMBERED = re.compile(r"([0-9]+)-(.+)")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")
_PYTHON = re.compile(r"py3[0-9]+")
_NO_CATEGORY = {"source", "requires", "scripts", "pipfile", "pipenv"}

Recipe = TypeVar("Recipe", Base, Bundle, Ide)
Model = TypeVar("Model", bound=Document)


def load_catalog(root: Path) -> Catalog:
    """All recipes and releases below `root`.

    Raises:
        Mistakes: whatever is wrong in any of them.
    """
    found = _Finder()
    bases = found.recipes(_named(root / "base"), found.base)
    bundles = found.recipes(found.numbered(root / "bundles"), found.bundle)
    ides = found.recipes(found.numbered(root / "ides"), found.ide)
    catalog = Catalog(root, _whole(bases), _whole(bundles), _whole(ides), releases={})
    files = found.releases(root / "releases", catalog, {"ide": ides, "bundle": bundles, "os": bases})
    if found.mistakes:
        raise Mistakes(found.mistakes)
    return replace(catalog, releases={file.release: releases.assemble(file, catalog) for file in files})


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


def _named(path: Path) -> list[tuple[str, Path]]:
    return [(folder.name, folder) for folder in _folders(path)]


class _Finder:
    """Reads folders and files, and remembers each mistake instead of stopping at it."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def wrong(self, file: Path, line: int, what: str, fix: str = "") -> None:
        self.mistakes.append(Mistake(file, line, what, fix))

    def numbered(self, path: Path) -> list[tuple[str, Path]]:
        """The recipes of a folder in the order of their numbers, which are no part of their names."""
        found: list[tuple[int, str, Path]] = []
        for folder in _folders(path):
            if match := _NUMBERED.fullmatch(folder.name):
                found.append((int(match[1]), match[2], folder))
            else:
                self.wrong(folder, 0, "this folder has no number", f"call it 1-{folder.name}: its place in menus")
        return [(name, folder) for _, name, folder in sorted(found)]

    def recipes(
        self, folders: Iterable[tuple[str, Path]], read: Callable[[str, Path], Recipe | None]
    ) -> dict[str, Recipe | None]:
        """Name → recipe, in the order of menus; none in the place of one that has mistakes."""
        found: dict[str, Recipe | None] = {}
        for name, folder in folders:
            if not tag.is_name(name):
                self.wrong(folder, 0, f"the name {name!r} has something other than a-z and 0-9", "rename the folder")
            elif name in found:
                self.wrong(folder, 0, f"there is another recipe {name!r} beside this one", "rename one of the two")
            else:
                before = len(self.mistakes)
                recipe = read(name, folder)
                found[name] = recipe if len(self.mistakes) == before else None
        return found

    def base(self, name: str, folder: Path) -> Base | None:
        self.entries(folder, {"base.yaml", "base.snippet.j2", "display.txt", "files", "os-packages.txt"})
        self.present(folder / "base.snippet.j2")
        packages, display = self.packages(folder / "os-packages.txt"), self.display(folder)
        config = self.document(folder / "base.yaml", BaseConfig)
        return Base(name, folder, display, config, packages) if config else None

    def bundle(self, name: str, folder: Path) -> Bundle:
        pythons = {path.name: path for path in _folders(folder) if _PYTHON.fullmatch(path.name)}
        self.entries(folder, {"custom", "display.txt", "os", *pythons})
        if not pythons:
            self.wrong(folder, 0, "there is no folder for any Python", "add py311/ with a Pipfile")
        if (folder / "custom").is_dir():
            self.present(folder / "custom" / "custom.snippet.j2")
        packages = self.packages(folder / "os" / "os-packages.txt") if (folder / "os").is_dir() else ()
        categories = {python: self.pipfile(path / "Pipfile", python) for python, path in pythons.items()}
        return Bundle(name, folder, self.display(folder), packages, pythons, categories)

    def ide(self, name: str, folder: Path) -> Ide | None:
        self.entries(folder, {"display.txt", "files", "ide.yaml", f"{name}.snippet.j2"})
        self.present(folder / f"{name}.snippet.j2")
        display, config = self.display(folder), self.document(folder / "ide.yaml", IdeConfig)
        return Ide(name, folder, display, config) if config else None

    def releases(self, folder: Path, catalog: Catalog, names: Mapping[str, Collection[str]]) -> list[ReleaseFile]:
        files: list[ReleaseFile] = []
        for path in sorted(folder.glob("*.yaml")):
            if file := self.document(path, ReleaseFile):
                files.append(file)
                self.mistakes.extend(releases.mistakes(path, self.text(path), file, catalog, names))
        return files

    def entries(self, folder: Path, known: Collection[str]) -> None:
        """Refuses what nothing reads: it is a misspelt name, and would be missed in silence."""
        for path in folder.iterdir():
            if path.name not in known and not path.name.startswith("."):
                self.wrong(path, 0, "nothing reads this", nearest(path.name, sorted(known)))

    def present(self, path: Path) -> bool:
        if not path.is_file():
            self.wrong(path, 0, "this file is missing")
        return path.is_file()

    def text(self, path: Path) -> str:
        if self.present(path):
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                self.wrong(path, 0, f"this file can't be read: {error}")
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
            self.wrong(path, 0, "this must be one line of text", "write what menus show")
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
        text = self.text(path)
        try:
            content = documents.parse_toml(text, path)
        except Mistakes as error:
            self.mistakes.extend(error.mistakes)
            return ()
        required = content.get("requires")
        if text and (not isinstance(required, dict) or required.get("python_version") != python_version(python)):
            line = next((n for n, row in enumerate(text.splitlines(), 1) if row.startswith("python_version")), 0)
            wanted = f'python_version = "{python_version(python)}"'
            self.wrong(path, line, f"it must require the Python of its folder, {python}", f"below [requires]: {wanted}")
        if text and "source" not in content:
            self.wrong(path, 0, "it has no [[source]]", "say where packages come from")
        return tuple(name for name in content if name not in _NO_CATEGORY)
