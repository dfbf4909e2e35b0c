"""The embedded services, for real: started, killed, mended, used, ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest

from flows import services
from flows.core.errors import RefitError
from flows.core.programs import process_records
from flows.core.settings import Settings
from flows.publishing.publish import EVENT
from flows.services.reset import reset, reset_parts
from tests.support.first_starts import give_prefect_database
from tests.support.prefect_api import FINAL, prefect_client, request_run
from tests.support.services import (
    ENDLESS,
    TRIAL,
    deploy,
    launch,
    make_settings,
    pid_of,
    pids,
    until,
)
from tests.support.waiting import PATIENTLY, some_long


@pytest.fixture(scope="module")
def prefect(settings: Settings) -> Iterator[httpx.Client]:
    """The server's API, with the flow `trial` deployed."""
    assert deploy(settings) == TRIAL
    with prefect_client(settings) as client:
        yield client


def test_everything_answers_and_a_second_up_touches_nothing(settings: Settings) -> None:
    before = until(lambda: services.status(settings), lambda states: all(state.answering for state in states))
    assert [(s.name, s.running) for s in before] == [("registry", True), ("prefect", True), ("worker", True)]
    after = services.up(settings)
    assert [s.pid for s in after] == [s.pid for s in before]
    services.require(settings)


def listened_on(pid: int) -> set[str]:
    """The addresses on which a process or a descendant of it waits for others."""
    addresses = set[str]()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a run has ended meanwhile
            connections = process.net_connections("tcp")
            addresses |= {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    return addresses


def test_only_loopback_is_listened_on_and_secrets_are_the_owners(settings: Settings) -> None:
    registry, prefect = (listened_on(pid_of(settings, name)) for name in ("registry", "prefect"))
    assert registry == prefect == {"127.0.0.1"}
    # While a run goes on, the worker waits on loopback for its process, which shows a token. A worker of Prefect's own
    # always listens, for flows that are handed to it.
    until(lambda: listened_on(pid_of(settings, "worker")), lambda addresses: not addresses)
    files = [path for path in (settings.home / "services").glob("*/*") if path.is_file()]
    own = [path for path in files if path.name != "started-with"]
    assert "supervisor" in {path.parent.name for path in own}
    assert own and not [path for path in own if path.stat().st_mode & 0o077]


def test_a_run_from_the_ui_finds_the_settings_and_keeps_what_programs_were_called(
    prefect: httpx.Client, settings: Settings, tmp_path: Path
) -> None:
    run = launch(prefect, note=str(tmp_path / "pids"))
    assert until(run.state, lambda state: state in FINAL) == "COMPLETED"
    logs = until(run.logs, lambda text: "Finished in state Completed" in text)
    assert f"home {settings.home}, registry port {settings.registry_port}" in logs
    assert "+ bash -c" in logs


@pytest.mark.parametrize("in_a_thread", some_long([False, True], short=True))
def test_cancelling_ends_the_programs_of_a_run(prefect: httpx.Client, tmp_path: Path, in_a_thread: bool) -> None:
    note = tmp_path / "pids"
    run = launch(prefect, seconds=ENDLESS, note=str(note), in_a_thread=in_a_thread)
    started = until(lambda: pids(note), lambda began: len(began) == 2)
    assert all(psutil.pid_exists(pid) for pid in started)
    run.cancel()
    assert until(run.state, lambda state: state in FINAL) == "CANCELLED"
    until(lambda: [pid for pid in started if psutil.pid_exists(pid)], lambda left: not left)


@pytest.mark.parametrize("chosen", [{"command": "touch {}"}, {"env": {"BASH_ENV": "{}"}}, {"working_dir": "/"}])
def test_nobody_chooses_command_or_environment_of_a_run(
    prefect: httpx.Client, tmp_path: Path, chosen: dict[str, Any]
) -> None:
    body = {"wait": {"note": str(tmp_path / "pids")}}
    answer = request_run(prefect, TRIAL, parameters=body, job_variables=chosen)
    assert answer.status_code == 422
    assert f"'{next(iter(chosen))}' was unexpected" in answer.text


def test_wrong_parameters_are_refused_before_a_run_exists(prefect: httpx.Client) -> None:
    answer = request_run(prefect, TRIAL, parameters={"wait": {"note": "/tmp/x", "seconds": "many"}})
    assert answer.status_code == 409
    assert "wait.seconds" in answer.text


def test_the_automation_for_silent_runs_is_there_once(prefect: httpx.Client) -> None:
    answer = prefect.post("/automations/filter", json={}).json()
    assert [(a["name"], a["enabled"], a["trigger"]["within"]) for a in answer] == [
        ("Crash flow runs whose process is gone", True, 90.0)
    ]


def begins(settings: Settings, client: httpx.Client, **migration: Any) -> tuple[dict[str, Any], list[Any]]:
    """When migrations begin by themselves with these settings: slug → schedule, and the automations."""
    text = json.dumps(migration)
    deployed = deploy(settings, "flows.migrate_sessions", "migrate_sessions", REFIT_MIGRATION=text)
    assert deployed == "migrate-sessions/refit"
    answer = client.get(f"/deployments/name/{deployed}").raise_for_status().json()
    automations = client.post("/automations/filter", json={}).raise_for_status().json()
    ours = [one for one in automations if one["actions"][0].get("deployment_id") == answer["id"]]
    return {one["slug"]: one for one in answer["schedules"]}, ours


@pytest.mark.long
def test_a_migration_begins_by_itself_when_the_settings_say_so(settings: Settings, prefect: httpx.Client) -> None:
    schedules, automations = begins(settings, prefect)
    assert [(slug, one["parameters"]) for slug, one in schedules.items()] == [("refit-go-on", {"only_begun": True})]
    assert automations == []
    asked = {"schedule": "0 1 * * *", "when_published": True}
    first = begins(settings, prefect, **asked)
    assert first == begins(settings, prefect, **asked)
    assert (first[0]["refit-begin"]["schedule"]["cron"], first[0]["refit-begin"]["parameters"]) == ("0 1 * * *", {})
    later, _ = begins(settings, prefect, **{**asked, "schedule": "0 3 * * 0"})
    assert later["refit-begin"]["schedule"]["cron"] == "0 3 * * 0" and len(later) == 2

    event = {"prefect.resource.id": "refit.profile.runtime-minimal-deb12-py311"}
    happened = {"id": str(uuid4()), "event": EVENT, "occurred": datetime.now(UTC).isoformat(), "resource": event}
    prefect.post("/events", json=[happened]).raise_for_status()
    chosen = {"flows": {"name": {"any_": ["migrate-sessions"]}}}
    chosen["flow_runs"] = {"state": {"type": {"any_": ["COMPLETED"]}}}
    (run, *_) = until(lambda: prefect.post("/flow_runs/filter", json=chosen).json(), bool)
    assert run["created_by"]["type"] == "AUTOMATION" and not run["parameters"].get("only_begun")

    schedules, automations = begins(settings, prefect)
    assert (list(schedules), automations) == (["refit-go-on"], [])


def test_a_server_that_was_killed_has_all_that_it_had(settings: Settings, prefect: httpx.Client) -> None:
    before = {state.name: state.pid for state in services.status(settings)}
    psutil.Process(pid_of(settings, "prefect")).kill()
    until(lambda: services.status(settings)[1], lambda state: state.answering and state.pid != before["prefect"])
    after = {state.name: state.pid for state in services.up(settings)}
    assert after["prefect"] != before["prefect"]
    assert (after["registry"], after["worker"]) == (before["registry"], before["worker"])
    assert prefect.get("/deployments/name/trial/refit").status_code == 200


def test_a_worker_that_was_killed_comes_up_again_by_itself(settings: Settings) -> None:
    before = {state.name: state.pid for state in services.status(settings)}
    psutil.Process(pid_of(settings, "worker")).kill()
    until(lambda: services.status(settings)[2], lambda state: state.answering and state.pid != before["worker"])
    after = {state.name: state.pid for state in services.up(settings)}
    assert after.pop("worker") != before.pop("worker")
    assert after == before, "another was started anew"
    assert len(process_records.noted(settings.folder("services", "worker") / "processes")) == 1


def test_a_changed_setting_starts_only_what_it_is_for_anew(settings: Settings) -> None:
    before = {state.name: state.pid for state in services.status(settings)}
    changed = settings.model_copy(update={"stop_grace_seconds": 7.0})
    changed.model_fields_set.add("stop_grace_seconds")
    after = {state.name: state.pid for state in services.up(changed)}
    assert after["worker"] != before["worker"]
    assert (after["registry"], after["prefect"]) == (before["registry"], before["prefect"])
    assert psutil.Process(after["worker"] or 0).environ()["REFIT_STOP_GRACE_SECONDS"] == "7.0"


def test_down_ends_the_programs_of_runs_and_deploying_settles_what_became_of_them(
    settings: Settings, prefect: httpx.Client, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    run = launch(prefect, seconds=ENDLESS, note=str(note), in_a_thread=True)
    started = until(lambda: pids(note), lambda began: len(began) == 2)
    assert services.down(settings) == ("Prefect worker", "Prefect server", "Image registry")
    assert not [pid for pid in started if process_records.ProcessId.of(pid)]
    services.up(settings)
    before = prefect.get(f"/deployments/name/{TRIAL}").json()
    assert deploy(settings) == TRIAL
    assert run.state() == "CRASHED"
    assert prefect.get(f"/deployments/name/{TRIAL}").json()["id"] == before["id"]  # a second time makes no other


def test_a_taken_port_names_its_holder_and_the_setting_and_nothing_starts(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with socket.create_server(("127.0.0.1", settings.prefect_port)), pytest.raises(RefitError) as taken:
        services.up(settings)
    assert f"Port {settings.prefect_port} is taken" in str(taken.value)
    assert f"(pid {os.getpid()}" in str(taken.value)
    assert "REFIT_PREFECT_PORT" in str(taken.value)
    assert not any(state.running for state in services.status(settings))


def test_down_leaves_what_up_did_not_start(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    folder = settings.folder("services", "registry")
    services.write_units(settings, tmp_path)  # writes what a unit reads
    argv = ["docker-registry", "serve", str(folder / "config.yml")]
    with subprocess.Popen(argv, cwd=folder, stderr=subprocess.DEVNULL) as by_systemd:
        registry = until(lambda: services.status(settings)[0], lambda state: state.answering)
        assert registry.pid == by_systemd.pid
        assert services.down(settings) == ()
        assert by_systemd.poll() is None
        by_systemd.terminate()


def test_a_service_that_fails_shows_its_last_words(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    settings.home.joinpath("registry").write_text("no folder")
    settings.home.joinpath("prefect").mkdir()
    settings.home.joinpath("prefect", "prefect.db").write_text("no database")
    try:
        with pytest.raises(RefitError, match="Prefect server ended right after its start") as failed:
            services.up(settings)
        assert "not a database" in str(failed.value) and "prefect.log" in str(failed.value)
    finally:
        services.down(settings)


def test_a_server_off_loopback_wants_a_password_that_only_the_owner_can_read(tmp_path: Path) -> None:
    settings = make_settings(tmp_path).model_copy(update={"bind_address": "0.0.0.0"})
    give_prefect_database(settings)
    try:
        services.up(settings)
        services.require(settings)
        url = f"{settings.prefect_api}/flows/filter"
        login = ("refit", (settings.home / "services/prefect/password").read_text())
        version = f"{settings.prefect_api}/admin/version"
        assert httpx.get(version, **PATIENTLY).status_code == 401
        assert httpx.get(version, auth=login, **PATIENTLY).status_code == 200
        assert httpx.post(url, json={}, auth=login, **PATIENTLY).status_code == 403  # no CSRF token
        assert (settings.home / "services/prefect/password").stat().st_mode & 0o777 == 0o600
    finally:
        assert services.down(settings) == ("Prefect worker", "Prefect server", "Image registry")


def test_reset_removes_what_is_refits_and_leaves_the_neighbour(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    [registry, *_] = services.up(settings, only=["registry"])
    (settings.folder("prefect") / "prefect.db").write_text("of runs")
    (settings.folder("homes", "ada") / "work.txt").write_text("hers")
    (settings.folder("scans") / "ada.json").write_text("the packages in her home")
    settings.folder("demo", "catalog")
    (tmp_path / "settings.yaml").write_text("stop_grace_seconds: 10\n")
    (tmp_path / "neighbour.txt").write_text("somebody else's")
    with pytest.raises(RefitError, match="Homes can't stay"):
        reset(settings, {"services", "database"})
    assert [part.name for part in reset_parts(settings)] == ["services", "database", "homes"]
    assert psutil.pid_exists(registry.pid or 0)
    reset(settings, {"services"})
    until(lambda: psutil.pid_exists(registry.pid or 0), lambda there: not there)  # it has ended, and is reaped soon
    kept = {path.name for path in tmp_path.iterdir()} - {"refit.db-shm", "refit.db-wal", "refit.db.lock"}
    assert kept == {"homes", "neighbour.txt", "refit.db", "scans", "settings.yaml"}
    reset(settings, {"database", "homes"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["neighbour.txt", "settings.yaml"]
