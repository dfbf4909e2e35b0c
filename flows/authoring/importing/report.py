"""The report of an import: recipes, what came over, what did not, and what its maintainer has to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from flows.core.atomic_files import write_whole
from flows.core.formatting import on_a_line

REPORT = "import-report.md"


@dataclass(frozen=True)
class Recipe:
    """The outcome for one of their recipes.

    Attributes:
        name: its folder.
        line: how a release file names its profile; empty where nobody can tell.
        level: the level of CUDA that it has now; empty: none.
        why: why it is not in the release; empty: it is, and can be assembled.
    """

    name: str
    line: str = ""
    level: str = ""
    why: str = ""


@dataclass
class Adoption:
    """The catalog that was made, and the notes that a person has to read.

    Attributes:
        catalog: where it is.
        notes: lines of text, each with the place in the checkout that it is about.
        recipes: what became of each of theirs.
        incomplete: what profiles are made of, `bundle/NAME`, `bundle/NAME/py311` or `ide/NAME` by their names → the
            places of what it has there and lacks here.
    """

    catalog: Path
    notes: list[str] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    incomplete: dict[str, list[str]] = field(default_factory=dict)

    @property
    def profiles(self) -> int:
        """How many profiles its release has."""
        return len({recipe.line for recipe in self.recipes if not recipe.why})

    def note(self, place: Path | str, what: str) -> None:
        """Add what has to be known of a place in the checkout."""
        self.notes.append(on_a_line(f"{place}: {what}"))

    def lacks(self, part: str, place: str) -> None:
        """Keep in mind that profiles with a part would not be what they were, and because of what."""
        self.incomplete.setdefault(part, []).append(place)

    def write_report(self) -> Path:
        """Write it all down beside the catalog, to be worked through; returns where."""
        file = self.catalog / REPORT
        write_whole(file, "\n".join([*self._told(), ""]))
        return file

    def _told(self) -> Iterator[str]:
        there = sum(not recipe.why for recipe in self.recipes)
        yield "# What was taken over from workbench-images"
        yield ""
        yield (
            f"{len(self.recipes)} recipes: {there} are in the release, as {self.profiles} profiles that can be "
            f"assembled; {len(self.recipes) - there} are left out, each with its reason."
        )
        yield "System packages were not looked for in any repository: `refit plan` does that."
        yield ""
        yield "| recipe | in the release | CUDA | why not | its line there |"
        yield "|---|---|---|---|---|"
        for each in self.recipes:
            cells = (each.name, "no" if each.why else "yes", each.level, each.why)
            line = f"`- {each.line}`" if each.line else ""
            yield f"| {' | '.join(on_a_line(cell).replace('|', '/') for cell in cells)} | {line} |"
        yield ""
        yield f"## To look at, one by one: {len(self.notes)}"
        for heading, notes in groupby(sorted(self.notes, key=_heading), key=_heading):
            yield from ("", f"### {heading}", "")
            yield from (f"- [ ] {note}" for note in notes)


def _heading(note: str) -> str:
    """The subject of a note: one bundle, IDE, base, CUDA layer or recipe of theirs; else the whole."""
    place = note.partition(": ")[0].split("/")
    return "/".join(place[: {"snippets": 3, "bundles": 2, "base": 2, "recipes": 2}.get(place[0], 1)]).partition(":")[0]
