"""From a folder on a laptop to a session on it: the Hub, the page of sessions, Prefect and its worker, for real."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from flows import services
from flows.core.settings.personal_builds import PersonalBuilds
from flows.images.build import Built
from flows.images.builder import confined
from flows.publishing.own_build_requests import BuildRequests
from flows.publishing.own_profiles import OwnProfiles
from tests.support.browser import new_page, open_browser
from tests.support.hub import PASSWORD, RELEASE, SERVICES, Hub, Person, running_hub
from tests.support.machine import RegistryServer
from tests.support.my_sessions import BASE, Api, api, refit
from tests.support.own_archives import encoded, tarred, zipped
from tests.support.page_catalog import write_catalog
from tests.support.pictures import look
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
    catalog = write_catalog(folder / "catalog")
    with (catalog / "releases" / "2026a.yaml").open("a") as release:  # the page's form offers what the release ships
        release.write("  - {ide: runtime, bundle: small, os: deb12, python: py311}\n")
    more = {"catalog": catalog, "personal_builds": LIMITS, "prefect_port": free_port()}
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def opened(hub: Hub, browser: Browser, name: str) -> Page:
    """A page of somebody who has logged in."""
    page = new_page(browser)
    page.goto(f"{hub.settings.gateway_url}/hub/login")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.locator("#login_submit").click()
    page.wait_for_url("**/home")
    return page


def send(page: Page, hub: Hub, name: str, files: dict[str, str]) -> None:
    """Give a folder, as an archive, to the form of the page *My profiles*."""
    page.goto(f"{hub.settings.gateway_url}{BASE}/profiles")
    archive = zipped({f"{name}/{path}": text.encode() for path, text in files.items()})
    page.get_by_label("Name of the bundle").fill(name)
    page.get_by_label("Archive of its folder").set_input_files(
        [{"name": f"{name}.zip", "mimeType": "application/zip", "buffer": archive}]
    )
    page.get_by_label("IDE").select_option("runtime")
    page.get_by_role("button", name="Build", exact=True).click()


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


def test_the_page_in_a_browser_tells_all_mistakes_of_a_recipe_at_once(hub: Hub, ada: Person, browser: Browser) -> None:
    page = opened(hub, browser, "ada")
    wrong = {
        **RECIPE,
        "display.txt": "<b>Bold</b>\n",
        "bundle.yaml": "extends: small\nrelease: 1\n",
        "py311/Pipfile": '[packages]\nsix = {git = "https://example.invalid"}\n\n[[source]]\nurl = "x"\n',
        "custom/custom.snippet.j2": "RUN true\nCOPY --from=x <img/src=x> /\n",
    }
    send(page, hub, "wrong", wrong)
    alert = page.get_by_role("alert")
    look(page, "my-profiles-refused", kept=False)
    for told in ("bundle.yaml:2", "py311/Pipfile:2", "py311/Pipfile:4", "custom/custom.snippet.j2:2"):
        expect(alert).to_contain_text(told)
    expect(alert).to_contain_text("<img/src=x>")
    assert alert.locator("img").count() == 0
    assert page.locator("#wrong").count() == 0
    page.context.close()


def test_from_a_folder_to_a_session_in_a_browser_offered_and_withdrawn(hub: Hub, ada: Person, browser: Browser) -> None:
    boss = hub.person("chief", "--admin")
    hub.person("kai")
    boss.api("POST", "/groups/lab")
    assert boss.api("POST", "/groups/lab/users", users=["ada", "kai"]).status_code == HTTPStatus.OK
    page, url = opened(hub, browser, "ada"), f"{hub.settings.gateway_url}{BASE}"
    send(page, hub, "seen", RECIPE)
    card = page.locator("#seen")
    expect(card.locator(".state")).to_have_text(re.compile("waiting|building"))

    # She goes away; that it has ended is on all pages, until she has seen it.
    news = page.get_by_role("navigation").locator(".news")
    wait_until(lambda: page.goto(f"{url}/") and news.count() == 1)
    expect(news).to_have_text("1 new")
    page.get_by_role("link", name="My profiles").click()
    expect(card.locator(".state")).to_have_text("built")
    expect(card.locator(".news")).to_have_text("New")
    look(page, "my-profiles", kept=False)
    page.reload()
    expect(card.locator(".state")).to_have_text("built")
    assert page.locator(".news").count() == 0
    card.get_by_role("link", name="Log").click()
    expect(page.locator("pre")).to_contain_text("It is built.")

    page.goto(f"{url}/")
    page.get_by_label("Name of the session").fill("seen")
    page.get_by_label("Profile", exact=True).select_option(f"{RELEASE}/{STEM.format('seen')}")
    page.get_by_role("button", name="Start", exact=True).last.click()
    wait_until(lambda: hub.server("ada", "seen"))
    assert hub.sessions.execute("ada--seen", ["cat", "/etc/adas"]) == "of seen\n"

    theirs = opened(hub, browser, "kai")
    choice = theirs.locator(f"option[value='{RELEASE}/{STEM.format('seen')}']")
    theirs.goto(f"{url}/")
    assert choice.count() == 0
    page.goto(f"{url}/profiles")
    card.get_by_label("Groups to which seen is offered").fill("nobodys")
    card.get_by_role("button", name="Offer").click()
    expect(page.get_by_role("alert")).to_contain_text("You are in no group nobodys.")
    card.get_by_label("Groups to which seen is offered").fill("lab")
    card.get_by_role("button", name="Offer").click()
    expect(card).to_contain_text("Offered to lab.")
    wait_until(lambda: theirs.goto(f"{url}/") and choice.count() == 1)
    theirs.get_by_label("Name of the session").fill("try")
    theirs.get_by_label("Profile", exact=True).select_option(f"{RELEASE}/{STEM.format('seen')}")
    theirs.get_by_role("button", name="Start", exact=True).last.click()
    wait_until(lambda: hub.server("kai", "try"))
    card.get_by_role("button", name="Withdraw").click()
    expect(card).to_contain_text("Nobody but you can start sessions from it.")
    theirs.goto(f"{url}/")
    assert choice.count() == 0
    assert hub.sessions.execute("kai--try", ["cat", "/etc/adas"]) == "of seen\n"  # it goes on
    for one in (page, theirs):
        one.context.close()


def test_another_persons_next_build_comes_only_after_a_click(
    hub: Hub, ada: Person, laptop: Path, browser: Browser
) -> None:
    folder, marked = write(laptop / "asked"), "RUN echo next of {{ bundle }} >/etc/adas\n"
    assert refit(laptop, "mine", "build", str(folder), "--ide", "runtime", limit=900).returncode == 0
    theirs = api(hub.person("lia"))
    assert refit(laptop, "mine", "offer", "asked", "--to-person", "lia").returncode == 0
    asked = {"profile": STEM.format("asked"), "release": RELEASE, "server": "try"}
    wait_until(lambda: theirs("POST", "/sessions", json=asked).status_code == HTTPStatus.ACCEPTED)
    wait_until(lambda: hub.server("lia", "try"))
    write(folder, **{"custom/custom.snippet.j2": marked})
    assert refit(laptop, "mine", "build", str(folder), "--ide", "runtime", limit=900).returncode == 0

    page = opened(hub, browser, "lia")
    asks = page.get_by_text("ada's own recipe made that image, and nobody else vouches for it")
    wait_until(lambda: page.goto(f"{hub.settings.gateway_url}{BASE}/sessions/lia--try") and asks.count())
    look(page, "another-persons-build", kept=False)
    assert hub.sessions.execute("lia--try", ["cat", "/etc/adas"]) == "of asked\n"
    page.get_by_role("button", name="Move now").click()
    wait_until(lambda: theirs("GET", "/sessions/lia--try").json()["doing"])
    assert not theirs.settled("lia--try")["doing"]["problem"]
    assert hub.sessions.execute("lia--try", ["cat", "/etc/adas"]) == "next of asked\n"
    page.context.close()


def test_a_step_that_fails_shows_its_last_lines_as_text(hub: Hub, laptop: Path) -> None:
    fails = r"RUN printf 'so \033[2J it goes\n' >&2; exit 3" + "\n"
    folder = write(laptop / "bad", **{"custom/custom.snippet.j2": fails})
    done = refit(laptop, "mine", "build", str(folder), "--ide", "runtime", limit=900)
    assert done.returncode == 1 and "It wasn't built." in done.stderr
    assert r"so \x1b[2J it goes" in done.stderr and "\x1b[2J" not in done.stdout + done.stderr
    assert not re.search(r"\bnew\b", refit(laptop, "mine", "own-profiles").stdout)  # it was waited for
    log = refit(laptop, "mine", "build-log", "bad")
    assert log.returncode == 0 and "State: failed." in log.stdout
    assert str(hub.settings.home) not in log.stdout + done.stdout + done.stderr and "\n+ " not in log.stdout


def test_the_end_of_a_build_that_nobody_waited_for_is_told_once(hub: Hub, ada: Person, laptop: Path) -> None:
    folder = write(
        laptop / "later", **{"custom/custom.snippet.j2": r"RUN printf 'so \033[2J it goes\n' >&2; exit 3" + "\n"}
    )
    sent = refit(laptop, "mine", "build", str(folder), "--ide", "runtime", "--no-wait")
    assert sent.returncode == 0 and "build-log later" in sent.stdout
    wait_until(lambda: state(api(ada), "later") == "failed")
    assert "later" in refit(laptop, "mine", "own-profiles", "--json").stdout
    told = refit(laptop, "mine", "own-profiles").stdout
    assert re.search(r"\bnew\b", told) and "\x1b[2J" not in told
    assert not re.search(r"\bnew\b", refit(laptop, "mine", "own-profiles").stdout)


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
    [told] = [one for one in mine("GET", "/own-profiles").json() if one["name"] == "slow"]
    wait_until(lambda: BuildRequests(database).statuses(["slow"])["slow"].news)  # the worker has looked
    assert not told["problem"]
    left = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "600"]]
    assert send(RECIPE) == 202
    wait_until(lambda: state(mine, "slow") == "built")
    assert not [one for one in left if one.is_running()]
    assert BuildRequests(database).all() == () and OwnProfiles(database).last_builds()["slow"].problem == ""
