"""Sections that IDEs need and Pipfiles lack, taken from Refit's smallest bundle; no lock of others is lost by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flows.authoring.importing.bundles import MINIMAL
from flows.authoring.importing.pipfiles import unlock
from flows.authoring.importing.report import Adoption
from flows.catalog import tag
from flows.catalog.lineage import CONFIG, NUMBERED
from flows.catalog.model import Catalog, Only, python_version
from flows.catalog.tag import ForeignTag
from flows.core.atomic_files import write_whole
from flows.core.documents import bounds, text_of
from flows.locks.pipfile import read_pipfile


class Sections:
    """Give each Pipfile the sections that IDEs of recipes need; which of them are locked is another matter.

    A Pipfile whose lock other recipes can do with stays as it is. Another bundle, which extends that one, has the
    section then: to lock it touches no lock of others.

    Args:
        own: Refit's catalog.
        ides: their name → ours; bundles: the same.
        adoption: the report to which notes are added, and the catalog that is changed.
    """

    def __init__(self, own: Catalog, ides: Mapping[str, str], bundles: Mapping[str, str], adoption: Adoption) -> None:
        self._own, self._ides, self._bundles, self._made = own, ides, bundles, adoption
        self._beside: dict[tuple[str, str], str] = {}

    def obstacle(self, one: ForeignTag) -> str:
        """Why its IDE's section is in no lock that a recipe could use; empty: it may be."""
        if rule := next(self._against(one), None):
            return f"{self._ides[one.ide]} goes only with os {', '.join(rule.os)}: {rule.because}"
        category = self._category(one.ide)
        if not (name := self._beside.get((self._bundles[one.bundle], category))):
            return ""
        return f"its bundle has no [{category}], and a lock that serves others: lock {name}, which has it"

    def add(self, recipes: Iterable[ForeignTag]) -> None:
        """Add what the Pipfiles of these lack."""
        users: dict[tuple[str, str], list[ForeignTag]] = {}
        for recipe in recipes:
            if any(self._against(recipe)):  # with its system, the section would be of no use
                continue
            users.setdefault((self._bundles[recipe.bundle], recipe.python), []).append(recipe)
        for (bundle, version), its in users.items():
            [folder] = (self._made.catalog / "bundles").glob(f"*-{bundle}")
            if (folder / version / "Pipfile").is_file():
                self._add(folder / version, bundle, its)

    def _add(self, folder: Path, bundle: str, recipes: Iterable[ForeignTag]) -> None:
        categories = read_pipfile(folder / "Pipfile").categories
        needed = {recipe.ide: self._category(recipe.ide) for recipe in recipes}
        missing = {ide: category for ide, category in needed.items() if category and category not in categories}
        held = (folder / "Pipfile.lock").is_file() and len(missing) < len(needed)
        for category in dict.fromkeys(missing.values()):
            ides = ", ".join(sorted(ide for ide, its in missing.items() if its == category))
            if not (lines := _section(self._own, f"[{category}]")):
                self._note(folder, f"lacks [{category}], which {ides} needs: write that section")
            elif held:
                others = ", ".join(sorted(needed.keys() - missing.keys()))
                what = f"lacks [{category}], which {ides} needs; its lock serves {others}, and stays as it is"
                then = self._extend(folder, bundle, category, lines)
                self._note(folder, f"{what}: {then}{self._caution(folder)}")
            else:
                self._append(folder, lines)
                what = f"got [{category}] of Refit's bundle {MINIMAL}, which {ides} needs: lock it"
                self._note(folder, f"{what}{self._caution(folder)}")

    def _against(self, one: ForeignTag) -> Iterator[Only]:
        """The rules by which Refit's IDE doesn't go with the system of a recipe."""
        ide = self._own.ides.get(self._ides[one.ide])
        yield from (rule for rule in (ide.config.only if ide else ()) if rule.os and one.os not in rule.os)

    def _note(self, folder: Path, what: str) -> None:
        self._made.note(folder.relative_to(self._made.catalog), what)

    def _category(self, ide: str) -> str:
        """The section of a Pipfile that an IDE needs; empty: none."""
        own = self._own.ides.get(self._ides[ide])
        return own.config.category if own else ""

    def _caution(self, folder: Path) -> str:
        """The caution where the section was made for other versions of Python."""
        versions = ", ".join(self._own.bundles[MINIMAL].pythons)
        tried = folder.name in self._own.bundles[MINIMAL].pythons
        return "" if tried else f"; Refit locks that section for {versions} alone, so that it may need older versions"

    def _append(self, folder: Path, lines: str) -> None:
        """Add a section to a Pipfile, which no lock fits any more."""
        text = text_of(folder / "Pipfile", bounds.TOML)
        write_whole(folder / "Pipfile", f"{text.rstrip()}\n\n{lines}")
        unlock(folder)

    def _extend(self, folder: Path, bundle: str, category: str, lines: str) -> str:
        """Make a bundle that has a section beside what the one in `folder` has; returns what is to be said of it."""
        if not (name := self._beside.get((bundle, category)) or self._free(f"{bundle}{category}")):
            return f"a bundle that extends it has to have {' '.join(lines.split())}, and a lock of its own"
        if (bundle, category) not in self._beside:
            folder_of_bundle = self._made.catalog / "bundles" / f"{self._next()}-{name}"
            folder_of_bundle.mkdir()
            display = text_of(folder.parent / "display.txt", bounds.TEXT).strip()
            write_whole(folder_of_bundle / "display.txt", f"{display} [{category}]\n")
            write_whole(folder_of_bundle / CONFIG, f"extends: {bundle}\n")
            self._beside[bundle, category] = name
        [folder_of_bundle] = (self._made.catalog / "bundles").glob(f"*-{name}")
        (folder_of_bundle / folder.name).mkdir()
        required = f'[requires]\npython_version = "{python_version(folder.name)}"\n'
        write_whole(folder_of_bundle / folder.name / "Pipfile", f"{lines}\n{required}")
        return f"the bundle {name} extends it with that section; name {name} in the release, and lock it"

    def _free(self, name: str) -> str:
        """A name for a bundle that no other has; empty: this one can't be taken."""
        taken = {match[2] for path in self._folders() if (match := NUMBERED.fullmatch(path.name))}
        return name if tag.is_name(name) and name not in taken else ""

    def _next(self) -> int:
        return 1 + max(int(match[1]) for path in self._folders() if (match := NUMBERED.fullmatch(path.name)))

    def _folders(self) -> list[Path]:
        return list((self._made.catalog / "bundles").iterdir())


def _section(own: Catalog, header: str) -> str:
    """A section of the Pipfile of Refit's smallest bundle; empty: that has none."""
    for folder in own.bundles[MINIMAL].pythons.values() if MINIMAL in own.bundles else ():
        lines = text_of(folder / "Pipfile", bounds.TOML).splitlines()
        if header in lines:
            rest = lines[lines.index(header) + 1 :]
            end = next((at for at, line in enumerate(rest) if line.startswith("[")), len(rest))
            return "\n".join([header, *rest[:end]]).rstrip() + "\n"
    return ""
