"""Thousands of Pods of sessions get a new image, on simulated nodes of the real API server: calls, memory, faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from bench.results import Row
from flows.migrations.move_steps import State
from flows.migrations.results import Result
from tests.support import hollow_images, scale
from tests.support.api_faults import faulty
from tests.support.cluster import FOLDER, kube, kubectl
from tests.support.cluster_faults import kill_api_server, slow_etcd
from tests.support.simulated_nodes import simulated_nodes
from tests.support.waiting import wait_until

# A small machine takes fewer: let this variable say another number.
SESSIONS = int(os.environ.get("REFIT_BENCH_PODS", "5000"))
AT_ONCE, NODES = 600, 10
CALLS, MEMORY = 12.0, 400e6
_START_SECONDS = 900.0


def run() -> list[Row]:
    """All sessions are planned and moved; then some of them with an API server that is killed, slow, or fails."""
    with _crowd() as crowd:
        pid = int((FOLDER / "run" / "kube-apiserver.pid").read_text())
        plan_seconds, _ = scale.timed(crowd.plan)
        cpu = scale.cpu_of(pid)
        with scale.counted() as calls:
            seconds, results = scale.timed(lambda: crowd.move(AT_ONCE))
        cpu = scale.cpu_of(pid) - cpu
        moved, memory = _moved(results), float(scale.peak_memory())
        crowd.check()
        lost = {what: _lost(crowd, disturbed) for what, disturbed in _FAULTS.items()}
    return rows(plan_seconds, seconds, calls.number / SESSIONS, cpu, memory, moved, lost)


def rows(
    plan_seconds: float, seconds: float, calls: float, cpu: float, memory: float, moved: int, lost: dict[str, str]
) -> list[Row]:
    """The rows to write down.

    Args:
        plan_seconds: for a plan of all, with a look at each.
        seconds: for all moves.
        calls: of one move, to the API server.
        cpu: seconds of the API server's CPU for all moves.
        memory: bytes that Refit had at most.
        moved: sessions that are on the new image.
        lost: fault → the trouble that was found afterwards; empty: none.
    """
    all_moved = moved == SESSIONS
    what = f"{SESSIONS} sessions on simulated nodes of a real API server"
    faults = f"{what}, those of {', '.join(lost)} lost: {', '.join(filter(None, lost.values())) or 'none'}"
    return [
        Row(f"{what}: a plan, with a look at each", "s", "60 s", plan_seconds, plan_seconds <= 60),
        Row(f"{what}: calls of a move, {AT_ONCE} away at a time, {moved} moved", "calls", "12", calls, calls <= CALLS),
        Row(f"{what}: all moves", "s", "all moved", seconds, all_moved, {"CPU of the API server": cpu}),
        Row(f"{what}: memory of Refit", "MB", "400 MB", memory / 1e6, memory <= MEMORY),
        Row(faults, "faults", "none lost", float(sum(map(bool, lost.values()))), not any(lost.values())),
    ]


def _moved(results: tuple[Result, ...]) -> int:
    return Counter(result.state for result in results)[State.cleaned]


def _lost(crowd: scale.Crowd, disturbed: Callable[[scale.Crowd], None]) -> str:
    """The trouble that is left by moves that were disturbed, after the next run; empty: none."""
    disturbed(crowd)
    crowd.recover()
    try:
        crowd.check()
    except AssertionError as error:
        return str(error).splitlines()[0]
    return ""


def _kill(crowd: scale.Crowd) -> None:
    with scale.counted() as calls, ThreadPoolExecutor(1) as pool:
        moves = pool.submit(crowd.move, AT_ONCE, crowd.names[:AT_ONCE])
        wait_until(lambda: calls.seen["exec run-next"] > min(AT_ONCE, len(crowd.names)) / 4)
        kill_api_server(away=3).join()
        moves.result()


def _slow(crowd: scale.Crowd) -> None:
    over = Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(slow_etcd, over)
        try:
            crowd.move(AT_ONCE, crowd.names[:AT_ONCE])
        finally:
            over.set()


def _fail(crowd: scale.Crowd) -> None:
    with faulty(every=10):
        crowd.move(AT_ONCE, crowd.names[:AT_ONCE])


_FAULTS: dict[str, Callable[[scale.Crowd], None]] = {
    "a killed API server": _kill,
    "a slow etcd": _slow,
    "failures of every tenth call": _fail,
}


@contextmanager
def _crowd() -> Iterator[scale.Crowd]:
    """The sessions, in a cluster of this benchmark's own, without nodes that are real."""
    folder = Path(tempfile.mkdtemp(prefix="refit-bench-scale-"))
    kube("up", "0")
    os.environ["KUBECONFIG"] = str(FOLDER / "run" / "admin.kubeconfig")
    try:
        with simulated_nodes(FOLDER, NODES), hollow_images.plain_registry(folder) as port:
            kubectl("create", "namespace", scale.NAMESPACE)
            wait_until(lambda: kubectl("get", "nodes").count("simulated-") == NODES)
            crowd = scale.crowd(scale.settings_of_crowd(folder / "refit", port), SESSIONS, NODES)
            wait_until(crowd.all_run, _START_SECONDS)
            yield crowd
    finally:
        subprocess.run([Path(__file__).parents[1] / "scripts" / "kube", "down"], check=True)
        shutil.rmtree(folder, ignore_errors=True)
