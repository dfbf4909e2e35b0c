"""The NetworkPolicy of sessions: who reaches whom by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, cast

import pytest

from flows.catalog.model import Access
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings
from flows.services import doctor_cluster
from flows.services.doctor_cluster import judge_isolation, judge_reach
from flows.sessions.kubernetes import home_pods, isolation, manifests, pull_trial, records, trial_pods
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.manifests import ClusterOptions
from flows.sessions.kubernetes.records import SessionPod, Slot
from flows.sessions.trial import alone
from tests.support.pods import OPTIONS, SESSION

INSIDE = replace(OPTIONS, inside=True)
OUTSIDE = replace(OPTIONS, gateways=("192.0.2.0/28",))
REFIT = {"app.kubernetes.io/name": "refit"}


def is_selected(labels: Mapping[str, str], selector: Mapping[str, Any]) -> bool:
    """Whether a selector of Kubernetes takes these labels, as its documentation says."""
    exact = selector.get("matchLabels", {})
    listed = selector.get("matchExpressions", ())
    assert all(each["operator"] == "In" for each in listed)
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        labels.get(each["key"]) in each["values"] for each in listed
    )


def reaches(options: ClusterOptions, comer: Mapping[str, str] | str, target: Mapping[str, Any]) -> bool:
    """Whether a Pod of the namespace with these labels, or an address outside of it, reaches a Pod by its network."""
    policy = isolation.policy(options)
    assert policy is not None
    spec = policy["spec"]
    if "Ingress" not in spec["policyTypes"] or not is_selected(target["metadata"]["labels"], spec["podSelector"]):
        return True
    peers = [peer for rule in spec["ingress"] for peer in rule["from"]]
    if isinstance(comer, str):
        blocks = [ip_network(peer["ipBlock"]["cidr"]) for peer in peers if "ipBlock" in peer]
        return any(ip_address(comer) in block for block in blocks)
    return any(is_selected(comer, peer["podSelector"]) for peer in peers if "podSelector" in peer)


def pods() -> dict[str, dict[str, Any]]:
    """The Pods that Refit makes."""
    configuration = {"config": {"Cmd": ["launch"]}}
    return {
        "session": manifests.pod(SESSION, OPTIONS, "s"),
        "trial": trial_pods.pod(SESSION, "ada.1", "n1", configuration, OPTIONS, Settings()),
        "check": trial_pods.pod(alone(SESSION.image, Access()), "image.1", "", configuration, OPTIONS, Settings()),
        "home": home_pods.pod(SESSION, [], "n1", OPTIONS),
        "pull": manifests.puller(SESSION.image, "n1", OPTIONS),
        "pull trial": pull_trial.pod(SESSION.image, [], OPTIONS, "1"),
    }


@pytest.mark.parametrize("options", [INSIDE, OUTSIDE], ids=["inside", "outside"])
@pytest.mark.parametrize("target", sorted(pods()))
def test_sessions_reach_each_other_by_no_port(options: ClusterOptions, target: str) -> None:
    pod = pods()[target]
    for other in pods().values():
        assert not reaches(options, other["metadata"]["labels"], pod)
    assert not reaches(options, {"app": "of somebody else"}, pod) and not reaches(options, {}, pod)
    assert not reaches(options, "198.51.100.7", pod)
    assert reaches(options, REFIT, pod)


def test_trials_alone_reach_nobody() -> None:
    spec = isolation.of_trials(OPTIONS)["spec"]
    assert spec["policyTypes"] == ["Egress"] and not spec["egress"]
    selected = {name for name, pod in pods().items() if is_selected(pod["metadata"]["labels"], spec["podSelector"])}
    assert selected == {"trial", "check"}


@pytest.mark.parametrize("options", [INSIDE, OUTSIDE], ids=["inside", "outside"])
def test_both_are_made_once_and_follow_the_settings(options: ClusterOptions) -> None:
    cluster = Policies(options)
    for _ in range(2):
        isolation.Isolation(cast("Cluster", cluster)).ensure()
    assert [*cluster.there] == [isolation.NAME, isolation.OF_TRIALS] and cluster.changed == []
    cluster.options = replace(options, gateways=("203.0.113.0/24",))
    isolation.Isolation(cast("Cluster", cluster)).ensure()
    assert cluster.changed == [isolation.NAME]
    cluster.options = OPTIONS
    isolation.Isolation(cast("Cluster", cluster)).ensure()
    assert cluster.changed == [isolation.NAME]


class Policies:
    """A cluster that keeps policies as the API server does, which leaves empty lists out."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.there: dict[str, dict[str, Any]] = {}
        self.changed: list[str] = []

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        return self.there.get(name)

    def ensure(self, resource: str, manifest: Mapping[str, Any]) -> None:
        spec = {key: value for key, value in manifest["spec"].items() if value != []}
        self.there[manifest["metadata"]["name"]] = {**manifest, "spec": spec}

    def patch(self, resource: str, name: str, change: Mapping[str, Any], kind: str) -> None:
        self.changed.append(name)
        self.there[name]["spec"] |= change["spec"]


