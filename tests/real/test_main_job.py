"""The main job as a person does it: what `make run` calls, in a home of its own, then what users of Prefect's UI do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flows.catalog.tree import PARTS
from flows.core.programs import command
from flows.host import tools
from flows.images.builder.workspace import mounts
from tests.support.main_job import Person, new_user, state
from tests.support.prefect_api import FINAL, cancel_run, post, prefect_client, start_run
from tests.support.waiting import PATIENCE, wait_until

# The first test waits for everything to be built, on a machine that may have other work.
pytestmark = pytest.mark.timeout(3 * PATIENCE)
RELEASE = "2000a"  # the demo's own


@pytest.fixture(scope="module", params=["first image", pytest.param("nothing", marks=pytest.mark.long)])
def person(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A new user whose registry has the stages of the first image, or nothing."""
    with new_user(tmp_path_factory, empty=request.param == "nothing") as person:
        yield person


@pytest.fixture(scope="module")
def first(person: Person) -> str:
    """The output of the first `make run`."""
    return person.types("demo").stdout


@pytest.fixture(scope="module")
def prefect(person: Person, first: str) -> Iterator[httpx.Client]:
    with prefect_client(person.settings) as client:
        yield client


def test_a_session_moves_from_one_build_to_the_next_with_its_home(person: Person, first: str) -> None:
    assert f"jupyter-minimal-deb12-py311_{RELEASE}_" in first and f"runtime-minimal-deb12-py311_{RELEASE}_" in first
    assert "_2026a" not in first  # no tag of a real release
    assert "+humanize" in first and "moved" in first
    assert "/hub/enter?code=" in first and "token=" not in first
    session = person.reads("session", "show", "demo")
    assert session["running"] == "running" and session["session"]["generation"] == 2
    assert person.types("session", "exec", "demo", "cat", "notes.txt").stdout == "Written before the migration.\n"
    assert person.types("session", "exec", "demo", "python", "-c", "import humanize").stdout == ""
    [move] = person.reads("migrate", "history")
    assert move["state"] == "cleaned" and move["after"]["image"] == session["session"]["image"]


def test_only_stages_whose_inputs_changed_were_built_and_others_grafted(person: Person, first: str) -> None:
    second = first.partition("Built 2 of 5 stages")[2]
    assert "minimal-deb12-py311" in second and "base-deb12-py311" not in second
    assert "Grafted 2" in second


def test_a_second_time_nothing_is_built_or_moved_and_it_says_so(person: Person, first: str) -> None:
    before = {path.name for path in (person.settings.home / "logs" / "stages").iterdir()}
    second = person.types("demo").stdout
    assert "Nothing had to be built." in second and "nothing was moved" in second
    assert {path.name for path in (person.settings.home / "logs" / "stages").iterdir()} == before


def test_prometheus_is_told_what_was_done(person: Person, first: str) -> None:
    told: dict[tuple[str, ...], float] = {}

    def says_that_all_are_up() -> bool:
        families = text_string_to_metric_families(person.types("metrics").stdout)
        told.update({(s.name, *s.labels.values()): s.value for family in families for s in family.samples})
        return all(value for (name, *_), value in told.items() if name == "refit_service_up")

    wait_until(says_that_all_are_up)
    assert told["refit_moves", "cleaned", ""] >= 1 and told["refit_move_downtime_seconds_count",] >= 1
    assert all(told["refit_stages_total", how] for how in ("built", "grafted"))
    assert any(name == "refit_service_up" for name, *_ in told)
    assert all(told["refit_flow_last_success", flow] == 1 for flow in ("build-profiles", "migrate-sessions"))


def test_no_history_is_lost(prefect: httpx.Client) -> None:
    runs = [run for run in prefect.post("/flow_runs/filter", json={}).json() if not run["auto_scheduled"]]
    assert {run["name"] for run in runs} == {
        *(f"build {RELEASE}", "create session demo", f"lock {RELEASE}", "migrate sessions"),
    }
    assert {run["state_type"] for run in runs} == {"COMPLETED"}
    tasks = prefect.post("/task_runs/filter", json={}).json()
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    names = {task["name"] for task in tasks}
    assert {
        "stage minimal-deb12-py311",
        "publish jupyter-minimal-deb12-py311",
        "plan",
        "moves 1",
        "start demo",
    } <= names
    keys = {artifact["key"] for artifact in prefect.post("/artifacts/filter", json={}).json()}
    assert {f"images-{RELEASE}", f"stages-{RELEASE}", f"locks-{RELEASE}", "moves", "session-demo"} <= keys


def launch(prefect: httpx.Client, flow: str, **parameters: object) -> str:
    return start_run(prefect, f"{flow}/refit", parameters=parameters)


def said(prefect: httpx.Client, run: str) -> str:
    """The log of a run, which may lack its last seconds, and the message of its state."""
    query = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"}
    lines = [line["message"] for line in post(prefect, "/logs/filter", query)]
    return "\n".join([prefect.get(f"/flow_runs/{run}").json()["state"]["message"] or "", *lines])


def test_a_build_started_in_the_ui_finds_everything_built(prefect: httpx.Client) -> None:
    shipped = [f"{ide}-minimal-deb12-py311" for ide in ("jupyter", "runtime")]
    run = launch(prefect, "build-profiles", release="2026a", profiles=shipped)
    wait_until(lambda: state(prefect, run) in FINAL)
    assert state(prefect, run) == "COMPLETED", said(prefect, run)


def test_a_mistake_is_the_runs_message(prefect: httpx.Client) -> None:
    run = launch(prefect, "build-profiles", release="2026b")
    wait_until(lambda: state(prefect, run) in FINAL)
    answer = prefect.get(f"/flow_runs/{run}").json()
    assert answer["state_type"] == "FAILED" and "There is no release '2026b'" in answer["state"]["message"]


def sleepers(seconds: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", seconds]]


def test_cancelling_a_build_leaves_no_program_container_or_mount(
    person: Person, prefect: httpx.Client, tmp_path: Path
) -> None:
    catalog, seconds = tmp_path / "catalog", f"{3000 + os.getpid() % 1000}"
    for part in PARTS:
        shutil.copytree(Path(__file__).parents[2] / part, catalog / part)
    snippet = catalog / "ides" / "2-runtime" / "runtime.snippet.j2"
    snippet.write_text(f"RUN sleep {seconds}\n{snippet.read_text()}")
    run = launch(
        *(prefect, "build-profiles"), profiles=["runtime-minimal-deb12-py311"], release="2026a", catalog=str(catalog)
    )
    wait_until(lambda: sleepers(seconds))
    assert mounts(person.settings)

    cancel_run(prefect, run)

    wait_until(lambda: state(prefect, run) in FINAL)
    assert state(prefect, run) == "CANCELLED"
    wait_until(lambda: not sleepers(seconds))
    wait_until(lambda: not mounts(person.settings))
    buildah = tools.buildah(person.settings)
    wait_until(lambda: command.run([*buildah, "containers", "--quiet"], root=True).stdout == "")
