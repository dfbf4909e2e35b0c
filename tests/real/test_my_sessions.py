"""The page and the API of people's own sessions, for real: a Hub, its tokens and logins, sessions in containers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from typing import Any

import httpx
import pytest

from flows import services
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.sessions.model import Running
from flows.web.hub.scopes import Scope
from tests.real.test_hub import RELEASE, SERVICES, Hub, Person, made
from tests.support.machine import FIRST, ROOT, RegistryServer, private_home
from tests.support.variants import LIGHT
from tests.support.waiting import PATIENTLY, free_port, wait_until

BASE = "/services/sessions"


@pytest.fixture(scope="module")
def hub(registry_server: RegistryServer, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("mine") / "home"
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port(), "hub_port": free_port()}
    with private_home(folder, registry_server.port, gateway=True, hub=True, catalog=ROOT, **ports) as settings:
        image = made(settings, base, "of people")
        publish(settings, image, "20261121")
        try:
            services.up(settings, only=(*SERVICES, "my-sessions"))
            yield Hub(settings, image)
        finally:
            services.down(settings)


def publish(settings: Settings, image: str, day: str) -> None:
    """Let an image be the newest of its profile."""
    registry = Registry(settings)
    manifest = registry.manifest(settings.repository, image)
    for tag in (f"{FIRST}_{RELEASE}", f"{FIRST}_{RELEASE}_{day}"):
        registry.put_manifest(settings.repository, tag, manifest.content, manifest.media_type)


@pytest.fixture(scope="module")
def ada(hub: Hub) -> Person:
    """Somebody whose session runs."""
    ada = hub.person("ada")
    hub.sessions.create("ada", FIRST, RELEASE, hub.image, LIGHT, owner="ada")
    return ada


@pytest.fixture(scope="module")
def eve(hub: Hub) -> Person:
    """Somebody else."""
    return hub.person("eve")


class Api:
    """The API with a token."""

    def __init__(self, hub: Hub, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.token = token
        self._client = httpx.Client(base_url=f"{hub.settings.gateway_url}{BASE}/api", headers=headers, **PATIENTLY)

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self._client.request(method, path, **more)

    def settled(self, name: str) -> dict[str, Any]:
        """A session as soon as nothing is done to it any more."""
        seen: list[dict[str, Any]] = []

        def settles() -> bool:
            seen.append(self("GET", f"/sessions/{name}").json())
            return not seen[-1]["doing"] or bool(seen[-1]["doing"]["ended"])

        wait_until(settles)
        return seen[-1]


def api(person: Person, scopes: Sequence[Scope] = tuple(Scope), **more: object) -> Api:
    """The API with a new token of somebody."""
    answer = person.api("POST", f"/users/{person.name}/tokens", scopes=list(scopes), **more)
    assert answer.status_code == 201, answer.text
    return Api(person.hub, answer.json()["token"])


def test_a_session_is_listed_shown_stopped_and_started_by_its_owner(hub: Hub, ada: Person) -> None:
    mine = api(ada)
    [listed] = mine("GET", "/sessions").json()
    assert (listed["name"], listed["state"], listed["role"], listed["url"]) == (
        "ada",
        "running",
        "owner",
        "/session/ada/",
    )
    assert listed["image"]["digest"] == hub.image and listed["title"].startswith("JupyterLab")
    begun = mine("POST", "/sessions/ada/stop")
    assert (begun.status_code, begun.json()["state"]) == (202, "stopping")
    again = mine("POST", "/sessions/ada/start")
    assert again.status_code in (202, 409)
    stopped = mine.settled("ada")
    assert stopped["state"] == "stopped" and hub.sessions.show("ada").running is Running.stopped
    assert mine("POST", "/sessions/ada/start").status_code == 202
    started = mine.settled("ada")
    assert (started["state"], started["doing"]["note"]) == ("running", "It runs.")
    assert hub.sessions.show("ada").running is Running.running


def test_a_page_shows_a_persons_sessions_and_its_forms_act(hub: Hub, ada: Person) -> None:
    page = ada.client.get(f"{BASE}/")
    assert page.status_code == 200 and ">ada</h3>" in page.text and 'href="/session/ada/"' in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    sent = submit(ada, page, "stop", "ada")
    assert sent.status_code == 200 and "stopping" in sent.text
    wait_until(lambda: hub.sessions.show("ada").running is Running.stopped)
    wait_until(lambda: "/do/start" in ada.sees(f"{BASE}/"))
    submit(ada, ada.client.get(f"{BASE}/"), "start", "ada")
    wait_until(lambda: "/do/stop" in ada.sees(f"{BASE}/"))
    assert hub.sessions.show("ada").running is Running.running


def submit(person: Person, page: httpx.Response, verb: str, session: str, **more: str) -> httpx.Response:
    """Send a form of a page."""
    [key, *_] = re.findall(r'name="form" value="([^"]*)"', page.text)
    return person.client.post(f"{BASE}/do/{verb}", data={"form": unescape(key), "session": session, **more})
