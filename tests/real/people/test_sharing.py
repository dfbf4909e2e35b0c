"""Guests in sessions, for real: let in by shares, told whose session it is, and out as soon as a right ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from time import sleep
from typing import Any

import httpx
import pytest

from flows.core.database import now
from flows.core.errors import RefitError
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.people import entitlements
from flows.sessions.people.share_records import Grants
from flows.web.authorizer.sharing import Sharing
from tests.support.hub import Hub, Person
from tests.support.people import OUT_SECONDS, People, assert_out, come_in, cookies, opened, says, status
from tests.support.waiting import PATIENCE, PATIENTLY, running_seconds, serving, wait_until

SESSION = "papers"


def share(hub: Hub, *options: str) -> str:
    return hub.refit("session", "share", SESSION, *options)


def unshare(hub: Hub, *options: str) -> str:
    return hub.refit("session", "unshare", SESSION, *options)


def shares(hub: Hub) -> list[tuple[str, str]]:
    return [(one["kind"], one["subject"]) for one in json.loads(hub.refit("session", "shares", SESSION, "--json"))]


def test_a_share_lets_a_guest_in_who_is_told_once_and_its_end_keeps_them_out(hub: Hub, lin: Person) -> None:
    kim = hub.person("kim")
    refused = kim.client.get("/session/papers/api")
    assert refused.status_code == 403 and "is not yours" in refused.text
    assert "act as the session's user" in share(hub, "--with", "kim", "--until", "3d")
    wait_until(lambda: kim.client.get("/session/papers/api").status_code == 200)
    told = kim.client.get("/session/papers/api?x=1")
    assert told.url.path == "/authorizer/guest" and "you act as the session" in told.text and "lin" in told.text
    entered = kim.client.post(str(told.url))
    assert str(entered.url).endswith("/session/papers/api?x=1") and entered.text.startswith("this is /session/papers")
    for _ in range(3):
        assert kim.sees("/session/papers/api").startswith("this is")
    visits = [event for event in History(hub.sessions.store.database).events(SESSION) if event.kind is Kind.visited]
    assert [event.data["role"] for event in visits if event.by == "kim"] == ["shared"]
    [shown] = json.loads(hub.refit("session", "shares", SESSION, "--json"))
    assert (shown["kind"], shown["subject"]) == ("person", "kim") and shown["came_in"] and shown["until"]
    unshare(hub, "--with", "kim")
    ended = running_seconds()
    wait_until(lambda: status(hub, SESSION, cookies(kim)) == 403)
    assert running_seconds() - ended < OUT_SECONDS
    assert lin.sees("/session/papers/api").startswith("this is") and not shares(hub)


def _expire(hub: Hub, lin: Person, ben: Person) -> None:
    """Let the share's time be over in a moment: the shell counts in minutes."""
    held = entitlements.Share(SESSION, "lin", entitlements.Kind.person, "ben")
    Grants(hub.sessions.store.database).record(held, SESSION, "lin", now())


Ends = Callable[[Hub, Person, Person], Any]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda hub, lin, ben: unshare(hub, "--with", "ben"), id="revoked in the shell"),
        pytest.param(lambda hub, lin, ben: lin.api("PATCH", "/shares/lin/papers", user="ben"), id="revoked at the Hub"),
        pytest.param(lambda hub, lin, ben: ben.api("DELETE", "/users/ben/shared/lin/papers"), id="given back"),
        pytest.param(lambda hub, lin, ben: ben.client.get("/hub/logout"), id="logged out"),
        pytest.param(_expire, id="time is over"),
    ],
)
def test_an_open_terminal_of_a_guest_ends_with_the_right_and_the_owners_does_not(
    hub: Hub, lin: Person, ben: Person, end: Ends
) -> None:
    share(hub, "--with", "ben")
    ben.log_in()
    come_in(ben, SESSION)
    come_in(lin, SESSION)
    with opened(hub, SESSION, cookies(ben)) as guests, opened(hub, SESSION, cookies(lin)) as own:
        assert says(guests) and says(own)
        end(hub, lin, ben)
        assert_out(hub, SESSION, guests, cookies(ben), running_seconds())
        assert says(own)
    with suppress(RefitError):  # most of these ends are the share's end, too, soon
        unshare(hub, "--with", "ben")
    wait_until(lambda: not shares(hub))


def test_a_group_shares_and_a_person_who_leaves_it_is_out(hub: Hub, lin: Person) -> None:
    admin, dan = hub.person("root", "--admin"), hub.person("dan")
    assert admin.api("POST", "/groups/class").status_code == 201
    assert admin.api("POST", "/groups/class/users", users=["dan"]).status_code == 200
    share(hub, "--group", "class")
    come_in(dan, SESSION)
    with opened(hub, SESSION, cookies(dan)) as guests:
        assert says(guests)
        assert admin.api("DELETE", "/groups/class/users", users=["dan"]).status_code == 200
        assert_out(hub, SESSION, guests, cookies(dan), running_seconds())
    come_in(admin, SESSION)  # whom the Hub's role lets reach all servers
    unshare(hub, "--group", "class")


