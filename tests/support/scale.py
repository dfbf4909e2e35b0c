"""Thousands of sessions as Pods on simulated nodes of a real API server, and moves of all of them, counted."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import httpx2

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.core.settings.policy import RolloutPolicy, Unavailable
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.recovery import recover_all
from flows.migrations.results import Result
from flows.migrations.rollouts.concurrency import ConcurrencyLimits, side_by_side
from flows.migrations.rollouts.reconcile import foreseen
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.sessions.kubernetes import cluster as connection
from flows.sessions.kubernetes import manifests, ownership, records
from flows.sessions.kubernetes.cluster import Cluster, ClusterOptions
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import HomeRef, Running, Session, TokenRef
from flows.sessions.store import Store
from tests.support import hollow_images
from tests.support.cluster_moves import settings_for_cluster
from tests.support.processes import in_a_process
from tests.support.simulated_nodes import first_id

PROFILE, RELEASE, NAMESPACE = "light-minimal-deb12-py311", "2026a", "refit-scale"
_ACCESS = Access(late_home=True)
_LABELS = {"io.refit.profile": PROFILE, "io.refit.release": RELEASE, "io.refit.access": _ACCESS.model_dump_json()}
_FIRST_UID, _MADE_AT_ONCE = 210_000, 12


@dataclass
class Calls:
    """Calls of this process to an API server, by their kind."""

    seen: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def add(self, what: str) -> None:
        """Count one."""
        with self.lock:
            self.seen[what] += 1

    @property
    def number(self) -> int:
        """All of them."""
        return self.seen.total()


@contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls within the `with` block: those that were really sent."""
    calls, handle, socket = Calls(), httpx2.HTTPTransport.handle_request, vars(connection)["socket"]

    def counting(self: Any, request: httpx2.Request) -> httpx2.Response:
        parts = request.url.path.partition("/namespaces/")[2].split("/")[1:]
        watch = " (watch)" if request.url.params.get("watch") else ""
        calls.add(f"{request.method} {parts[0] if parts else request.url.path}{'/NAME' if parts[1:] else ''}{watch}")
        return handle(self, request)

    def connecting(request: httpx2.Request, *more: Any) -> Any:
        words = request.url.params.get_list("command")[4:]
        calls.add(f"exec {words[2] if words[1:2] == ['/run/refit/bin/slot'] else 'program'}")
        return socket(request, *more)

    httpx2.HTTPTransport.handle_request = counting  # type: ignore[method-assign]
    setattr(connection, "socket", connecting)  # noqa: B010 - imported there, not made
    try:
        yield calls
    finally:
        httpx2.HTTPTransport.handle_request = handle  # type: ignore[method-assign]
        setattr(connection, "socket", socket)  # noqa: B010


@dataclass(frozen=True)
class Crowd:
    """Sessions, all on the first of two images.

    Attributes:
        names: of the sessions.
        images: digests of both.
    """

    settings: Settings
    names: tuple[str, ...]
    images: tuple[str, str]

    def plan(self) -> tuple[Decision, ...]:
        """A plan for all, by a look at each."""
        return SessionPlanner(self.settings).plan([], self.images[1])

    def move(self, at_once: int, names: Sequence[str] = ()) -> tuple[Result, ...]:
        """Move all, or some, each to the other image, so many of them away at the same time."""
        executor = MoveExecutor.open(self.settings)
        on = {session.name: session.image for session in executor.sessions.store.sessions()}
        other = dict((self.images, self.images[::-1]))
        lines = [Decision(name, Action.migrate, on[name], other[on[name]], agreed=True) for name in names or self.names]

        def move(line: Decision) -> Result:  # as `move_wave` does
            try:
                return executor.carry_out(line)
            except RefitError as error:
                return replace(foreseen(line), state=State.skipped, error=str(error))

        return side_by_side(lines, move, ConcurrencyLimits(at_once, {}, lambda _: ()))

    def all_run(self) -> bool:
        """Whether the nodes have said of each Pod that it runs."""
        made = Sessions.open(self.settings).engine.containers()
        return sum(one.running is Running.running for one in made) == len(self.names)

    def recover(self) -> None:
        """Bring moves to their ends that were interrupted, as the next run does."""
        recover_all(MoveExecutor.open(self.settings))

    def check(self) -> None:
        """Each session runs once, on the image on record, in the Pod that it had, and nothing is left of any move."""
        sessions = Sessions.open(self.settings)
        made = sessions.engine.containers()
        statuses = sessions.all()
        assert [status.session.name for status in statuses] == [*self.names]
        assert {status.running for status in statuses} == {"running"}
        assert len(made) == len(self.names), Counter(one.session for one in made).most_common(3)
        images = {one.session: one.image for one in made}
        assert all(images[status.session.name] == status.session.image for status in statuses)
        pods = Cluster(ownership.options(self.settings)).list("pods")
        assert len(pods) == len(self.names)


