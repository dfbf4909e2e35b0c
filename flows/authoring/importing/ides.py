"""Their IDEs: Refit's own where it has one of that name, else theirs."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from flows.authoring.importing.bases import tell_of_instructions
from flows.authoring.importing.bundles import plain_name, take_packages, tell_of_snippet, write_display
from flows.authoring.importing.checkout import Checkout, names_in, numbered
from flows.authoring.importing.containerfile import instructions
from flows.authoring.importing.report import Adoption
from flows.authoring.importing.template import carried
from flows.catalog.lineage import NUMBERED
from flows.catalog.model import Catalog
from flows.catalog.tree import TOGETHER
from flows.core.atomic_files import write_whole
from flows.core.documents import bounds

_ACCESS = """\
# As workbench-images expects of its IDEs: look whether this is so.
access:
  port: 8888
  health: /api
"""


def take_ides(checkout: Checkout, adoption: Adoption, own: Catalog) -> Iterator[tuple[str, str]]:
    """Their name → ours, of each IDE."""
    number = max(
        (int(match[1]) for path in own.root.glob("ides/*") if (match := NUMBERED.fullmatch(path.name))), default=0
    )
    taken = set[str]()
    for _, theirs, place in numbered(checkout, "snippets/ides"):
        if not (name := plain_name(theirs, place, taken, adoption)):
            checkout.account(*checkout.below(place))
            continue
        snippet = f"{place}/{theirs}.snippet"
        if name in own.ides:
            adoption.note(place, f"Refit's own {name} takes its place: additions to theirs aren't in it")
            _replaced(checkout, place, own, name, adoption)
        elif not instructions(checkout.text(snippet, bounds.TEMPLATE)):
            adoption.note(place, f"was left out: it has no {theirs}.snippet, or one without instructions")
            checkout.account(*checkout.below(place))
            continue
        else:
            number += 1
            _ide(checkout, place, theirs, adoption.catalog / "ides" / f"{number}-{name}", adoption)
        yield theirs, name


def _replaced(checkout: Checkout, place: str, own: Catalog, name: str, adoption: Adoption) -> None:
    """Note each package, instruction and file that Refit's IDE of that name may lack."""
    listed, display = f"{place}/os/os-packages.txt", f"{place}/display.txt"
    for package, line in names_in(checkout.text(listed)).items():
        if package not in own.ides[name].packages:
            adoption.note(f"{listed}:{line}", f"is not in Refit's {name}: {package}")
    snippets = [path for path in checkout.below(place) if path.endswith(".snippet")]
    tell_of_instructions(checkout, snippets, f"may not be in Refit's {name}", adoption)
    for path in checkout.below(place):
        if path not in (*snippets, listed, display):
            adoption.note(path, f"was left out: Refit's own {name} is there")
    checkout.account(*checkout.below(place))


def _ide(checkout: Checkout, place: str, theirs: str, target: Path, adoption: Adoption) -> None:
    path = f"{place}/{theirs}.snippet"
    name = target.name.partition("-")[2]
    target.mkdir()
    files = _take_files(checkout, f"{place}/files", target / "files", theirs, adoption)
    text = checkout.text(path, bounds.TEMPLATE)
    result = carried(text, files)
    write_whole(target / f"{name}.snippet.j2", result.text)
    write_whole(target / "ide.yaml", _ACCESS)
    write_display(checkout, place, theirs, target)
    take_packages(checkout, place, target, adoption)
    checkout.account(path)
    tell_of_snippet(checkout, path, text, result.said, adoption)
    adoption.note(place, "is reached as ide.yaml says: the port and the path of its check are a guess")
    for line, why in result.lacking:
        adoption.note(f"{path}:{line}", why)
        adoption.lacks(f"ide/{theirs}", f"{path}:{line}")


def _take_files(checkout: Checkout, place: str, target: Path, theirs: str, adoption: Adoption) -> Collection[str]:
    """Copy the files of an IDE; returns the paths of those that came over, in their folder."""
    left, taken = TOGETHER, list[str]()
    for path in checkout.below(place):
        content = checkout.content(path, min(bounds.COPIED, left))
        checkout.account(path)
        if not checkout.readable(path):
            adoption.lacks(f"ide/{theirs}", path)
            continue
        left -= len(content)
        inside = path[len(place) + 1 :]
        file = target / inside
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)
        file.chmod((checkout.root / path).stat().st_mode & 0o777 | 0o600)
        taken.append(inside)
    return taken


def fitting(ides: Mapping[str, str], bundles: Mapping[str, str], adoption: Adoption, own: Catalog) -> dict[str, str]:
    """Their IDEs without those of Refit's that go only with bundles which are not here."""
    gone: set[str] = set()
    for ide in own.ides.values():
        if missing := {name for rule in ide.config.only for name in rule.bundle} - set(bundles.values()):
            gone.add(ide.name)
            shutil.rmtree(adoption.catalog / ide.folder.relative_to(own.root))
            adoption.note(f"Refit's {ide.name}", f"was left out: it goes only with {', '.join(sorted(missing))}")
    return {theirs: name for theirs, name in ides.items() if name not in gone}
