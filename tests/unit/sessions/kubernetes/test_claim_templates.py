"""Templates of claims of devices (DRA) and their class, as API servers of several releases have them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from flows.services.doctor_cluster import judge_class
from flows.sessions.kubernetes import claim_templates, rights
from flows.sessions.kubernetes.claim_templates import ClaimTemplates
from flows.sessions.kubernetes.cluster import Cluster, ClusterError, Conflict
from flows.sessions.kubernetes.kinds import TEMPLATES
from flows.sessions.kubernetes.refusals import NotServed, role
from tests.support.api_server_in_memory import as_kept
from tests.support.pods import OPTIONS, SESSION

CLASS, PLUGIN = "gpu.example.com", "example.com/gpu"
BEFORE = replace(SESSION, gpus=2, devices=(CLASS, CLASS))
AFTER = replace(BEFORE, generation=2, image=f"sha256:{'b' * 64}")
TEMPLATE = f"refit-gpus-2.{CLASS}"
VERSIONS = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")


class Api:
    """An API server that answers these paths, and keeps what it is given as `keep` says; `made` counts that.

    A quota allows no more than `most` objects.
    """

    def __init__(self, *versions: str, keep: Callable[[Any], Any] = as_kept, **answers: Any) -> None:
        self._there: dict[str, Any] = {**answers}
        self._keep, self.made, self.most = keep, 0, 9
        self.serve(*versions)

    def serve(self, *versions: str, keeps: bool = True) -> None:
        """Have these versions of the API of claims alone; unless it `keeps` objects, it hasn't their namespace."""
        told = [{"groupVersion": f"resource.k8s.io/{each}", "version": each} for each in versions]
        self._there["/apis/resource.k8s.io"] = {"versions": told, "preferredVersion": told[0]} if told else None
        self._kept_in = tuple(f"/apis/resource.k8s.io/{each}/" for each in versions if keeps)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if request.method == "POST":
            told = json.loads(request.content)
            if told["kind"] == "SelfSubjectAccessReview":
                return httpx2.Response(201, json={"status": {"allowed": False}})
            if not path.startswith(self._kept_in):
                return httpx2.Response(404, json={"message": "not found"})
            path = f"{path}/{told['metadata']['name']}"
            if self.made >= self.most:
                return httpx2.Response(403, json={"message": "exceeded quota"})
            if self._there.get(path):
                return httpx2.Response(409, json={"reason": "AlreadyExists"})
            self.made += 1
            self._there[path] = self._keep(told)
        there = self._there.get(path)
        if isinstance(there, int):
            return httpx2.Response(there, json={"message": f"no: {there}"})
        return httpx2.Response(200, json=there) if there else httpx2.Response(404, json={"message": "not found"})

    def cluster(self) -> Cluster:
        cluster = Cluster(OPTIONS)
        client = httpx2.Client(transport=httpx2.MockTransport(self.answer), base_url="http://cluster.example.com")
        cluster.__dict__["_http"] = client
        return cluster


@pytest.mark.parametrize(
    ("served", "version"),
    [
        (("v1",), "v1"),
        (("v1beta1", "v1beta2", "v1"), "v1"),
        (("v1beta1", "v1beta2"), "v1beta2"),
        (("v1alpha3", "v1beta1"), "v1beta1"),
        (("v2", "v1"), "v1"),
    ],
)
def test_the_version_is_the_best_one_that_both_know(served: tuple[str, ...], version: str) -> None:
    assert Api(*served).cluster().version(TEMPLATES) == f"resource.k8s.io/{version}"


@pytest.mark.parametrize(("served", "told"), [((), "none"), (("v1alpha3",), "v1alpha3"), (("v2",), "v2")])
def test_a_cluster_without_it_says_so(served: tuple[str, ...], told: str) -> None:
    api = Api(*served)
    with pytest.raises(NotServed, match=r"no resource\.k8s\.io that Refit can use") as error:
        ClaimTemplates(api.cluster()).ensure(BEFORE)
    assert f"Its versions: {told}." in error.value.why and "1.34" in error.value.why
    assert "kubernetes.gpu_device_class" in error.value.hint and not api.made


def test_versions_of_other_groups_are_those_that_the_server_prefers() -> None:
    policy = {"preferredVersion": {"groupVersion": "policy/v1beta1", "version": "v1beta1"}}
    cluster = Api(**{"/apis/policy": policy}).cluster()
    assert cluster.version("poddisruptionbudgets") == "policy/v1beta1"
    assert cluster.version("networkpolicies") == "networking.k8s.io/v1"