def link_of(hub: Hub, *options: str) -> str:
    [link] = re.findall(r"http\S+", share(hub, "--code", *options))
    return str(link)


def accept(person: Person, link: str) -> httpx.Response:
    """Press the button of the page, which an old page still has when the code works no more."""
    person.client.get("/hub/home")
    headers = {"X-XSRFToken": person.client.cookies.get("_xsrf", path="/hub/") or ""}
    return person.client.post("/hub/accept-share", data={"code": link.partition("code=")[2]}, headers=headers)


def test_a_code_lets_one_person_in_after_the_login_and_works_once(hub: Hub, lin: Person) -> None:
    fay, gus = hub.person("fay"), hub.person("gus")
    link = link_of(hub, "--until", "2h")
    stranger = httpx.get(link, follow_redirects=True, **PATIENTLY)
    assert "/hub/login" in str(stranger.url)
    shown = fay.client.get(link)
    assert "lin shares a session with you" in shown.text and "UTC" in shown.text and "act as" in shown.text
    assert lin.client.get(link).status_code == 403
    assert fay.client.post("/hub/accept-share", data={"code": link.partition("code=")[2]}).status_code == 403
    assert accept(fay, link).status_code == 200
    come_in(fay, SESSION)
    [record] = [one for one in Grants(hub.sessions.store.database).of(SESSION) if one.subject == "fay"]
    assert record.until and record.until - now() < timedelta(hours=2)
    for late in (gus.client.get(link), accept(gus, link), accept(fay, link)):
        assert late.status_code == 410 and "was used already, has expired, or was taken back" in late.text
    assert shares(hub) == [("person", "fay")]
    unshare(hub, "--with", "fay")


def test_a_code_that_was_taken_back_or_has_expired_lets_nobody_in(hub: Hub, lin: Person) -> None:
    hal = hub.person("hal")
    link = link_of(hub)
    [(_, number)] = shares(hub)
    unshare(hub, "--code", number)
    assert hal.client.get(link).status_code == 410 and accept(hal, link).status_code == 410
    late = link_of(hub)
    [(_, number)] = shares(hub)
    held = entitlements.Share(SESSION, "lin", entitlements.Kind.code, number)
    Grants(hub.sessions.store.database).record(held, SESSION, "lin", now())
    assert accept(hal, late).status_code == 410
    wait_until(lambda: not shares(hub))
    assert hal.client.get("/session/papers/api").status_code == 403


def test_mistakes_are_told_and_others_may_not_share(hub: Hub, lin: Person, ben: Person) -> None:
    sharing = Sharing.open(hub.settings)
    sharing.check_may_share("lin", SESSION)
    for words, told in {
        ("--with", "nobody"): "no person called",
        ("--group", "nobody"): "no group called",
        ("--with", "lin"): "is lin's already",
        (): "None of --with, --group and --code was given",
        ("--with", "ben", "--code"): "More than one of --with, --group and --code was given",
    }.items():
        assert told in hub.fails("session", "share", SESSION, *words)
    assert "isn't shared with" in hub.fails("session", "unshare", SESSION, "--with", "ben")
    assert "has no server" in hub.fails("session", "share", "lin/none", "--with", "ben")
    with pytest.raises(Exception, match="not theirs"):
        sharing.check_may_share("ben", SESSION)
    assert hub.refit("session", "share", "lin/papers", "--with", "ben")
    with pytest.raises(Exception, match="not theirs"):
        sharing.check_may_share("ben", SESSION)
    assert ben.api("POST", "/shares/lin/papers", user="ben").status_code in (403, 404)
    unshare(hub, "--with", "ben")


class Stream(BaseHTTPRequestHandler):
    """Answers without an end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while not self.wfile.closed:
                self.wfile.write(b"more\n")
                sleep(0.05)


@contextmanager
def streaming(people: People, person: Person, port: int) -> Iterator[Iterator[bytes]]:
    people.lead("data", f"http://127.0.0.1:{port}")
    url = f"{people.hub.settings.gateway_url}/session/data/stream"
    with httpx.stream("GET", url, headers=cookies(person), **PATIENTLY) as answer:
        lines = answer.iter_raw()
        assert next(lines)
        yield lines


def assert_ends(lines: Iterator[bytes], since: float) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        for _ in lines:
            assert running_seconds() - since < PATIENCE
    assert running_seconds() - since < OUT_SECONDS


def test_a_stream_ends_with_the_owners_right_and_with_the_owners_account(people: People) -> None:
    hub = people.hub
    eve, mia = hub.person("eve"), hub.person("mia")
    people.session("data", "eve")
    come_in(eve, "data")
    with serving(Stream) as port, streaming(people, eve, port) as lines:
        hub.refit("session", "owner", "data", "mia")
        assert_ends(lines, running_seconds())
    people.lead("data")
    come_in(mia, "data")
    assert status(hub, "data", cookies(eve)) == 403
    with serving(Stream) as port, streaming(people, mia, port) as lines:
        hub.refit("user", "remove", "mia", "--yes")
        assert_ends(lines, running_seconds())
    people.lead("data")
    assert status(hub, "data", cookies(mia)) == 403
