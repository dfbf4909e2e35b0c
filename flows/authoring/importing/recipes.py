"""Their recipes, and what the new catalog makes of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from flows.authoring.importing import cuda
from flows.authoring.importing.checkout import Checkout
from flows.authoring.importing.originals import Originals, newest
from flows.authoring.importing.report import Adoption, Recipe
from flows.authoring.importing.sections import Sections
from flows.catalog import choices, edit, load, tag
from flows.catalog.model import Base, Catalog
from flows.catalog.release import ReleaseFile, assemble, why_not
from flows.catalog.tag import ForeignTag
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.images.recipe import Assembler
from flows.locks import python_lockfile


class Recipes:
    """Their recipes, and what the new catalog makes of them.

    Args:
        checkout: where they are.
        own: Refit's catalog.
        ides: their name → ours; bundles: the same.
        chosen: the level of Refit's CUDA that a person has chosen; empty: none.
        adoption: the report to which notes are added.
    """

    def __init__(
        self,
        checkout: Checkout,
        own: Catalog,
        ides: Mapping[str, str],
        bundles: Mapping[str, str],
        chosen: str,
        adoption: Adoption,
    ) -> None:
        self._checkout, self._own, self._ides, self._bundles, self._made = checkout, own, ides, bundles, adoption
        self._chosen, self._originals = chosen, Originals(checkout, adoption)
        self._sections = Sections(own, ides, bundles, adoption)
        self._versions = cuda.versions(checkout, checkout.containerfiles("cuda-layer"))
        self._found = {name: self._parse(name) for name in checkout.folders("recipes")}

    def _parse(self, name: str) -> ForeignTag | None:
        return tag.parse_foreign(name, self._ides, self._bundles)

    @property
    def release(self) -> str:
        """The newest release that one of them is of; empty: there is none."""
        return max((one.release for one in self._found.values() if one), default="")

    def prepare(self) -> None:
        """Give each Pipfile the sections that IDEs of recipes need."""
        self._sections.add(filter(None, self._found.values()))

    def judged(self, catalog: Catalog) -> list[Recipe]:
        """The outcome for each of them."""
        possible, assembler = list(choices.possible(catalog)), Assembler(catalog, _as_listed)
        each = {name: self._judged(name, one, catalog, possible, assembler) for name, one in self._found.items()}
        taken = {name: recipe.line for name, recipe in each.items() if not recipe.why}
        for older, newer in newest(taken, taken):
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
            return Recipe(name, why="its name isn't that of a profile of the bundles and IDEs that came over")
        why = self._originals.why_another(name, one)
        if one.cuda and not why:
            why = cuda.why_unclear(self._cuda_of(name), catalog.cuda, self._chosen)
        if why:
            return Recipe(name, why=why)
        choice = {"os": one.os, "python": one.python, "bundle": self._bundles[one.bundle], "ide": self._ides[one.ide]}
        choice["cuda"] = self._level(name, one, catalog) if one.cuda else choices.NONE
        line = edit.flow(choices.written(choice))
        level = choice["cuda"] if one.cuda else ""
        if lost := self._lost(one):
            return Recipe(name, line, level, lost)
        if obstacle := self._sections.obstacle(one):
            return Recipe(name, line, level, obstacle)
        if choice not in possible:
            why = "; ".join(why_not(choices.choice(choice), catalog)).replace(f"{catalog.root}/", "")
            return Recipe(name, line, level, why)
        what = f"{changed} instructions of its Containerfile are in none of its snippets" if changed else ""
        return Recipe(name, line, level, what or _obstacle(assembler, catalog, choice, self.release))

    def _cuda_of(self, name: str) -> Mapping[str, str]:
        """The versions of CUDA that a recipe has: those that it installs itself, else those of their layers."""
        return cuda.versions(self._checkout, self._checkout.containerfiles(f"recipes/{name}")) or self._versions

    def _level(self, name: str, one: ForeignTag, catalog: Catalog) -> str:
        """The level of Refit's CUDA that an image stands on: the lowest, where its Python packages bring their own."""
        levels = catalog.cuda.levels if catalog.cuda else {}
        chosen = self._chosen or cuda.counterpart(self._originals.level(name), catalog.cuda)
        lowest = next((name for name in levels if not levels[name].above), "")
        folder = catalog.bundles[self._bundles[one.bundle]].pythons.get(one.python)
        brought = cuda.brought(python_lockfile.locked(folder) if folder and (folder / "Pipfile.lock").is_file() else {})
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


def write_release(recipes: Recipes, adoption: Adoption) -> None:
    """A release of the profiles that the recipes are for, as far as they can be assembled."""
    recipes.prepare()
    catalog = load.load_catalog(adoption.catalog)
    adoption.conclude(recipes.judged(catalog))
    if not (lines := list(dict.fromkeys(recipe.line for recipe in adoption.recipes if not recipe.why))):
        adoption.note("recipes", "no profile was found: write a release file, or add profiles by `refit wizard`")
        return
    text = "\n".join([f"release: {recipes.release}", "profiles:", *(f"  - {line}" for line in lines), ""])
    write_whole(adoption.catalog / "releases" / f"{recipes.release}.yaml", text)
    load.load_catalog(adoption.catalog)


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
