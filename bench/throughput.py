"""Many simulated sessions through the real flow: only their containers, homes and IDEs are made up."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import psutil
import yaml

from bench.results import Row

if TYPE_CHECKING:
    from tests.support.simulated.world import World

SESSIONS, AT_ONCE = 10_000, 600
# Of a move of 30 seconds; the IDE is waited for twice.
SECONDS = {"pull": 8.0, "create": 2.0, "copy": 5.0, "ready": 4.0, "stop": 4.0, "snapshot": 1.0, "start": 2.0}
GOAL, MEMORY = 1080.0, 300.0  # sessions a minute; MB


def run() -> list[Row]:
    """10,000 simulated sessions, 600 at a time, each 30 s: sessions a minute, and the memory of the process."""
    seen = measured(SESSIONS)
    all_well = seen["moved"] == SESSIONS and seen["most_away"] <= AT_ONCE
    name = f"{SESSIONS:,} simulated sessions, {AT_ONCE} at a time, 30 s each"
    speed, memory, fleet_too = seen["sessions_per_minute"], seen["memory_mb"], {"with it": seen["with_fleet_mb"]}
    engine = f"{name}: memory of the process, without tests and simulated fleet"
    return [
        Row(name, "sessions/min", f"≥ {GOAL:,.0f}", speed, all_well and speed >= GOAL),
        Row(engine, "MB", f"≤ {MEMORY:g} MB", memory, all_well and memory <= MEMORY, fleet_too),
    ]


def measured(number: int) -> dict[str, float]:
    """Figures of a process of its own on a migration of so many sessions; Prefect's server is another one."""
    from prefect.server.api.server import SubprocessASGIServer  # noqa: PLC0415 - takes seconds

    server = SubprocessASGIServer()
    server.start()
    with TemporaryDirectory(prefix="refit-throughput-") as folder, ExitStack() as stack:
        stack.callback(server.stop)
        home = Path(folder, "home")
        environment = {**os.environ, "REFIT_HOME": str(home), "PREFECT_API_URL": server.api_url}
        argv = [sys.executable, "-m", "bench.throughput", str(home), str(number)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return dict(json.loads(done.stdout.splitlines()[-1]))


def _measure(home: Path, number: int) -> dict[str, float]:
    _without_what_tests_bring()
    from flows.migrate_sessions import migrate_sessions  # noqa: PLC0415 - Prefect, whose memory counts

    alone = _in_memory()
    from tests.support.simulated.fleet import fleet  # noqa: PLC0415 - pytest, whose memory doesn't

    tests = _in_memory() - alone
    caps = {"rollout": AT_ONCE, "host": AT_ONCE, "owner": None}
    policy: dict[str, Any] = {"waves": [100], "unavailable": caps, "move_seconds": 30, "poll_minutes": 30}
    with fleet(home, **policy) as sessions, sessions.in_charge():
        written = sessions.settings.model_dump(
            mode="json", include={"registry_port", "migration", "stop_grace_seconds"}
        )
        (home / "settings.yaml").write_text(yaml.safe_dump(written))
        old = sessions.image("old")
        sessions.fill(number, old)
        sessions.image("new")
        sessions.world.seconds = SECONDS
        before, started = psutil.Process().cpu_times(), monotonic()
        results = migrate_sessions(once=True)
        seconds = monotonic() - started
        most = _most_memory()
        after, moved = psutil.Process().cpu_times(), Counter(result.moved for result in results)
        return {
            "sessions_per_minute": number / seconds * 60,
            "moved": moved[True],
            "most_away": sessions.world.most_away,
            "cpu_ms": (after.user + after.system - before.user - before.system) / number * 1000,
            "with_fleet_mb": most / 1e6,
            "memory_mb": (most - tests - _weight(sessions.world)) / 1e6,
        }


def _most_memory() -> int:
    """Most bytes that this process has had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _without_what_tests_bring() -> None:
    """Prefect takes 18 MB for this grammar wherever it is installed, and only the tests' requirements install it."""
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


def _weight(world: World) -> int:
    """Bytes that the simulated containers and homes take, which are somewhere else for real."""
    counted: dict[int, object] = {}
    waiting: list[object] = [world.boxes, world.families, world.homes, world.owed, world.passed, world.stops]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in counted and not isinstance(thing, type | ModuleType | FunctionType):
            counted[id(thing)] = thing
            waiting += gc.get_referents(thing)
    return sum(map(sys.getsizeof, counted.values()))


def _in_memory() -> int:
    """Bytes of this process that are in memory."""
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    print(json.dumps(_measure(Path(sys.argv[1]), int(sys.argv[2]))))
