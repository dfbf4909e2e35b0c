"""Programs that a person with a login to Prefect tells a worker to run, and it doesn't: with real ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest
from prefect._internal.result_records import ResultRecord, ResultRecordMetadata
from prefect.workers.process import ProcessWorker

from flows.core.settings import Settings
from flows.services.prefect_services import BASE_JOB_TEMPLATE, POOL
from tests.support.exploit import Exploit
from tests.support.prefect_api import FINAL, cancel_run, post, prefect_client, start_run
from tests.support.services import ENDLESS, deploy, pid_of, pids
from tests.support.trial_worker import TRIAL
from tests.support.waiting import wait_until

SCRIPT = "prefect.deployments.steps.run_shell_script"
EVIL = """
from pathlib import Path
from prefect import flow
Path({mark!r}).touch()
@flow
def evil() -> None:
    Path({mark!r}).touch()
"""


@dataclass(frozen=True)
class Attacker:
    """Somebody with the login, a folder of their own, and a mark in it that is there once their code has run."""

    api: httpx.Client
    folder: Path

    @property
    def mark(self) -> Path:
        return self.folder / "mark"

    @property
    def touch(self) -> str:
        return f"touch {self.mark}"

    def deployment(self, **more: Any) -> str:
        """The id of a new deployment."""
        flow = post(self.api, "/flows/", {"name": "trial"})["id"]
        body = {"name": str(uuid4()), "flow_id": flow, "entrypoint": TRIAL, "work_pool_name": POOL, **more}
        return str(post(self.api, "/deployments/", body)["id"])

    def run(self, deployment: str, **more: Any) -> str:
        """The id of a new run of it."""
        body = {"state": {"type": "SCHEDULED"}, "parameters": self.parameters, **more}
        return str(post(self.api, f"/deployments/{deployment}/create_flow_run", body)["id"])

    @property
    def parameters(self) -> dict[str, Any]:
        return {"wait": {"note": str(self.folder / "pids")}}

    def state(self, run: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.api.get(f"/flow_runs/{run}").raise_for_status().json()["state"]
        return answer

    def ended(self, run: str) -> dict[str, Any]:
        wait_until(lambda: self.state(run)["type"] in FINAL)
        return self.state(run)

    def refused(self, run: str) -> str:
        """Why a run has failed; nothing of it has run."""
        state = self.ended(run)
        assert state["type"] == "FAILED" and "own flows alone" in state["message"], state
        assert not self.mark.exists() and not (self.folder / "pids").exists()
        return str(state["message"])


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """With the flow `trial` deployed."""
    deploy(settings)
    return settings


@pytest.fixture(scope="module")
def folders(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Where attackers have their marks; in the end, the same worker still runs what Refit offers, and none is there."""
    worker, made = pid_of(settings, "worker"), list[Path]()
    yield made
    with prefect_client(settings) as api:
        last = Attacker(api, tmp_path_factory.mktemp("last"))
        assert last.ended(start_run(api, "trial/refit", parameters=last.parameters))["type"] == "COMPLETED"
    assert pid_of(settings, "worker") == worker
    assert [folder for folder in made if (folder / "mark").exists()] == []


