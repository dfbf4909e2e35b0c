"""The Job of a builder, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.orchestration import builder_jobs, builder_pod, offered, queues
from flows.sessions.kubernetes.manifests import KIND

TEMPLATE = Path(__file__).parents[3] / "deploy" / "builder" / "job.yaml"


def test_a_job_is_the_template_with_a_name_labels_and_its_run() -> None:
    told, run = builder_jobs.template(TEMPLATE), uuid4()
    made = builder_jobs.manifest(told, run)
    assert made["metadata"]["name"] == f"refit-builder-{run}" and len(made["metadata"]["name"]) <= 63
    pod = made["spec"]["template"]
    for each in (made, pod):
        assert each["metadata"]["labels"] == {KIND: "builder", "io.refit.run": str(run)}
    (builder,) = pod["spec"]["containers"]
    assert builder["env"][-1] == {"name": "PREFECT__FLOW_RUN_ID", "value": str(run)}
    assert told == builder_jobs.template(TEMPLATE), "the template itself was changed"


def test_the_template_asks_for_no_more_than_a_user_namespace_needs() -> None:
    pod = builder_jobs.template(TEMPLATE)["spec"]["template"]["spec"]
    (builder,) = pod["containers"]
    security = builder["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SETUID", "SETGID", "SETFCAP"]}
    assert not security["privileged"] and not security["allowPrivilegeEscalation"]
    assert pod["automountServiceAccountToken"] is False and pod["hostUsers"] is False
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & {*pod}
    assert builder["args"][-1] == builder_pod.main.__module__


def test_builders_run_a_flow_that_is_on_offer_in_a_pool_of_no_operating_system() -> None:
    assert builder_pod.ENTRYPOINT in offered.ENTRYPOINTS
    assert not queues.is_ours(builder_jobs.POOL)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"kind": "Pod"},
        {"metadata": {}},
        {"spec": {"template": {"spec": {"containers": [{"name": "other"}]}}}},
        {"spec": {"template": {"spec": {"containers": ["builder"]}}}},
        {"spec": None},
    ],
)
def test_a_file_that_is_no_job_of_a_builder_is_refused(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**builder_jobs.template(TEMPLATE), **spoilt}))
    with pytest.raises(RefitError, match="has no Job of a builder"):
        builder_jobs.template(file)


@pytest.mark.parametrize("content", [None, b"a: [", b"\xff\xfe\x00"])
def test_a_file_that_cant_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RefitError, match=r"job\.yaml can't be read"):
        builder_jobs.template(file)


SHARED: dict[str, Any] = {
    "registry": "registry.example.com",
    "database_url": "postgresql://refit:hunter2@db.example.com/refit",
    "bind_address": "192.0.2.7",
}


def test_a_builder_needs_what_pods_reach(tmp_path: Path) -> None:
    for more in ({}, {"bind_address": "0.0.0.0"}, {"prefect_server": "http://builds.example.com:4200"}):
        builder_jobs.check_shared(Settings(home=tmp_path, **{**SHARED, **more}))


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ({"database_url": ""}, "`database_url`: SQLite"),
        ({"database_url": "postgresql://refit:hunter2@localhost/refit"}, "`database_url`: "),
        ({"registry": ""}, "`registry`: 127.0.0.1:5000 is loopback"),
        ({"registry": "[::1]:5000"}, "`registry`: "),
        ({"bind_address": "127.0.0.1"}, "`bind_address`: "),
        ({"prefect_server": "http://127.0.0.1:4200"}, "`prefect_server`: "),
    ],
)
def test_things_that_are_on_this_machine_alone_are_named(tmp_path: Path, spoilt: dict[str, Any], named: str) -> None:
    with pytest.raises(RefitError, match="can't reach what they share") as refused:
        builder_jobs.check_shared(Settings(home=tmp_path, **{**SHARED, **spoilt}))
    assert named in refused.value.why and "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (None, 1),
        ({}, None),
        ({"status": {"active": 1}}, None),
        ({"status": {"conditions": [{"type": "Failed", "status": "False"}]}}, None),
        ({"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, 1),
        ({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, 0),
    ],
)
def test_the_end_of_a_job_is_read_from_its_conditions(job: dict[str, Any] | None, code: int | None) -> None:
    assert builder_jobs.ended(job) == code
