"""The report of an import: recipes, what came over, what did not, and what its maintainer has to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
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
        incomplete: bundle of theirs → the places of what it installs and what did not come over.
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

    def write_report(self) -> Path:
        """Write it all down beside the catalog, to be worked through; returns where."""
        file = self.catalog / REPORT
        write_whole(file, "\n".join([*self._told(), ""]))
        return file

    def _told(self) -> Iterator[str]:
        yield "# What was taken over from workbench-images"
        yield ""
        yield f"{len(self.recipes)} recipes: {self.profiles} profiles can be assembled, and are in the release."
        yield "System packages were not looked for in any repository: `refit plan` does that."
        yield ""
        yield "| recipe | in the release | why not | its line there |"
        yield "|---|---|---|---|"
        for each in self.recipes:
            line = f"`- {each.line}`" if each.line else ""
            yield f"| {on_a_line(each.name)} | {'no' if each.why else 'yes'} | {each.why.replace('|', '/')} | {line} |"
        yield ""
        yield "## To look at, one by one"
        yield ""
        yield from (f"- [ ] {note}" for note in self.notes)
