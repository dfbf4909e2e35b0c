"""All sessions of a machine get a new image, as `refit migrate run` does it: look, waves, rehearsals, moves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import psutil

from bench.lab import Lab, lab
from bench.results import Row
from flows.core.settings.environment import variables
from flows.core.settings.policy import RolloutPolicy, Unavailable
from flows.images.registry import Registry
from flows.migrate_sessions import migrate_sessions
from flows.migrations.move_steps import State
from flows.sessions.activity.probes import look_at
from flows.sessions.homes.folders import folder_of
from tests.support.moving import furnish
from tests.support.waiting import wait_until

# Each takes about 100 MB of memory: on a smaller machine, let this variable say another number.
SESSIONS = int(os.environ.get("REFIT_BENCH_SESSIONS", "40"))
CREATED_AT_ONCE = 4
SETTLED_SECONDS = 120.0
BUSY = 0.8  # share of the CPU from which on it is what everything waits for

Content = Mapping[str, bytes]


def run() -> list[Row]:
    """40 real sessions with JupyterLab get a new image by the flow, and every byte in their homes is looked at.

    Prefect's server is up already, as where there are sessions.
    """
    from prefect.server.api.server import SubprocessASGIServer  # noqa: PLC0415 - takes seconds

    # In one wave: the first ones of a rollout are there to be waited for.
    policy = RolloutPolicy(waves=(100,), unavailable=Unavailable(rollout=None, host=None))
    with SubprocessASGIServer(), lab(migration=policy) as machine:
        names = [f"person-{number:02}" for number in range(SESSIONS)]
        with ThreadPoolExecutor(CREATED_AT_ONCE) as pool:
            list(pool.map(lambda name: _create(machine, name), names))
        wait_until(lambda: _rests(machine, names), SETTLED_SECONDS)  # who has just started is busy with that
        before = {name: _content(machine, name) for name in names}
        _publish(machine, machine.image("the next"))
        busy, started = _busy(), monotonic()
        with _environment(variables(machine.settings)):
            results = {result.session: result.state for result in migrate_sessions()}
        seconds, cpu = monotonic() - started, _busy() - busy
        after = {name: _content(machine, name) for name in names}
    moved = sum(results.get(name) is State.cleaned for name in names)
    lost = sum(
        len(content) for name in names for path, content in before[name].items() if after[name].get(path) != content
    )
    return rows(moved, lost, seconds, cpu / (psutil.cpu_count() or 1))


def rows(moved: int, lost: int, seconds: float, cpu: float) -> list[Row]:
    """The rows to write down.

    Args:
        moved: how many sessions are on the new image.
        lost: bytes of their homes that aren't there any more.
        seconds: how long it took.
        cpu: how long it would have taken had no core ever been idle.
    """
    what = f"{SESSIONS} real sessions on one machine in one wave, {moved} moved, {lost} bytes lost"
    goal, reached = "all moved, 0 lost bytes, CPU-bound time only", moved == SESSIONS and not lost
    return [Row(what, "s", goal, seconds, reached and cpu >= BUSY * seconds, {"its work, were no core ever idle": cpu})]


def _create(machine: Lab, name: str) -> None:
    machine.create(name)
    furnish(machine.sessions, name)


def _rests(machine: Lab, names: Sequence[str]) -> bool:
    """Whether nothing works in any of these sessions."""
    sessions = [machine.sessions.store.session(name) for name in names]
    return all(seen.may_interrupt for seen in look_at(machine.settings, machine.sessions.engine, sessions))


def _content(machine: Lab, name: str) -> Content:
    """The content of a home's files, but for those that belong to the IDE."""
    session = machine.sessions.store.session(name)
    home = folder_of(session.home)
    inside = {f"/{file.relative_to(home)}": file for file in home.rglob("*") if _is_plain(file)}
    own = session.access.own_paths
    return {path: file.read_bytes() for path, file in inside.items() if not path.startswith(own)}


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def _publish(machine: Lab, image: str) -> None:
    """Let the alias of the profile point at an image, as publishing does in the end."""
    registry, profile = Registry(machine.settings), machine.profile
    manifest = registry.manifest(machine.settings.repository, image)
    alias = f"{profile.stem}_{profile.release}"
    registry.put_manifest(machine.settings.repository, alias, manifest.content, manifest.media_type)


def _busy() -> float:
    """Seconds for which the cores of this machine have worked so far, whoever for."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Let what a flow loads be these settings."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
