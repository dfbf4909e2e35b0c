"""Pods and records of the API server, read as containers; which slot a generation gets."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from flows.sessions.kubernetes import manifests, records
from flows.sessions.model import Running, Session
from tests.support.pods import OPTIONS, SESSION

AFTER = replace(SESSION, generation=2, image=f"sha256:{'b' * 64}")
IDS = {"a": "A", "b": "B"}


def told(
    opened: dict[str, dict[str, object]], placed: dict[str, int], ids: dict[str, str], **status: Any
) -> dict[str, Any]:
    """A Pod of the API server: which generation each slot has and runs, and the ids of its containers now."""
    pod = manifests.pod(SESSION, OPTIONS, "s")
    annotations = pod["metadata"]["annotations"]
    annotations.pop(f"{manifests.PLACED}a")
    annotations.update({f"{manifests.PLACED}{slot}": str(number) for slot, number in placed.items()})
    annotations.update({f"{manifests.OPENED}{slot}": json.dumps(of) for slot, of in opened.items()})
    pod["metadata"]["resourceVersion"] = "7"
    statuses = [
        {"name": slot, "state": {"running": {}}, "containerID": id, "imageID": f"r/i@{SESSION.image}"}
        for slot, id in ids.items()
    ]
    pod["status"] = {"podIP": "10.0.0.9", "containerStatuses": statuses, **status}
    return pod


def running(generation: int, container: str, *, late: bool = False) -> dict[str, object]:
    return {"generation": generation, "container": container, "late": late}


def seen(pod: dict[str, Any], *sessions: Session) -> list[tuple[int, Running, bool]]:
    made = records.containers([manifests.record(each, OPTIONS) for each in sessions], [records.pod(pod)])
    return [(each.generation, each.running, each.warm) for each in made]


def test_one_slot_runs_and_the_other_waits_for_the_home() -> None:
    pod = told({"a": running(1, "A"), "b": running(2, "B", late=True)}, {"a": 1, "b": 2}, IDS)
    assert seen(pod, AFTER, SESSION) == [(1, Running.running, False), (2, Running.running, True)]


def test_a_slot_that_was_started_again_runs_nothing() -> None:
    pod = told({"a": running(1, "A")}, {"a": 1}, {"a": "A2", "b": "B"})
    assert seen(pod, SESSION) == [(1, Running.created, False)]


def test_a_pod_that_is_to_end_runs_nothing() -> None:
    pod = told({"a": running(1, "A")}, {"a": 1}, IDS)
    pod["metadata"]["deletionTimestamp"] = "2026-11-25T00:00:00Z"
    assert seen(pod, SESSION) == [(1, Running.created, False)]


def test_a_record_of_another_version_is_a_container_that_nobody_can_start() -> None:
    record = manifests.record(SESSION, OPTIONS)
    record["data"]["spec"] = "{}"
    (container,) = records.containers([record], [])
    assert container.made_from is None and container.name == SESSION.container


def place(session: Session, pod: dict[str, Any]) -> str:
    chosen = records.place(session, [records.pod(pod)], manifests.shape(session, OPTIONS, "s"))
    return chosen[1].name if chosen else ""


def test_a_generation_has_its_own_slot_else_an_empty_one_and_never_one_that_runs() -> None:
    assert place(SESSION, told({}, {"a": 1}, IDS)) == "a"
    assert place(AFTER, told({"a": running(1, "A")}, {"a": 1}, IDS)) == "b"
    assert place(AFTER, told({}, {"a": 1}, IDS)) == "b"  # the way back stays as it is
    for slots, oldest in (({"a": 2, "b": 1}, "b"), ({"a": 1, "b": 2}, "a")):
        assert place(replace(AFTER, generation=3), told({}, slots, IDS)) == oldest  # it was stopped, as in a cold move
    both = {"a": running(1, "A"), "b": running(2, "B")}
    assert place(replace(AFTER, generation=3), told(both, {"a": 1, "b": 2}, IDS)) == ""


def test_a_generation_with_a_gpu_has_a_place_once_nothing_runs_in_the_one_slot() -> None:
    before, after = (replace(each, gpus=2, devices=("example.com/gpu",) * 2) for each in (SESSION, AFTER))
    pod = told({"a": running(1, "A")}, {"a": 1}, {"a": "A"})
    pod["spec"] = manifests.pod_spec(before, OPTIONS, "s")
    pod["metadata"]["annotations"][manifests.SHAPE] = manifests.shape(before, OPTIONS, "s")
    seen = records.pod(pod)
    assert [slot.name for slot in seen.slots] == ["a"] and seen.devices == (("example.com/gpu", "2"),)
    assert place(after, pod) == ""
    pod["metadata"]["annotations"].pop(f"{manifests.OPENED}a")
    assert place(after, pod) == "a" and place(AFTER, pod) == ""


def test_a_pod_of_another_shape_has_no_place() -> None:
    assert place(replace(AFTER, memory=10**9), told({}, {"a": 1}, IDS)) == ""


def test_the_words_of_kubernetes_say_why_nothing_runs() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such digest"}}
    pod = told({}, {"a": 1}, {}, containerStatuses=[{"name": "a", "state": waiting}])
    assert records.pod(pod).slots[0].trouble == "ImagePullBackOff: no such digest"
    unscheduled = [{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/2 nodes"}]
    assert records.waits_for(told({}, {}, {}, conditions=unscheduled)) == "Unschedulable: 0/2 nodes"
    assert records.pod(told({}, {}, {}, conditions=unscheduled)).slots[1].trouble == ""  # a node may come yet


def test_claims_without_a_volume_and_the_newest_warnings_are_told() -> None:
    claim = {"spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}}
    lines = [*records.unbound({"home": claim, "bound": {"status": {"phase": "Bound"}}, "gone": None})]
    assert lines == ["The claim home is Pending; its storage class: fast.", "The claim gone isn't there."]
    events = [
        {"type": kind, "reason": reason, "message": "m", "lastTimestamp": time, "involvedObject": {"name": name}}
        for kind, reason, time, name in (
            ("Warning", "Old", "2026-01-01T00:00:00Z", "home"),
            ("Warning", "New", "2026-01-02T00:00:00Z", "home"),
            ("Warning", "New", "2026-01-02T00:00:01Z", "home"),
            ("Normal", "Fine", "2026-01-03T00:00:00Z", "home"),
            ("Warning", "Another", "2026-01-03T00:00:00Z", "other"),
        )
    ]
    assert records.warnings(events, ["home"]) == ["New: m", "Old: m"]


def test_sessions_on_closed_nodes_have_to_leave() -> None:
    nodes = [{"metadata": {"name": "n1"}, "spec": {"unschedulable": True}}, {"metadata": {"name": "n2"}}]
    closed = records.closed(nodes)
    here = records.pod({**(pod := told({}, {"a": 1}, IDS)), "spec": {**pod["spec"], "nodeName": "n1"}})
    assert closed == {"n1"} and records.leaving([here], closed) == {SESSION.name: "n1"}
    for gone in (replace(here, ending=True), replace(here, over=True), replace(here, node="n2")):
        assert records.leaving([gone], closed) == {}


def test_a_session_is_lost_when_kubernetes_has_let_go_of_its_pod_and_not_before() -> None:
    record = manifests.record(SESSION, OPTIONS)
    pod = records.pod(told({"a": running(1, "A")}, {"a": 1}, IDS))
    fresh = records.containers([record], [])
    record["metadata"]["annotations"] = {manifests.STARTED: "2026-11-25T00:00:00+00:00"}
    made = records.containers([record], [])
    assert records.lost(fresh, []) == frozenset()  # it never ran: somebody starts it just now
    assert records.lost(made, []) == {SESSION.name}
    assert records.lost(made, [replace(pod, over=True)]) == {SESSION.name}
    for still in (pod, replace(pod, ending=True)):
        assert records.lost(made, [still]) == frozenset()


def test_an_evicted_pod_is_over_and_nobody_gets_a_place_in_it() -> None:
    pod = told({}, {"a": 1}, {}, phase="Failed", reason="Evicted")
    evicted = records.pod(pod)
    assert evicted.over and evicted.idle
    assert records.place(SESSION, [evicted], evicted.shape) is None


def ended(code: int, image: str = SESSION.image) -> records.SessionPod:
    """A Pod whose slot has another container than the one in which a session's program ran."""
    pod = told({"a": running(1, "A")}, {"a": 1}, {"a": "A2", "b": "B"})
    pod["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": code, "containerID": "A"}}
    pod["spec"]["containers"][0]["image"] = f"r/i@{image}"
    return records.pod(pod)


