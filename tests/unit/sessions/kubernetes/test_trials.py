"""A trial's Pod: where others reach it, and how much its programs may print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from flows.sessions.kubernetes import trials
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.refusals import ClusterError
from flows.sessions.kubernetes.trials import ClusterTrial


class Pods:
    """A cluster with one Pod, or none."""

    def __init__(self, status: Mapping[str, Any] | None) -> None:
        self._status = status

    def find(self, kind: str, name: str) -> Mapping[str, Any] | None:
        assert (kind, name) == ("pods", "refit-trial-1")
        return None if self._status is None else {"status": self._status}


def trial(status: Mapping[str, Any] | None) -> ClusterTrial:
    return ClusterTrial(cast("Cluster", Pods(status)), {"metadata": {"name": "refit-trial-1"}})


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
