"""Which bundles a bundle extends, as `bundle.yaml` says."""

from __future__ import annotations

import re
from pathlib import Path

from flows.catalog.model import BundleConfig
from flows.catalog.release import nearest
from flows.core import documents
from flows.core.documents import Mistake, Mistakes

CONFIG = "bundle.yaml"
NUMBERED = re.compile(r"([0-9]+)-(.+)")


def lineage(folder: Path) -> tuple[Path, ...]:
    """The folders of all bundles that the one in `folder` extends, farthest first, and `folder` itself last.

    Raises:
        Mistakes: one of them extends a bundle that isn't there, or itself.
    """
    line = [folder]
    while parent := config(line[0]).extends:
        sibling = _sibling(line[0], parent)
        if sibling in line:
            circle = " → ".join(_name(part) for part in reversed([sibling, *line[: line.index(sibling) + 1]]))
            raise _wrong(line[0], f"it extends itself: {circle}", "let one of them stand alone")
        line.insert(0, sibling)
    return tuple(line)


def config(folder: Path) -> BundleConfig:
    """The content of a bundle's `bundle.yaml`, if there is one.

    Raises:
        Mistakes: it has mistakes.
    """
    return documents.read(folder / CONFIG, BundleConfig) if (folder / CONFIG).exists() else BundleConfig()


def _sibling(folder: Path, name: str) -> Path:
    siblings = {_name(path): path for path in sorted(folder.parent.iterdir()) if NUMBERED.fullmatch(path.name)}
    if name not in siblings:
        raise _wrong(folder, f"there is no bundle {name!r}", nearest(name, siblings))
    return siblings[name]


def _name(folder: Path) -> str:
    return folder.name.partition("-")[2]


def _wrong(folder: Path, what: str, hint: str) -> Mistakes:
    file = folder / CONFIG
    rows = enumerate(documents.text_of(file).splitlines(), 1)
    return Mistakes([Mistake(file, next((n for n, row in rows if row.startswith("extends")), 1), what, hint)])
