"""The report of an import: recipes, what came over, what did not, and what its maintainer has to do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from flows.core.atomic_files import write_whole
from flows.core.formatting import clipped, on_a_line

REPORT = "import-report.md"
# A report of a checkout that was made to fill disks stays one that a person can open.
OF_A_FILE = 300  # lines about one file
TOGETHER = 2_000_000  # characters of all of them
_LINE = re.compile(r":\d+$")  # of a file, after its path
_LOGIN = re.compile(r"://[^/\s@\"']+@")
_PLACE, _TEXT = 300, 1_000  # characters of a line: of the place, and of what is said of it


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
        notes: lines of text, each with the place in the checkout that it is about; of a file not more than `OF_A_FILE`.
        unlisted: file → how many lines about it were too many.
        recipes: the outcome for each of theirs.
        incomplete: the parts of profiles, `bundle/NAME`, `bundle/NAME/py311` or `ide/NAME` by their names → the
            places of what it has there and lacks here.
    """

    catalog: Path
    notes: list[str] = field(default_factory=list)
    unlisted: Counter[str] = field(default_factory=Counter)
    recipes: list[Recipe] = field(default_factory=list)
    incomplete: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_files, self._room = Counter[str](), TOGETHER

    @property
    def profiles(self) -> int:
        """How many profiles its release has."""
        return len({recipe.line for recipe in self.recipes if not recipe.why})

    def note(self, place: Path | str, what: str) -> None:
        """Add what has to be known of a place in the checkout."""
        file = _LINE.sub("", where := str(place))
        note = f"{_shown(where, _PLACE)}: {_shown(what, _TEXT)}"
        if self._of_files[file] >= OF_A_FILE or len(note) > self._room:
            self.unlisted[file] += 1
            return
        self._of_files[file] += 1
        self._room -= len(note)
        self.notes.append(note)

    def forget(self, file: str) -> None:
        """Take back what was noted of a file: it is not in the catalog after all."""
        gone = {note for note in self.notes if _LINE.sub("", note.partition(": ")[0]) == file}
        self.notes = [note for note in self.notes if note not in gone]
        self._room += sum(map(len, gone))
        del self._of_files[file], self.unlisted[file]

    def conclude(self, recipes: Iterable[Recipe]) -> None:
        """Add what became of recipes."""
        self.recipes += [replace(recipe, why=_shown(recipe.why, _TEXT)) for recipe in recipes]

    def lacks(self, part: str, place: str) -> None:
        """Keep in mind that profiles with a part would not be what they were, and because of what."""
        self.incomplete.setdefault(part, []).append(place)

    def write_report(self) -> Path:
        """Write it all down beside the catalog, to be worked through; returns where."""
        file = self.catalog / REPORT
        write_whole(file, "\n".join([*self._lines(), ""]))
        return file

    def _lines(self) -> Iterator[str]:
        imported = sum(not recipe.why for recipe in self.recipes)
        yield "# What was taken over from workbench-images"
        yield ""
        yield (
            f"{len(self.recipes)} recipes: {imported} are in the release, as {self.profiles} profiles that can be "
            f"assembled; {len(self.recipes) - imported} are left out, each with its reason."
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
        yield from self._left_over()
        for heading, notes in groupby(sorted(self.notes, key=_heading), key=_heading):
            yield from ("", f"### {heading}", "")
            yield from (f"- [ ] {note}" for note in notes)

    def _left_over(self) -> Iterator[str]:
        """How much there is beside what is listed, and in which files."""
        if not self.unlisted:
            return
        yield ""
        yield (
            f"{self.unlisted.total():,} more lines about {len(self.unlisted):,} files are not listed here: at most "
            f"{OF_A_FILE} about one file, and {TOGETHER:,} characters together. Read these files yourself:"
        )
        yield ""
        most = self.unlisted.most_common(OF_A_FILE)
        yield from (f"- [ ] {_shown(file, _PLACE)}: {count:,} more" for file, count in most)
        if (rest := len(self.unlisted) - len(most)) > 0:
            yield f"- [ ] {rest:,} other files"


def _shown(text: str, most: int) -> str:
    """A text of others on a line, no longer than a line of the report may be, and without passwords of addresses."""
    return on_a_line(clipped(_LOGIN.sub("://***@", text), most))


def _heading(note: str) -> str:
    """The subject of a note: one bundle, IDE, base, CUDA layer or recipe of theirs; else the whole."""
    place = note.partition(": ")[0].split("/")
    return "/".join(place[: {"snippets": 3, "bundles": 2, "base": 2, "recipes": 2}.get(place[0], 1)]).partition(":")[0]
