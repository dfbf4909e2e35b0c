"""Unpickled, it touches a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect._internal.result_records import ResultRecord, ResultRecordMetadata
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse

from flows.orchestration import offered
from flows.orchestration.offered import Refused, admit, import_flow
from tests.support.exploit import Exploit

BUILD = "flows.build_profiles:build_profiles"
FLOW, DEPLOYMENT = uuid4(), uuid4()


def run(**more: Any) -> FlowRun:
    return FlowRun(**{"flow_id": FLOW, "deployment_id": DEPLOYMENT, **more})


def deployment(**more: Any) -> DeploymentResponse:
    return DeploymentResponse(**{"id": DEPLOYMENT, "name": "refit", "flow_id": FLOW, "entrypoint": BUILD, **more})


@pytest.mark.parametrize("entrypoint", offered.ENTRYPOINTS)
def test_each_flow_on_offer_is_there_and_where_its_deployment_says(entrypoint: str) -> None:
    assert offered.entrypoint(import_flow(entrypoint)) == entrypoint
    assert admit(run(), deployment(entrypoint=entrypoint)) == entrypoint


@pytest.mark.parametrize(
    "brought",
    [
        {"pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": "id"}}]},
        {"path": "/tmp/elsewhere"},
        {"path": "/"},
        {"storage_document_id": uuid4()},
        {"infrastructure_document_id": uuid4()},
        {"job_variables": {"command": "id"}},
        {"job_variables": {"env": {"PYTHONPATH": "/tmp"}}},
        {"job_variables": {"stream_output": True}},
    ],
)
def test_a_deployment_that_brings_something_along_is_refused(brought: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="own flows alone") as refused:
        admit(run(), deployment(**brought))
    assert next(iter(brought)) in str(refused.value) and "refit serve" in str(refused.value)


@pytest.mark.parametrize("brought", [{"job_variables": {"working_dir": "/"}}, {"infrastructure_document_id": uuid4()}])
def test_a_run_that_brings_something_along_is_refused(brought: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="own flows alone"):
        admit(run(**brought), deployment())


@pytest.mark.parametrize(
    "entrypoint",
    [
        *(None, "", "os:system", "flows.core.programs.command:run", "flows/build_profiles.py:build_profiles"),
        *("/tmp/flow.py:build_profiles", "flows.build_profiles.build_profiles", f"{BUILD} ", f" {BUILD}"),
        *("flows.build_profiles:clear_away", "flows.build_profiles:build_profiles.fn", f"{BUILD}\n", BUILD.upper()),
    ],
)
def test_an_entrypoint_that_is_not_on_offer_is_refused(entrypoint: str | None) -> None:
    with pytest.raises(Refused, match=r"Its entrypoint .* is no flow that Refit offers"):
        admit(run(), deployment(entrypoint=entrypoint))
    if entrypoint:
        with pytest.raises(Refused, match="is no flow that Refit offers"):
            import_flow(entrypoint)


@pytest.mark.parametrize("of", [None, uuid4()])
def test_a_run_without_a_deployment_or_with_another_ones_is_refused(of: UUID | None) -> None:
    with pytest.raises(Refused, match="own flows alone"):
        admit(run(deployment_id=of), None if of is None else deployment())


READS = """
import pathlib, sys
from prefect.states import Completed
from prefect._internal.result_records import ResultRecordMetadata
if sys.argv[2] == "refuse":
    from flows.orchestration import results
    results.trust_none()
state = Completed(data=ResultRecordMetadata(storage_key=sys.argv[1]))
try:
    state.result(_sync=True)
except BaseException as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "touched"), [("believe", True), ("refuse", False)])
def test_a_result_that_a_state_names_is_not_read(tmp_path: Path, how: str, touched: bool) -> None:
    mark = tmp_path / "mark"
    stored: ResultRecord[Any] = ResultRecord(result=Exploit(mark), metadata=ResultRecordMetadata())
    (tmp_path / "result").write_bytes(stored.serialize())
    argv = [sys.executable, "-c", READS, str(tmp_path / "result"), how]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert mark.exists() == touched, done.stdout + done.stderr
    assert ("RefitError" in done.stdout) != touched
