"""Their recipes, and what the new catalog makes of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from flows.authoring.importing import cuda
from flows.authoring.importing.bundles import MINIMAL
from flows.authoring.importing.checkout import Checkout
from flows.authoring.importing.originals import Originals, newest
from flows.authoring.importing.pipfiles import unlock
from flows.authoring.importing.report import Adoption, Recipe
from flows.catalog import choices, edit, load, tag
from flows.catalog.model import Base, Catalog
from flows.catalog.release import ReleaseFile, assemble, why_not
from flows.catalog.tag import ForeignTag
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes, bounds, text_of
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.images.recipe import Assembler
from flows.locks import python
from flows.locks.pipfile import read_pipfile


class Recipes:
    """Their recipes, and what the new catalog makes of them.

    Args:
        checkout: where they are.
        own: Refit's catalog.
        ides: their name → ours; bundles: the same.
        chosen: the level of Refit's CUDA that a person has chosen; empty: none.
        made: what is told.
    """

    def __init__(
        self,
        checkout: Checkout,
        own: Catalog,
        ides: Mapping[str, str],
        bundles: Mapping[str, str],
        chosen: str,
        made: Adoption,
    ) -> None:
        self._checkout, self._own, self._ides, self._bundles, self._made = checkout, own, ides, bundles, made
        self._chosen, self._originals = chosen, Originals(checkout, made)
        self._versions = cuda.versions(checkout, checkout.containerfiles("cuda-layer"))
        self._found = {name: self._parse(name) for name in checkout.folders("recipes")}

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
        there = read_pipfile(folder / "Pipfile").categories
        needed = {one.ide: self._category(one.ide) for one in recipes}
        missing = {ide: category for ide, category in needed.items() if category and category not in there}
        held = (folder / "Pipfile.lock").is_file() and len(missing) < len(needed)
        for category in dict.fromkeys(missing.values()):
            ides = ", ".join(sorted(ide for ide, its in missing.items() if its == category))
            lines = _section(self._own, f"[{category}]")
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
        text = text_of(folder / "Pipfile", bounds.TOML)
        write_whole(folder / "Pipfile", f"{text.rstrip()}\n\n{lines}")
        unlock(folder)

    def judged(self, catalog: Catalog) -> list[Recipe]:
        """The outcome for each of them."""
        possible, assembler = list(choices.possible(catalog)), Assembler(catalog, _as_listed)
        each = {name: self._judged(name, one, catalog, possible, assembler) for name, one in self._found.items()}
        there = {name: recipe.line for name, recipe in each.items() if not recipe.why}
        for older, newer in newest(there, there):
            each[older] = replace(each[older], why=f"{newer} is a newer one of the same profile")
        for name, one in self._found.items():
            if one and one.release != self.release and not each[name].why:
                self._made.note(f"recipes/{name}", f"is of release {one.release}, and in {self.release} here")
        return list(each.values())

    def _judged(
        self,
        name: str,
        one: ForeignTag | None,
        catalog: Catalog,
        possible: Collection[Mapping[str, str]],
        assembler: Assembler,
    ) -> Recipe:
        changed = self._originals.tell(name, one)
        if one is None:
            return Recipe(name, why="its name isn't that of a profile")
        if why := self._originals.why_another(name, one):
            return Recipe(name, why=why)
        if one.cuda and (why := cuda.why_unclear(self._cuda_of(name), catalog.cuda, self._chosen)):
            return Recipe(name, why=why)
        asked = {"os": one.os, "python": one.python, "bundle": self._bundles[one.bundle], "ide": self._ides[one.ide]}
        asked["cuda"] = self._level(name, one, catalog) if one.cuda else choices.NONE
        line = edit.flow(choices.written(asked))
        level = asked["cuda"] if one.cuda else ""
        if lost := self._lost(one):
            return Recipe(name, line, level, lost)
        if asked not in possible:
            why = "; ".join(why_not(choices.choice(asked), catalog)).replace(f"{catalog.root}/", "")
            return Recipe(name, line, level, why)
        what = f"{changed} instructions of its Containerfile are in none of its snippets" if changed else ""
        return Recipe(name, line, level, what or _obstacle(assembler, catalog, asked, self.release))

    def _cuda_of(self, name: str) -> Mapping[str, str]:
        """The versions of CUDA that a recipe has: what it installs itself, else what their layers install."""
        return cuda.versions(self._checkout, self._checkout.containerfiles(f"recipes/{name}")) or self._versions

    def _level(self, name: str, one: ForeignTag, catalog: Catalog) -> str:
        """The level of Refit's CUDA that an image stands on: the lowest, where its Python packages bring their own."""
        levels = catalog.cuda.levels if catalog.cuda else {}
        chosen = self._chosen or cuda.counterpart(self._originals.level(name), catalog.cuda)
        lowest = next((name for name in levels if not levels[name].above), "")
        folder = catalog.bundles[self._bundles[one.bundle]].pythons.get(one.python)
        brought = cuda.brought(python.locked(folder) if folder and (folder / "Pipfile.lock").is_file() else {})
        if not brought or not lowest or chosen == lowest:
            return chosen
        theirs = " and ".join(f"{version} ({place})" for version, place in self._cuda_of(name).items())
        beside = f" Programs that look for CUDA {theirs} beside them don't find it." if theirs else ""
        what = f"stands on `cuda: {lowest}`: its Python packages bring a CUDA of their own ({brought}).{beside}"
        self._made.note(f"recipes/{name}", what)
        return lowest

    def _lost(self, one: ForeignTag) -> str:
        """Parts of an image's bundle and IDE that did not come over; empty: nothing."""
        lost = self._made.incomplete
        bundle = [*lost.get(f"bundle/{one.bundle}", ()), *lost.get(f"bundle/{one.bundle}/{one.python}", ())]
        if bundle:
            return f"what its bundle installs did not come over: {some(bundle, 3, ' and ')}"
        if ide := lost.get(f"ide/{one.ide}"):
            return f"what its IDE installs did not come over: {some(ide, 3, ' and ')}"
        return ""


def _section(own: Catalog, header: str) -> str:
    """A section of the Pipfile of Refit's smallest bundle; empty: that has none."""
    for folder in own.bundles[MINIMAL].pythons.values() if MINIMAL in own.bundles else ():
        lines = text_of(folder / "Pipfile", bounds.TOML).splitlines()
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
        return "; ".join(str(replace(each, file=each.file.relative_to(catalog.root))) for each in found.mistakes)
    except RefitError as error:
        return error.what
    return ""


def _as_listed(base: Base) -> tuple[str, ...]:
    """System packages without looking for them."""
    return tuple(f"{name}=0" for name in sorted(base.packages))
