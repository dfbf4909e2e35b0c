"""Queues, each verb for real: two operating systems, a server, a worker, and a person at a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from flows.core.settings import Settings
from tests.support.machine import ROOT
from tests.support.prefect_api import FINAL, cancel_run, post, prefect_client, start_run
from tests.support.services import ENDLESS, Run, pids, until
from tests.support.systems import RELEASE
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.long
# The command, with a worker that runs the trial, too.
PROGRAM = "from tests.support import trial_worker; trial_worker.install(); from flows.cli.main import main; main()"
REFIT = (sys.executable, "-c", PROGRAM)
DEPLOY = """
import os
from flows import services
from flows.core import settings
chosen = settings.load()
os.environ.update(services.prefect_environment(chosen))
from flows.catalog.load import load_catalog
from flows.orchestration.deployments import deploy
from tests.support.trial_flow import trial
print(*deploy([trial], load_catalog(chosen.catalog).bases.values()))
"""


@dataclass(frozen=True)
class Person:
    """Somebody at a shell, with settings of their own, and the server's API."""

    settings: Settings
    api: httpx.Client

    def environment(self, **more: str) -> dict[str, str]:
        mine = {
            "REFIT_HOME": str(self.settings.home),
            "REFIT_CATALOG": str(self.settings.catalog),
            "REFIT_REGISTRY_PORT": str(self.settings.registry_port),
            "REFIT_PREFECT_PORT": str(self.settings.prefect_port),
            "REFIT_GATEWAY": "false",
            "COLUMNS": "200",
        }
        return {**os.environ, **mine, **more}

    def types(self, *words: str, exit_code: int = 0, **variables: str) -> str:
        """The text on both outputs."""
        argv, env = [*REFIT, *words], self.environment(**variables)
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def launch(self, deployment: str, body: dict[str, Any]) -> Run:
        """Start a run as the UI does."""
        return Run(self.api, start_run(self.api, deployment, **body))

    def waits(self, system: str, note: Path, seconds: int = 0, **more: Any) -> Run:
        """A run that ends after so many seconds, in the queue of an operating system or in that of all other work."""
        return self.launch(f"trial/{system}", {"parameters": {"wait": {"seconds": seconds, "note": str(note)}}, **more})


