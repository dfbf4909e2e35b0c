"""What benchmarks measure: rows, kept in `results.json`, shown as the table of the README."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from flows import command

RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Row:
    """One figure, and what others need for the same on the same machine in the same run.

    Attributes:
        name: what was done.
        unit: of `ours` and of all `peers`.
        goal: what is to be reached, in words.
        ours: what Refit needs.
        peers: the others; the goal is held against the first of them.
        reached: whether the goal is.
    """

    name: str
    unit: str
    goal: str
    ours: float
    reached: bool
    peers: Mapping[str, float] = field(default_factory=dict)
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """How many times as much as Refit the first of the peers needs."""
        return round(next(iter(self.peers.values())) / self.ours, 2) if self.peers and self.ours else None


def machine() -> str:
    """Cores, memory and kernel of this machine."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def versions(*programs: str) -> dict[str, str]:
    """What programs say of their versions."""
    said = {program: command.run([program, "--version"]).stdout for program in programs}
    return {"python": platform.python_version(), **{name: text.splitlines()[0] for name, text in said.items()}}


def save(rows: Iterable[Row], file: Path = RESULTS) -> None:
    """Put rows into the file, in the place of those with the same names."""
    known = {row["name"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    known |= {row.name: {**asdict(row), "ratio": row.ratio} for row in rows}
    file.write_text(json.dumps(list(known.values()), indent=2, ensure_ascii=False) + "\n")


def load(file: Path = RESULTS) -> tuple[Row, ...]:
    """All rows that were ever measured, in the order in which they came."""
    entries = json.loads(file.read_text()) if file.exists() else []
    return tuple(Row(**{name: value for name, value in entry.items() if name != "ratio"}) for entry in entries)


def table(rows: Sequence[Row]) -> str:
    """Rows as a table in Markdown."""
    lines = ["| what | goal | Refit | others | ratio |", "|---|---|---|---|---|"]
    for row in rows:
        peers = "; ".join(f"{name} {_number(value)}" for name, value in row.peers.items())
        ours = f"{_number(row.ours)} {row.unit}{'' if row.reached else ' (not reached)'}"
        lines.append(f"| {row.name} | {row.goal} | {ours} | {peers or '–'} | {row.ratio or '–'} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
