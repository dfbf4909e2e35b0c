"""Sessions of each person at an origin of their own, and pages elsewhere that ask for them, for real."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from flows.core.outside import NOBODY
from flows.web.authorizer import passes
from flows.web.authorizer.origins import host_of
from tests.support.hub import Hub, Person
from tests.support.people import People, opened, people_alone, says, status
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until


class Resolving(httpx.BaseTransport):
    """Knows all hosts below localhost, as browsers do; with a port, all others lead there, as by a proxy."""

    def __init__(self, port: int | None = None) -> None:
        self._transport, self._port = httpx.HTTPTransport(verify=NOBODY), port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        here = request.url.copy_with(host="127.0.0.1", port=self._port or request.url.port)
        more = {"headers": request.headers, "extensions": request.extensions}
        return self._transport.handle_request(httpx.Request(request.method, here, stream=request.stream, **more))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """They have the hosts that people have by default."""
    with people_alone(tmp_path_factory.mktemp("origins") / "home", subdomain_host="") as people:
        assert people.hub.settings.people_host == f"http://localhost:{people.hub.settings.gateway_port}"
        yield people


def person(hub: Hub, name: str, proxy: str = "") -> Person:
    """Somebody who has logged in at the main host, or at that of a proxy in front of the gateway."""
    somebody, port = Person(hub, name), hub.settings.gateway_port if proxy else None
    options = {"follow_redirects": True, "headers": {"Accept": "text/html"}, "transport": Resolving(port), **PATIENTLY}
    somebody.client = httpx.Client(base_url=proxy or hub.settings.public_url, **options)
    somebody.accept(hub.invited(name).removeprefix(hub.settings.public_url))
    return somebody


def held(somebody: Person, host: str) -> dict[str, str]:
    """The pass that a browser keeps for a host, as its page at that host sends it."""
    name = urlsplit(f"http://{host}").hostname
    [value] = [one.value for one in somebody.client.cookies.jar if one.name == passes.PASS and one.domain == name]
    return {"Cookie": f"{passes.PASS}={value}", "Host": host}


def test_each_persons_sessions_have_a_host_at_which_nobody_elses_are(people: People) -> None:
    hub = people.hub
    ann, bea = person(hub, "ann@example.org"), person(hub, "bea")
    people.session("one", "ann@example.org")
    people.session("two", "bea")
    wait_until(lambda: ann.client.get("/session/one/api").status_code == 200)
    seen = ann.client.get("/session/one/api?x=1")
    anns, beas = (host_of(hub.settings, name) for name in ("ann@example.org", "bea"))
    assert anns != beas and str(seen.url) == f"http://{anns}/session/one/api?x=1"
    assert seen.text.startswith("this is /session/one")
    assert status(hub, "one", held(ann, anns)) == 200
    hub.refit("session", "share", "two", "--with", "ann@example.org")
    wait_until(lambda: ann.client.get("/session/two/api").url.path == "/authorizer/guest")
    told = ann.client.get("/session/two/api")
    assert ann.client.post(str(told.url)).text.startswith("this is /session/two")
    # A script in bea's session has what bea's host has: not what ann's browser keeps for ann's.
    at_beas = held(ann, beas)
    assert status(hub, "two", at_beas) == 200 and status(hub, "one", at_beas) == 403
    assert status(hub, "one", {**at_beas, "Host": anns}) == 403  # the pass counts at bea's host alone
    assert status(hub, "two", {**held(ann, anns), "Host": beas}) == 403
    refused = bea.client.get("/session/one/api")
    assert refused.status_code == 403 and urlsplit(str(refused.url)).netloc != anns
    assert status(hub, "one", ann.token()) == 200  # programs have no cookies


@pytest.mark.parametrize(
    "path", ["/hub/login", "/%68ub/login", "/session/../hub/login", "/session/%2e%2e/hub/login", "/services/sessions/"]
)
def test_nobody_logs_in_where_scripts_of_sessions_run(people: People, path: str) -> None:
    """A page of the Hub there would be theirs: what people type into it, and the cookies that it sets."""
    main, port = people.hub.settings.public_url, people.hub.settings.gateway_port

    def asked(method: str, host: str, **headers: str) -> http.client.HTTPResponse:
        channel = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        channel.request(method, path, headers={"Host": host, "Accept": "text/html", **headers})
        return channel.getresponse()

    for host in (f"ann.localhost:{port}", f"ANN.LOCALHOST:{port}", f"no.such.localhost:{port}"):
        for headers in ({}, {"Authorization": "token x"}):
            told = asked("GET", host, **headers)
            assert told.status in (302, 400) and not told.getheader("Set-Cookie"), host
            assert told.status == 400 or told.getheader("Location") == f"{main}{path}"
        assert asked("POST", host).status in (403, 400)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        assert asked("GET", host, **upgrade, **{"Sec-WebSocket-Key": "x" * 22 + "=="}).status in (403, 400)
    at_main = asked("GET", f"localhost:{port}")
    assert main not in (at_main.getheader("Location") or "") and at_main.status < 500


def test_a_browser_that_comes_by_another_name_of_this_machine_is_led_to_the_one_whose_cookies_count(
    people: People,
) -> None:
    main, port = people.hub.settings.public_url, people.hub.settings.gateway_port
    page = {"Accept": "text/html", "Sec-Fetch-Mode": "navigate"}
    for host in ("127.0.0.1", "127.0.0.2", "[::1]", "LOCALHOST", "localhost."):
        told = httpx.get(
            f"{people.hub.settings.gateway_url}/hub/login?next=x",
            headers={"Host": f"{host}:{port}", **page},
            **PATIENTLY,
        )
        is_main = host == "LOCALHOST"
        assert (told.status_code, told.headers.get("location")) == (
            (200, None) if is_main else (302, f"{main}/hub/login?next=x")
        ), host
    for headers in ({}, {"Host": "hub.example.org", **page}, {"Host": f"127.0.0.1:{port + 1}", **page}):
        told = httpx.get(f"{people.hub.settings.gateway_url}/hub/login", headers=headers, **PATIENTLY)
        assert told.status_code == 200, headers


def test_nobody_else_answers_at_the_other_loopback_address(people: People) -> None:
    port = people.hub.settings.gateway_port
    assert httpx.get(f"http://[::1]:{port}/hub/login", **PATIENTLY).status_code == 200
    with socket.socket(socket.AF_INET6) as neighbour:
        neighbour.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            neighbour.bind(("::1", port))


def test_while_the_gateway_does_not_know_a_session_yet_its_host_is_no_other_than_before(people: People) -> None:
    url, port = f"{people.hub.settings.gateway_url}/session/not-yet/api", people.hub.settings.gateway_port
    here = {"Host": f"ann.localhost:{port}"}
    for told in (httpx.get(url, headers=here, **PATIENTLY), httpx.post(url, headers=here, **PATIENTLY)):
        assert "location" not in told.headers and "another host" not in told.text and told.status_code != 403


def test_behind_a_proxy_of_another_name_sessions_stay_at_that_name_and_its_passes_count_nowhere_else(
    people: People,
) -> None:
    hub, port = people.hub, people.hub.settings.gateway_port
    eve = person(hub, "eve", proxy="http://hub.example.org")
    people.session("five", "eve")
    wait_until(lambda: eve.client.get("/session/five/api").status_code == 200)
    seen = eve.client.get("/session/five/api?x=1")
    assert str(seen.url) == "http://hub.example.org/session/five/api?x=1" and seen.text.startswith("this is")
    kept = held(eve, "hub.example.org")
    assert status(hub, "five", kept) == 200
    eves = host_of(hub.settings, "eve")
    for host in (f"{name}:{port}" for name in ("localhost", "LOCALHOST", "localhost.", "127.0.0.1", "[::1]")):
        assert status(hub, "five", {**kept, "Host": host}) == 403, host
        page = httpx.get(
            f"{hub.settings.gateway_url}/session/five/api",
            headers={**kept, "Host": host, "Accept": "text/html"},
            **PATIENTLY,
        )
        assert page.headers["location"].startswith((hub.settings.public_url, "/hub/api/oauth2/authorize?")), host
    for host in (eves, f"eve.localhost.:{port}", "localhost:port"):
        assert status(hub, "five", {**kept, "Host": host}) != 200, host
    # A pass of a host of people doesn't count at the proxy's.
    fay = person(hub, "fay")
    people.session("six", "fay")
    wait_until(lambda: fay.client.get("/session/six/api").status_code == 200)
    own = held(fay, host_of(hub.settings, "fay"))
    assert status(hub, "six", own) == 200 and status(hub, "six", {**own, "Host": "hub.example.org"}) == 403


def test_a_ticket_to_a_host_works_once_and_there(people: People) -> None:
    hub = people.hub
    cat = person(hub, "cat")
    people.session("three", "cat")
    wait_until(lambda: cat.client.get("/session/three/api").status_code == 200)
    [arrived] = [one for one in cat.client.get("/session/three/api").history if "arrival" in str(one.url)]
    again = Person(hub, "cat")
    again.client = httpx.Client(transport=Resolving(), **PATIENTLY)
    assert again.client.get(arrived.url).status_code == 400
    for wrong in (
        "x",
        "",
        passes.seal("key", passes.TICKET, 30, person="cat", login="a1", host="x", to="/session/three"),
    ):
        assert again.client.get(arrived.url.copy_with(params={"ticket": wrong})).status_code == 400


@pytest.mark.parametrize(
    ("headers", "comes_in"),
    [
        ({}, True),
        ({"Origin": "http://{host}"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "http://bea.localhost"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, False),
    ],
)
def test_a_page_elsewhere_gets_nothing_of_a_session(people: People, headers: dict[str, str], comes_in: bool) -> None:
    hub = people.hub
    if "four" not in people.ides:
        people.session("four", "dot")
        people.dot = person(hub, "dot")  # type: ignore[attr-defined]
        wait_until(lambda: people.dot.client.get("/session/four/api").status_code == 200)  # type: ignore[attr-defined]
    host = host_of(hub.settings, "dot")
    own = held(people.dot, host)  # type: ignore[attr-defined]
    sent = {**own, **{name: value.replace("{host}", host) for name, value in headers.items()}}
    assert status(hub, "four", sent) == (200 if comes_in else 403)
    if "Origin" in headers:
        asked = {name: value for name, value in sent.items() if name != "Host"}
        if comes_in:
            return
        with pytest.raises(InvalidStatus) as refused, opened(hub, "four", asked) as channel:
            says(channel)
        assert refused.value.response.status_code == 403
