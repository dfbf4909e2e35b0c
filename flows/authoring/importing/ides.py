"""Their IDEs: Refit's own where it has one of that name, else theirs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.authoring.importing.bases import each_instruction
from flows.authoring.importing.bundles import plain_name, take_packages
from flows.authoring.importing.checkout import first_line, lines_in, names_in, numbered, text_in
from flows.authoring.importing.containerfile import as_template, places
from flows.authoring.importing.report import Adoption
from flows.catalog import tree
from flows.catalog.lineage import NUMBERED
from flows.catalog.model import Catalog
from flows.core.documents import Mistakes

_ACCESS = """\
# As workbench-images expects of its IDEs: look whether this is so.
access:
  port: 8888
  health: /api
"""


def take_ides(checkout: Path, made: Adoption, own: Catalog) -> Iterator[tuple[str, str]]:
    """Their name → ours, of each IDE."""
    number = max(
        (int(match[1]) for path in own.root.glob("ides/*") if (match := NUMBERED.fullmatch(path.name))), default=0
    )
    for _, theirs, folder in numbered(checkout / "snippets" / "ides"):
        place = f"snippets/ides/{folder.name}"
        name = plain_name(theirs, place, made)
        if name in own.ides:
            made.note(place, f"Refit's own {name} takes its place: what was added to theirs isn't in it")
            _replaced(folder, place, own, name, made)
        elif not (folder / f"{theirs}.snippet").is_file():
            made.note(place, f"was left out: it has no {theirs}.snippet")
            continue
        else:
            number += 1
            _ide(folder, theirs, made.catalog / "ides" / f"{number}-{name}", name, made)
        yield theirs, name


def _replaced(folder: Path, place: str, own: Catalog, name: str, made: Adoption) -> None:
    """Note each package, instruction and file that Refit's IDE of that name may lack."""
    theirs, system = folder / "os" / "os-packages.txt", own.ides[name].packages
    missing = [package for package in names_in(theirs) if package not in system]
    for line, package in places(lines_in(theirs), missing):
        made.note(f"{place}/os/os-packages.txt:{line}", f"{package} is not in Refit's {name}")
    each_instruction(folder, place, f"may not be in Refit's {name}", made)
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path != theirs):
        if file.suffix != ".snippet" and file.name != "display.txt":
            made.note(f"{place}/{file.relative_to(folder).as_posix()}", f"was left out: Refit's own {name} is there")


def _ide(folder: Path, theirs: str, target: Path, name: str, made: Adoption) -> None:
    place = f"snippets/ides/{folder.name}"
    target.mkdir()
    text = text_in(folder / f"{theirs}.snippet")
    if re.search(r"\$\{?RELEASE\b", text):
        made.note(place, "names the release, which is in no stage here: ${RELEASE} is empty in it")
    moved = _COPY.sub(lambda found: found[1] + _from_files(found[2]), text)
    (target / f"{name}.snippet.j2").write_text(as_template(moved), encoding="utf-8")
    (target / "display.txt").write_text(f"{first_line(folder / 'display.txt') or theirs}\n", encoding="utf-8")
    (target / "ide.yaml").write_text(_ACCESS, encoding="utf-8")
    take_packages(folder / "os" / "os-packages.txt", target / "os" / "os-packages.txt", f"{place}/os", made)
    if (folder / "files").is_dir():
        _files(folder / "files", target / "files", place, made)
    made.note(
        place, "was carried over as it is: `refit lint` shows what has to change, ide.yaml says how it is reached"
    )


def _files(source: Path, target: Path, place: str, made: Adoption) -> None:
    try:
        tree.copy(source, target, source)
    except Mistakes as mistakes:
        made.note(f"{place}/files", f"was left out: {mistakes.mistakes[0].what}")


def fitting(ides: Mapping[str, str], bundles: Mapping[str, str], made: Adoption, own: Catalog) -> dict[str, str]:
    """Their IDEs without those of Refit's that go only with bundles which are not here."""
    gone: set[str] = set()
    for ide in own.ides.values():
        if missing := {name for rule in ide.config.only for name in rule.bundle} - set(bundles.values()):
            gone.add(ide.name)
            shutil.rmtree(made.catalog / ide.folder.relative_to(own.root))
            made.note(f"Refit's {ide.name}", f"was left out: it goes only with {', '.join(sorted(missing))}")
    return {theirs: name for theirs, name in ides.items() if name not in gone}


def _from_files(words: str) -> str:
    """The words of a COPY, whose sources lie in `files/` here; the last word is where they go."""
    *sources, destination = words.split()
    return " ".join([*(f"files/{source.removeprefix('./')}" for source in sources), destination])


_COPY = re.compile(r"^(COPY\s+(?:--(?!from=)\S+\s+)*)(?!--)(\S.*)$", re.MULTILINE)
