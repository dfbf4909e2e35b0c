"""Their recipes, and what the new catalog makes of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from flows.authoring.importing.bundles import MINIMAL
from flows.authoring.importing.checkout import containerfiles, text_in
from flows.authoring.importing.containerfile import instructions
from flows.authoring.importing.pipfiles import unlock
from flows.authoring.importing.report import Adoption, Recipe
from flows.catalog import choices, edit, load, tag
from flows.catalog.model import Base, Catalog
from flows.catalog.release import ReleaseFile, assemble, why_not
from flows.catalog.tag import ForeignTag
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.images.recipe import Assembler
from flows.locks import python

_THEIR_CUDA = "runtime-cudnn"  # what their images with CUDA stand on


_CUDA_VERSION = re.compile(r"^ENV CUDA_VERSION[ =](\S+)")


class Recipes:
    """Their recipes, and what the new catalog makes of them."""

    def __init__(
        self,
        checkout: Path,
        own: Catalog,
        ides: Mapping[str, str],
        bundles: Mapping[str, str],
        cuda: str,
        made: Adoption,
    ) -> None:
        self._checkout, self._own, self._ides, self._bundles, self._made = checkout, own, ides, bundles, made
        self._chosen, self._version = cuda, _their_cuda(checkout)
        self._found = {folder.name: self._parse(folder.name) for folder in sorted((checkout / "recipes").glob("*/"))}

    def _parse(self, name: str) -> ForeignTag | None:
        return tag.parse_foreign(name, self._ides, self._bundles)

    @property
    def release(self) -> str:
        """The newest release that one of them is of; empty: there is none."""
        return max((one.release for one in self._found.values() if one), default="")

    def prepare(self) -> None:
        """Give each Pipfile the categories that IDEs of recipes need; which of them are locked is another matter."""
        users: dict[tuple[str, str], list[ForeignTag]] = {}
        for one in filter(None, self._found.values()):
            users.setdefault((one.bundle, one.python), []).append(one)
        for (bundle, version), recipes in users.items():
            [folder] = (self._made.catalog / "bundles").glob(f"*-{self._bundles[bundle]}")
            if (folder / version / "Pipfile").is_file():
                self._add_categories(folder / version, recipes)

    def _add_categories(self, folder: Path, recipes: Iterable[ForeignTag]) -> None:
        """Add what a Pipfile lacks, but for a lock that other recipes can do with as it is."""
        where = folder.relative_to(self._made.catalog)
        there = text_in(folder / "Pipfile").splitlines()
        needed = {one.ide: self._category(one.ide) for one in recipes}
        missing = {ide: category for ide, category in needed.items() if category and f"[{category}]" not in there}
        held = (folder / "Pipfile.lock").is_file() and len(missing) < len(needed)
        for category in dict.fromkeys(missing.values()):
            ides = ", ".join(ide for ide, its in missing.items() if its == category)
            lines = section(self._own, f"[{category}]")
            if held:
                added = f"add to it {' '.join(lines.split())}" if lines else "add it"
                others = ", ".join(sorted(needed.keys() - missing.keys()))
                what = (
                    f"lacks [{category}], which {ides} needs: its lock stays for {others}; {added}, and lock it again"
                )
                self._made.note(where, what)
            elif lines:
                self._append(folder, lines)
                self._made.note(where, f"got [{category}] of Refit's bundle {MINIMAL}, which {ides} needs: lock it")

    def _category(self, ide: str) -> str:
        """The section of a Pipfile that an IDE needs; empty: none."""
        own = self._own.ides.get(self._ides[ide])
        return own.config.category if own else ""

    def _append(self, folder: Path, lines: str) -> None:
        """Add a section to a Pipfile, which no lock fits any more."""
        write_whole(folder / "Pipfile", f"{text_in(folder / 'Pipfile').rstrip()}\n\n{lines}")
        unlock(folder)

    def judged(self, catalog: Catalog) -> list[Recipe]:
        """The outcome for each of them."""
        possible, assembler = list(choices.possible(catalog)), Assembler(catalog, _as_listed)
        return [self._judged(name, one, catalog, possible, assembler) for name, one in self._found.items()]

    def _judged(
        self,
        name: str,
        one: ForeignTag | None,
        catalog: Catalog,
        possible: Collection[Mapping[str, str]],
        assembler: Assembler,
    ) -> Recipe:
        if one is None:
            return Recipe(name, why="its name isn't that of a profile")
        if one.cuda and (why := self._other_cuda(catalog)):
            return Recipe(name, why=why)
        asked = {"os": one.os, "python": one.python, "bundle": self._bundles[one.bundle], "ide": self._ides[one.ide]}
        asked["cuda"] = self._level(name, one, catalog) if one.cuda else choices.NONE
        line = edit.flow(choices.written(asked))
        level = asked["cuda"] if one.cuda else ""
        if asked not in possible:
            return Recipe(name, line, level, "; ".join(why_not(choices.choice(asked), catalog)))
        why = self._lacks(one) or _obstacle(assembler, catalog, asked, self.release)
        return Recipe(name, line, level, why)

    def _level(self, name: str, one: ForeignTag, catalog: Catalog) -> str:
        """The level of Refit's CUDA that an image stands on: the lowest, where its Python packages bring their own."""
        levels = catalog.cuda.levels if catalog.cuda else {}
        chosen, lowest = self._chosen or _THEIR_CUDA, next((name for name in levels if not levels[name].above), "")
        folder = catalog.bundles[self._bundles[one.bundle]].pythons.get(one.python)
        brought = _brought(python.locked(folder) if folder else {})
        if not brought or not lowest or chosen == lowest:
            return chosen
        theirs, place = self._version
        beside = f" Programs that look for CUDA {theirs} beside them ({place}) don't find it." if theirs else ""
        what = f"stands on `cuda: {lowest}`: its Python packages bring a CUDA of their own ({brought}).{beside}"
        self._made.note(f"recipes/{name}", what)
        return lowest

    def _other_cuda(self, catalog: Catalog) -> str:
        """Why nobody has chosen a CUDA for their images with it; empty: it is clear."""
        ours = catalog.cuda.version if catalog.cuda else "none"
        theirs, place = self._version
        if self._chosen or (theirs and theirs.partition(".")[0] == ours.partition(".")[0]):
            return ""
        levels = ", ".join(catalog.cuda.levels) if catalog.cuda else ""
        had = f"it stands on CUDA {theirs} ({place})" if theirs else "nobody knows which CUDA it stands on"
        return f"{had}, and Refit's is {ours}: choose a level by --cuda, of {levels}"

    def _lacks(self, one: ForeignTag) -> str:
        """Why an image with that bundle would not be what it was; empty: it would be."""
        places = self._made.incomplete.get(one.bundle)
        return f"what its bundle installs did not come over: {' and '.join(places)}" if places else ""


