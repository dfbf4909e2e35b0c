"""Their bundles, with the versions that they are locked to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from flows.authoring.importing.bases import tell_of_instructions, tell_of_surroundings
from flows.authoring.importing.checkout import Checkout, first_line, names_in, numbered, packages_among
from flows.authoring.importing.containerfile import instructions
from flows.authoring.importing.pipfiles import leave_out, take_pipfile
from flows.authoring.importing.report import Adoption
from flows.authoring.importing.template import carried
from flows.catalog import load, tag
from flows.catalog.lineage import NUMBERED
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistake, Mistakes, bounds
from flows.core.formatting import on_a_line

PYTHON = re.compile(r"py3[0-9]+")
MINIMAL = "minimal"
_LONGEST = 200  # characters of what a menu says


def take_bundles(checkout: Checkout, adoption: Adoption) -> Iterator[tuple[str, str]]:
    """Their name → ours, of each bundle that was carried over."""
    taken = set[str]()
    for number, theirs, place in numbered(checkout, "snippets/bundles"):
        if not (name := plain_name(theirs, place, taken, adoption)):
            checkout.account(*checkout.below(place))
            continue
        target = adoption.catalog / "bundles" / f"{number}-{name}"
        target.mkdir(parents=True)
        write_display(checkout, place, theirs, target)
        take_packages(checkout, place, target, adoption)
        _custom(checkout, place, target, theirs, adoption)
        for version in checkout.folders(place):
            if PYTHON.fullmatch(version):
                take_pipfile(checkout, f"{place}/{version}", target / version, theirs, adoption)
        checkout.account(f"{place}/selection-override")
        yield theirs, name


def plain_name(theirs: str, place: str, taken: set[str], adoption: Adoption) -> str:
    """A name without what would make tags ambiguous, which no other has; empty: there is none, and it is noted."""
    name = re.sub(r"[^a-z0-9]", "", theirs.lower())
    if not tag.is_name(name):
        adoption.note(place, f"was left out: nothing of {theirs!r} can be a name of small letters and digits")
        return ""
    if name in taken:
        adoption.note(place, f"was left out: another one is called {name} here")
        return ""
    if name != theirs:
        adoption.note(
            place, f"is called {name} here: a name has small letters and digits alone, so that a tag reads in one way"
        )
    taken.add(name)
    return name


def write_display(checkout: Checkout, place: str, theirs: str, target: Path) -> None:
    """Write what menus say of a recipe: the first line of theirs, else its name."""
    path = f"{place}/display.txt"
    checkout.account(path)
    display = on_a_line(first_line(checkout.text(path)) or theirs)[:_LONGEST]
    write_whole(target / "display.txt", f"{display}\n".encode(errors="backslashreplace"))


def take_packages(checkout: Checkout, place: str, target: Path, adoption: Adoption) -> None:
    """Carry the list of system packages of a recipe over."""
    path = f"{place}/os/os-packages.txt"
    if not checkout.has(path):
        return
    checkout.account(path)
    named = names_in(checkout.text(path))
    good = packages_among(named)
    for name in sorted(named.keys() - set(good)):
        adoption.note(f"{path}:{named[name]}", f"was left out: this is no name of a package: {name[:_LONGEST]}")
    if good:
        (target / "os").mkdir(parents=True, exist_ok=True)
        write_whole(target / "os" / "os-packages.txt", "".join(f"{name}\n" for name in good))
        tell_of_surroundings(checkout, path, good, adoption)


def _custom(checkout: Checkout, place: str, target: Path, theirs: str, adoption: Adoption) -> None:
    if built := checkout.below(f"{place}/builder"):
        what = "was left out: stages that copy from each other can't be carried over; download and check in a snippet"
        _leave_out(checkout, f"{place}/builder", built, what, theirs, adoption)
    if not (files := checkout.below(f"{place}/custom")):
        return
    path = f"{place}/custom/custom.snippet"
    text = checkout.text(path, bounds.TEMPLATE)
    result = carried(text)
    if not instructions(text) and files == (path,) and checkout.readable(path):
        checkout.account(path)
        adoption.note(path, "has no instruction: there is nothing to carry over")
    elif result.lacking or files != (path,) or not checkout.readable(path):
        for line, why in result.lacking:
            adoption.note(f"{path}:{line}", why)
        what = "was left out as a whole: a bundle here has no files of its own, and nothing to copy from"
        _leave_out(checkout, f"{place}/custom", files, what, theirs, adoption)
    else:
        checkout.account(path)
        (target / "custom").mkdir()
        write_whole(target / "custom" / "custom.snippet.j2", result.text)
        tell_of_snippet(checkout, path, text, result.said, adoption)


def tell_of_snippet(
    checkout: Checkout, path: str, text: str, notes: Collection[tuple[int, str]], adoption: Adoption
) -> None:
    """Note that a snippet came over, what is otherwise in it now, and what it needs of their base."""
    adoption.note(path, "was carried over as it is: `refit lint` shows what has to change")
    for line, what in notes:
        adoption.note(f"{path}:{line}", what)
    tell_of_surroundings(checkout, path, (), adoption, text)


def _leave_out(
    checkout: Checkout, place: str, files: Collection[str], what: str, theirs: str, adoption: Adoption
) -> None:
    """Note that a folder of a bundle did not come over, with each instruction and file of it."""
    adoption.note(place, what)
    adoption.lacks(f"bundle/{theirs}", place)
    tell_of_instructions(checkout, [path for path in files if path.endswith(".snippet")], "was left out", adoption)
    for path in files:
        if not path.endswith(".snippet"):
            adoption.note(path, "was left out with it")
    checkout.account(*files)


def drop_refused(checkout: Checkout, bundles: Mapping[str, str], adoption: Adoption) -> bool:
    """Leave out the Pipfiles that a catalog refuses; whether there were any: one may hide the mistakes of another."""
    theirs, refused = {name: theirs for theirs, name in bundles.items()}, dict[Path, list[Mistake]]()
    try:
        load.load_catalog(adoption.catalog)
    except Mistakes as found:
        for mistake in found.mistakes:
            if PYTHON.fullmatch(mistake.file.parent.name):
                refused.setdefault(mistake.file.parent, []).append(mistake)
    for folder, mistakes in refused.items():
        number, _, name = folder.parent.name.partition("-")
        place = f"snippets/bundles/{number}-{theirs[name]}/{folder.name}"
        leave_out(checkout, place, folder, theirs[name], adoption, mistakes)
    return bool(refused)


def lend_python(checkout: Checkout, bundles: dict[str, str], adoption: Adoption) -> None:
    """A bundle that has no Python of its own gets that of the smallest: here, every image has one."""
    folders = {NUMBERED.fullmatch(path.name)[2]: path for path in (adoption.catalog / "bundles").iterdir()}  # type: ignore[index]
    pythons = {name: [p for p in folder.iterdir() if PYTHON.fullmatch(p.name)] for name, folder in folders.items()}
    places = {theirs: place for _, theirs, place in numbered(checkout, "snippets/bundles")}
    for theirs, name in tuple(bundles.items()):
        if pythons[name]:
            continue
        if not pythons.get(MINIMAL):
            shutil.rmtree(folders[name])
            del bundles[theirs]
            adoption.note(places[theirs], "was left out: it has no Python that can be carried over")
            continue
        for path in pythons[MINIMAL]:
            shutil.copytree(path, folders[name] / path.name)
        adoption.note(places[theirs], f"has no Python that could be carried over: it got that of {MINIMAL}")
