"""Two machines share a release, for real: a home, a worker and a storage each; one of them has all services."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from pydantic import SecretStr

from flows import services
from flows.core.programs.process_records import noted
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from tests.support.leftovers import assert_clean
from tests.support.machine import private_home
from tests.support.prefect_api import cancel_run, prefect_client, start_run
from tests.support.systems import RELEASE, write_catalog
from tests.support.waiting import free_port, wait_until

pytestmark = pytest.mark.long
REFIT = Path(sys.executable).parent / "refit"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, Settings]]:
    """Both are up, and their workers serve the queues of all operating systems."""
    tmp_path = tmp_path_factory.mktemp("machines")
    catalog, port, registry = write_catalog(tmp_path / "catalog"), free_port(), free_port()
    with (catalog / "base" / "deb13" / "os-packages.txt").open("a") as packages:
        packages.write("bc\n")  # else it would be the same base, and be built once for both
    shared = {
        **{"catalog": catalog, "database_url": f"sqlite:///{tmp_path}/shared.db", "builds_at_once": 1},
        **{
            "auth": SecretStr("refit:of both"),
            "registry_user": "refit",
            "registry_password": SecretStr("of both, too"),
        },
    }
    elsewhere = {"registry": f"127.0.0.1:{registry}", "prefect_server": f"http://127.0.0.1:{port}"}
    with (
        private_home(tmp_path / "first", registry, prefect_port=port, machine="first", **shared) as first,
        private_home(tmp_path / "second", registry, machine="second", **shared, **elsewhere) as second,
    ):
        try:
            types(first, "up")
            assert [state.name for state in services.status(second)] == ["worker"]
            types(second, "up")
            wait_until(lambda: workers(first) == [2, 2])
            yield first, second
        finally:
            for each in (second, first):
                services.down(each)


def types(settings: Settings, *words: str) -> str:
    """The output of `refit` with these settings."""
    environment = {**os.environ, **variables(settings), "COLUMNS": "200"}
    done = subprocess.run([REFIT, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def workers(settings: Settings) -> list[int]:
    """How many workers each queue has."""
    return [len(queue["workers"]) for queue in yaml.safe_load(types(settings, "queue", "list", "--json"))]


def programs(settings: Settings) -> int:
    """How many programs build on a machine now."""
    return sum(len(noted(folder)) for folder in settings.folder("running").glob("build-*/processes"))


def test_no_program_builds_on_any_machine_when_the_run_was_cancelled(machines: tuple[Settings, Settings]) -> None:
    with prefect_client(machines[0]) as api:
        run = start_run(api, "build-profiles/refit", parameters={"release": RELEASE, "builders": 2})
        wait_until(lambda: all(programs(machine) for machine in machines))
        cancel_run(api, run)
        wait_until(lambda: api.get(f"/flow_runs/{run}").json()["state_type"] == "CANCELLED")
        wait_until(lambda: set(builders(api).values()) == {"COMPLETED"})
    assert not any(programs(machine) for machine in machines)
    for machine in machines:
        assert_clean(machine)


def builders(api: httpx.Client) -> dict[str, str]:
    """The states of all builders that were ever called, with the queue in which each lay."""
    runs = api.post("/flow_runs/filter", json={"flows": {"name": {"any_": ["build-stages"]}}}).json()
    return {f"{run['work_queue_name']} {run['id']}": run["state_type"] for run in runs}


def test_two_machines_build_a_release_and_each_stage_once(machines: tuple[Settings, Settings]) -> None:
    first = machines[0]
    for each in machines:
        shutil.rmtree(each.folder("logs", "stages"))
    report = yaml.safe_load(types(first, "build", RELEASE, "--builders", "2", "--json"))
    assert len(report["images"]) == 2 and report["failures"] == {} and report["left"] == {}
    logs = {each.machine: {log.name.rpartition("-")[0] for log in each.home.glob("logs/stages/*")} for each in machines}
    assert all(logs.values()) and not logs["first"] & logs["second"]
    assert logs["first"] | logs["second"] == {stage["stage"] for stage in report["stages"] if stage["log"]}
    with prefect_client(first) as api:
        wait_until(lambda: set(builders(api).values()) == {"COMPLETED"})
        assert {name.split()[0] for name in builders(api)} == {"first", "second"}
    again = yaml.safe_load(types(first, "build", RELEASE, "--builders", "2", "--json"))
    assert not any(image["new"] for image in again["images"])
