"""Notebooks and answers of Hubs, read as plain data."""

from __future__ import annotations

from typing import Any

import pytest

from flows.sessions.activity.evidence import Verdict
from flows.sessions.activity.verdict import judge
from flows.sessions.model import LONGEST_NAME, check_name
from flows.sessions.others import hub_answers, notebook_records
from flows.sessions.others.model import OF_HUB, name_of, name_of_notebook

AT = 1_800_000_000.0
LONG_AGO = "2026-11-26T05:00:00+00:00"


def notebook(*containers: str, **annotations: str) -> dict[str, Any]:
    spec = {"containers": [{"name": name, "image": f"image-of-{name}"} for name in containers]}
    metadata = {"name": "ada", "namespace": "team", "uid": "1", "annotations": annotations}
    return {"metadata": metadata, "spec": {"template": {"spec": spec}}}


@pytest.mark.parametrize(
    ("containers", "image"),
    [
        (("ada",), "image-of-ada"),
        (("proxy", "ada"), "image-of-ada"),
        (("x",), "image-of-x"),
        (("x", "y"), ""),
        ((), ""),
    ],
)
def test_its_own_container_is_the_one_with_its_name_or_the_only_one(containers: tuple[str, ...], image: str) -> None:
    read = notebook_records.notebook(notebook(*containers))
    assert read.image == image and bool(read.trouble) is not bool(image)


def test_a_notebook_without_anything_in_it_is_read() -> None:
    told = {"metadata": {"name": "a", "namespace": "n", "uid": "1"}, "spec": {}}
    assert notebook_records.notebook(told).trouble


def test_the_patch_holds_only_for_what_was_seen() -> None:
    read = notebook_records.notebook(notebook("proxy", "ada"))
    *tests, change = notebook_records.exchange(read, "new")
    assert {one["op"] for one in tests} == {"test"} and change["path"] == "/spec/template/spec/containers/1/image"
    assert {"op": "test", "path": "/spec/template/spec/containers/1/image", "value": "image-of-ada"} in tests


@pytest.mark.parametrize(
    "parts",
    [("team", "ada"), ("Team", "ada"), ("1team", "ada"), ("a--b", "c"), ("a", "b--c"), ("x" * 60, "y"), ("é", "ü")],
)
def test_each_has_a_name_of_its_own_that_sessions_can_have(parts: tuple[str, ...]) -> None:
    assert check_name(name_of(*parts)) and len(name_of(*parts)) <= LONGEST_NAME
    assert name_of(*parts) != name_of(*parts, "gpu") and name_of(*parts) == name_of(*parts)


def test_names_that_look_alike_are_told_apart() -> None:
    alike = [("a--b", "c"), ("a", "b--c"), ("A", "b--c"), ("a", "b", "c")]
    assert len({name_of(*parts) for parts in alike}) == len(alike)


@pytest.mark.parametrize("namespace", ["hub", "notebook", "hub--ada", "team"])
def test_a_notebook_has_the_name_of_no_server_of_a_hub(namespace: str) -> None:
    assert name_of_notebook(namespace, "ada") not in {name_of(OF_HUB, "ada"), name_of(OF_HUB, "ada", "ada")}


def status(**more: Any) -> dict[str, Any]:
    told = {"started": LONG_AGO, "last_activity": LONG_AGO, "connections": 0, "kernels": 0}
    return {"status": {**told, **more}, "kernels": [], "terminals": []}


def kernel(state: str) -> dict[str, str]:
    return {"id": "1", "name": "python3", "execution_state": state, "last_activity": LONG_AGO}


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        (status(), Verdict.idle),
        ({**status(), "kernels": [kernel("busy")]}, Verdict.busy),
        ({**status(), "kernels": [kernel("idle")]}, Verdict.state),
        ({**status(), "terminals": [{"name": "1"}]}, Verdict.busy),
    ],
)
def test_what_can_not_be_seen_of_a_server_counts_as_work(told: dict[str, Any], verdict: Verdict) -> None:
    assert judge(hub_answers.look_of(AT, told)).verdict is verdict


def test_scopes_that_hold_for_a_group_are_there() -> None:
    assert not hub_answers.lacking([f"{scope}!group=x" for scope in hub_answers.NEEDED])
    assert hub_answers.lacking(["list:users"]) == hub_answers.NEEDED[1:]