def test_a_program_that_was_killed_is_lost_and_one_that_its_user_has_ended_is_not() -> None:
    record = manifests.record(SESSION, OPTIONS)
    record["metadata"]["annotations"] = {manifests.STARTED: "2026-11-25T00:00:00+00:00"}
    killed, told_to = 128 + signal.SIGKILL, 128 + signal.SIGTERM
    for pod, taken in (
        (ended(killed), True),
        (ended(told_to), True),
        (ended(0), False),
        (ended(0, AFTER.image), True),
    ):
        assert records.lost(records.containers([record], [pod]), [pod]) == ({SESSION.name} if taken else frozenset())
    ending = replace(ended(137), ending=True)
    assert records.lost(records.containers([record], [ending]), [ending]) == frozenset()


MORNING, NOON = (datetime(2026, 11, 25, hour, tzinfo=UTC) for hour in (6, 12))


def annotated(text: str) -> dict[str, object]:
    """The annotation of a slot, as `told` takes it."""
    return dict(json.loads(text))


def test_a_generation_that_waits_in_a_container_to_come_runs_once_its_image_does() -> None:
    waits = {"b": annotated(records.opened(2, late=True))}
    pod = told({"a": running(1, "A"), **waits}, {"a": 1, "b": 2}, IDS)
    pod["spec"]["containers"][1]["image"] = f"r/i@{AFTER.image}"
    assert seen(pod, AFTER)[0][1:] == (Running.created, False)  # the container before still runs
    pod["status"]["containerStatuses"][1] |= {"containerID": "B2", "imageID": f"r/i@{AFTER.image}"}
    assert seen(pod, AFTER)[0][1:] == (Running.running, True)


