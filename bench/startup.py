"""The first second: how long commands that do next to nothing take, beside what they are made of."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from bench.results import Row, seconds_of
from tests.support.machine import private_home

REFIT = str(Path(sys.executable).with_name("refit"))
TIMES = 15
LIBRARIES, HELP, COMPLETION, SESSIONS = "python -c 'import typer, rich'", "`refit --help`", "completion", "list"
COMMANDS: Mapping[str, Sequence[str]] = {
    LIBRARIES: (sys.executable, "-c", "import typer, rich"),
    HELP: (REFIT, "--help"),
    COMPLETION: (REFIT,),
    SESSIONS: (REFIT, "session", "list"),
}
ASKING = {"_REFIT_COMPLETE": "complete_bash", "COMP_WORDS": "refit session ", "COMP_CWORD": "2"}


def run() -> list[Row]:
    """`refit --help`, completion and `refit session list`, and importing Typer and rich: the median of 15, in turns."""
    with (
        tempfile.TemporaryDirectory(prefix="refit-bench-") as folder,
        private_home(Path(folder) / "home", 1) as settings,
    ):
        calls = {name: partial(_call, name, settings.home) for name in COMMANDS}
        for call in calls.values():
            call()  # compiles what was never imported
        seconds = {name: list[float]() for name in calls}
        for _ in range(TIMES):
            for name, call in calls.items():
                seconds[name].append(seconds_of(call))
    middle = {name: median(several) for name, several in seconds.items()}
    return [
        _row(HELP, HELP, middle, 2.5, LIBRARIES),
        _row("completion of `refit session `", COMPLETION, middle, 2.5, LIBRARIES),
        _row("`refit session list`, no session", SESSIONS, middle, 2.0, HELP),
    ]


def _call(name: str, home: Path) -> None:
    # Compiled modules are kept, as where people work.
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment = {**own, "REFIT_HOME": str(home), **(ASKING if name == COMPLETION else {})}
    subprocess.run(COMMANDS[name], env=environment, check=True, stdout=subprocess.DEVNULL)


def _row(name: str, ours: str, seconds: Mapping[str, float], most: float, peer: str) -> Row:
    reached = seconds[ours] <= most * seconds[peer]
    return Row(name, "s", f"≤ {most:g} × {peer}", seconds[ours], reached, {peer: seconds[peer]})