@pytest.fixture
def attacker(settings: Settings, folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    folders.append(tmp_path_factory.mktemp("attacker"))
    with prefect_client(settings) as api:
        attacker = Attacker(api, folders[-1])
        yield attacker
        api.patch(f"/work_pools/{POOL}", json={"base_job_template": dict(BASE_JOB_TEMPLATE)}).raise_for_status()
        marked = attacker.mark.exists()
        assert not marked


def evil_file(folder: Path, mark: Path) -> str:
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    return f"{folder}/evil.py:evil"


def storage(attacker: Attacker) -> str:
    """A block that says where code is fetched from."""
    answer = attacker.api.get("/block_types/slug/local-file-system").raise_for_status().json()["id"]
    schemas = post(attacker.api, "/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [answer]}}})
    body = {"name": str(uuid4()), "block_type_id": answer, "block_schema_id": schemas[0]["id"]}
    data = {"basepath": str(attacker.folder)}
    return str(post(attacker.api, "/block_documents/", {**body, "data": data})["id"])


def test_pull_steps_are_not_run(attacker: Attacker) -> None:
    steps = [{SCRIPT: {"script": attacker.touch}}]
    assert "pull_steps" in attacker.refused(attacker.run(attacker.deployment(pull_steps=steps)))


def test_a_path_is_not_read_and_an_entrypoint_elsewhere_is_not_imported(attacker: Attacker) -> None:
    entrypoint = evil_file(attacker.folder, attacker.mark)
    elsewhere = attacker.deployment(path=str(attacker.folder), entrypoint="evil.py:evil")
    assert "path" in attacker.refused(attacker.run(elsewhere))
    assert "entrypoint" in attacker.refused(attacker.run(attacker.deployment(entrypoint=entrypoint)))
    assert "entrypoint" in attacker.refused(
        attacker.run(attacker.deployment(entrypoint="flows.core.programs.command:run"))
    )


def test_storage_is_not_fetched_from(attacker: Attacker) -> None:
    evil_file(attacker.folder, attacker.mark)
    block = attacker.deployment(storage_document_id=storage(attacker), entrypoint="evil.py:evil")
    assert "storage_document_id" in attacker.refused(attacker.run(block))


def open_pool(attacker: Attacker, pool: str = POOL) -> None:
    """Let the pool say of itself that runs may choose their command and environment, as Prefect's own template does."""
    template = ProcessWorker.get_default_base_job_template()
    attacker.api.patch(f"/work_pools/{pool}", json={"base_job_template": template}).raise_for_status()


@pytest.mark.parametrize("chosen", ["command", "env", "working_dir", "stream_output"])
def test_job_variables_are_refused_though_the_pool_allows_them(attacker: Attacker, chosen: str) -> None:
    open_pool(attacker)
    value = {
        "command": attacker.touch,
        "env": {"BASH_ENV": str(attacker.folder), "PYTHONPATH": str(attacker.folder)},
        "working_dir": str(attacker.folder),
        "stream_output": False,
    }[chosen]
    variables = {chosen: value}
    assert "job_variables" in attacker.refused(attacker.run(attacker.deployment(job_variables=variables)))
    ours = attacker.api.get("/deployments/name/trial/refit").json()["id"]
    assert "job_variables" in attacker.refused(attacker.run(ours, job_variables=variables))


def test_what_a_pool_says_of_command_and_environment_does_not_matter(attacker: Attacker) -> None:
    note = str(attacker.folder / "pids")
    words = {"command": attacker.touch, "env": {"REFIT_REGISTRY_PORT": "1"}, "working_dir": str(attacker.folder)}
    template = {"job_configuration": words, "variables": {"type": "object", "properties": {}}}
    attacker.api.patch(f"/work_pools/{POOL}", json={"base_job_template": template}).raise_for_status()
    # The worker hears of it with its next heartbeat; whether it has doesn't matter.
    run = start_run(attacker.api, "trial/refit", parameters={"wait": {"note": note}})
    assert attacker.ended(run)["type"] == "COMPLETED"
    lines = post(attacker.api, "/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})
    assert not [line for line in lines if "registry port 1" in line["message"]]


def test_a_run_without_a_deployment_is_refused(attacker: Attacker) -> None:
    flow = post(attacker.api, "/flows/", {"name": "trial"})["id"]
    body = {"flow_id": flow, "work_pool_name": POOL, "state": {"type": "SCHEDULED"}, "parameters": {}}
    attacker.refused(str(post(attacker.api, "/flow_runs/", body)["id"]))


def test_a_pool_that_bears_refits_name_changes_nothing(attacker: Attacker) -> None:
    name, odd = f"{POOL}-{uuid4().hex[:6]}", {**BASE_JOB_TEMPLATE, "builds": ["no", "mapping"]}
    post(attacker.api, "/work_pools/", {"name": f"{name}x", "type": "process", "base_job_template": odd})
    post(attacker.api, "/work_pools/", {"name": name, "type": "process"})
    open_pool(attacker, name)
    body = {"work_pool_name": name, "job_variables": {"command": attacker.touch}}
    assert "job_variables" in attacker.refused(attacker.run(attacker.deployment(**body)))
    for made in (name, f"{name}x"):
        attacker.api.delete(f"/work_pools/{made}").raise_for_status()


@pytest.mark.long  # Prefect's worker may ask for its pool a minute later only
def test_a_pool_that_is_taken_away_takes_no_other_along(attacker: Attacker, settings: Settings) -> None:
    name, log = f"{POOL}-{uuid4().hex[:6]}", settings.home / "logs" / "worker.log"
    for times in (1, 2):  # it may come back
        post(attacker.api, "/work_pools/", {"name": name, "type": "process"})
        wait_until(lambda: post(attacker.api, f"/work_pools/{name}/workers/filter", {}))
        attacker.api.delete(f"/work_pools/{name}").raise_for_status()
        wait_until(lambda: log.read_text().count(f"The pool {name} isn't served") == times)  # noqa: B023


def test_an_automation_starts_nothing_else_either(attacker: Attacker) -> None:
    open_pool(attacker)
    deployment, event = attacker.deployment(pull_steps=[{SCRIPT: {"script": attacker.touch}}]), f"evil.{uuid4()}"
    action = {"type": "run-deployment", "source": "selected", "deployment_id": deployment}
    body = {
        "name": str(uuid4()),
        "trigger": {"type": "event", "posture": "Reactive", "expect": [event], "threshold": 1, "within": 0},
        "actions": [{**action, "parameters": attacker.parameters, "job_variables": {"command": attacker.touch}}],
    }
    automation = post(attacker.api, "/automations/", body)["id"]
    resource = {"prefect.resource.id": "evil"}
    happened = {"id": str(uuid4()), "event": event, "occurred": datetime.now(UTC).isoformat(), "resource": resource}
    post(attacker.api, "/events", [happened])
    of = {"flow_runs": {"deployment_id": {"any_": [deployment]}}}
    wait_until(lambda: post(attacker.api, "/flow_runs/filter", of))
    [run] = post(attacker.api, "/flow_runs/filter", of)
    assert "pull_steps" in attacker.refused(run["id"])
    attacker.api.delete(f"/automations/{automation}").raise_for_status()


def attempt(settings: Settings, run: str) -> subprocess.CompletedProcess[str]:
    """The process of a run, started as the worker does, once it has admitted it."""
    worker = psutil.Process(pid_of(settings, "worker")).environ()
    argv = [sys.executable, "-P", "-m", "tests.support.trial_worker", TRIAL]
    environment = {**worker, "PREFECT__FLOW_RUN_ID": run}
    return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, check=False)


def held(attacker: Attacker, **more: Any) -> str:
    """A run that no worker takes."""
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2999-01-01T00:00:00Z"}}
    run = attacker.run(attacker.deployment(**more), state=later)
    post(attacker.api, f"/flow_runs/{run}/set_state", {"state": {"type": "PENDING"}, "force": True})
    return run


def test_a_deployment_that_is_changed_between_check_and_use_changes_nothing(
    attacker: Attacker, settings: Settings
) -> None:
    evil_file(attacker.folder, attacker.mark)
    steps = [{SCRIPT: {"script": attacker.touch}}]
    run = held(attacker, pull_steps=steps, path=str(attacker.folder), entrypoint="evil.py:evil")
    done = attempt(settings, run)
    assert attacker.state(run)["type"] == "COMPLETED", done.stderr
    assert (attacker.folder / "pids").exists() and not attacker.mark.exists()


def test_the_result_of_a_run_that_is_called_completed_is_not_read(attacker: Attacker, settings: Settings) -> None:
    stored: ResultRecord[Any] = ResultRecord(result=Exploit(attacker.mark), metadata=ResultRecordMetadata())
    (attacker.folder / "result").write_bytes(stored.serialize())
    run = held(attacker)
    named = {"type": "reference", "storage_key": str(attacker.folder / "result"), "serializer": {"type": "pickle"}}
    post(attacker.api, f"/flow_runs/{run}/set_state", {"state": {"type": "COMPLETED", "data": named}, "force": True})
    assert attacker.state(run)["data"]["storage_key"].endswith("result")
    attempt(settings, run)
    assert not attacker.mark.exists()


def test_hooks_are_those_of_the_flow_whatever_the_deployment_says_meanwhile(attacker: Attacker) -> None:
    evil_file(attacker.folder, attacker.mark)
    note, deployment = attacker.folder / "pids", attacker.deployment()
    hooked = note.with_suffix(".cancelled")
    run = attacker.run(deployment, parameters={"wait": {"seconds": ENDLESS, "note": str(note)}})
    wait_until(lambda: len(pids(note)) == 2)
    changed = {"pull_steps": [{SCRIPT: {"script": attacker.touch}}], "path": str(attacker.folder)}
    attacker.api.patch(f"/deployments/{deployment}", json={**changed, "entrypoint": "evil.py:evil"}).raise_for_status()
    cancel_run(attacker.api, run)
    assert attacker.ended(run)["type"] == "CANCELLED"
    wait_until(lambda: hooked.exists() and hooked.read_text() == "trial")  # Prefect calls hooks after the state is set
    assert not attacker.mark.exists()
