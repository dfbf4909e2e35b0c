"""JupyterHub in front of sessions, for real: invited, logged in, started from the form, moved, handed over, removed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from flows import services
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.services import embedded
from flows.services.process import alone, end
from flows.sessions.model import Running
from flows.sessions.wishes import PreferenceStore
from tests.support.hub import RELEASE, Hub, Person, made
from tests.support.hub_faults import kill_for_good
from tests.support.machine import FIRST
from tests.support.moving import carry_out, to
from tests.support.variants import JUPYTER, LIGHT, sign
from tests.support.waiting import PATIENTLY, wait_until


@contextmanager
def always_reached(person: Person, session: str) -> Iterator[list[int]]:
    """Keep asking for a session at the gateway; gives what it answered."""
    seen, enough = list[int](), threading.Event()
    url, headers = f"{person.hub.settings.gateway_url}/session/{session}/api", person.token()

    def ask_once() -> None:
        seen.append(httpx.get(url, headers=headers, **PATIENTLY).status_code)

    def ask() -> None:
        while not enough.wait(0.05):
            ask_once()

    ask_once()  # a new token is known to the Hub alone until it is used
    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield seen
    finally:
        enough.set()
        asker.join()


def test_a_session_is_started_from_the_form_and_reached_by_its_address_and_by_the_hubs(hub: Hub) -> None:
    grace = hub.person("grace")
    form = grace.sees("/hub/spawn/grace")
    assert f"{RELEASE}/{FIRST}" in form and "GB, image" in form and "There is no image of it yet." in form
    grace.start()
    assert grace.reaches("/user/grace/api") == "grace"
    session = hub.sessions.show("grace")
    assert session.running is Running.running and session.session.image == hub.image
    assert PreferenceStore(hub.sessions.store.database).of("grace").owner == "grace"
    reached = grace.client.get("/user/grace/api?x=%2F")
    assert str(reached.url) == f"{hub.settings.gateway_url}/session/grace/api?x=%2F"
    token = hub.sessions.token(session.session)
    logs = "".join(file.read_text(errors="replace") for file in (hub.settings.home / "logs").glob("*.log*"))
    assert token not in logs and token not in form


def test_a_move_changes_where_the_address_leads_and_the_hub_never_undoes_it(hub: Hub, ada: Person, base: Built) -> None:
    before = hub.sessions.gateway.table()
    new = made(hub.settings, base, "moved to")
    with always_reached(ada, "ada") as seen:
        assert carry_out(MoveExecutor.open(hub.settings), to(hub.sessions, "ada", new)).moved
    after = hub.sessions.gateway.table()
    assert before and after and before["/session/ada"] != after["/session/ada"]
    assert set(seen) <= {200, 503} and 200 in seen
    hub.check_routes()
    assert hub.sessions.gateway.table() == after
    assert hub.server("ada", "")
    assert ada.reaches("/user/ada/api") == "ada"


def test_a_hub_that_is_killed_and_started_again_disturbs_nobody(hub: Hub, ada: Person) -> None:
    container = hub.container("ada")
    with always_reached(ada, "ada") as seen:
        kill_for_good(hub)
        assert ada.reaches("/user/ada/api") == "ada"  # the authorizer needs no Hub
        hub.again()
        wait_until(lambda: hub.server("ada", ""))
        hub.check_routes()
    assert set(seen) == {200} and len(seen) > 3
    assert hub.container("ada") == container
    assert ada.sees("/hub/home").count("ada")  # who was in is in


def test_an_authorizer_that_stands_still_lets_nobody_in_and_holds_nobody(hub: Hub, ada: Person) -> None:
    [authorizer] = [state for state in services.status(hub.settings) if state.name == "authorizer"]
    assert authorizer.pid
    os.kill(authorizer.pid, signal.SIGSTOP)
    try:
        stranger = httpx.get(f"{hub.settings.gateway_url}/session/ada/api", **PATIENTLY)
    finally:
        os.kill(authorizer.pid, signal.SIGCONT)
    assert (stranger.status_code, stranger.headers["Retry-After"]) == (503, "1")
    assert ada.reaches("/session/ada/api") == "ada"


def test_a_gateway_that_begins_anew_leads_to_the_hub_and_to_all_sessions_again(hub: Hub, ada: Person) -> None:
    with alone(hub.settings):
        assert end(embedded.gateway(hub.settings))
    hub.check_routes()  # the Hub finds no gateway, and leaves everything as it is
    hub.again()
    wait_until(lambda: ada.client.get("/hub/home").status_code == 200)
    assert ada.reaches("/user/ada/api") == "ada"
    assert hub.server("ada", "")


def test_what_is_done_in_the_shell_is_seen_in_the_hub(hub: Hub, ada: Person) -> None:
    hub.sessions.create("notes", FIRST, RELEASE, hub.image, LIGHT)
    assert "notes" not in ada.sees("/hub/home")
    hub.refit("session", "owner", "notes", "ada")
    wait_until(lambda: hub.server("ada", "notes"))
    assert ada.reaches("/user/ada/notes/api") == "notes"
    hub.sessions.stop("notes")
    wait_until(lambda: not hub.server("ada", "notes"))
    wait_until(lambda: ada.client.get("/user/ada/notes/api").url.path.startswith("/hub/user/ada/notes"))
    hub.refit("session", "start", "notes")
    wait_until(lambda: hub.server("ada", "notes"))
    hub.person("kai")
    hub.refit("session", "owner", "notes", "kai")
    wait_until(lambda: not hub.server("ada", "notes"))
    wait_until(lambda: hub.server("kai", "notes"))
    assert hub.sessions.show("notes").running is Running.running


def test_jupyterlab_opens_for_its_owner_and_no_address_has_the_token(hub: Hub, ada: Person, jupyter_image: str) -> None:
    registry = Registry(hub.settings)
    sign(hub.settings, registry, registry.manifest(hub.settings.repository, jupyter_image), {})
    session = hub.sessions.create("lab", FIRST, RELEASE, jupyter_image, JUPYTER, owner="ada")
    token = hub.sessions.token(session)
    page = ada.client.get("/session/lab/lab?token=wrong")
    assert page.status_code == 200 and "JupyterLab" in page.text
    urls = [str(one.url) for one in (*page.history, page)] + [one.headers.get("Location", "") for one in page.history]
    assert token not in "".join(urls)
    told = ada.client.get("/session/lab/api/contents", headers={"Accept": "application/json"})
    assert told.status_code == 200 and told.json()["type"] == "directory"
    hub.sessions.remove("lab", purge=True)


def test_a_server_is_stopped_started_and_deleted_and_its_home_stays_its_owners(hub: Hub, ada: Person) -> None:
    ada.start("gpu")
    wait_until(lambda: hub.server("ada", "gpu"))
    assert ada.reaches("/user/ada/gpu/api") == "ada--gpu"
    assert ada.api("DELETE", "/users/ada/servers/gpu").status_code in (202, 204)
    wait_until(lambda: not hub.server("ada", "gpu"))
    assert hub.sessions.show("ada--gpu").running is Running.stopped
    page = ada.client.get("/session/ada--gpu/api")
    assert page.status_code == 503 and "was stopped" in page.text
    ada.client.get("/hub/spawn/ada/gpu")  # it has a session, so that nothing is asked
    wait_until(lambda: hub.server("ada", "gpu"))
    assert ada.reaches("/user/ada/gpu/api") == "ada--gpu"
    ada.api("DELETE", "/users/ada/servers/gpu", remove=True)
    wait_until(lambda: hub.sessions.store.find("ada--gpu") is None)
    assert hub.sessions.store.owners()["ada--gpu"] == "ada"
    ada.start("gpu")
    wait_until(lambda: hub.server("ada", "gpu"))
    assert ada.reaches("/user/ada/gpu/api") == "ada--gpu"
