"""From a folder on a laptop to a session on it: the Hub, the page of sessions, Prefect and its worker, for real."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows import services
from flows.core.settings.personal_builds import PersonalBuilds
from flows.images.build import Built
from flows.images.builder import confined
from flows.publishing.own_build_requests import BuildRequests
from flows.publishing.own_profiles import OwnProfiles
from tests.support.hub import RELEASE, SERVICES, Hub, Person, running_hub
from tests.support.machine import RegistryServer
from tests.support.my_sessions import Api, api, refit
from tests.support.own_archives import encoded, tarred
from tests.support.page_catalog import write_catalog
from tests.support.services import deploy
from tests.support.waiting import free_port, wait_until

pytestmark = pytest.mark.long
LIMITS = PersonalBuilds(disk_gb=3.0, memory_gb=1.0, processes=256, minutes=20.0)
STEM = "runtime-{}-deb12-py311"
RECIPE = {
    "display.txt": "Ada's own\n",
    "bundle.yaml": "extends: small\n",
    "py311/Pipfile": '[packages]\n\n[requires]\npython_version = "3.11"\n',
    "custom/custom.snippet.j2": "RUN echo of {{ bundle }} >/etc/adas\n",
}


@pytest.fixture(scope="module")
def hub(registry_server: RegistryServer, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("builds")
    more = {"catalog": write_catalog(folder / "catalog"), "personal_builds": LIMITS, "prefect_port": free_port()}
    with running_hub(registry_server, base, folder / "home", **more) as hub:
        if why := confined.obstacle(hub.settings):
            pytest.skip(why)
        services.up(hub.settings, only=(*SERVICES, "prefect", "worker"))
        assert (
            deploy(hub.settings, "flows.build_asked_profiles", "build_asked_profiles") == "build-asked-profiles/refit"
        )
        yield hub


@pytest.fixture(scope="module")
def ada(hub: Hub) -> Person:
    return hub.person("ada")


def write(folder: Path, **more: str) -> Path:
    for path, text in {**RECIPE, **more}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def laptop(hub: Hub, ada: Person, tmp_path: Path) -> Path:
    """A machine of ada's, with her login."""
    kept = tmp_path / "refit" / "login.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({"url": hub.settings.gateway_url, "token": api(ada).token}))
    return tmp_path


def state(mine: Api, name: str) -> str:
    return str(next(one["state"] for one in mine("GET", "/own-profiles").json() if one["name"] == name))


def test_a_folder_on_a_laptop_becomes_a_session(hub: Hub, ada: Person, laptop: Path) -> None:
    folder = write(laptop / "mine")
    done = refit(laptop, "mine", "build", str(folder), "--ide", "runtime", limit=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"refit mine create {STEM.format('mine')} {RELEASE}" in done.stdout
    assert "the build begins" in done.stderr and "STEP" in done.stderr and "It is built." in done.stderr
    assert refit(laptop, "mine", "create", STEM.format("mine"), RELEASE, "--name", "try").returncode == 0
    wait_until(lambda: hub.server("ada", "try"))
    assert hub.sessions.execute("ada--try", ["cat", "/etc/adas"]) == "of mine\n"
    listed = json.loads(refit(laptop, "mine", "own-profiles", "--json").stdout)
    assert [(one["name"], one["state"], one["problem"]) for one in listed] == [("mine", "built", "")]


def test_a_step_that_fails_shows_its_last_lines_as_text(hub: Hub, laptop: Path) -> None:
    fails = r"RUN printf 'so \033[2J it goes\n' >&2; exit 3" + "\n"
    folder = write(laptop / "bad", **{"custom/custom.snippet.j2": fails})
    done = refit(laptop, "mine", "build", str(folder), "--ide", "runtime", limit=900)
    assert done.returncode == 1 and "It wasn't built." in done.stderr
    assert r"so \x1b[2J it goes" in done.stderr and "\x1b[2J" not in done.stdout + done.stderr
    log = refit(laptop, "mine", "build-log", "bad")
    assert log.returncode == 0 and "State: failed." in log.stdout
    assert str(hub.settings.home) not in log.stdout + done.stdout + done.stderr and "\n+ " not in log.stdout


def test_a_build_that_is_killed_in_the_middle_is_told_and_can_be_sent_again(hub: Hub, ada: Person) -> None:
    mine, database = api(ada), hub.sessions.store.database
    slow = {**RECIPE, "custom/custom.snippet.j2": "RUN sleep 600\n"}

    def send(files: dict[str, str]) -> int:
        archive = encoded(tarred(**{path: text.encode() for path, text in files.items()}))
        return mine(
            "POST", "/own-profiles/build", json={"name": "slow", "archive": archive, "ide": "runtime"}
        ).status_code

    assert send(slow) == 202
    wait_until(lambda: "sleep 600" in mine("GET", "/own-profiles/log", params={"name": "slow"}).json()["text"])
    assert state(mine, "slow") == "building"
    [attempt] = [
        one
        for one in psutil.process_iter(["cmdline", "environ"])
        if "flows.build_asked_profiles:build_asked_profiles" in (one.info["cmdline"] or ())
        and (one.info["environ"] or {}).get("REFIT_HOME") == str(hub.settings.home)
    ]
    attempt.send_signal(signal.SIGKILL)
    wait_until(lambda: state(mine, "slow") == "killed")
    left = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "600"]]
    assert send(RECIPE) == 202
    wait_until(lambda: state(mine, "slow") == "built")
    assert not [one for one in left if one.is_running()]
    assert BuildRequests(database).all() == () and OwnProfiles(database).last_builds()["slow"].problem == ""
