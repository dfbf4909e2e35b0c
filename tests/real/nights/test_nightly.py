"""Nights for real: `refit nightly` with its own catalog, package index and Prefect server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.core.programs import command
from tests.support.live_folders import modified, paths_below
from tests.support.machine import RegistryServer
from tests.support.nights import RELEASE, Scene, ended, made, new, news, profile, report, runs, serve
from tests.support.prefect_api import FINAL, ask, start_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


def test_the_first_night_locks_builds_and_publishes_everything(scene: Scene, first: Any) -> None:
    assert first["failures"] == {} and first["ended"] == {"2000z": "2020-01-01"}
    assert {lock["bundle"]: lock["change"] for lock in first["locks"]} == {
        "one": "+elk 1.0",
        "two": "+ant 1.0, +bee 1.0, +cow 1.0",
    }
    assert new(first) == {profile("one"), profile("two")}
    assert scene.told == []


def said(prefect: httpx.Client, run: str) -> Iterator[str]:
    """The log of a run."""
    asked, begin = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"}, 0
    while lines := prefect.post("/logs/filter", json={**asked, "offset": begin}).raise_for_status().json():
        yield from (line["message"] for line in lines)
        begin += len(lines)


def test_what_the_programs_of_a_stage_say_is_in_the_log_of_its_run(prefect: httpx.Client, first: Any) -> None:
    pages = (message.partition(":\n") for message in said(prefect, runs(prefect, "nightly")[-1]["id"]))
    built = {stage["stage"] for stage in report(first)["stages"] if stage["log"]}
    assert built and {name for name, _, page in pages if "STEP 1/" in page} == built


def test_the_report_is_one_artifact_and_the_picture_of_the_stages_another(prefect: httpx.Client, first: Any) -> None:
    run = runs(prefect, "nightly")[-1]
    asked = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    answer = {artifact["key"]: artifact for artifact in prefect.post("/artifacts/filter", json=asked).json()}
    artifact, plan = answer.pop("nightly"), answer.pop(f"plan-{RELEASE}")
    assert not answer and artifact["type"] == plan["type"] == "markdown"
    assert plan["data"].startswith("![All stages](data:image/svg+xml;base64,")
    assert artifact["description"] == "2 new images, 0 unchanged"
    assert "| one py311 | +elk 1.0 |" in artifact["data"] and f"`{profile('two')}_{RELEASE}_" in artifact["data"]


def test_an_event_for_each_new_image_reaches_the_server_and_starts_what_waits_for_it(
    prefect: httpx.Client, first: Any
) -> None:
    asked = {"filter": {"event": {"name": ["refit.profile.published"]}, "order": "ASC"}}

    def events() -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = prefect.post("/events/filter", json=asked).raise_for_status().json()["events"]
        return answer

    wait_until(lambda: len(events()) >= 2)
    images = {image["profile"]: image for image in report(first)["images"]}
    for event in events()[:2]:
        image = images[event["resource"]["prefect.resource.name"]]
        assert event["resource"]["prefect.resource.id"] == f"refit.profile.{image['profile']}"
        assert event["payload"] == {"tag": image["tag"], "digest": image["digest"], "release": RELEASE}
    wait_until(lambda: any(run["parameters"].get("dry_run") for run in runs(prefect, "migrate-sessions")))


def test_a_night_without_news_starts_no_program_and_writes_nothing(
    scene: Scene, prefect: httpx.Client, settled: Any, registry_server: RegistryServer
) -> None:
    assert {lock["change"] for lock in settled["locks"]} == {"nothing moved"} and made(settled) == []

    before = modified(paths_below(registry_server.storage))
    night = scene.night()
    assert night["failures"] == {} and night["locks"] == [] and night["looked_at"] == 2
    assert new(night) == set() and made(night) == []
    assert modified(paths_below(registry_server.storage)) == before
    logs = {"logs": {"flow_run_id": {"any_": [runs(prefect, "nightly")[0]["id"]]}}}
    messages = [line["message"] for line in prefect.post("/logs/filter", json=logs).json()]
    assert not [message for message in messages if message.startswith("+ ")]


def test_the_deployment_of_a_release_has_a_night_in_the_worker(prefect: httpx.Client, settled: Any) -> None:
    start_run(prefect, f"nightly/{RELEASE}")

    def night() -> dict[str, Any]:
        return next((run for run in runs(prefect, "nightly") if run["name"] == f"nightly {RELEASE}"), {})

    wait_until(lambda: night().get("state_type") in FINAL)
    assert night()["state_type"] == "COMPLETED", night()["state"]["message"]
    asked = {"artifacts": {"flow_run_id": {"any_": [night()["id"]]}}}
    [artifact] = prefect.post("/artifacts/filter", json=asked).json()
    assert (artifact["key"], artifact["description"]) == (f"nightly-{RELEASE}", "0 new images, 2 unchanged")


def test_one_graft_of_the_night_is_made_again_and_gives_the_same(scene: Scene, settled: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001f")
    with (scene.catalog / "base" / "deb12" / "base.snippet.j2").open("a") as recipe:
        recipe.write("\nUSER 0\nRUN echo patched >> /usr/lib/os-release\n")
    night = scene.night()
    proof, again = night["releases"][0]["proof"], [*scene.settings.home.glob("logs/stages/*-again.log")]
    grafted = {stage["stage"] for stage in report(night)["stages"] if not stage["reused"] and not stage["log"]}
    assert {"one-deb12-py311", "two-deb12-py311"} <= grafted and new(night) == {profile("one"), profile("two")}
    assert proof["stage"] in grafted and (proof["differences"], proof["problem"]) == ([], "")
    assert [log.name.startswith(f"{proof['stage']}-") for log in again] == [True]


def test_each_supported_release_has_a_deployment_on_its_schedule_and_what_people_chose_stays(
    scene: Scene, prefect: httpx.Client, tmp_path: Path
) -> None:
    def deployment(name: str) -> Any:
        return prefect.get(f"/deployments/name/nightly/{name}").json()

    def written() -> dict[str, bool]:
        return {s["schedule"]["cron"]: s["active"] for s in deployment(RELEASE)["schedules"]}

    assert prefect.get("/deployments/name/nightly/2000z").status_code == 404
    assert deployment(RELEASE)["parameters"] == {"releases": [RELEASE]}
    [schedule] = deployment(RELEASE)["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("0 2 * * *", "UTC")

    ours, path = schedule["id"], f"/deployments/{deployment(RELEASE)['id']}/schedules"
    ask(prefect, "PATCH", f"{path}/{ours}", {"active": False})
    theirs = [{"schedule": {"cron": "0 12 * * 0", "timezone": "UTC"}, "active": True}]
    ask(prefect, "POST", path, theirs)
    file = scene.catalog / "releases" / f"{RELEASE}.yaml"
    text = file.read_text()
    try:
        file.write_text(text.replace("0 2 * * *", "30 3 * * *"))
        assert f"nightly/{RELEASE}" in serve(scene)
        assert written() == {"30 3 * * *": False, "0 12 * * 0": True}
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        file.write_text(f"{text}supported_until: {yesterday}\n")
        serve(scene)
        assert written() == {"0 12 * * 0": True}
        [their] = deployment(RELEASE)["schedules"]
        ask(prefect, "DELETE", f"{path}/{their['id']}")
        serve(scene)
        assert prefect.get(f"/deployments/name/nightly/{RELEASE}").status_code == 404
    finally:
        file.write_text(text)
        serve(scene)
    assert written() == {"0 2 * * *": True}


def test_a_release_that_was_cut_has_its_nights_on_its_branch(scene: Scene, first: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001d")

    def git(*words: str) -> str:
        return command.run(["git", "-C", scene.catalog, *words]).stdout.strip()

    command.run(["git", "init", "--quiet", "--bare", tmp_path / "remote.git"])
    git("init", "--quiet")
    git("add", ".")
    git("-c", "user.name=Ada", "-c", "user.email=ada@localhost", "commit", "--quiet", "--message=Begin")
    git("remote", "add", "origin", str(tmp_path / "remote.git"))
    ended(scene.start("release", "cut", "2001e", "--until", "2099-12-31"))
    assert git("show", "--no-renames", "--name-only", "--format=", "2001e", "releases").split() == [
        "releases/2001d.yaml",
        "releases/2001e.lock",
        "releases/2001e.yaml",
    ]
    began = json.loads(git("show", "2001e:releases/2001e.lock"))["bundles"]
    assert began["two"] == {"py311": {"packages": {"ant": "1.0", "bee": "1.0", "cow": "1.0"}}}

    with news(scene, "cow", "1.0.1", ["ant"]), news(scene, "elk", "1.1"):
        night = ended(scene.start("nightly", "2001e"))
        mistake = next(scene.catalog.glob("bundles/*-one")) / "bundle.yaml"
        mistake.write_text("extend: two\n")
        with_a_mistake = scene.night(exit_code=1)
        mistake.unlink()
    assert {lock["bundle"]: lock["change"] for lock in night["locks"] if lock["change"] != "nothing moved"} == {
        "two": "cow 1.0 → 1.0.1"
    }
    assert new(night) == {profile("one"), profile("two")}
    assert git("log", "-1", "--format=%an %s", "2001e") == "Refit Refresh the locks of 2001e"
    assert "two py311: cow 1.0 → 1.0.1" in git("log", "-1", "--format=%b", "2001e")
    pushed = command.run(["git", "-C", tmp_path / "remote.git", "rev-parse", "2001e"]).stdout.strip()
    assert pushed == git("rev-parse", "2001e") and night["releases"][0]["branch"] == "Its commits were pushed."
    assert git("status", "--porcelain") == ""  # where people work, nothing has changed
    assert list(with_a_mistake["failures"]) == ["release 2001d"]
    assert str(mistake) in with_a_mistake["failures"]["release 2001d"]
    [_, followed] = with_a_mistake["releases"]
    assert {image["profile"] for image in followed["report"]["images"]} == {profile("one"), profile("two")}
