"""Nights for real: `refit nightly` with its own catalog, package index and Prefect server; killed, doubled, failing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
import yaml
from pydantic import SecretStr

from flows import services
from flows.core import command
from flows.core.settings import Settings
from flows.core.settings_environment import variables
from flows.host import tools
from flows.images.build import Builder, Built
from flows.images.builder import locking_image
from flows.images.builder.workspace import mounts
from flows.images.registry import Registry
from flows.images.stages import Stage
from tests.support.machine import ROOT, RegistryServer, private_home
from tests.support.package_index import make_wheel, serve_index, write_page
from tests.support.prefect_api import FINAL, ask, prefect_client, start_run
from tests.support.receiver import receiver
from tests.support.waiting import PATIENCE, free_port, wait_until

REFIT = Path(sys.executable).parent / "refit"
RELEASE = "2001a"  # nobody else's
pytestmark = pytest.mark.timeout(3 * PATIENCE)
# Two bundles: `two` is for whoever needs an `ant` that is not too old.
NEEDS = {"one": ["elk"], "two": ["bee", "cow"]}
AUTOMATION = {
    "name": "Plan the migration to new images",
    "trigger": {
        "type": "event",
        "posture": "Reactive",
        "expect": ["refit.profile.published"],
        "match": {"prefect.resource.id": "refit.profile.*", "refit.release": RELEASE},
        "threshold": 1,
    },
}


@dataclass(frozen=True)
class Scene:
    """Somebody with a catalog, a package index, and an address for bad news."""

    settings: Settings
    index: Path
    told: list[dict[str, Any]]

    @property
    def catalog(self) -> Path:
        return self.settings.catalog

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **variables(self.settings)}
        argv = [REFIT, *(words or ["nightly"]), "--json"]
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def night(self, exit_code: int = 0) -> Any:
        return ended(self.start(), exit_code)

    def with_catalog(self, folder: Path, release: str) -> Scene:
        """The same with a copy of the catalog, to be changed, and a release (and so aliases) of its own."""
        shutil.copytree(self.catalog, folder, ignore=shutil.ignore_patterns("2000z.yaml"))
        old = folder / "releases" / f"{RELEASE}.yaml"
        (folder / "releases" / f"{release}.yaml").write_text(old.read_text().replace(RELEASE, release))
        old.unlink()
        chosen = Settings(**{**dict(self.settings), "catalog": folder})
        return replace(self, settings=chosen)

    def custom(self, bundle: str, text: str) -> None:
        folder = next(self.catalog.glob(f"bundles/*-{bundle}")) / "custom"
        folder.mkdir()
        (folder / "custom.snippet.j2").write_text(text)

    def api(self) -> httpx.Client:
        return prefect_client(self.settings)


def ended(process: subprocess.Popen[str], exit_code: int = 0) -> Any:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == exit_code, out + err
    return json.loads(out)


def report(night: Any) -> Any:
    [release] = night["releases"]
    assert not release["problem"]
    return release["report"]


def new(night: Any) -> set[str]:
    return {image["profile"] for image in report(night)["images"] if image["new"]}


def digests(night: Any) -> dict[str, str]:
    return {image["profile"]: image["digest"] for image in report(night)["images"]}


def made(night: Any) -> list[str]:
    return [stage["stage"] for stage in report(night)["stages"] if not stage["reused"]]


def profile(bundle: str) -> str:
    return f"runtime-{bundle}-deb12-py311"


def write_catalog(folder: Path) -> None:
    for part in ("base", "snippets", "ides/2-runtime"):
        shutil.copytree(ROOT / part, folder / part)
    for number, (name, packages) in enumerate(NEEDS.items()):
        bundle = folder / "bundles" / f"{number}-{name}"
        (bundle / "py311").mkdir(parents=True)
        (bundle / "display.txt").write_text(f"{name}\n")
        asked = "".join(f'{package} = "*"\n' for package in packages)
        source = '[[source]]\nname = "pypi"\nurl = "https://pypi.org/simple"\nverify_ssl = true\n'
        pipfile = f'{source}\n[packages]\n{asked}\n[requires]\npython_version = "3.11"\n'
        (bundle / "py311" / "Pipfile").write_text(pipfile)
    choices = [{"ide": "runtime", "bundle": name, "os": "deb12", "python": "py311"} for name in NEEDS]
    (folder / "releases").mkdir()
    text = yaml.safe_dump({"release": RELEASE, "nightly": "0 2 * * *", "profiles": choices})
    (folder / "releases" / f"{RELEASE}.yaml").write_text(text)
    (folder / "releases" / "2000z.yaml").write_text(
        yaml.safe_dump({"release": "2000z", "supported_until": "2020-01-01", "profiles": choices})
    )


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
    registry_server: RegistryServer,
    builder: Builder,
    base: Built,
    base_stage: Stage,
) -> Iterator[Scene]:
    builder.build(locking_image.stage(base_stage, "py311", ROOT), base)  # the index below has no pipenv
    folder, index = tmp_path_factory.mktemp("nightly"), tmp_path_factory.mktemp("packages")
    make_wheel(index / "ant", "ant", "1.0")
    make_wheel(index / "bee", "bee", "1.0", ["ant<2"])
    make_wheel(index / "cow", "cow", "1.0", ["ant"])
    make_wheel(index / "elk", "elk", "1.0")
    write_catalog(folder / "catalog")
    with (
        serve_index(index) as url,
        receiver() as (address, told),
        private_home(
            folder / "home",
            registry_server.port,
            registry=f"127.0.0.1:{registry_server.port}",
            prefect_port=free_port(),
            catalog=folder / "catalog",
            pip_index_url=SecretStr(url),
            notify=(SecretStr(address),),
        ) as settings,
    ):
        services.up(settings)
        try:
            yield Scene(settings, index, told)
        finally:
            services.down(settings)


@pytest.fixture(scope="module")
def prefect(scene: Scene) -> Iterator[httpx.Client]:
    """The server, where a migration is planned whenever there is a new image."""
    serve(scene)
    with scene.api() as client:
        found = client.get("/deployments/name/migrate-sessions/refit").raise_for_status().json()["id"]
        action = {"type": "run-deployment", "source": "selected", "deployment_id": found}
        action["parameters"] = {"dry_run": True}
        ask(client, "POST", "/automations/", {**AUTOMATION, "actions": [action]})
        yield client


def serve(scene: Scene) -> str:
    environment = {**os.environ, **variables(scene.settings)}
    wait_until(lambda: all(state.answering for state in services.status(scene.settings)))
    done = subprocess.run([REFIT, "serve"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def first(scene: Scene, prefect: httpx.Client) -> Any:
    """What the first night reported."""
    return scene.night()


@pytest.fixture(scope="module")
def settled(scene: Scene, first: Any) -> Any:
    """What the next night reported: packages that were new in a lock had not been looked at before it was made."""
    return scene.night()


@contextmanager
def news(scene: Scene, package: str, version: str, needs: list[str] | None = None) -> Iterator[None]:
    """A new version on the index, and afterwards none."""
    wheel = make_wheel(scene.index / package, package, version, needs or [])
    write_page(wheel.parent)
    try:
        yield
    finally:
        wheel.unlink()
        write_page(wheel.parent)


def runs(prefect: httpx.Client, flow: str) -> list[dict[str, Any]]:
    """All runs of a flow that have begun, newest first."""
    asked = {"sort": "START_TIME_DESC", "flows": {"name": {"any_": [flow]}}}
    found: list[dict[str, Any]] = prefect.post("/flow_runs/filter", json=asked).raise_for_status().json()
    return [run for run in found if run["start_time"]]


def test_the_first_night_locks_builds_and_publishes_everything(scene: Scene, first: Any) -> None:
    assert first["failures"] == {} and first["ended"] == {"2000z": "2020-01-01"}
    assert {lock["bundle"]: lock["change"] for lock in first["locks"]} == {
        "one": "+elk 1.0",
        "two": "+ant 1.0, +bee 1.0, +cow 1.0",
    }
    assert new(first) == {profile("one"), profile("two")}
    assert scene.told == []


def said(prefect: httpx.Client, run: str) -> Iterator[str]:
    """What a run has written into its log."""
    asked, begin = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"}, 0
    while lines := prefect.post("/logs/filter", json={**asked, "offset": begin}).raise_for_status().json():
        yield from (line["message"] for line in lines)
        begin += len(lines)


def test_what_the_programs_of_a_stage_say_is_in_the_log_of_its_run(prefect: httpx.Client, first: Any) -> None:
    pages = (message.partition(":\n") for message in said(prefect, runs(prefect, "nightly")[-1]["id"]))
    built = {stage["stage"] for stage in report(first)["stages"] if stage["log"]}
    assert built and {name for name, _, page in pages if "STEP 1/" in page} == built


@pytest.mark.long
def test_the_report_is_one_artifact_and_the_picture_of_the_stages_another(prefect: httpx.Client, first: Any) -> None:
    run = runs(prefect, "nightly")[-1]
    asked = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    found = {artifact["key"]: artifact for artifact in prefect.post("/artifacts/filter", json=asked).json()}
    artifact, plan = found.pop("nightly"), found.pop(f"plan-{RELEASE}")
    assert not found and artifact["type"] == plan["type"] == "markdown"
    assert plan["data"].startswith("![All stages](data:image/svg+xml;base64,")
    assert artifact["description"] == "2 new images, 0 unchanged"
    assert "| one py311 | +elk 1.0 |" in artifact["data"] and f"`{profile('two')}_{RELEASE}_" in artifact["data"]


@pytest.mark.long
def test_an_event_for_each_new_image_reaches_the_server_and_starts_what_waits_for_it(
    prefect: httpx.Client, first: Any
) -> None:
    asked = {"filter": {"event": {"name": ["refit.profile.published"]}, "order": "ASC"}}

    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = prefect.post("/events/filter", json=asked).raise_for_status().json()["events"]
        return found

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

    def stored() -> dict[str, int]:
        files = [path for path in registry_server.storage.rglob("*") if path.is_file()]
        return {str(path): path.stat().st_mtime_ns for path in files}

    before = stored()
    night = scene.night()
    assert night["failures"] == {} and night["locks"] == [] and night["looked_at"] == 2
    assert new(night) == set() and made(night) == []
    assert stored() == before
    logs = {"logs": {"flow_run_id": {"any_": [runs(prefect, "nightly")[0]["id"]]}}}
    messages = [line["message"] for line in prefect.post("/logs/filter", json=logs).json()]
    assert not [message for message in messages if message.startswith("+ ")]


@pytest.mark.long
def test_a_profile_that_fails_stops_no_other_and_is_told(
    scene: Scene, prefect: httpx.Client, first: Any, tmp_path: Path
) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001b")
    scene.custom("one", "RUN echo the reason >&2; exit 7\n")
    scene.custom("two", "ENV BUNDLE=two\n")
    before = len(scene.told)
    night = scene.night(exit_code=1)
    assert list(night["failures"]) == [f"{profile('one')} of 2001b"]
    assert new(night) == {profile("two")}
    run = runs(prefect, "nightly")[0]
    assert run["state_type"] == "FAILED" and "1 new image, 0 unchanged, 1 failed" in run["state"]["message"]
    [message] = scene.told[before:]
    assert (
        "nightly failed" in message["title"] and "the reason" in message["message"] and run["id"] in message["message"]
    )


@pytest.mark.long
def test_the_deployment_of_a_release_has_a_night_in_the_worker(prefect: httpx.Client, settled: Any) -> None:
    start_run(prefect, f"nightly/{RELEASE}")

    def night() -> dict[str, Any]:
        return next((run for run in runs(prefect, "nightly") if run["name"] == f"nightly {RELEASE}"), {})

    wait_until(lambda: night().get("state_type") in FINAL)
    assert night()["state_type"] == "COMPLETED", night()["state"]["message"]
    asked = {"artifacts": {"flow_run_id": {"any_": [night()["id"]]}}}
    [artifact] = prefect.post("/artifacts/filter", json=asked).json()
    assert (artifact["key"], artifact["description"]) == (f"nightly-{RELEASE}", "0 new images, 2 unchanged")


@pytest.mark.long
def test_a_lock_that_conflicts_stays_as_it_was_and_others_go_on(scene: Scene, settled: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001c")
    before = scene.night()
    locks = {path: path.read_bytes() for path in scene.catalog.glob("bundles/*-two/py311/*")}
    gone = scene.index / "cow" / "cow-1.0-py3-none-any.whl"
    content = gone.read_bytes()
    gone.unlink()
    try:
        with news(scene, "cow", "2.0", ["ant>=2"]), news(scene, "ant", "2.0"), news(scene, "elk", "2.0"):
            night = scene.night(exit_code=1)
    finally:
        gone.write_bytes(content)
        write_page(gone.parent)
    assert list(night["failures"]) == ["lock of two py311"]
    assert "contradicts itself" in night["failures"]["lock of two py311"]
    assert {lock["bundle"]: lock["change"] for lock in night["locks"]} == {"one": "elk 1.0 → 2.0", "two": ""}
    assert {path: path.read_bytes() for path in locks} == locks
    assert made(night) == ["one-deb12-py311", profile("one")] and new(night) == {profile("one")}
    assert digests(night)[profile("two")] == digests(before)[profile("two")]
    [image] = night["releases"][0]["news"]
    assert image["packages"] == "elk 1.0 → 2.0"


@contextmanager
def gate() -> Iterator[tuple[int, Event, Event]]:
    """A server whose answers wait: its port, whether somebody has asked, and what lets everybody pass."""
    asked, opened = Event(), Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            opened.wait(PATIENCE)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, asked, opened
    finally:
        opened.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.long
def test_after_a_kill_only_what_is_missing_is_made(scene: Scene, first: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001d")
    registry = Registry(scene.settings)
    alias = f"{profile('one')}_2001d"
    with gate() as (port, asked, opened):
        ask = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}')"
        scene.custom("one", f"ENV PORT={port}\n")
        scene.custom("two", f'RUN python3 -c "{ask}"\n')
        process = scene.start()
        wait_until(asked.is_set)
        wait_until(lambda: registry.digest(registry.repository, alias))
        process.kill()
        process.communicate()
        opened.set()
        night = scene.night()
    assert made(night) == ["two-custom-deb12-py311", profile("two")]
    assert new(night) == {profile("two")}
    assert command.run([*tools.buildah(scene.settings), "containers", "--quiet"], root=True).stdout == ""
    assert mounts(scene.settings) == ()


@pytest.mark.long
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


@pytest.mark.long
def test_two_nights_at_once_do_each_thing_once(scene: Scene, settled: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001e")
    for bundle in NEEDS:
        scene.custom(bundle, f"RUN sleep 2; echo {tmp_path.name} > /opt/mark\n")
    with news(scene, "elk", "3.0"), ThreadPoolExecutor() as pool:
        nights = list(pool.map(ended, [scene.start(), scene.start()]))
    assert sorted(made(nights[0]) + made(nights[1])) == sorted(
        ["one-deb12-py311", *(f"{b}-custom-deb12-py311" for b in NEEDS), *map(profile, NEEDS)]
    )
    assert sorted([*new(nights[0]), *new(nights[1])]) == sorted(map(profile, NEEDS))
    assert sorted(len(night["locks"]) for night in nights) == [0, 1]


@pytest.mark.long
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


@pytest.mark.long
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
