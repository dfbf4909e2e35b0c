"""Services that die: how soon they answer again, what their supervisor costs, and what systemd or nobody does instead.

The service is the image registry, the quickest of all to start. Where no manager of systemd runs for the user,
that part is left out and says so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from bench.results import Row, seconds_of
from flows import services
from flows.core.programs import process_records, spawn
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.services import process, systemd
from flows.services.embedded import registry
from flows.services.supervision import FOLDER, NOTES
from tests.support.waiting import PATIENCE, free_port

TIMES = 5
MOST_SECONDS, MOST_MEGABYTES = 5.0, 40.0
DETACHED, SYSTEMD = "detached, as before", "systemd --user"


@dataclass(frozen=True)
class Measured:
    """Seconds until it answers: after its start, and after `kill -9`; MB of what keeps it."""

    start: float
    again: float
    megabytes: float


def run() -> list[Row]:
    """The image registry kept by supervisord: its start, its return after `kill -9`, memory; beside systemd."""
    with _home() as settings:
        ours = _supervised(settings)
    with _home() as settings:
        detached = _detached(settings)
    peer, skipped = {DETACHED: detached}, {SYSTEMD: "no manager of systemd runs for this user"}
    if _has_systemd():
        with _home() as settings:
            unit = _by_systemd(settings)
        results, skipped = {SYSTEMD: unit}, {}
    else:
        results = {}
    again = {name: measured.again for name, measured in results.items()}
    return [
        Row(
            "registry answers, first start of a home",
            "s",
            f"≤ {MOST_SECONDS:g} s",
            ours.start,
            ours.start <= MOST_SECONDS,
            {**peer, **{name: measured.start for name, measured in results.items()}},
            skipped,
        ),
        Row(
            "registry answers again after `kill -9`",
            "s",
            f"≤ {MOST_SECONDS:g} s",
            ours.again,
            ours.again <= MOST_SECONDS,
            again,
            {**skipped, DETACHED: "never"},
        ),
        Row(
            "memory of what keeps the services",
            "MB",
            f"≤ {MOST_MEGABYTES:g} MB",
            ours.megabytes,
            ours.megabytes <= MOST_MEGABYTES,
            {name: measured.megabytes for name, measured in results.items()},
            skipped,
        ),
    ]


@contextmanager
def _home() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="refit-bench-") as folder:
        home = Path(folder)
        settings = Settings(home=home, catalog=home, registry_port=free_port(), prefect_port=free_port(), gateway=False)
        try:
            yield settings
        finally:
            services.down(settings)


def _supervised(settings: Settings) -> Measured:
    service = registry(settings)
    process.prepare(service)

    def first() -> None:
        process.start(service)
        process.wait_until_answering(service)

    start = seconds_of(first)
    again = median(_killed(lambda: _pid(service.folder), settings) for _ in range(TIMES))
    [keeper] = process_records.noted(settings.folder("services", FOLDER) / NOTES)
    return Measured(start, again, psutil.Process(keeper.pid).memory_info().rss / 1e6)


def _pid(folder: Path) -> int:
    return next((noted.pid for noted in process_records.noted(folder / NOTES)), 0)


def _detached(settings: Settings) -> float:
    """Seconds that the same takes where a program is only started."""
    service = registry(settings)
    process.prepare(service)

    def start() -> None:
        spawn.start(
            service.argv, env=service.inherited, cwd=service.folder, log=service.log, notes=process.notes(service)
        )
        process.wait_until_answering(service)

    return seconds_of(start)


def _killed(pid: Callable[[], int], settings: Settings) -> float:
    """Seconds from `kill -9` until it answers again."""
    service, killed = registry(settings), pid()

    def kill() -> None:
        os.kill(killed, signal.SIGKILL)
        there = wait_until(lambda: pid() not in (0, killed) and process.answers(service), seconds=PATIENCE, pause=0.01)
        assert there, "it does not come back"

    return seconds_of(kill)


def _has_systemd() -> bool:
    if not shutil.which("systemctl"):
        return False
    asked = subprocess.run(["systemctl", "--user", "is-system-running"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() in ("running", "degraded")


def _by_systemd(settings: Settings) -> Measured:
    service = registry(settings)
    process.prepare(service)
    name = f"refit-bench-{os.getpid()}.service"
    unit = Path.home() / ".config/systemd/user" / name
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text("".join(line for line in systemd.unit(service).splitlines(True) if not line.startswith("User=")))

    def systemctl(*words: str) -> str:
        argv = ["systemctl", "--user", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    def start() -> None:
        systemctl("start", name)
        process.wait_until_answering(service)

    try:
        systemctl("daemon-reload")
        seconds = seconds_of(start)
        again = median(
            _killed(lambda: int(systemctl("show", "--property=MainPID", "--value", name)), settings)
            for _ in range(TIMES)
        )
        manager = next(each for each in psutil.process_iter(["cmdline"]) if "--user" in (each.info["cmdline"] or ()))
        return Measured(seconds, again, manager.memory_info().rss / 1e6)
    finally:
        systemctl("stop", name)
        unit.unlink()
        systemctl("daemon-reload")
