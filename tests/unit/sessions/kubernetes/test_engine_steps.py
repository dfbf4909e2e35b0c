"""The steps of the engine, on an API server in memory: in which order things happen, and what is known after them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core.errors import RefitError
from flows.migrations.steps.failure_attribution import puts_off
from flows.sessions.kubernetes import engine as module
from flows.sessions.kubernetes import manifests, records
from flows.sessions.kubernetes.engine import Kubernetes
from flows.sessions.kubernetes.gpus import ClusterGpus
from flows.sessions.kubernetes.nodes import ClusterNodes
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.model import Running
from tests.support.api_server_in_memory import Memory, slot
from tests.support.pods import OPTIONS, SESSION

OLD, NEW = (OPTIONS.reference(f"sha256:{letter * 64}") for letter in "ab")
AFTER = replace(SESSION, generation=2, image=f"sha256:{'b' * 64}")
GPU = {"gpus": 1, "devices": ("example.com/gpu",)}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory(SESSION, AFTER)
    monkeypatch.setattr(module, "Cluster", lambda _: made)
    return made


@pytest.fixture
def engine(server: Memory) -> Kubernetes:
    return Kubernetes(OPTIONS, lambda _: {"config": {"Cmd": ["ide"]}}, SimpleNamespace(), Path)  # type: ignore[arg-type]


def test_a_generation_that_waits_no_more_and_is_started_cold_has_the_home(server: Memory, engine: Kubernetes) -> None:
    stopped = {f"{manifests.PLACED}a": "1"}
    server.pod("refit-ada-1", "n", {**stopped, **slot("b", 2, "", late=True)})
    server.pods["refit-ada-1"]["spec"]["containers"][1]["image"] = NEW
    server.tend()
    assert server.seen()[2] == (Running.running, True)
    server.refuses = "open"
    engine.start(AFTER.container)
    assert server.begun[-1][2:4] == ["start", "2"]
    assert server.seen()[2] == (Running.running, False), "nobody else may have its home"
    with pytest.raises(RefitError, match="in use"):
        engine.start(SESSION.container)


def test_a_session_without_a_warm_start_is_not_stopped_before_its_next_slot_has_the_image(
    server: Memory, engine: Kubernetes
) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    engine.create(AFTER)
    (pod,) = server.pods.values()
    assert [each["image"] for each in pod["spec"]["containers"]] == [OLD, NEW]
    assert server.seen()[1] == (Running.running, False) and not server.begun
    engine.stop(SESSION.container, grace=1)
    engine.start(AFTER.container)
    assert server.begun[-1][2:4] == ["start", "2"] and server.seen()[2] == (Running.running, False)


def test_its_slot_is_free_again_where_it_is_not_stopped_after_all(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    engine.create(AFTER)
    engine.remove(AFTER.container)
    (pod,) = server.pods.values()
    assert f"{manifests.PLACED}b" not in pod["metadata"]["annotations"]
    assert server.seen() == {1: (Running.running, False)}


def test_one_whose_person_ends_it_before_the_stop_stays_ended(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    engine.create(AFTER)
    (pod,) = server.pods.values()
    over = {"lastState": {"terminated": {"containerID": OLD, "exitCode": 0}}}
    pod["status"]["containerStatuses"][0] |= {"containerID": "the next", **over}
    pods = [records.pod(pod)]
    made = records.containers([*server.records.values()], pods)
    assert not records.lost(made, pods, {"ada"})


@pytest.mark.parametrize(
    ("reason", "blames_the_image"),
    [
        ("RunContainerError", True),
        ("CreateContainerError", True),
        ("CrashLoopBackOff", True),
        ("ImagePullBackOff", False),
        ("CreateContainerConfigError", False),
    ],
)
def test_an_image_that_can_t_begin_is_blamed_before_anybody_is_stopped(
    server: Memory, engine: Kubernetes, monkeypatch: pytest.MonkeyPatch, reason: str, blames_the_image: bool
) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    tend = server.tend

    def tend_without_the_new() -> None:
        tend()
        waits = {"state": {"waiting": {"reason": reason, "message": "exec format error"}}, "containerID": ""}
        for pod in server.pods.values():
            for seen, asked in zip(pod["status"]["containerStatuses"], pod["spec"]["containers"], strict=True):
                seen.update(waits if asked["image"] == NEW else {})

    monkeypatch.setattr(server, "tend", tend_without_the_new)
    monkeypatch.setattr("flows.sessions.kubernetes.placement.SETTLE_SECONDS", 0.0)
    with pytest.raises(RefitError) as error:
        engine.create(AFTER)
    move = SimpleNamespace(after=AFTER)
    assert puts_off("create", error.value, move, ()) != blames_the_image  # type: ignore[arg-type]
    assert server.seen()[1] == (Running.running, False)


def test_a_node_that_can_t_begin_an_image_for_a_moment_blames_nobody(
    server: Memory, engine: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    tend, find, asked = server.tend, server.find, list[str]()

    def tend_when_full() -> None:
        tend()
        waits = {"state": {"waiting": {"reason": "CreateContainerError", "message": "no space left on device"}}}
        server.pods["refit-ada-1"]["status"]["containerStatuses"][1] |= {**waits, "containerID": ""}

    def find_when_there_is_room(resource: str, name: str) -> dict[str, Any] | None:
        asked.append(name)
        if len(asked) > 2:
            tend()
        return find(resource, name)

    monkeypatch.setattr(server, "tend", tend_when_full)
    monkeypatch.setattr(server, "find", find_when_there_is_room)
    monkeypatch.setattr("flows.sessions.kubernetes.placement.SETTLE_PAUSE_SECONDS", 0.0)
    engine.create(AFTER)
    assert server.seen()[1] == (Running.running, False) and len(asked) > 2


@pytest.mark.parametrize("late", [False, True], ids=["stopped", "warmed"])
def test_nothing_is_prepared_for_one_that_is_stopped_or_warmed(server: Memory, engine: Kubernetes, late: bool) -> None:
    before, after = (replace(each, late_home=late) for each in (SESSION, AFTER))
    server.records = {each.container: manifests.record(each, OPTIONS, ran=True) for each in (before, after)}
    server.pod("refit-ada-1", "n", slot("a", 1, OLD) if late else {f"{manifests.PLACED}a": "1"}, before)
    engine.create(after)
    (pod,) = server.pods.values()
    assert NEW not in [each["image"] for each in pod["spec"]["containers"]]


def test_a_home_leaves_one_node_before_it_is_waited_for_on_another(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "old", {f"{manifests.PLACED}a": "1"})
    server.pod("refit-ada-2", "new", {f"{manifests.PLACED}a": "2"})
    assert "status" not in server.pods["refit-ada-2"], "its volume is on the other node"
    engine.start(AFTER.container)
    assert [*server.pods] == ["refit-ada-2"] and server.seen()[2] == (Running.running, False)


def test_no_pod_in_which_a_program_runs_goes_with_another_generation(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", {**slot("a", 1, ""), **slot("b", 2, OLD)})
    server.pods["refit-ada-1"]["metadata"]["annotations"].pop(f"{manifests.OPENED}a")
    del server.records[AFTER.container]  # by hand
    engine.remove(SESSION.container)
    assert [*server.pods] == ["refit-ada-1"]
    assert f"{manifests.PLACED}a" not in server.pods["refit-ada-1"]["metadata"]["annotations"]


def test_a_cold_start_is_known_in_the_container_that_kubelet_tells_of_a_moment_later(
    server: Memory, engine: Kubernetes
) -> None:
    server.pod("refit-ada-1", "n", slot("b", 2, "", late=True))
    server.pods["refit-ada-1"]["spec"]["containers"][1]["image"] = NEW
    server.tend()
    server.ids = {"b": "another"}  # the program has ended by itself, and its container was replaced
    server.refuses = "open"
    engine.start(AFTER.container)
    server.tend()
    assert server.seen()[2] == (Running.running, False)


@pytest.mark.parametrize(("container", "records"), [("another", "sure"), (OLD, "7")], ids=["told", "told before"])
def test_a_program_that_was_just_replaced_by_kubelet_begins_once_the_api_server_tells_of_its_container(
    server: Memory, engine: Kubernetes, container: str, records: str
) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    server.restarted = {"a": container}
    engine.start(SESSION.container)
    assert server.begun[-1][2:6] == ["start", "1", "0", records]
    assert server.seen()[1] == (Running.running, False), "nobody else may have its home"


@pytest.mark.parametrize("asked", ["state", "run-next"])
def test_a_program_whose_container_has_just_ended_begins_in_the_next_one(
    server: Memory, engine: Kubernetes, asked: str
) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    server.restarted, server.ended = {"a": "another"}, asked
    engine.start(SESSION.container)
    assert server.begun[-1][2:6] == ["start", "1", "0", "sure"]
    assert server.seen()[1] == (Running.running, False)


def test_a_program_that_ends_as_soon_as_it_begins_has_begun(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    engine.create(AFTER)
    engine.stop(SESSION.container, grace=1)
    begun = [*server.begun]
    server.restarted, server.ended, server.code = {"b": "another"}, "run-next", 137
    engine.start(AFTER.container)
    assert server.seen()[2] == (Running.stopped, False) and server.begun == begun


def test_one_that_is_started_again_in_its_last_moment_has_not_begun(server: Memory, engine: Kubernetes) -> None:
    server.ids = {"a": "the first"}
    server.pod("refit-ada-1", "n", {f"{manifests.PLACED}a": "1", **slot("a", 1, "the one before")})
    server.restarted, server.ended, server.code = {"a": "another"}, "run-next", 137
    with pytest.raises(RefitError):
        engine.start(SESSION.container)


def test_one_whose_container_ends_while_it_is_asked_for_its_state_begins_in_the_next(
    server: Memory, engine: Kubernetes
) -> None:
    server.ids = {"a": "the first"}
    server.pod("refit-ada-1", "n", slot("a", 1, "the first"))
    server.restarted, server.ended, server.code = {"a": "another"}, "state", 137
    engine.start(SESSION.container)
    assert server.begun[-1][2:4] == ["start", "1"] and server.seen()[1] == (Running.running, False)


def test_one_that_ends_as_soon_as_it_has_its_home_had_it(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", {f"{manifests.PLACED}a": "1", **slot("b", 2, "", late=True)})
    server.pods["refit-ada-1"]["spec"]["containers"][1]["image"] = NEW
    server.tend()
    server.restarted, server.ended, server.code = {"b": "another"}, "open", 137
    engine.start(AFTER.container)
    assert server.seen()[2] == (Running.stopped, False) and not server.begun


def test_one_that_ends_while_it_is_warmed_is_no_warm_one(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    server.restarted, server.ended, server.code = {"b": "another"}, "run-next", 137
    with pytest.raises(RefitError):
        engine.warm(AFTER)


def test_a_call_that_was_killed_alone_has_failed(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    server.restarted, server.ended, server.code = {"a": OLD}, "run-next", 137
    with pytest.raises(RefitError):
        engine.start(SESSION.container)


@pytest.fixture
def followed(server: Memory) -> Memory:
    """The API server with a Pod that is followed, up to a moment ago."""
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    seen = (records.pod(deepcopy(server.pods["refit-ada-1"])),)
    server.follower.of = lambda *_: seen
    return server


def test_of_a_followed_pod_that_is_as_it_was_made_nobody_is_asked(followed: Memory, engine: Kubernetes) -> None:
    assert engine.by_hand(SESSION) == ()
    assert followed.listed == 0


def test_changes_by_hand_are_those_that_the_api_server_tells_of(server: Memory, engine: Kubernetes) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    spec = server.pods["refit-ada-1"]["spec"]
    made, spec["hostname"] = spec["hostname"], "by-hand"
    told = records.pod(deepcopy(server.pods["refit-ada-1"]))
    assert engine.by_hand(SESSION) == ("hostname of its Pod",)
    server.follower.of = lambda *_: (told,)
    assert engine.by_hand(SESSION) == ("hostname of its Pod",)
    spec["hostname"] = made  # of which nobody has told yet
    assert engine.by_hand(SESSION) == ()


@pytest.mark.parametrize("change", [{"image": NEW}, {"image": OLD.replace("example.com", "example.org")}])
def test_another_image_by_hand_is_seen_in_a_followed_pod(
    server: Memory, engine: Kubernetes, change: dict[str, str]
) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    server.pods["refit-ada-1"]["spec"]["containers"][0] |= change
    seen = (records.pod(deepcopy(server.pods["refit-ada-1"])),)
    server.follower.of = lambda *_: seen
    assert engine.by_hand(SESSION) == ("image of slot a",)


def test_a_generation_with_a_gpu_takes_the_place_of_the_one_before_and_gives_it_back(
    server: Memory, engine: Kubernetes
) -> None:
    before, after = replace(SESSION, **GPU), replace(AFTER, **GPU)
    server.records = {each.container: manifests.record(each, OPTIONS, ran=True) for each in (before, after)}
    server.pod("refit-ada-1", "n", slot("a", 1, OLD), before)
    for old, new in ((before, after), (after, before)):
        engine.stop(old.container, grace=1)
        engine.start(new.container)
        server.tend()
        assert server.begun[-1][2:4] == ["start", str(new.generation)]
        assert server.seen() == {
            old.generation: (Running.stopped, False),
            new.generation: (Running.running, False),
        }
        (container,) = server.pods["refit-ada-1"]["spec"]["containers"]
        assert container["image"] == OPTIONS.reference(new.image)
    engine.remove(after.container)
    assert server.seen() == {1: (Running.running, False)} and [*server.pods] == ["refit-ada-1"]


def test_others_get_a_gpu_once_nothing_runs_in_the_pod_that_has_it(server: Memory, engine: Kubernetes) -> None:
    session = replace(SESSION, **GPU)
    recorded = [session]
    store = SimpleNamespace(find=lambda _: (recorded[0], True))
    gpus = ClusterGpus(server, "example.com/gpu", store)  # type: ignore[arg-type]
    assert gpus.take("ada", 2, by="ada") == ("example.com/gpu", "example.com/gpu")
    server.pod("refit-ada-1", "n", slot("a", 1, OLD), session)
    assert gpus.keep("ada", ()) == () and server.pods, "it runs"
    engine.stop(session.container, grace=1)
    assert gpus.keep("ada", session.devices) == () and server.pods, "it stays its own while it moves"
    recorded[0], server.listed = SESSION, 0
    assert gpus.keep("ada", ()) == () and not server.listed, "the cluster is asked for those alone that have some"
    recorded[0] = session
    assert gpus.keep("ada", ()) == ("example.com/gpu",) and not server.pods
    with pytest.raises(RefitError, match="don't have that yet"):
        gpus.gpus()


def test_a_session_that_runs_is_not_stopped_for_a_gpu_that_no_node_has(
    server: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.sessions.kubernetes.placement.pull_to", lambda *_: None)
    placement = Placement(server, OPTIONS)  # type: ignore[arg-type]
    server.is_full = True
    placement.prepare(replace(AFTER, **GPU))
    assert not server.pods, "nobody is to be stopped for one that doesn't run, and its Pod may wait"
    server.pod("refit-ada-1", "n", slot("a", 1, OLD))
    with pytest.raises(RefitError) as error:
        placement.prepare(replace(AFTER, **GPU))
    assert "No node takes the session ada." in error.value.what and "Insufficient example.com/gpu" in error.value.why
    assert [*server.pods] == ["refit-ada-1"], "a Pod that stayed would take the next GPU"
    server.is_full = False
    placement.prepare(replace(AFTER, **GPU))
    assert [*server.pods] == ["refit-ada-1", "refit-ada-2"]


def test_a_session_that_has_its_gpu_asks_for_no_other(server: Memory) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD), replace(SESSION, **GPU))
    Placement(server, OPTIONS).prepare(replace(AFTER, **GPU))  # type: ignore[arg-type]
    assert [*server.pods] == ["refit-ada-1"]


@pytest.mark.parametrize(
    ("had", "added", "makes_another"),
    [
        (("example.com/gpu",), {"github.com/fuse": "1"}, False),
        (("example.com/gpu",), {}, False),
        ((), {"github.com/fuse": "1"}, True),
        (("example.com/gpu", "example.com/gpu"), {"github.com/fuse": "1"}, True),
    ],
)
def test_what_a_webhook_adds_to_a_pod_is_no_reason_for_another_gpu(
    had: tuple[str, ...],
    added: Mapping[str, str],
    makes_another: bool,
    server: Memory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flows.sessions.kubernetes.placement.pull_to", lambda *_: None)
    server.pod("refit-ada-1", "n", slot("a", 1, OLD), replace(SESSION, gpus=len(had), devices=had))
    for container in server.pods["refit-ada-1"]["spec"]["containers"]:
        container.setdefault("resources", {}).setdefault("limits", {}).update(added)
    Placement(server, OPTIONS).prepare(replace(AFTER, **GPU))  # type: ignore[arg-type]
    assert ("refit-ada-2" in server.pods) == makes_another


def test_a_pod_keeps_its_gpus_from_others_when_nothing_runs_in_it_until_it_ends(
    server: Memory, engine: Kubernetes
) -> None:
    session, nodes = replace(SESSION, **GPU), ClusterNodes(server)  # type: ignore[arg-type]
    server.pod("refit-ada-1", "n", slot("a", 1, OLD), session)
    assert nodes.idle_gpus() == frozenset(), "it runs"
    engine.stop(session.container, grace=1)
    assert nodes.idle_gpus() == {"ada"}
    server.pods["refit-ada-1"]["metadata"]["deletionTimestamp"] = "2026-11-25T00:00:00Z"
    assert nodes.idle_gpus() == frozenset(), "it ends already"
    server.pod("refit-ada-1", "n", {}, SESSION)
    assert nodes.idle_gpus() == frozenset(), "it has none"