def settings_of_crowd(home: Path, registry: int, **more: object) -> Settings:
    """Settings of a Refit with such sessions, with a registry at that port of this machine."""
    policy = RolloutPolicy(waves=(100,), rehearse=False, scan=False, keep_hours=0, unavailable=_ALL)
    cluster = ClusterSettings(namespace=NAMESPACE, start_minutes=3, drain_minutes=0, snapshots=Snapshots.none)
    given = {"registry": f"127.0.0.1:{registry}", "kubernetes": cluster, "migration": policy, "idle_minutes": 0.01}
    return settings_for_cluster(home, **{**given, **more})


_ALL = Unavailable(rollout=None, host=None)


def crowd(settings: Settings, number: int, nodes: int) -> Crowd:
    """Make so many sessions that run, as if each had been started by Refit, in a process of its own: the memory that
    this takes is not that of their moves.
    """
    one, two = (hollow_images.push(settings, word, _LABELS) for word in ("one", "two"))
    names = tuple(f"person-{n:05}" for n in range(number))
    maker = in_a_process(lambda: _make(settings, names, one, nodes))
    maker.join()
    assert maker.exitcode == 0
    return Crowd(settings, names, (one, two))


def _make(settings: Settings, names: Sequence[str], image: str, nodes: int) -> None:
    """Make the sessions of these names, each with a Pod on one of so many nodes and a record that say that it runs."""
    options = ownership.options(settings)
    cluster, text = Cluster(options), Path(manifests.__file__).with_name("slot.sh").read_text(encoding="utf-8")
    cluster.create("configmaps", manifests.scripts(options, text))
    script, store = manifests.scripts_name(text), Store(open_database(settings.database))
    sessions = [
        Session(
            name, PROFILE, RELEASE, image, _FIRST_UID + n, HomeRef(manifests.claim(name)), TokenRef("token"), _ACCESS
        )
        for n, name in enumerate(names)
    ]

    def make(numbered: tuple[int, Session]) -> None:
        n, session = numbered
        session = replace(session, late_home=True)
        cluster.create("configmaps", _record(session, options))
        cluster.create("pods", _pod(session, options, script, f"simulated-{n % nodes}"))

    with ThreadPoolExecutor(_MADE_AT_ONCE) as pool:
        list(pool.map(make, enumerate(sessions)))
    for session in sessions:
        store.bring_back(replace(session, late_home=True), should_run=True)


def _record(session: Session, options: ClusterOptions) -> dict[str, Any]:
    record = manifests.record(session, options)
    record["metadata"].setdefault("annotations", {})[manifests.STARTED] = "2026-11-26T05:00:00+00:00"
    return record


def _pod(session: Session, options: ClusterOptions, script: str, node: str) -> dict[str, Any]:
    pod = manifests.pod(session, options, script)
    name, slot = pod["metadata"]["name"], manifests.SLOTS[0]
    opened = records.opened(1, first_id(name, slot))
    annotations = {f"{manifests.PLACED}{slot}": "1", f"{manifests.OPENED}{slot}": opened}
    pod["metadata"]["annotations"] = {**(pod["metadata"].get("annotations") or {}), **annotations}
    pod["spec"]["nodeName"] = node
    return pod


def peak_memory() -> int:
    """Bytes of memory that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def timed(what: Any) -> tuple[float, Any]:
    """Seconds that a call takes, and its result."""
    began = time.monotonic()
    result = what()
    return time.monotonic() - began, result
