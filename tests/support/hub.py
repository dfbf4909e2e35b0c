"""A real Hub with everything around it, and people with browsers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from flows import services
from flows.cli.main import app
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.images.build import Built
from flows.images.registry import Registry
from flows.sessions.lifecycle import Sessions
from flows.web.people import client
from flows.web.people.client import HubClient
from tests.support.machine import FIRST, ROOT, RegistryServer, private_home
from tests.support.variants import LIGHT, variant
from tests.support.waiting import PATIENTLY, free_port, wait_until

RELEASE = "2026a"
SERVICES = ("gateway", "waiting-page", "hub", "authorizer", "my-sessions")
PASSWORD = "correct horse battery"
# Answers below the path that the session has, so that it is seen who is met there.
_IDE = 'mkdir -p "/tmp/www$NB_PREFIX" && cd /tmp/www && echo "this is $NB_PREFIX" >".$NB_PREFIX/api"'
_SERVE = "exec python3 -m http.server 8000"


@dataclass
class Hub:
    """A Hub with everything around it."""

    settings: Settings
    image: str

    @property
    def sessions(self) -> Sessions:
        return Sessions.open(self.settings)

    @property
    def pid(self) -> int:
        [hub] = [state for state in services.status(self.settings) if state.name == "hub"]
        assert hub.pid
        return hub.pid

    def refit(self, *words: str) -> str:
        """The output of the command."""
        result = CliRunner().invoke(app, words, env=variables(self.settings), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    def fails(self, *words: str) -> str:
        """The error of the command."""
        result = CliRunner().invoke(app, words, env=variables(self.settings))
        assert result.exit_code != 0, result.output
        return f"{result.output} {result.exception}"

    def invited(self, name: str, *options: str) -> str:
        [link] = re.findall(r"http\S+", self.refit("user", "invite", name, *options))
        return str(link)

    def person(self, name: str, *options: str) -> Person:
        """Somebody with an account, who is logged in."""
        person = Person(self, name)
        person.accept(self.invited(name, *options))
        return person

    def server(self, person: str, server: str) -> bool:
        """Whether the Hub has a server running."""
        people = {one.name: one.servers for one in HubClient(self.settings).people()}
        return people.get(person, {}).get(server, False)

    def container(self, session: str) -> tuple[str, int]:
        [result] = self.sessions.engine.containers(session)
        return result.name, result.pid

    def check_routes(self) -> None:
        """Let the Hub compare its routes with the gateway's, as it does every 30 s."""
        headers = {"Authorization": f"token {client.token(self.settings)}"}
        url = f"{self.settings.hub_url}/hub/api/proxy"
        httpx.post(url, headers=headers, **PATIENTLY).raise_for_status()

    def again(self) -> None:
        services.up(self.settings, only=SERVICES)


@dataclass
class Person:
    """Somebody with a browser."""

    hub: Hub
    name: str
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"follow_redirects": True, "headers": {"Accept": "text/html"}, **PATIENTLY}
        self.client = httpx.Client(base_url=self.hub.settings.gateway_url, **options)

    def accept(self, link: str, password: str = PASSWORD) -> httpx.Response:
        return self.send(link, "/hub/invite", code=link.partition("code=")[2], password=password, again=password)

    def log_in(self, password: str = PASSWORD) -> httpx.Response:
        return self.send("/hub/login", "/hub/login?next=", username=self.name, password=password)

    def send(self, page: str, to: str, **values: str) -> httpx.Response:
        """Fill in the form of a page."""
        shown = self.client.get(page)
        [xsrf, *_] = [*re.findall(r'(?:name="_xsrf"\s+value="|[?]_xsrf=)([^"&]*)"', shown.text), ""]
        return self.client.post(to, data={"_xsrf": unescape(xsrf), **values})

    def api(self, method: str, path: str, **more: object) -> httpx.Response:
        headers = {"X-XSRFToken": self.client.cookies.get("_xsrf", path="/hub/") or ""}
        return self.client.request(method, f"/hub/api{path}", headers=headers, json=more)

    def token(self, **more: object) -> dict[str, str]:
        """With which a program of theirs comes to their sessions."""
        made = self.api("POST", f"/users/{self.name}/tokens", **more)
        return {"Authorization": f"token {made.json()['token']}"}

    def start(self, server: str = "") -> httpx.Response:
        page = f"/hub/spawn/{self.name}{f'/{server}' if server else ''}"
        return self.send(page, page, profile=f"{RELEASE}/{FIRST}")

    def reaches(self, path: str) -> str:
        """The session that answers at a path, as soon as one does."""
        seen = [""]

        def answers() -> bool:
            seen.append(self.sees(path))
            return seen[-1].startswith("this is /session/")

        wait_until(answers)
        return seen[-1].strip().removeprefix("this is /session/")

    def sees(self, path: str) -> str:
        return self.client.get(path).text


@contextmanager
def running_hub(registry_server: RegistryServer, base: Built, folder: Path, **more: Any) -> Iterator[Hub]:
    """A Hub with its services, and the image that its sessions start from."""
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port(), "hub_port": free_port()}
    given = {"gateway": True, "hub": True, "catalog": ROOT, **ports, **more}
    with private_home(folder, registry_server.port, **given) as settings:
        image = made(settings, base, "of people")
        publish(settings, image)
        try:
            services.up(settings, only=SERVICES)
            yield Hub(settings, image)
        finally:
            services.down(settings)


def publish(settings: Settings, image: str, day: str = "20261121") -> None:
    """Let an image be the newest one of the first profile."""
    registry = Registry(settings)
    manifest = registry.manifest(settings.repository, image)
    for tag in (f"{FIRST}_{RELEASE}", f"{FIRST}_{RELEASE}_{day}"):
        registry.put_manifest(settings.repository, tag, manifest.content, manifest.media_type)


def made(settings: Settings, base: Built, name: str, profile: str = FIRST, maker: str = "") -> str:
    """An image of a profile, which the recipe of a person made if one is named."""
    labels = {"io.refit.profile": profile, "io.refit.release": RELEASE, "io.refit.access": LIGHT.as_label()}
    labels |= {OWNER_LABEL: maker} if maker else {}
    start, source = ["sh", "-c", f"{_IDE}; {_SERVE}"], f"{settings.repository}/stages"
    return variant(settings, Registry(settings), base.digest, source, name, start, labels)