@pytest.mark.parametrize("metadata", [{}, {"creationTimestamp": None}], ids=["empty", "no moment"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_template_is_made_once_for_all_who_want_as_many(version: str, metadata: Mapping[str, Any]) -> None:
    api = Api(version.rpartition("/")[2], keep=lambda told: as_kept(told, metadata))
    templates = ClaimTemplates(api.cluster())
    for session in (BEFORE, AFTER, replace(BEFORE, name="bob")):
        templates.ensure(session)
    assert api.made == 1
    templates.ensure(replace(BEFORE, devices=(CLASS,)))
    assert api.made == 2
    templates.ensure(replace(BEFORE, devices=(PLUGIN,)))
    templates.ensure(SESSION)
    assert api.made == 2


def test_a_quota_that_is_used_up_keeps_nobody_from_a_template_that_is_there() -> None:
    api = Api("v1")
    templates = ClaimTemplates(api.cluster())
    templates.ensure(BEFORE)
    api.most = 1
    templates.ensure(AFTER)
    with pytest.raises(ClusterError) as error:
        templates.ensure(replace(BEFORE, devices=(CLASS,)))
    assert "exceeded quota" in error.value.why


def test_a_template_that_somebody_else_makes_or_removes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    api, seen = Api("v1"), list[Any]([None])
    cluster = api.cluster()
    made = cluster.create(TEMPLATES, claim_templates.template(CLASS, "2", OPTIONS, VERSIONS[0]))
    monkeypatch.setattr(cluster, "find", lambda *_: seen.pop())
    seen[:] = [made, None]
    ClaimTemplates(cluster).ensure(BEFORE)
    assert not seen, "it was looked for again"
    seen[:] = [None, None]
    with pytest.raises(Conflict):  # it was removed again: nobody has made it otherwise
        ClaimTemplates(cluster).ensure(BEFORE)


@pytest.mark.parametrize(("before", "now"), [("v1beta2", "v1"), ("v1beta1", "v1beta2")])
def test_a_server_that_was_upgraded_is_asked_for_its_versions_again(before: str, now: str) -> None:
    api = Api(before)
    templates = ClaimTemplates(cluster := api.cluster())
    templates.ensure(BEFORE)
    api.serve(now)
    templates.ensure(replace(BEFORE, devices=(CLASS,)))
    assert cluster.version(TEMPLATES) == f"resource.k8s.io/{now}" and api.made == 2


def test_a_namespace_that_is_not_there_is_told_after_a_second_try() -> None:
    api = Api("v1")
    cluster = api.cluster()
    assert cluster.version(TEMPLATES) == VERSIONS[0]
    api.serve("v1", keeps=False)
    with pytest.raises(ClusterError, match="refuses to create") as error:
        ClaimTemplates(cluster).ensure(BEFORE)
    assert error.value.status == 404 and not api.made


def without_count(told: Any) -> Any:
    del told["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"]
    return as_kept(told)


def test_a_template_that_asks_for_something_else_gives_nobody_a_device() -> None:
    other = claim_templates.template(CLASS, "1", OPTIONS, VERSIONS[0])
    path = f"/apis/{VERSIONS[0]}/namespaces/{OPTIONS.namespace}/{TEMPLATES}/{TEMPLATE}"
    for api in (Api("v1", keep=without_count), Api("v1", **{path: other})):
        with pytest.raises(ClusterError, match="doesn't ask for 2 of the device class") as error:
            ClaimTemplates(api.cluster()).ensure(BEFORE)
        assert f"delete resourceclaimtemplate {TEMPLATE}" in error.value.hint


def judged(answer: Mapping[str, Any] | int | None, *served: str) -> tuple[bool, str]:
    path = f"/apis/resource.k8s.io/v1/deviceclasses/{CLASS}"
    found = judge_class(Api(*served, **{path: answer}).cluster(), CLASS)
    return found.ok, f"{found.seen} {found.hint}"


def test_the_doctor_says_whether_there_is_such_a_class() -> None:
    ok, told = judged({"metadata": {"name": CLASS}}, "v1")
    assert ok and "which is there; whether a node has any isn't looked at" in told
    ok, told = judged(None, "v1")
    assert not ok and f"{CLASS}, which is not there" in told and "kubernetes.gpu_device_class" in told
    ok, told = judged(None)
    assert not ok and "no resource.k8s.io that Refit can use" in told and "kubernetes.gpu_resource" in told
    ok, told = judged(403, "v1")
    command = "`kubectl create clusterrole refit-classes --verb=get --resource=deviceclasses.resource.k8s.io`"
    assert ok and "Refit may not look" in told and command in told
    ok, told = judged(410, "v1")
    assert ok and "not looked at: no: 410" in told
    rule = '  - {apiGroups: ["resource.k8s.io"], resources: [resourceclaimtemplates], verbs: [create, get]}'
    assert role(rights.CLAIMS, "refit").splitlines()[-1] == rule