@pytest.fixture(scope="module")
def person(settings: Settings) -> Iterator[Person]:
    with prefect_client(settings) as api:
        person = Person(settings, api)
        person.types("up")
        argv = [sys.executable, "-c", DEPLOY]
        done = subprocess.run(argv, env=person.environment(), cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout == "trial/refit trial/deb12 trial/deb13\n"
        yield person


@pytest.fixture
def queues(person: Person) -> Iterator[Person]:
    """Both queues open and empty, before and after."""
    yield person
    unfinished = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING", "CANCELLING"]}}}}
    for run in post(person.api, "/flow_runs/filter", unfinished):
        cancel_run(person.api, run["id"])
    until(lambda: post(person.api, "/flow_runs/filter", unfinished), lambda left: not left)
    for pool in ("refit-deb12", "refit-deb13"):
        person.api.patch(f"/work_pools/{pool}", json={"is_paused": False}).raise_for_status()


def end_program(note: Path) -> None:
    """Let the program of a run end well."""
    psutil.Process(pids(note)[1]).kill()


def test_there_is_a_queue_for_each_system_and_the_worker_takes_from_both(person: Person) -> None:
    def workers() -> Any:
        result = person.types("queue", "list", "--json")
        return {queue["system"]: (queue["held"], len(queue["workers"])) for queue in yaml.safe_load(result)}

    until(workers, lambda seen: seen == {"deb12": (False, 1), "deb13": (False, 1)})
    assert "deb13 open 0 0 refit@" in person.types("queue").replace("│", "").replace("  ", " ")
    assert "no queue 'deb31'" in person.types("queue", "pause", "deb31", exit_code=1)


def test_what_is_held_does_not_start_and_the_other_does(queues: Person, tmp_path: Path) -> None:
    assert "deb12 is paused" in queues.types("queue", "pause", "deb12")
    held = queues.waits("deb12", tmp_path / "12")
    open_ = queues.waits("deb13", tmp_path / "13")
    assert until(open_.state, lambda state: state in FINAL) == "COMPLETED"
    assert held.state() == "SCHEDULED" and not (tmp_path / "12").exists()
    queues.types("queue", "resume", "deb12")
    assert until(held.state, lambda state: state in FINAL) == "COMPLETED"


def test_a_purge_cancels_what_waits_and_nothing_else(queues: Person, tmp_path: Path) -> None:
    running = queues.waits("deb12", tmp_path / "running", seconds=ENDLESS)
    until(lambda: pids(tmp_path / "running"), lambda started: len(started) == 2)
    for system in ("deb12", "deb13"):
        queues.types("queue", "pause", system)
    waiting = [queues.waits("deb12", tmp_path / f"{n}") for n in range(2)]
    neighbour = queues.waits("deb13", tmp_path / "neighbour")
    scheduled = _schedule(queues, "trial/deb12")

    for words in (("--dry-run",), ()):  # without a terminal nobody can be asked
        assert "Would be cancelled" in queues.types("queue", "purge", "deb12", *words)
        assert {run.state() for run in waiting} == {"SCHEDULED"}
    purged = yaml.safe_load(queues.types("queue", "purge", "deb12", "--yes", "--json"))

    assert {run["id"] for run in purged} == {run.id for run in waiting}
    assert {run.state() for run in waiting} == {"CANCELLED"}
    assert running.state() == "RUNNING" and all(psutil.pid_exists(pid) for pid in pids(tmp_path / "running"))
    assert neighbour.state() == "SCHEDULED" and {run.state() for run in scheduled} == {"SCHEDULED"}
    end_program(tmp_path / "running")
    assert until(running.state, lambda state: state in FINAL) == "COMPLETED"


def _schedule(person: Person, name: str) -> list[Run]:
    """The runs of the next nights, as the server makes them."""
    deployment = person.api.get(f"/deployments/name/{name}").json()["id"]
    cron = [{"active": True, "schedule": {"cron": "0 3 * * *"}}]
    post(person.api, f"/deployments/{deployment}/schedules", cron)
    until_then = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    post(person.api, f"/deployments/{deployment}/schedule", {"end_time": until_then})
    body = {"flow_runs": {"deployment_id": {"any_": [deployment]}, "state": {"type": {"any_": ["SCHEDULED"]}}}}
    answer = post(person.api, "/flow_runs/filter", body)
    later = [Run(person.api, run["id"]) for run in answer if run["auto_scheduled"]]
    assert len(later) >= 2
    return later


def test_a_drain_waits_for_what_runs_wherever_it_was_started(queues: Person, tmp_path: Path) -> None:
    inside = queues.waits("deb12", tmp_path / "inside", seconds=ENDLESS)
    elsewhere = queues.waits("refit", tmp_path / "elsewhere", seconds=ENDLESS, tags=["refit-deb12"], name="elsewhere")
    for name in ("inside", "elsewhere"):
        until(lambda name=name: pids(tmp_path / name), lambda started: len(started) == 2)
    said = queues.types("queue", "drain", "deb12", "--timeout", "0.5", exit_code=1)
    assert "not drained after 0.5 s" in said and "elsewhere" in said

    argv, log = [*REFIT, "queue", "drain", "deb12"], (tmp_path / "log").open("w")
    drain = subprocess.Popen(argv, env=queues.environment(), stdout=log, stderr=log)
    try:
        end_program(tmp_path / "inside")
        assert until(inside.state, lambda state: state in FINAL) == "COMPLETED"
        assert drain.poll() is None
        waiting = queues.waits("deb12", tmp_path / "waiting")
        end_program(tmp_path / "elsewhere")
        assert drain.wait(PATIENCE) == 0
    finally:
        drain.kill()
        drain.wait()
    assert elsewhere.state() == "COMPLETED" and waiting.state() == "SCHEDULED"
    assert "deb12 is held, and nothing runs." in (tmp_path / "log").read_text()


def test_a_person_at_a_shell_is_told_what_is_held_and_can_insist(queues: Person) -> None:
    queues.types("queue", "pause", "deb13")
    said = queues.types("build", RELEASE, "--os", "deb13", exit_code=1)
    assert "deb13: it is paused" in said and "refit queue resume deb13" in said
    [refused] = _builds(queues)
    assert refused["tags"] == []
    # It is let through, and gets as far as a mirror that isn't there.
    words = ("build", RELEASE, "--os", "deb13", "--force")
    said = queues.types(*words, exit_code=1, REFIT_DEBIAN_MIRROR="http://127.0.0.1:9")
    assert "is held" not in said and "127.0.0.1:9" in said
    assert _builds(queues)[0]["tags"] == ["refit-deb13"]


def test_a_whole_release_leaves_what_is_held_in_its_queue(queues: Person) -> None:
    for system in ("deb12", "deb13"):
        queues.types("queue", "pause", system)
    run = queues.launch("build-profiles/refit", {"parameters": {"release": RELEASE, "date": "2000-02-03"}})
    assert until(run.state, lambda state: state in FINAL) == "COMPLETED"
    left = {build["work_pool_name"]: build for build in _builds(queues) if build["state_type"] == "SCHEDULED"}
    assert {pool: build["parameters"]["systems"] for pool, build in left.items()} == {
        "refit-deb12": ["deb12"],
        "refit-deb13": ["deb13"],
    }
    assert {build["parameters"]["date"] for build in left.values()} == {"2000-02-03"}


def _builds(person: Person) -> list[dict[str, Any]]:
    """The runs of `build-profiles`, newest first."""
    body = {"flows": {"name": {"any_": ["build-profiles"]}}, "sort": "START_TIME_DESC"}
    answer: list[dict[str, Any]] = post(person.api, "/flow_runs/filter", body)
    return answer


def test_a_worker_takes_only_what_its_machine_shall_build(queues: Person, tmp_path: Path) -> None:
    queues.types("up", REFIT_BUILD_TARGETS="[deb13]")
    waiting = queues.waits("deb12", tmp_path / "12")
    taken = queues.waits("deb13", tmp_path / "13")
    assert until(taken.state, lambda state: state in FINAL) == "COMPLETED"
    assert waiting.state() == "SCHEDULED"
    queues.types("up")
    assert until(waiting.state, lambda state: state in FINAL) == "COMPLETED"
