"""Many simulated sessions through the real flow: only their containers, homes and IDEs are made up."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import psutil
import yaml

from bench.results import Row

SESSIONS, AT_ONCE = 10_000, 600
# Of a move of 30 seconds; the IDE is waited for twice.
SECONDS = {"pull": 8.0, "create": 2.0, "copy": 5.0, "ready": 4.0, "stop": 4.0, "snapshot": 1.0, "start": 2.0}
GOAL, MEMORY = 1080.0, 300.0  # sessions a minute; MB


def run() -> list[Row]:
    """10,000 simulated sessions, 600 at a time, each 30 s: sessions a minute, and the memory of the process."""
    seen = measured(SESSIONS)
    all_well = seen["moved"] == SESSIONS and seen["most_away"] <= AT_ONCE
    name = f"{SESSIONS:,} simulated sessions, {AT_ONCE} at a time, 30 s each"
    speed, memory = seen["sessions_per_minute"], seen["memory_mb"]
    return [
        Row(name, "sessions/min", f"≥ {GOAL:,.0f}", speed, all_well and speed >= GOAL),
        Row(f"{name}: memory of the process", "MB", f"≤ {MEMORY:g} MB", memory, all_well and memory <= MEMORY),
    ]


def measured(number: int) -> dict[str, float]:
    """What a process of its own says of a migration of so many sessions."""
    with TemporaryDirectory(prefix="refit-throughput-") as folder:
        home = Path(folder, "home")
        environment = {**os.environ, "REFIT_HOME": str(home)}
        argv = [sys.executable, "-m", "bench.throughput", str(home), str(number)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return dict(json.loads(done.stdout.splitlines()[-1]))


def _measure(home: Path, number: int) -> dict[str, float]:
    from flows.migrate_sessions import migrate_sessions  # noqa: PLC0415 - Prefect, whose memory counts
    from tests.simulated.fleet import fleet  # noqa: PLC0415

    caps = {"rollout": AT_ONCE, "host": AT_ONCE, "owner": None}
    policy: dict[str, Any] = {"waves": [100], "unavailable": caps, "move_seconds": 30, "look_minutes": 30}
    with fleet(home, **policy) as sessions, sessions.in_charge():
        written = sessions.settings.model_dump(mode="json", include={"registry_port", "migration", "stop_grace"})
        (home / "settings.yaml").write_text(yaml.safe_dump(written))
        old = sessions.image("old")
        for each in range(number):
            sessions.add(each, old)
        sessions.image("new")
        sessions.world.seconds = SECONDS
        before, started = psutil.Process().cpu_times(), monotonic()
        results = migrate_sessions(once=True)
        seconds = monotonic() - started
        after, moved = psutil.Process().cpu_times(), Counter(result.moved for result in results)
        return {
            "sessions_per_minute": number / seconds * 60,
            "moved": moved[True],
            "most_away": sessions.world.most_away,
            "cpu_ms": (after.user + after.system - before.user - before.system) / number * 1000,
            "memory_mb": _most_memory() / 1e6,
        }


def _most_memory() -> int:
    """Most bytes that this process has had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    logging.disable(logging.INFO)
    print(json.dumps(_measure(Path(sys.argv[1]), int(sys.argv[2]))))
