"""GPUs by dynamic resource allocation: one claim for both slots of a Pod, from a template, where a cluster has it.

No driver of such devices is at hand. Manifests are held against what a current release publishes, and the API server is
a double, as that of the tests is older.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec import ValidationError

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.migrations.steps.move_context import MoveContext
from flows.sessions.kubernetes import (
    claim_templates,
    home_pods,
    isolation,
    manifests,
    records,
    resources,
    trial_pods,
)
from flows.sessions.kubernetes import engine as module
from flows.sessions.kubernetes.engine import Kubernetes
from flows.sessions.kubernetes.gpus import ClusterGpus
from flows.sessions.kubernetes.home_pods import Mount
from flows.sessions.kubernetes.nodes import ClusterNodes
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.sessions.trial import alone
from tests.support.api_server_in_memory import Memory, slot
from tests.support.pods import OPTIONS, SESSION
from tests.support.published_schemas import lost

CLASS, PLUGIN = "gpu.example.com", "example.com/gpu"
GPUS = {"gpus": 2, "devices": (CLASS, CLASS)}
BEFORE = replace(SESSION, **GPUS)
AFTER = replace(BEFORE, generation=2, image=f"sha256:{'b' * 64}")
OLD = OPTIONS.reference(BEFORE.image)
TEMPLATE = f"refit-gpus-2.{CLASS}"
VERSIONS = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")


def test_both_slots_of_a_pod_share_one_claim() -> None:
    spec = manifests.pod(replace(BEFORE, memory=10**9), OPTIONS, "s")["spec"]
    assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": TEMPLATE}]
    assert [each["name"] for each in spec["containers"]] == ["a", "b"]
    for container in spec["containers"]:
        asked = {"limits": {"memory": "1G"}, "requests": {"memory": "500M"}, "claims": [{"name": "gpus"}]}
        assert container["resources"] == asked


def test_a_current_release_knows_each_field_of_the_manifests() -> None:
    trial = trial_pods.pod(BEFORE, "ada.1", "n1", {"config": {"Cmd": ["launch"]}}, OPTIONS, Settings())
    outside = isolation.policy(replace(OPTIONS, gateways=("192.0.2.0/28",)))
    assert outside is not None
    made = [
        manifests.pod(BEFORE, OPTIONS, "s"),
        manifests.pod(replace(BEFORE, devices=(PLUGIN,), memory=10**9, cpus=1.5), OPTIONS, "s"),
        trial,
        home_pods.pod(BEFORE, [Mount("live-0", "refit-home-ada", read_only=True)], "n1", OPTIONS),
        manifests.puller(SESSION.image, "n1", OPTIONS),
        manifests.record(BEFORE, OPTIONS),
        manifests.home_claim("refit-home-ada", OPTIONS),
        manifests.budget(OPTIONS, "policy/v1"),
        outside,
        isolation.of_trials(OPTIONS),
        *(claim_templates.template(CLASS, "2", OPTIONS, version) for version in VERSIONS),
    ]
    assert [field for each in made for field in lost(each)] == []


def test_the_check_itself_sees_a_field_in_the_form_of_another_version() -> None:
    flat = claim_templates.template(CLASS, "2", OPTIONS, VERSIONS[-1])
    at = "ResourceClaimTemplate.spec.spec.devices.requests[0]"
    fields = {f"{at}.{name}" for name in ("deviceClassName", "allocationMode", "count")}
    assert {*lost({**flat, "apiVersion": VERSIONS[0]})} == fields
    (request,) = (told := claim_templates.template(CLASS, "2", OPTIONS, VERSIONS[0]))["spec"]["spec"]["devices"][
        "requests"
    ]
    request["exactly"]["count"] = "2"
    with pytest.raises(ValidationError, match="count"):
        lost(told)


def test_pods_beside_a_session_claim_no_device() -> None:
    configuration = {"config": {"Cmd": ["launch"]}}
    pods = [
        trial_pods.pod(BEFORE, "ada.1", "n1", configuration, OPTIONS, Settings(), with_home=True),
        trial_pods.pod(alone(SESSION.image, Access()), "image.1", "", configuration, OPTIONS, Settings()),
        home_pods.pod(BEFORE, [Mount("live-0", "refit-home-ada", read_only=True)], "n1", OPTIONS, lease=7),
        manifests.puller(SESSION.image, "n1", OPTIONS),
    ]
    assert [*resources.devices_of(pods[0]["spec"])] == []
    assert "claims" not in json.dumps(pods) and "resourceClaims" not in json.dumps(pods)


def test_generations_share_a_pod_as_long_as_they_want_as_many_devices_of_the_same_class() -> None:
    shape = manifests.shape(BEFORE, OPTIONS, "s")
    assert manifests.shape(AFTER, OPTIONS, "s") == shape
    for devices in ((CLASS,), (), ("other.example.com",) * 2, (PLUGIN,) * 2):
        assert manifests.shape(replace(BEFORE, devices=devices), OPTIONS, "s") != shape


def test_a_pod_says_what_it_claims_and_is_not_changed_by_hand() -> None:
    expected = manifests.pod_spec(BEFORE, OPTIONS, "s")
    assert [*resources.devices_of(expected)] == [(CLASS, "2")]
    live = json.loads(json.dumps(expected))
    live["containers"][0]["resources"]["limits"] = {"memory": "1G"}  # of a LimitRange
    live["containers"][0]["resources"]["claims"].append({"name": "fuse"})  # of a webhook
    live["resourceClaims"].append({"name": "fuse", "resourceClaimName": "fuse"})
    assert [*resources.devices_of(live)] == [(CLASS, "2")]
    assert manifests.changed_by_hand(live, expected, "a") == ()
    del live["containers"][1]["resources"]["claims"]  # of a webhook that writes them anew
    assert [*resources.devices_of(live)] == []
    live["containers"][1]["resources"] = {}
    assert manifests.changed_by_hand(live, expected, "a") == ("resources of slot b",)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory(BEFORE, AFTER)
    monkeypatch.setattr(module, "Cluster", lambda _: made)
    monkeypatch.setattr("flows.sessions.kubernetes.placement.pull_to", lambda *_: None)
    return made


@pytest.fixture
def engine(server: Memory) -> Kubernetes:
    return Kubernetes(OPTIONS, lambda _: {"config": {"Cmd": ["ide"]}}, SimpleNamespace(), Path)  # type: ignore[arg-type]


def test_a_session_with_gpus_moves_warm_in_its_pod_and_back(server: Memory, engine: Kubernetes) -> None:
    engine.start(BEFORE.container)
    engine.create(AFTER)
    engine.warm(AFTER)
    server.tend()
    assert server.seen() == {1: (Running.running, False), 2: (Running.running, True)}
    engine.stop(BEFORE.container, grace=1)
    engine.start(AFTER.container)
    assert server.seen() == {1: (Running.stopped, False), 2: (Running.running, False)}
    engine.stop(AFTER.container, grace=1)
    engine.start(BEFORE.container)
    assert server.seen() == {1: (Running.running, False), 2: (Running.stopped, False)}
    assert [*server.pods] == ["refit-ada-1"], "it has had the same devices all the time"


def test_a_pod_has_its_template_before_it_is_made(server: Memory, engine: Kubernetes) -> None:
    engine.start(BEFORE.container)
    assert [*server.templates] == [TEMPLATE]
    assert server.seen()[1] == (Running.running, False)


def test_a_pod_that_was_kept_without_its_claim_runs_nothing_and_goes(server: Memory, engine: Kubernetes) -> None:
    server.drops_claims = True
    for _ in range(2):
        with pytest.raises(RefitError, match="gives no GPUs to Pods by claims") as error:
            engine.start(BEFORE.container)
        assert "kept the Pod refit-ada-1 without its claim" in error.value.why
        assert not server.pods and not server.begun
    # A Refit that is killed before it looks leaves such a Pod.
    server.pod("refit-ada-1", "n", {f"{manifests.PLACED}a": "1"}, BEFORE)
    server.pods["refit-ada-1"]["spec"].pop("resourceClaims")
    with pytest.raises(RefitError, match="gives no GPUs to Pods by claims"):
        engine.start(BEFORE.container)
    assert not server.pods and not server.begun


@pytest.mark.parametrize("rewritten", ["a", "b"])
def test_a_slot_that_a_webhook_leaves_without_the_claim_runs_nothing(
    server: Memory, engine: Kubernetes, rewritten: str
) -> None:
    server.rewritten = rewritten
    with pytest.raises(RefitError, match="gives no GPUs to Pods by claims") as error:
        engine.start(BEFORE.container)
    assert "or a webhook has taken that from a slot" in error.value.why
    assert not server.pods and not server.begun


@pytest.mark.parametrize(("made", "says"), [(True, f"class {CLASS}."), (False, "has made no such claim")])
def test_a_session_that_runs_is_not_stopped_for_devices_that_it_can_t_have(
    server: Memory, made: bool, says: str
) -> None:
    server.pod("refit-ada-1", "n", slot("a", 1, OLD), replace(SESSION, gpus=1, devices=(CLASS,)))
    server.is_full, server.claims_are_made = True, made
    about = {"name": AFTER.container}
    server.events = [
        {"type": "Warning", "reason": reason, "message": message, "involvedObject": about}
        for reason, message in (("FailedResourceClaimCreation", "exceeded quota"), ("FailedScheduling", "again"))
    ]
    with pytest.raises(RefitError, match=r"No node takes the session ada\.") as error:
        Placement(server, OPTIONS).prepare(AFTER)  # type: ignore[arg-type]
    assert "It claims 2 of the device" in error.value.why and says in error.value.why
    assert "exceeded quota" in error.value.why and "again" not in error.value.why
    assert [*server.pods] == ["refit-ada-1"], "a Pod that stayed would take the next devices"


def test_a_session_that_leaves_its_node_claims_devices_elsewhere_before_it_is_stopped(
    server: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pod("refit-ada-1", "old", slot("a", 1, OLD), BEFORE)
    monkeypatch.setattr(server, "of_all", lambda *_: {"items": [closed]})
    closed = {"metadata": {"name": "old"}, "spec": {"unschedulable": True}}
    Placement(server, OPTIONS).prepare(AFTER)  # type: ignore[arg-type]
    assert {name: pod["spec"]["nodeName"] for name, pod in server.pods.items()} == {
        "refit-ada-1": "old",
        "refit-ada-2": "n",
    }
    assert all(records.pod(pod).devices == ((CLASS, "2"),) for pod in server.pods.values())


def test_others_get_devices_once_nothing_runs_in_the_pod_that_claims_them(server: Memory, engine: Kubernetes) -> None:
    store = SimpleNamespace(find=lambda _: (BEFORE, True))
    gpus, nodes = ClusterGpus(server, CLASS, store), ClusterNodes(server)  # type: ignore[arg-type]
    assert gpus.take("ada", 2, by="ada") == (CLASS, CLASS) and gpus.shareable
    server.pod("refit-ada-1", "n", slot("a", 1, OLD), BEFORE)
    assert gpus.keep("ada", ()) == () and nodes.idle_gpus() == frozenset(), "it runs"
    engine.stop(BEFORE.container, grace=1)
    assert nodes.idle_gpus() == {"ada"}
    assert gpus.keep("ada", BEFORE.devices) == () and server.pods, "it stays its own while it moves"
    assert gpus.keep("ada", ()) == (CLASS,) and not server.pods


@pytest.mark.parametrize(
    ("shareable", "before", "cold"),
    [
        (True, None, ""),
        (True, BEFORE, ""),
        (True, replace(BEFORE, devices=(CLASS,)), "its next Pod may be on another node"),
        (True, replace(BEFORE, devices=(PLUGIN,) * 2), "its next Pod may be on another node"),
        (True, SESSION, "its next Pod may be on another node"),
        (False, BEFORE, "one container has its GPUs, and the next one takes its place"),
    ],
)
def test_a_move_is_warm_as_long_as_the_pod_stays(shareable: bool, before: Session | None, cold: str) -> None:
    engine = SimpleNamespace(on_this_machine=False, binds_late=lambda: True, has_place=lambda _: True)
    machines, gpus = SimpleNamespace(leaving=dict), SimpleNamespace(shareable=shareable)
    sessions = cast("Sessions", SimpleNamespace(engine=engine, machines=machines, gpus=gpus))
    after = replace(AFTER, access=AFTER.access.model_copy(update={"late_home": True}))
    late = Sessions.binds_late(sessions, after, before)
    assert late is not bool(cold)
    context = cast("MoveContext", SimpleNamespace(sessions=sessions))
    assert MoveContext.stays_cold(context, replace(after, late_home=late)) == cold


@pytest.mark.parametrize(("devices", "late"), [((CLASS, CLASS), True), ((PLUGIN, PLUGIN), False)])
def test_a_session_that_starts_with_gpus_of_another_kind_may_have_to_be_cold_from_then_on(
    devices: tuple[str, ...], late: bool
) -> None:
    updated = list[Session]()
    sessions = SimpleNamespace(
        running=lambda _: Running.stopped,
        with_gpus=lambda session, _: replace(session, devices=devices),
        engine=SimpleNamespace(on_this_machine=False, binds_late=lambda: True, remove=lambda _: None),
        gpus=SimpleNamespace(shareable=late, keep=lambda *_: ()),
        machines=SimpleNamespace(leaving=dict),
        store=SimpleNamespace(update=updated.append),
        _settings=Settings(),
    )
    sessions.binds_late = partial(Sessions.binds_late, sessions)
    access = BEFORE.access.model_copy(update={"late_home": True})
    before = replace(BEFORE, access=access, devices=("other.example.com",) * 2, late_home=not late)
    assert Sessions._equipped(cast("Sessions", sessions), before).late_home is late
    assert updated == [replace(before, devices=devices, late_home=late)]
