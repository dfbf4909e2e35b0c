"""RefitSpawner in a JupyterHub that isn't Refit's, with its own proxy and its own people."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from http import HTTPStatus

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flows import services
from flows.core.settings.hub_login import OtherHub as Setting
from flows.gateway import routes
from flows.images.registry import Registry
from flows.sessions.model import Running
from tests.support.hub import RELEASE, SERVICES, Hub, Person, publish
from tests.support.machine import FIRST, ROOT, RegistryServer, private_home
from tests.support.other_hub import OtherHub, other_hub
from tests.support.variants import JUPYTER, variant
from tests.support.waiting import PATIENCE, PATIENTLY, free_port, wait_until

OWN = tuple(name for name in SERVICES if name != "hub")
JSON = {"Accept": "application/json"}


@pytest.fixture(scope="module")
def other(
    registry_server: RegistryServer, jupyter_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OtherHub]:
    """The Hub, and JupyterLab as the profile that people choose there."""
    folder = tmp_path_factory.mktemp("other")
    setting = Setting(api=f"http://127.0.0.1:{free_port()}", public=f"http://127.0.0.1:{free_port()}")
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port()}
    more = {"gateway": True, "hub": True, "catalog": ROOT, "other_hub": setting, **ports}
    with private_home(folder / "home", registry_server.port, **more) as settings:
        labels = {"io.refit.profile": FIRST, "io.refit.release": RELEASE, "io.refit.access": JUPYTER.as_label()}
        image = variant(settings, Registry(settings), jupyter_image, settings.repository, "of others", (), labels)
        publish(settings, image)
        try:
            services.up(settings, only=OWN)
            with other_hub(Hub(settings, image), folder) as other:
                yield other
        finally:
            services.down(settings)


@pytest.fixture(scope="module")
def ada(other: OtherHub) -> Person:
    """Somebody who has started a session from the form of that Hub."""
    ada = other.person("ada")
    page = "/hub/spawn/ada"
    assert f"{RELEASE}/{FIRST}" in ada.sees(page)
    ada.send(page, page, profile=f"{RELEASE}/{FIRST}")
    wait_until(lambda: ada.client.get("/user/ada/lab").url.path == "/session/ada/lab")
    return ada


def contents(person: Person) -> int:
    """The status of the answer to a page's request for the files of Ada's session."""
    return person.client.get("/session/ada/api/contents", headers=JSON).status_code


def test_jupyterlab_opens_by_the_address_of_the_other_hub_and_its_kernels_answer(other: OtherHub, ada: Person) -> None:
    settings = other.hub.settings
    page = ada.client.get("/user/ada/lab")
    assert (page.status_code, page.url.path) == (HTTPStatus.OK, "/session/ada/lab") and "JupyterLab" in page.text
    assert str(page.url).startswith(settings.public_url)
    session = other.hub.sessions.show("ada")
    assert session.running is Running.running
    urls = [str(one.url) for one in (*page.history, page)]
    assert other.hub.sessions.token(session.session) not in "".join(urls)
    told = ada.client.get("/session/ada/api/contents", headers=JSON)
    assert told.status_code == HTTPStatus.OK and told.json()["type"] == "directory"
    token = ada.token()
    kernel = httpx.post(f"{settings.public_url}/session/ada/api/kernels", headers=token, json={}, **PATIENTLY).json()
    way = f"ws{settings.public_url.removeprefix('http')}/session/ada/api/kernels/{kernel['id']}/channels"
    with connect(way, additional_headers=token, proxy=None, open_timeout=PATIENCE) as channel:
        assert "starting" in str(channel.recv(timeout=PATIENCE)) or channel.recv(timeout=PATIENCE)
    with pytest.raises(InvalidStatus) as refused:
        connect(way, additional_headers={"Authorization": "token forged"}, proxy=None, open_timeout=PATIENCE)
    assert refused.value.response.status_code == HTTPStatus.FORBIDDEN


def test_others_come_in_by_a_share_alone_and_leave_with_it(other: OtherHub, ada: Person) -> None:
    bob, hub = other.person("bob"), other.hub
    hub.refit("session", "shares", "ada")  # imports all that the next command needs, so that nobody has time meanwhile
    assert bob.client.get("/session/ada/lab").status_code == HTTPStatus.FORBIDDEN
    [link] = [word for word in hub.refit("session", "share", "ada", "--code").split() if word.startswith("http")]
    assert link.startswith(hub.settings.public_url)
    told = bob.send(link, "/hub/accept-share", code=link.partition("code=")[2])
    assert told.url.path == "/authorizer/guest" and "ada" in told.text, (told.status_code, told.text[:1000])
    assert bob.client.post(str(told.url)).url.path.startswith("/session/ada")
    assert contents(bob) == HTTPStatus.OK
    assert other.person("dora").client.get(link).status_code == HTTPStatus.GONE  # a code works once
    hub.refit("session", "unshare", "ada", "--with", "bob")
    wait_until(lambda: contents(bob) == HTTPStatus.FORBIDDEN)
    assert contents(ada) == HTTPStatus.OK


def test_the_page_of_sessions_and_what_is_made_in_the_shell_are_there(other: OtherHub, ada: Person) -> None:
    assert "/session/ada" in ada.sees(f"{routes.MY_SESSIONS}/")
    other.hub.refit("user", "invite", "cleo")
    hub = other.hub
    hub.sessions.create("notes", FIRST, RELEASE, hub.image, JUPYTER, owner="cleo")
    wait_until(lambda: hub.server("cleo", "notes"))
    cleo = other.person("cleo")
    assert "JupyterLab" in cleo.client.get("/user/cleo/notes/lab").text
    hub.refit("user", "remove", "cleo", "--yes")
    wait_until(lambda: hub.sessions.show("notes").running is Running.stopped)


def test_a_hub_that_is_killed_and_started_again_disturbs_no_session(other: OtherHub, ada: Person) -> None:
    container = other.hub.container("ada")
    gateway = f"{other.hub.settings.gateway_url}/session/ada/api/contents"
    headers = ada.token()
    assert httpx.get(gateway, headers=headers, **PATIENTLY).status_code == HTTPStatus.OK
    assert other.process
    other.process.send_signal(signal.SIGKILL)
    other.process.wait()
    wait_until(lambda: httpx.get(gateway, headers=headers, **PATIENTLY).status_code == HTTPStatus.OK)
    other.start()
    wait_until(lambda: other.hub.server("ada", ""))
    other.hub.check_routes()
    assert contents(ada) == HTTPStatus.OK
    assert other.hub.container("ada") == container


def test_a_server_that_is_stopped_there_stops_the_session_and_starts_again(other: OtherHub, ada: Person) -> None:
    headers = {"X-XSRFToken": ada.client.cookies.get("_xsrf", path="/hub/") or ""}
    stopped = ada.client.delete("/hub/api/users/ada/server", headers=headers)
    assert stopped.status_code in (HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT), stopped.text
    wait_until(lambda: not other.hub.server("ada", ""))
    assert other.hub.sessions.show("ada").running is Running.stopped
    ada.client.get("/hub/spawn/ada")  # it has a session, so that nothing is asked
    wait_until(lambda: other.hub.server("ada", ""))
    wait_until(lambda: contents(ada) == HTTPStatus.OK)
