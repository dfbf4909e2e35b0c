"""The doctor's pull: the Pod by which a node asks the registry, and how far it came."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from flows.core.database import now
from flows.services import doctor_pull
from flows.sessions.kubernetes import pull_trial
from flows.sessions.kubernetes.cluster import Cluster, StillWaiting
from flows.sessions.kubernetes.pull_trial import PullTrial
from flows.sessions.kubernetes.refusals import ClusterError
from tests.support.pods import OPTIONS, SESSION

TAINTED = replace(OPTIONS, tolerations=({"key": "gpu", "operator": "Exists"},))
UNREACHABLE = "dial tcp: connection refused"
NO_ROOM = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/2 nodes are available"}


def told(node: str = "n1", state: Mapping[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A Pod as the API server tells of it."""
    seen = {"containerStatuses": [{"name": "pull", "state": state}]} if state is not None else {}
    return {"metadata": {}, "spec": {"nodeName": node} if node else {}, "status": {**seen, **status}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(
    ("pod", "node", "has_image", "trouble", "settled"),
    [
        (None, "", False, "", False),
        (told(""), "", False, "", False),
        (told("", conditions=[NO_ROOM]), "", False, "Unschedulable: 0/2 nodes are available", False),
        (told(), "n1", False, "", False),
        (told(state=waiting("ContainerCreating")), "n1", False, "", False),
        (told(state=waiting("ErrImagePull", UNREACHABLE)), "n1", False, f"ErrImagePull: {UNREACHABLE}", True),
        (told(state=waiting("ImagePullBackOff")), "n1", False, "ImagePullBackOff: ", True),
        (told(state=waiting("RunContainerError", "no such file: true")), "n1", True, "", True),
        (told(state={"running": {}}), "n1", True, "", True),
        (told(state={"terminated": {"exitCode": 1}}, phase="Failed"), "n1", True, "", True),
        (told(phase="Failed", reason="Evicted", message="DiskPressure"), "n1", False, "Evicted: DiskPressure", True),
    ],
)
def test_how_far_a_pull_came(
    pod: dict[str, Any] | None, node: str, has_image: bool, trouble: str, settled: bool
) -> None:
    trial = pull_trial.look(pod)
    assert (trial.node, trial.has_image, trial.trouble, trial.settled) == (node, has_image, trouble, settled)


def test_the_scheduler_chooses_a_node_of_sessions_which_asks_the_registry_in_any_case() -> None:
    spec = pull_trial.pod(SESSION.image, ["n2"], TAINTED, "1")["spec"]
    assert spec["containers"][0]["imagePullPolicy"] == "Always" and "nodeName" not in spec
    assert spec["nodeSelector"] == OPTIONS.node_selector and spec["imagePullSecrets"] == [{"name": "login"}]
    assert spec["tolerations"] == [*TAINTED.tolerations]
    (preferred,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchFields"][0]["values"] == ["n2"]
    assert "affinity" not in pull_trial.pod(SESSION.image, [], TAINTED, "1")["spec"]


class Api:
    """An API server whose Pods get this state at once."""

    def __init__(self, state: dict[str, Any], *there: dict[str, Any]) -> None:
        self.options = OPTIONS
        self.pods = {each["metadata"]["name"]: each for each in there}
        self._state, self.made = state, list[str]()

    def list(self, resource: str, **labels: str) -> list[dict[str, Any]]:
        return deepcopy([*self.pods.values()])

    def create(self, resource: str, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        self.made.append(name)
        self.pods[name] = {**manifest, **self._state, "spec": manifest["spec"] | self._state["spec"]}

    def wait(self, resource: str, name: str, until: Callable[[Any], bool], seconds: float, told: str) -> None:
        if not until(self.pods.get(name)):
            raise StillWaiting(told)

    def delete(self, resource: str, name: str, grace: float | None = None, uid: str = "") -> None:
        self.pods.pop(name)


REFUSED, GOES_ON, HAS_IT = told(state=waiting("ErrImagePull", "\x1b[2Jno")), told(), told(state={"running": {}})


@pytest.mark.parametrize("state", [REFUSED, GOES_ON, HAS_IT])
def test_its_pod_is_gone_afterwards_whatever_comes_of_it(state: dict[str, Any]) -> None:
    api = Api(state)
    trial = pull_trial.try_pull(cast(Cluster, api), SESSION.image, [], 1)
    assert api.made and not api.pods and "\x1b" not in trial.trouble


def test_its_pod_is_gone_where_the_cluster_goes_away_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api(told())

    def wait(*_: object) -> None:
        raise ClusterError("The cluster doesn't answer.")

    monkeypatch.setattr(api, "wait", wait)
    with pytest.raises(ClusterError):
        pull_trial.try_pull(cast(Cluster, api), SESSION.image, [], 1)
    assert api.made and not api.pods


def test_pods_that_a_killed_doctor_has_left_go_and_those_of_another_one_stay() -> None:
    ages = {"ended": 0, "never-placed": 2, "of-another": 0}
    left = {
        name: {
            "metadata": {"name": name, "uid": name, "creationTimestamp": (now() - timedelta(hours=hours)).isoformat()},
            "status": {"phase": "Failed" if name == "ended" else "Pending"},
        }
        for name, hours in ages.items()
    }
    api = Api(told(state={"running": {}}), *left.values())
    pull_trial.try_pull(cast(Cluster, api), SESSION.image, [], 1)
    assert [*api.pods] == ["of-another"]


@pytest.mark.parametrize(
    ("trial", "ok", "said"),
    [
        (PullTrial("n1", True, "", 1.5), True, "n1 has asked for the image aaaaaaaaaaaa from r.example.com"),
        (PullTrial("n1", False, "ErrImagePull: 401", 1.5), False, "n1 can't get the image aaaaaaaaaaaa"),
        (PullTrial("", False, "Unschedulable: 0/2", 30), False, "no node takes a Pod: Unschedulable: 0/2"),
        (PullTrial("n1", False, "", 30), True, "not known: n1 had no answer"),
        (PullTrial("", False, "", 30), True, "not known: no node"),
    ],
)
def test_what_the_doctor_says_of_it(trial: PullTrial, ok: bool, said: str) -> None:
    finding = doctor_pull.judge(trial, SESSION.image, "r.example.com")
    assert finding.ok is ok and said in finding.seen and bool(finding.hint) is not ok
    long = doctor_pull.judge(replace(trial, node="n1", has_image=False, trouble="x" * 9999), SESSION.image, "r")
    assert len(long.seen) < 2000
