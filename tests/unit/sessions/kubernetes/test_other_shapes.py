"""Sessions with GPUs whose next Pod has another shape, or other GPUs: they take no second lot of them to start warm."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrations.move import Move
from flows.migrations.move_steps import State
from flows.migrations.steps.compensations import Compensations
from flows.migrations.steps.move_context import MoveContext
from flows.sessions.kubernetes import engine as module
from flows.sessions.kubernetes import manifests, records
from flows.sessions.kubernetes.engine import Kubernetes
from flows.sessions.kubernetes.gpus import ClusterGpus
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from tests.support.api_server_in_memory import Memory, slot
from tests.support.pods import OPTIONS, SESSION

CLASS, PLUGIN = "gpu.example.com", "example.com/gpu"
LATE = replace(SESSION, late_home=True, access=SESSION.access.model_copy(update={"late_home": True}))
ONE = replace(LATE, gpus=1, devices=(CLASS,))
OF_PLUGIN = replace(ONE, devices=(PLUGIN,))
OLD, NEW = OPTIONS.reference(SESSION.image), f"sha256:{'b' * 64}"
ANEW = "its Pod is made anew, once the other one has ended"


def after(session: Session, **changes: Any) -> Session:
    return replace(session, generation=2, image=NEW, **changes)


class Scene:
    """A cluster with the records of two generations, the engine there, and the steps of moves between them."""

    def __init__(self, home: Path, before: Session, after: Session, name: str = CLASS) -> None:
        self.settings, self.before, self.after = Settings(home=home), before, after
        self.server = Memory(before, after)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "Cluster", lambda _: self.server)
            self.engine = Kubernetes(OPTIONS, lambda _: {"config": {"Cmd": ["ide"]}}, SimpleNamespace(), Path)  # type: ignore[arg-type]
        self.stored = dict[str, Session]()
        self.store = SimpleNamespace(
            find=lambda _: (before, True), update=lambda told: self.stored.update({told.name: told})
        )
        self.sessions = Sessions.__new__(Sessions)
        self.sessions._settings, self.sessions.engine = self.settings, self.engine
        self.sessions.gpus = ClusterGpus(self.server, name, self.store)  # type: ignore[arg-type]
        self.sessions.store = self.store  # type: ignore[assignment]
        self.sessions.machines = SimpleNamespace(leaving=dict)  # type: ignore[assignment]
        self.context = MoveContext(self.settings, self.sessions, SimpleNamespace())  # type: ignore[arg-type]

    def rewarm(self) -> str:
        move = Move("ada-2", self.before, self.after, "", State.planned, "", datetime.now(UTC))
        return Compensations(self.context).rewarm(move).note


def test_a_session_whose_pod_has_another_shape_gets_no_second_claim_beside_it(tmp_path: Path) -> None:
    """Of an older Refit, for instance, or from before somebody changed `memory_gb` or the tolerations."""
    scene = Scene(tmp_path, replace(ONE, memory=10**9), after(ONE, memory=2 * 10**9))
    scene.server.pod("refit-ada-1", "n", slot("a", 1, OLD), scene.before)
    assert scene.context.stays_cold(scene.before) == ""
    scene.engine.create(scene.after)
    assert scene.context.stays_cold(scene.after) == ANEW
    assert [*scene.server.pods] == ["refit-ada-1"]
    scene.engine.stop(scene.before.container, grace=1)
    scene.engine.start(scene.after.container)
    assert [*scene.server.pods] == ["refit-ada-2"], "the claim of the Pod before is free for this one"
    assert scene.context.stays_cold(scene.before) == ANEW, "on the way back, too"


def test_a_pod_that_waits_for_a_node_is_no_place(tmp_path: Path) -> None:
    """One that a Refit has left that was killed."""
    scene = Scene(tmp_path, replace(ONE, memory=10**9), after(ONE))
    scene.server.pod("refit-ada-1", "n", slot("a", 1, OLD), scene.before)
    scene.server.pod("refit-ada-2", "", {f"{manifests.PLACED}a": "2"}, scene.after)
    assert scene.context.stays_cold(scene.after) == ANEW


@pytest.mark.parametrize(("before", "then"), [(ONE, 2), (LATE, 1)], ids=["one more", "the first one"])
def test_the_way_back_from_other_gpus_claims_none_beside_them(tmp_path: Path, before: Session, then: int) -> None:
    """Its failed Pod has taken its home to another node, and the one before is gone."""
    scene = Scene(tmp_path, before, after(before, gpus=then, devices=(CLASS,) * then, late_home=False))
    scene.server.pod("refit-ada-2", "n", slot("a", 2, OPTIONS.reference(NEW)), scene.after)
    assert scene.rewarm() == f"not warm: {ANEW}"
    assert [*scene.server.pods] == ["refit-ada-2"]
    scene.engine.stop(scene.after.container, grace=1)
    scene.engine.create(scene.before)
    scene.engine.start(scene.before.container)
    assert [*scene.server.pods] == ["refit-ada-1"] and scene.server.seen()[1] == (Running.running, False)


def test_the_way_back_is_warm_where_the_pod_before_is_still_there(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ONE, after(ONE, gpus=2, devices=(CLASS, CLASS), late_home=False))
    scene.server.pod("refit-ada-1", "n", {f"{manifests.PLACED}a": "1"}, scene.before)
    scene.server.pod("refit-ada-2", "n", slot("a", 2, OPTIONS.reference(NEW)), scene.after)
    assert scene.rewarm() == ""
    assert scene.server.seen() == {1: (Running.running, True), 2: (Running.running, False)}
    assert [*scene.server.pods] == ["refit-ada-1", "refit-ada-2"]


def test_the_way_back_goes_on_where_nobody_says_whether_there_is_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Session) -> bool:
        raise RefitError("The cluster doesn't answer.")

    scene = Scene(tmp_path, ONE, after(ONE))
    monkeypatch.setattr(scene.engine, "has_place", refuse)
    assert scene.rewarm() == "not warm: The cluster doesn't answer."


def test_a_session_keeps_how_it_binds_its_home_as_long_as_it_has_its_gpus(tmp_path: Path) -> None:
    """Its container stays as it is, with what people have installed there."""
    had = replace(ONE, late_home=False)
    scene = Scene(tmp_path, had, after(had))
    assert scene.sessions._equipped(had) == had and not scene.stored
    assert len(scene.server.records) == 2


def test_a_record_that_says_otherwise_lets_nothing_start_beside_one_container_with_all_gpus(tmp_path: Path) -> None:
    scene = Scene(tmp_path, OF_PLUGIN, after(OF_PLUGIN), PLUGIN)
    scene.server.pod("refit-ada-1", "n", slot("a", 2, OPTIONS.reference(NEW)), scene.after)
    cold = "one container has its GPUs, and the next one takes its place"
    assert scene.context.stays_cold(OF_PLUGIN) == cold and scene.rewarm() == f"not warm: {cold}"
    assert [*scene.server.pods] == ["refit-ada-1"]


@pytest.mark.parametrize("session", [OF_PLUGIN, ONE], ids=["of a plugin", "claimed"])
def test_a_pod_that_waits_for_the_gpus_of_an_idle_one_of_its_session_goes(tmp_path: Path, session: Session) -> None:
    scene = Scene(tmp_path, session, after(session), session.devices[0])
    ended = {f"{manifests.PLACED}{'a' if session is OF_PLUGIN else 'b'}": "2"}
    scene.server.pod("refit-ada-1", "n", ended, session)
    scene.server.pod("refit-ada-1-more", "", {f"{manifests.PLACED}a": "1"}, session)
    scene.engine.start(session.container)
    assert [*scene.server.pods] == ["refit-ada-1"]
    assert scene.server.seen()[1] == (Running.running, False)


def test_a_pod_that_has_a_node_by_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that gives its session another GPU has made it before the stop, and the follower may hear of it later."""
    scene = Scene(tmp_path, ONE, after(ONE, gpus=2, devices=(CLASS, CLASS), late_home=False))
    scene.server.pod("refit-ada-1", "n", {f"{manifests.PLACED}a": "1"}, scene.before)
    scene.server.pod("refit-ada-2", "n", {f"{manifests.PLACED}a": "2"}, scene.after)
    told = [records.pod(pod) for pod in scene.server.pods.values()]
    late = [(told[0], replace(told[1], node="")), told]
    each = scene.server.each

    def tell(resource: str, *more: Any, **labels: str) -> Any:
        return late.pop(0) if resource == "pods" and len(late) > 1 else each(resource, *more, **labels)

    monkeypatch.setattr(scene.server, "of_session", lambda resource, _, __, read: tell(resource, read))
    monkeypatch.setattr(scene.server, "delete", lambda resource, name, **_: deleted.append(name))
    deleted = list[str]()
    Placement(scene.server, OPTIONS).place(scene.after)  # type: ignore[arg-type]
    assert not deleted and len(late) == 1
