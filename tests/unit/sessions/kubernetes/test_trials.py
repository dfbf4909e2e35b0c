"""A trial's Pod: where others reach it, and how much its programs may print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.sessions import engines
from flows.sessions.kubernetes import trial_pods, trials
from flows.sessions.kubernetes.cluster import Cluster, StillWaiting
from flows.sessions.kubernetes.manifests import ClusterOptions
from flows.sessions.kubernetes.refusals import ClusterError
from flows.sessions.kubernetes.trial_pods import TERMS, PodTerms
from flows.sessions.kubernetes.trials import ClusterTrial, ClusterTrials
from flows.sessions.trial import NoTrial, alone

MANIFEST = {"metadata": {"name": "refit-trial-1"}}
DIGEST = f"sha256:{'1' * 64}"


class Pods:
    """A cluster with one Pod, or none."""

    def __init__(self, status: Mapping[str, Any] | None) -> None:
        self._status = status

    def find(self, kind: str, name: str) -> Mapping[str, Any] | None:
        assert (kind, name) == ("pods", "refit-trial-1")
        return None if self._status is None else {"status": self._status}


def trial(status: Mapping[str, Any] | None) -> ClusterTrial:
    return ClusterTrial(cast("Cluster", Pods(status)), MANIFEST)


def test_a_trial_is_reached_at_the_address_of_its_pod() -> None:
    assert trial({"phase": "Running", "podIP": "10.1.2.3"}).address() == "10.1.2.3"


@pytest.mark.parametrize(
    ("status", "why"), [(None, "removed by somebody else"), ({"phase": "Failed", "reason": "Evicted"}, "Evicted")]
)
def test_one_without_an_address_says_why(status: Mapping[str, Any] | None, why: str) -> None:
    with pytest.raises(ClusterError, match="no address") as refused:
        trial(status).address()
    assert why in refused.value.why


def test_a_program_may_print_as_much_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[int]()

    def output_of(*_: object, limit: float, most: int) -> str:
        given.append(most)
        return ""

    monkeypatch.setattr(trials, "output_of", output_of)
    there = trial({"phase": "Running"})
    there.execute(["true"])
    there.execute(["true"], most=7)
    assert given == [trials.MOST_OUTPUT, 7]


class Waiting(Pods):
    """A cluster whose Pod gets no node; it notes how long it is waited for."""

    def __init__(self) -> None:
        super().__init__({"phase": "Pending"})
        self.options, self.waited = SimpleNamespace(start_seconds=600.0), list[float]()

    def create(self, kind: str, manifest: Mapping[str, Any]) -> None:
        assert (kind, manifest) == ("pods", MANIFEST)

    def wait(self, _kind: str, _name: str, _done: object, seconds: float, what: str) -> None:
        self.waited.append(seconds)
        raise StillWaiting(what)


@pytest.mark.parametrize(("told", "waits"), [(0.0, 600.0), (60.0, 60.0)])
def test_a_pod_is_waited_for_as_long_as_is_said_or_as_that_of_a_session(told: float, waits: float) -> None:
    cluster = Waiting()
    with pytest.raises(NoTrial):
        ClusterTrial(cast("Cluster", cluster), MANIFEST, told).start()
    assert cluster.waited == [waits]


def spec(terms: PodTerms = TERMS, node: str = "", preferred: Sequence[str] = ()) -> dict[str, Any]:
    config, options = {"config": {"Cmd": ["launch"]}}, ClusterOptions("refit", "registry:5000/refit")
    chosen = alone(DIGEST, Access())
    made = trial_pods.pod(chosen, "image.1", node, config, options, Settings(), terms=terms, preferred=preferred)
    return cast("dict[str, Any]", made["spec"])


def test_a_pod_rather_goes_to_some_nodes_each_in_a_term_of_its_own_and_may_go_to_any() -> None:
    nodes = [f"n{number}" for number in range(30)]
    (kind, terms), *more = spec(preferred=nodes)["affinity"]["nodeAffinity"].items()
    assert kind == "preferredDuringSchedulingIgnoredDuringExecution" and not more
    fields = [term["preference"]["matchFields"] for term in terms]
    assert [[field["values"] for field in each] for each in fields] == [[[node]] for node in nodes[:10]]
    assert [term["weight"] for term in terms] == sorted({term["weight"] for term in terms}, reverse=True)
    assert "affinity" not in spec()
    assert [*spec(node="n1", preferred=nodes)["affinity"]["nodeAffinity"]] == [
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]


def test_kubernetes_ends_a_pod_that_nobody_has_removed() -> None:
    assert spec()["activeDeadlineSeconds"] == 3600
    assert spec(PodTerms(seconds=600))["activeDeadlineSeconds"] == 600


@pytest.mark.parametrize(("in_all", "start", "lives"), [(90.0, 60.0, 600), (0.0, 600.0, 900)])
def test_the_pod_of_an_image_that_is_read_for_a_plan_has_little_time(
    monkeypatch: pytest.MonkeyPatch, in_all: float, start: float, lives: int
) -> None:
    made = list[PodTerms]()

    def image_trial(*_: object, idle: bool, terms: PodTerms) -> None:
        assert idle
        made.append(terms)
        raise NoTrial("no node has room")

    monkeypatch.setattr(engines, "_image_trial", image_trial)
    settings = Settings.model_validate({"engine": "kubernetes", "kubernetes": {"namespace": "refit"}})
    with pytest.raises(RefitError, match="no node has room"):
        engines.run_in_image(settings, DIGEST, ["true"], "", 300.0, 1, in_all)
    (terms,) = made
    assert (terms.start_seconds, terms.seconds, terms.by_image) == (pytest.approx(start), lives, True)


def seen(node: str, image: str = "sha256:other", **more: bool) -> SimpleNamespace:
    flags = {"ending": False, "over": False, **more}
    return SimpleNamespace(node=node, slots=(SimpleNamespace(image=image, asked=image),), **flags)


@pytest.mark.parametrize(
    ("pods", "nodes"),
    [
        ([], ()),
        ([seen("n1"), seen("n2"), seen("n2"), seen("")], ("n2", "n1")),
        ([seen("n1"), seen("n2"), seen("n2"), seen("n3", DIGEST)], ("n3",)),
        ([seen("n1", DIGEST, ending=True), seen("n2", DIGEST, over=True), seen("closed", DIGEST)], ()),
    ],
    ids=["no session", "no such image", "one that has it", "none that lasts"],
)
def test_nodes_that_have_the_image_come_first_and_those_with_sessions_next(
    monkeypatch: pytest.MonkeyPatch, pods: list[SimpleNamespace], nodes: tuple[str, ...]
) -> None:
    monkeypatch.setattr(
        trials, "Placement", lambda *_: SimpleNamespace(closed=lambda: frozenset({"closed"}), pods=lambda: pods)
    )
    settings = Settings.model_validate({"engine": "kubernetes", "kubernetes": {"namespace": "refit"}})
    made = ClusterTrials(settings, lambda _: {}, copies=False)
    assert made._nodes_for(DIGEST) == nodes