def test_a_slot_says_since_when_a_generation_runs_and_until_when_it_did() -> None:
    stopped = annotated(records.opened(1, "A", started=MORNING, ended=NOON))
    pod = told({"a": stopped, "b": annotated(records.opened(2, "B", started=NOON))}, {"a": 1, "b": 2}, IDS)
    made = records.containers([manifests.record(each, OPTIONS) for each in (SESSION, AFTER)], [records.pod(pod)])
    assert [(one.running, one.started, one.ended) for one in made] == [
        (Running.stopped, MORNING, NOON),
        (Running.running, NOON, None),
    ]
    assert not records.pod(pod).slots[0].had, "somebody has stopped it"


def test_a_session_that_ran_before_is_lost_with_its_pod_and_counts_as_one_that_ended() -> None:
    record = manifests.record(AFTER, OPTIONS, ran=True)
    made = records.containers([record], [])
    assert made[0].running is Running.stopped and made[0].started is None
    assert records.lost(made, [], records.ran([record])) == {SESSION.name}
    pod = records.pod(told({}, {"a": 2}, IDS))
    (waits,) = records.containers([record], [pod])
    assert waits.running is Running.created
    # Its slot was made for it, and nobody has begun it there; somebody who does so just now holds the lease.
    assert records.lost([waits], [pod], records.ran([record])) == {SESSION.name}
    assert records.lost([waits], [replace(pod, ending=True)], records.ran([record])) == frozenset()
    assert records.lost([waits], [pod]) == frozenset()  # it never ran
    before = records.pod(told({"a": running(1, "A")}, {"a": 1, "b": 2}, IDS))
    assert records.lost([waits], [before], records.ran([record])) == frozenset()  # a move goes on
    stopped = annotated(records.opened(2, "A", started=MORNING, ended=NOON))
    rests = records.pod(told({"a": stopped}, {"a": 2}, IDS))
    assert records.lost([waits], [rests], records.ran([record])) == frozenset()


@pytest.mark.parametrize(
    ("code", "had", "seconds", "never"),
    [
        (0, "A", 0, False),
        (137, "A", 0, False),
        (128, "A", 0, True),
        (255, "", 0, True),
        (132, "of the image before", 1, True),
        (139, "", 30, False),
        (1, "", None, True),
    ],
)
def test_a_slot_that_kubelet_begins_later_is_waited_for_unless_it_never_began(
    code: int, had: str, seconds: int | None, never: bool
) -> None:
    pod = told({"a": running(1, had)} if had else {}, {"a": 1}, {"a": "A"})
    (seen,) = pod["status"]["containerStatuses"]
    seen["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
    over: dict[str, object] = {"exitCode": code, "containerID": "A"}
    if seconds is not None:
        over |= {"startedAt": "2026-11-26T12:00:00Z", "finishedAt": f"2026-11-26T12:00:{seconds:02}Z"}
    seen["lastState"] = {"terminated": over}
    assert records.pod(pod).slots[0].trouble == ("CrashLoopBackOff: back-off 40s" if never else "")
    assert [*records.back_offs(pod)] == ["a: CrashLoopBackOff: back-off 40s"]
    assert [*records.back_offs({})] == []


@pytest.mark.parametrize(
    ("made", "last", "claim", "state"),
    [
        ("11:00:00", 1, "", Running.created),
        ("11:59:30", 1, "", Running.stopped),
        ("12:05:00", 1, "", Running.stopped),
        ("11:00:00", 3, "", Running.stopped),
        ("11:00:00", 1, "another", Running.stopped),
        ("", 1, "", Running.stopped),
    ],
    ids=["stands since before", "clocks apart", "came after", "slot of a later one", "another home", "nobody knows"],
)
def test_a_generation_without_a_slot_has_surely_not_run_where_an_older_pod_stands(
    made: str, last: int, claim: str, state: Running
) -> None:
    record = manifests.record(AFTER, OPTIONS, ran=True)
    record["metadata"]["creationTimestamp"] = "2026-11-26T12:00:00Z"
    stands = told({}, {"a": 1, "b": last}, IDS)
    stands["metadata"] |= {"creationTimestamp": f"2026-11-26T{made}Z"} if made else {}
    pod = records.pod(stands)
    (seen,) = records.containers([record], [replace(pod, claim=claim or pod.claim)])
    assert seen.running is state
    over = records.containers([record], [replace(pod, claim=claim or pod.claim, over=True)])
    assert over[0].running is Running.stopped
