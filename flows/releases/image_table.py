"""The table of a release's images: for each profile its image in figures, or why it can't be built here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.formatting import megabytes
from flows.core.settings import Settings
from flows.images.ledger import Ledger
from flows.images.manifests import Manifest
from flows.images.registry import Registry
from flows.images.stages import Graph
from flows.locks import make_python_lock
from flows.publishing import evidence, publish
from flows.releases.plan import chosen, plan_release, read_catalog

MARK, END = "<!-- images: refit release table --write README.md -->", "<!-- end of images -->"
COLUMNS = ("profile", "size", "packages", "layers", "shared", "build", "here")


@dataclass(frozen=True)
class Shipped:
    """A profile of a release, and its newest image.

    Attributes:
        profile: its stem.
        size: bytes (compressed) of the image; none: there is no image.
        packages: how many there are in it, of the system and of Python.
        layers: how many it has.
        shared: how many of these another image of the release has, too.
        seconds: how long making all its stages took the last time.
        problem: why it can't be built on this machine; empty: it can.
        from_folders: its packages that only this machine's folders of wheels have.
    """

    profile: str
    size: int | None = None
    packages: int = 0
    layers: int = 0
    shared: int = 0
    seconds: float = 0.0
    problem: str = ""
    from_folders: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of `COLUMNS`."""
        here = f"no: {' '.join(self.problem.split())}" if self.problem else "yes" if self.size else "not built yet"
        if self.from_folders:
            here += f"; {', '.join(self.from_folders)} from a folder of wheels"
        if self.size is None:
            return (self.profile, "", "", "", "", "", here)
        numbers = (megabytes(self.size), str(self.packages), str(self.layers), str(self.shared))
        return (self.profile, *numbers, f"{self.seconds:.0f} s", here)


def shipped(release: str, catalog: Path | None, settings: Settings) -> tuple[Shipped, ...]:
    """All profiles of a release as they are in the registry now; those that can't be built here come last.

    Raises:
        RefitError: the catalog has mistakes, or the registry or the mirror doesn't answer.
    """
    registry = Registry(settings)
    recipes = read_catalog(catalog or settings.catalog)
    planned = plan_release(release, chosen(recipes, release, ()), recipes, settings, registry, tolerant=True)
    images = {
        profile.stem: registry.manifest(registry.repository, digest)
        for profile in planned.profiles
        if (digest := publish.current(profile.stem, release, registry))
    }
    counts = {stem: len(evidence.packages(registry, image.digest)) for stem, image in images.items()}
    seconds = _seconds(planned.graph, settings)
    text = table(images, counts, seconds)
    waiting = [Shipped(profile.stem) for profile in planned.profiles if profile.stem not in images]
    problems = {**planned.problems, **planned.unbuildable}
    rows = (*text, *waiting, *(Shipped(stem, problem=why) for stem, why in problems.items()))
    own = {
        profile.stem: make_python_lock.from_folders_alone(
            profile.bundle.pythons[profile.python], settings.wheel_folders
        )
        for profile in planned.profiles
    }
    return tuple(replace(row, from_folders=own.get(row.profile, ())) for row in rows)


def table(
    images: Mapping[str, Manifest], packages: Mapping[str, int], seconds: Mapping[str, float]
) -> tuple[Shipped, ...]:
    """Images in figures, given how many packages each has, and how long it took (seconds). Pure."""
    layers = {stem: frozenset(layer["digest"] for layer in image.parts[1:]) for stem, image in images.items()}
    times = Counter(digest for digests in layers.values() for digest in digests)
    return tuple(
        Shipped(
            *(stem, image.size, packages[stem], len(layers[stem])),
            shared=sum(times[digest] > 1 for digest in layers[stem]),
            seconds=seconds[stem],
        )
        for stem, image in images.items()
    )


def markdown(rows: Iterable[Shipped]) -> str:
    """A table for a README."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(row.cells for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n" for cells in lines)


def within(text: str, table_text: str) -> str:
    """A text with this between its marks.

    Raises:
        RefitError: it has no marks.
    """
    before, mark, rest = text.partition(MARK)
    _, end, after = rest.partition(END)
    if not end:
        raise RefitError(
            "There is no place for the table.", hint=f"write these two lines where it belongs:\n{MARK}\n{END}"
        )
    return f"{before}{mark}\n\n{table_text}\n{end}{after}"


def _seconds(graph: Graph, settings: Settings) -> dict[str, float]:
    """Profile → how long making all its stages took the last time."""
    entries = Ledger(open_database(settings.database)).latest([stage.name for stage in graph.everything()])
    took = {name: entry.seconds for name, entry in entries.items()}
    return {stem: sum(took.get(stage.name, 0.0) for stage in graph.made_of(top)) for stem, top in graph.tops.items()}