def _their_cuda(checkout: Path) -> tuple[str, str]:
    """The version of CUDA that their images have, and the place where it stands; empty: nobody knows."""
    for file in containerfiles(checkout.glob("cuda-layer/**/*")):
        for line, text in instructions(text_in(file)):
            if found := _CUDA_VERSION.match(text):
                return found[1], f"{file.relative_to(checkout).as_posix()}:{line}"
    return "", ""


def _brought(versions: Mapping[str, str]) -> str:
    """The Python package that says best which CUDA comes with a lock's packages, and its version; empty: none does."""
    for name, version in versions.items():
        if name.startswith("nvidia-cuda-runtime") or re.search(r"\+cu\d+$", version):
            return f"{name} {version}"
    return ""


def section(own: Catalog, header: str) -> str:
    """A section of the Pipfile of Refit's smallest bundle; empty: that has none."""
    for folder in own.bundles[MINIMAL].pythons.values() if MINIMAL in own.bundles else ():
        lines = text_in(folder / "Pipfile").splitlines()
        if header in lines:
            rest = lines[lines.index(header) + 1 :]
            end = next((at for at, line in enumerate(rest) if line.startswith("[")), len(rest))
            return "\n".join([header, *rest[:end]]).rstrip() + "\n"
    return ""


def write_release(recipes: Recipes, made: Adoption) -> None:
    """A release of the profiles that the recipes are for, as far as they can be assembled."""
    recipes.prepare()
    catalog = load.load_catalog(made.catalog)
    made.recipes += recipes.judged(catalog)
    if not (lines := list(dict.fromkeys(recipe.line for recipe in made.recipes if not recipe.why))):
        made.note("recipes", "no profile was found: write a release file, or add profiles by `refit wizard`")
        return
    text = "\n".join([f"release: {recipes.release}", "profiles:", *(f"  - {line}" for line in lines), ""])
    (made.catalog / "releases" / f"{recipes.release}.yaml").write_text(text, encoding="utf-8")
    load.load_catalog(made.catalog)


def _obstacle(assembler: Assembler, catalog: Catalog, answers: Mapping[str, str], release: str) -> str:
    """Why a profile can't be assembled; empty: it can, as far as its system packages can be had."""
    (profile,) = assemble(ReleaseFile(release=release, profiles=(choices.choice(answers),)), catalog).profiles
    try:
        assembler.chain(profile)
    except Mistakes as found:
        return "; ".join(f"{mistake.file.relative_to(catalog.root)}: {mistake.what}" for mistake in found.mistakes)
    except RefitError as error:
        return error.what
    return ""


def _as_listed(base: Base) -> tuple[str, ...]:
    """System packages without looking for them."""
    return tuple(f"{name}=0" for name in sorted(base.packages))
