"""Their bundles, with the versions that they are locked to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from flows.authoring.importing.bases import each_instruction
from flows.authoring.importing.checkout import at_home, first_line, names_in, numbered, text_in
from flows.authoring.importing.containerfile import as_template
from flows.authoring.importing.pipfiles import take_pipfile
from flows.authoring.importing.report import Adoption
from flows.catalog import load
from flows.catalog.lineage import NUMBERED
from flows.core.documents import Mistakes

PYTHON = re.compile(r"py3[0-9]+")


MINIMAL = "minimal"


def take_bundles(checkout: Path, made: Adoption) -> Iterator[tuple[str, str]]:
    """Their name → ours, of each bundle that was carried over."""
    for number, theirs, folder in numbered(checkout / "snippets" / "bundles"):
        place = f"snippets/bundles/{folder.name}"
        name = plain_name(theirs, place, made)
        target = made.catalog / "bundles" / f"{number}-{name}"
        target.mkdir(parents=True)
        (target / "display.txt").write_text(f"{first_line(folder / 'display.txt') or theirs}\n", encoding="utf-8")
        take_packages(folder / "os" / "os-packages.txt", target / "os" / "os-packages.txt", f"{place}/os", made)
        _custom(folder, target, place, theirs, made)
        for path in sorted(folder.iterdir()):
            if path.is_dir() and PYTHON.fullmatch(path.name):
                take_pipfile(path, target / path.name, f"{place}/{path.name}", made)
            elif path.name not in ("display.txt", "os", "custom", "builder", "selection-override"):
                made.note(f"{place}/{path.name}", "was left out: nothing reads it")
        yield theirs, name


def take_packages(source: Path, target: Path, place: str, made: Adoption) -> None:
    """Carry a list of system packages over."""
    if not source.is_file():
        return
    names = names_in(source)
    good = [name for name in names if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+._-]*", name)]
    if odd := sorted(set(names) - set(good)):
        made.note(place, f"these are no names of packages, and were left out: {', '.join(odd)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(f"{name}\n" for name in good), encoding="utf-8")


def plain_name(theirs: str, place: str, made: Adoption) -> str:
    """A name without what would make tags ambiguous."""
    name = re.sub(r"[^a-z0-9]", "", theirs.lower())
    if name != theirs:
        made.note(place, f"is called {name} here: in a name, hyphens would make tags ambiguous")
    return name


def _custom(folder: Path, target: Path, place: str, theirs: str, made: Adoption) -> None:
    snippet = folder / "custom" / "custom.snippet"
    if (folder / "builder").is_dir():
        what = "was left out: stages that copy from each other can't be carried over; download and check in a snippet"
        made.note(f"{place}/builder", what)
        made.incomplete.setdefault(theirs, []).append(f"{place}/builder")
        each_instruction(folder / "builder", f"{place}/builder", "was left out", made)
    if not snippet.is_file():
        return
    text = text_in(snippet)
    if "--from=" in text or (folder / "custom" / "files").is_dir():
        made.note(f"{place}/custom", "was left out: it copies files, and a bundle here has none of its own")
        made.incomplete.setdefault(theirs, []).append(f"{place}/custom")
        each_instruction(folder / "custom", f"{place}/custom", "was left out", made)
        return
    (target / "custom").mkdir()
    (target / "custom" / "custom.snippet.j2").write_text(as_template(text), encoding="utf-8")
    at_home(text, f"{place}/custom/{snippet.name}", made)
    made.note(f"{place}/custom", "was carried over as it is: `refit lint` shows what has to change")


def drop_refused(bundles: Mapping[str, str], made: Adoption) -> bool:
    """Leave out the Pipfiles that a catalog refuses; whether there were any: one may hide the mistakes of another."""
    theirs, gone = {name: theirs for theirs, name in bundles.items()}, set[Path]()
    try:
        load.load_catalog(made.catalog)
    except Mistakes as found:
        for mistake in found.mistakes:
            folder = mistake.file.parent
            if PYTHON.fullmatch(folder.name) and folder not in gone:
                number, _, name = folder.parent.name.partition("-")
                made.note(f"snippets/bundles/{number}-{theirs[name]}/{folder.name}", f"was left out: {mistake.what}")
                shutil.rmtree(folder)
                gone.add(folder)
    return bool(gone)


def lend_python(bundles: dict[str, str], made: Adoption) -> None:
    """A bundle that has no Python of its own gets that of the smallest: here, every image has one."""
    folders = {NUMBERED.fullmatch(path.name)[2]: path for path in (made.catalog / "bundles").iterdir()}  # type: ignore[index]
    pythons = {name: [p for p in folder.iterdir() if PYTHON.fullmatch(p.name)] for name, folder in folders.items()}
    for theirs, name in tuple(bundles.items()):
        if pythons[name]:
            continue
        if not pythons.get(MINIMAL):
            shutil.rmtree(folders[name])
            del bundles[theirs]
            made.note(theirs, "was left out: it has no Python that can be carried over")
            continue
        for path in pythons[MINIMAL]:
            shutil.copytree(path, folders[name] / path.name)
        made.note(theirs, f"has no Python of its own: it got that of {MINIMAL}")
