"""Results of benchmarks: rows, kept in `results.json`, shown as the table of the README."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from time import monotonic

import psutil

from flows.core.atomic_files import write_whole
from flows.core.programs import command

RESULTS = Path(__file__).with_name("results.json")
_MARK, _END = "<!-- figures: python -m bench --readme -->", "<!-- end of figures -->"


@dataclass(frozen=True)
class Row:
    """One figure, and what others need for the same on the same machine in the same run.

    Attributes:
        name: the measured task.
        unit: of `ours` and of all `peers`.
        goal: the value to reach, in words.
        ours: Refit's figure.
        reached: whether the goal is.
        peers: the others; the goal is held against the first of them.
        skipped: the others that could not be measured here, and why not.
        benchmark: the benchmark that measured it, and measures it again; as all below, given by `measure`.
        machine: where, and how busy it was beforehand.
        measured: the UTC date.
        versions: of the programs that took part.
    """

    name: str
    unit: str
    goal: str
    ours: float
    reached: bool
    peers: Mapping[str, float] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    benchmark: str = ""
    machine: str = ""
    measured: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        figures = [self.ours, *self.peers.values()]
        if not (self.name and self.unit and self.goal and all(isfinite(one) and one >= 0 for one in figures)):
            raise ValueError(f"this is no figure: {self}")

    @property
    def ratio(self) -> float | None:
        """How many times as much as Refit the first of the peers needs."""
        return round(next(iter(self.peers.values())) / self.ours, 2) if self.peers and self.ours else None


@dataclass(frozen=True)
class Benchmark:
    """Something that can be measured.

    Attributes:
        run: measures it; the first line of its docstring says what it does.
        programs: those whose versions matter.
    """

    run: Callable[[], list[Row]]
    programs: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        """A line about it."""
        return (self.run.__doc__ or "").partition("\n")[0]


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = monotonic()
    work()
    return monotonic() - started


def measure(name: str, benchmark: Benchmark) -> list[Row]:
    """Run a benchmark; its rows say where and when they were measured."""
    place, day, before = machine(), f"{datetime.now(UTC):%Y-%m-%d}", core_times()
    rows, said = benchmark.run(), versions(*benchmark.programs)
    if (share := stolen(before, core_times())) >= 1:
        place = f"{place}, {share:.0f} % of its cores' time taken by its hypervisor"
    return [replace(row, benchmark=name, machine=place, measured=day, versions=said) for row in rows]


def stolen(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Percent of the cores' time between two looks at `core_times` in which a hypervisor ran other machines on them."""
    spent = {kind: after[kind] - before[kind] for kind in before}
    return 100 * spent.get("steal", 0) / (sum(spent.values()) or 1)


def core_times() -> Mapping[str, float]:
    """Times of the cores since the machine began: kind → seconds, all cores together."""
    # The time of this machine's guests is among its users' already.
    return {kind: spent for kind, spent in psutil.cpu_times()._asdict().items() if not kind.startswith("guest")}


def machine() -> str:
    """Cores, memory and kernel of this machine, and how many processes it ran at a time in the last minute."""
    memory = psutil.virtual_memory().total / (1 << 30)
    kernel = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    return f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {kernel}, load {os.getloadavg()[0]:.1f}"


def versions(*programs: str) -> dict[str, str]:
    """The versions that programs print."""
    beside = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    paths = {program: shutil.which(program, path=beside) or program for program in programs}
    said = {program: command.run([path, "--version"]).stdout for program, path in paths.items()}
    return {"python": platform.python_version(), **{name: text.splitlines()[0] for name, text in said.items()}}


def save(rows: Sequence[Row], file: Path = RESULTS) -> None:
    """Put the rows of benchmarks into the file, in place of those that these benchmarks left there before."""
    anew = {row.benchmark for row in rows}
    kept = [row for row in load(file) if row.benchmark not in anew]
    entries = [{**asdict(row), "ratio": row.ratio} for row in (*kept, *rows)]
    write_whole(file, json.dumps(entries, indent=2, ensure_ascii=False) + "\n")


def load(file: Path = RESULTS) -> tuple[Row, ...]:
    """All rows that were ever measured."""
    entries = json.loads(file.read_text()) if file.exists() else []
    return tuple(Row(**{name: value for name, value in entry.items() if name != "ratio"}) for entry in entries)


def ordered(rows: Iterable[Row], benchmarks: Collection[str]) -> list[Row]:
    """The rows of these benchmarks, in their order."""
    return [row for name in benchmarks for row in rows if row.benchmark == name]


def table(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown, and on which machines they were measured."""
    lines = ["| what | goal | Refit | others | ratio |", "|---|---|---|---|---|"]
    for row in rows:
        ours = f"{_number(row.ours)} {row.unit}{'' if row.reached else ' (not reached)'}"
        lines.append(f"| {row.name} | {row.goal} | {ours} | {_others(row) or '–'} | {row.ratio or '–'} |")
    return "\n".join([*lines, "", *_places(rows)])


def with_table(readme: str, table: str) -> str:
    """The text of a README with this table in the place of the one that it has; both stand between two marks."""
    before, middle, rest = readme.partition(_MARK)
    _, end, after = rest.partition(_END)
    if not (middle and end):
        raise ValueError(f"the README lacks {_MARK} and {_END}")
    return f"{before}{_MARK}\n{table}\n{_END}{after}"


def _others(row: Row) -> str:
    measured = [f"{name} {_number(value)}" for name, value in row.peers.items()]
    return "; ".join([*measured, *(f"{name}: {why}" for name, why in row.skipped.items())])


def _places(rows: Sequence[Row]) -> list[str]:
    """On which machine what was measured: a line each."""
    results: dict[str, list[str]] = {}
    for row in rows:
        results.setdefault(f"{row.machine}, {row.measured}", []).append(row.benchmark)
    return [f"* {place}: {', '.join(dict.fromkeys(names))}" for place, names in results.items()]


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