def test_a_gateway_outside_comes_from_the_addresses_that_the_settings_name() -> None:
    assert reaches(OUTSIDE, "192.0.2.3", pods()["session"])
    assert not reaches(INSIDE, "192.0.2.3", pods()["session"])


def test_where_nobody_knows_from_where_the_gateway_comes_there_is_none_and_the_doctor_says_so() -> None:
    assert isolation.policy(OPTIONS) is None
    seen = judge_isolation(OPTIONS, allowed=True)
    assert seen.ok and "kubernetes.gateway_addresses" in seen.seen and "ssh" not in seen.seen
    assert "nobody comes in by ssh" in judge_isolation(OPTIONS, allowed=True, ssh=True).seen
    lacks = judge_isolation(OUTSIDE, allowed=False)
    assert not lacks.ok and "networkpolicies" in lacks.hint
    assert "if the cluster's network enforces it" in judge_isolation(OUTSIDE, allowed=True).seen


def test_the_doctor_says_which_pods_this_machine_does_not_reach() -> None:
    assert judge_reach({}).ok and "no session runs" in judge_reach({}).seen
    assert judge_reach({"refit-ada-1 (10.0.0.9)": ""}).ok
    missed = judge_reach({"refit-ada-1 (10.0.0.9)": "No route to host", "refit-bob-1 (10.0.0.8)": ""})
    assert not missed.ok and "refit-ada-1 (10.0.0.9): No route to host" in missed.seen and "bob" not in missed.seen
    assert "a route to the network of Pods" in missed.hint


def test_the_doctor_finds_a_session_that_runs_among_many_that_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(number: int) -> dict[str, Any]:
        slot = Slot("a", 1, opened=int(number >= 300))
        pod = SessionPod(
            f"refit-{number}", "", "", "", "", "n1", f"10.0.0.{number}", ending=False, over=False, slots=(slot,)
        )
        return {"pod": pod}

    def page(_: str, **params: str) -> dict[str, Any]:
        begin = int(params.get("continue", "0"))
        rest = range(begin, 303)[: int(params["limit"])]
        following = {"continue": str(rest.stop)} if rest.stop < 303 else {}
        return {"items": [told(number) for number in rest], "metadata": following}

    cluster = Cluster(OPTIONS)
    monkeypatch.setattr(cluster, "page", page)
    monkeypatch.setattr(records, "pod", lambda told: told["pod"])
    monkeypatch.setattr(doctor_cluster, "why_unreached", lambda *_: "")
    assert doctor_cluster._reached(cluster) == {f"refit-{number} (10.0.0.{number})": "" for number in (300, 301, 302)}


def test_settings_take_ranges_of_addresses_alone() -> None:
    assert ClusterSettings(gateway_addresses=("10.0.0.0/8", "fd00::/8")).gateway_addresses == ("10.0.0.0/8", "fd00::/8")
    for wrong in ("10.0.0.1/8", "gateway.example.com", "10.0.0.0/33"):
        with pytest.raises(ValueError, match="gateway_addresses"):
            ClusterSettings(gateway_addresses=(wrong,))
