"""Attempts of strangers, colleagues and people who have left at the Hub and at the sessions of others."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import httpx
import psutil

from flows.sessions.model import Running
from flows.sessions.people.person_keys import PersonKeys
from flows.sessions.ssh.keys import PublicKey
from flows.web.authorizer import passes
from tests.support.hub import PASSWORD, RELEASE, Hub, Person
from tests.support.machine import FIRST
from tests.support.variants import LIGHT
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until


def test_nobody_has_an_account_without_an_invitation_and_each_works_once(hub: Hub) -> None:
    eve = Person(hub, "eve")
    assert eve.client.get("/hub/signup").status_code == 404
    assert eve.log_in().status_code == 403
    link = hub.invited("bob")
    assert eve.client.get(link.replace("code=", "code=x")).status_code == 410
    assert eve.accept(link, password="short").status_code == 400
    bob = Person(hub, "bob")
    assert bob.accept(link).url.path == "/hub/home" and "bob" in bob.sees("/hub/home")
    assert eve.client.get(link).status_code == 410
    xsrf = eve.client.cookies.get("_xsrf", path="/hub/")
    late = {"code": link.partition("code=")[2], "password": PASSWORD, "again": PASSWORD}
    assert eve.client.post("/hub/invite", data=late, headers={"X-XSRFToken": xsrf or ""}).status_code == 410
    assert "/hub/login" in str(eve.client.get("/hub/home").url)
    assert Person(hub, "bob").log_in().url.path == "/hub/home"
    assert "bob" in hub.refit("user", "list")


def test_the_servers_of_others_and_forged_cookies_are_refused(hub: Hub, ada: Person) -> None:
    eve = hub.person("eve")
    assert eve.api("DELETE", "/users/ada/server").status_code in (403, 404)
    assert eve.api("POST", "/users/ada/servers/mine").status_code in (403, 404)
    assert eve.client.get("/hub/spawn/ada").status_code in (403, 404)
    assert eve.api("GET", "/users").status_code == 403
    forged = Person(hub, "ada")
    forged.client.cookies.set("jupyterhub-hub-login", "2|1:0|10:1795478437|20:jupyterhub-hub-login|4:YWRh|" + 64 * "a")
    assert "/hub/login" in str(forged.client.get("/hub/home").url)
    # A name that would lead to a session or home of somebody else leads to one of their own.
    hub.sessions.create("eve", FIRST, RELEASE, hub.image, LIGHT)
    eve.start()
    wait_until(lambda: hub.server("eve", ""))
    assert eve.reaches("/user/eve/api").startswith("eve-")
    hub.sessions.remove("eve", purge=True)


def test_nobody_else_gets_to_a_session_and_no_cookie_of_ours_gets_to_an_ide(hub: Hub, ada: Person) -> None:
    url = f"{hub.settings.gateway_url}/session/ada/api"
    assert ada.reaches("/session/ada/api") == "ada"
    stranger = httpx.get(url, **PATIENTLY)
    assert stranger.status_code == 403 and stranger.json()["refit"] == "authorizer"
    sent_away = httpx.get(url, headers={"Accept": "text/html"}, **PATIENTLY)
    assert sent_away.headers["Location"].startswith("/hub/api/oauth2/authorize?")
    odd = httpx.get(
        f"{hub.settings.gateway_url}//evil.example/session/ada/api", headers={"Accept": "text/html"}, **PATIENTLY
    )
    assert "evil" not in odd.headers.get("Location", "")
    for path in ("/session/%61da/api", "/session/eve/../ada/api", "//session/ada/api", "/session/ada%2Fapi"):
        assert b"this is" not in raw(hub, f"GET {path} HTTP/1.1\r\n")
    assert b" 403 " in raw(hub, f"GET /session/ada/api HTTP/1.1\r\nUpgrade: websocket\r\n{UPGRADE}").splitlines()[0]
    assert b" 400 " in raw(hub, "GET /session/%zz HTTP/1.1\r\n").splitlines()[0]
    eve = hub.person("eve2")
    assert eve.client.get("/session/ada/api").status_code == 403
    own = ada.client.cookies.get(passes.PASS) or ""
    content, _, signature = own.partition(".")
    other = base64.urlsafe_b64encode(base64.urlsafe_b64decode(content).replace(b"ada", b"bob")).decode()
    for forged in (f"{other}.{signature}", f"{content}.{'0' * 64}", content, "", "x.y", "ä.ö"):
        cookie = {"Cookie": f"{passes.PASS}={quote(forged)}"}
        assert httpx.get(url, headers=cookie, **PATIENTLY).status_code == 403
    assert httpx.get(url, headers={"Cookie": f"{passes.PASS}={own}"}, **PATIENTLY).status_code == 200
    assert httpx.get(url, headers={"Authorization": "token wrong"}, **PATIENTLY).status_code == 403
    assert httpx.get(url, headers=ada.token(), **PATIENTLY).status_code == 200
    ides = hub.sessions.token(hub.sessions.store.session("ada"))  # a guest's page has it: it lets nobody in
    assert httpx.get(url, headers={"Authorization": f"token {ides}"}, **PATIENTLY).status_code == 403
    narrow = ada.token(scopes=["read:users!user=ada"])
    assert httpx.get(url, headers=narrow, **PATIENTLY).status_code == 403
    begun = ada.client.get("/authorizer/callback?code=x&state=x", follow_redirects=False)
    assert begun.status_code == 400
    with listening() as (place, heard):
        hub.sessions.gateway.route("ada", place)
        seen = {"Cookie": f"{passes.PASS}={own}; mine=1; jupyterhub-session-id=x", "Accept": "text/html"}
        httpx.get(f"{url}?a=b", headers=seen, **PATIENTLY)
    hub.sessions.tell_gateway_of("ada")
    assert b"GET /session/ada/api?a=b HTTP" in heard[0] and b"mine=1" in heard[0]
    assert passes.PASS.encode() not in heard[0] and b"jupyterhub" not in heard[0]


UPGRADE = "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"


def raw(hub: Hub, request: str) -> bytes:
    """The answer of the gateway to the first lines of a request as they are."""
    close = "" if "Upgrade" in request else "Connection: close\r\n"
    with socket.create_connection(("127.0.0.1", hub.settings.gateway_port), timeout=PATIENCE) as connection:
        connection.sendall(f"{request}Host: x\r\n{close}\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def listening() -> Iterator[tuple[str, list[bytes]]]:
    """A place that hears one request, and answers it."""
    heard = list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hear() -> None:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        hearer = threading.Thread(target=hear)
        hearer.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", heard
        hearer.join()


def test_a_person_who_is_removed_is_out_and_their_homes_can_be_handed_over(hub: Hub) -> None:
    cyd = hub.person("cyd")
    cyd.start()
    assert cyd.reaches("/user/cyd/api") == "cyd"
    keys = PersonKeys(hub.sessions.store.database)
    keys.add("cyd", [PublicKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")])
    hub.refit("user", "remove", "cyd", "--yes")
    assert not keys.of("cyd")  # the next person of that name isn't the same
    assert "/hub/login" in str(cyd.client.get("/hub/home").url) and cyd.log_in().status_code == 403
    assert hub.sessions.show("cyd").running is Running.stopped
    wait_until(lambda: "/hub/login" in str(cyd.client.get("/session/cyd/api").url))
    hub.refit("session", "owner", "cyd", "bob")
    assert hub.sessions.store.owners()["cyd"] == "bob"


def test_nothing_that_others_can_read_holds_a_secret(hub: Hub) -> None:
    home = hub.settings.home
    secrets = [(home / "services" / "hub" / name) for name in ("token", "cookie_secret", "jupyterhub.sqlite")]
    assert {file.stat().st_mode & 0o777 for file in secrets} == {0o600}
    assert home.stat().st_mode & 0o777 == 0o700
    texts = [file.read_text().strip() for file in secrets[:2]]
    shown = "".join(str(process.info) for process in psutil.process_iter(["cmdline"]))
    logs = "".join(file.read_text(errors="replace") for file in (home / "logs").glob("*.log*"))
    assert not [text for text in texts if text in shown or text in logs]
