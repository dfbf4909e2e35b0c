"""The token of an IDE, which the gateway adds on the way: its own pages get it, and nothing else in a session does."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from websockets.http11 import Request

from flows.catalog.model import Access
from tests.support.hub import Hub, Person
from tests.support.leading import Leading
from tests.support.people import Ide, People, come_in, cookies, opened, says
from tests.support.variants import JUPYTER
from tests.support.waiting import serving, wait_until

WEB = Access(port=8888, health="/api", page="/desk?folder=%2Fhome&token={token}")
TOKEN = "token-of-"


@pytest.fixture(scope="module")
def nell(hub: Hub) -> Person:
    return hub.person("nell")


@pytest.fixture(scope="module", params=[WEB, JUPYTER], ids=["web", "jupyter"])
def ide(request: pytest.FixtureRequest, people: People, nell: Person, ben: Person) -> Ide:
    """An IDE of each kind, in a session of Nell's that is shared with Ben."""
    name = f"desk-{'jupyter' if request.param is JUPYTER else 'web'}"
    made = people.session(name, "nell", access=request.param)
    come_in(nell, name)
    people.hub.refit("session", "share", name, "--with", "ben")
    come_in(ben, name)
    return made


@pytest.fixture(scope="module")
def leading(people: People, nell: Person) -> Iterator[Person]:
    """Nell, with a session `on` whose IDE redirects to wherever it is asked to."""
    with serving(Leading) as port:
        people.session("on", "nell", url=f"http://127.0.0.1:{port}", access=WEB)
        come_in(nell, "on")
        yield nell


def came(ide: Ide, person: Person, path: str, method: str = "GET") -> Request:
    """The request that comes to the IDE when somebody opens a path below a session."""
    ide.asked.clear()
    person.client.request(method, f"/session/{ide.session}{path}")
    wait_until(lambda: bool(ide.asked))
    return ide.asked[-1]


def test_the_page_with_which_people_begin_and_the_login_of_its_server_get_it(
    ide: Ide, nell: Person, ben: Person
) -> None:
    page = "/lab" if ide.session.endswith("jupyter") else "/desk"
    port = f"/session/{ide.session}/proxy/7001/page"
    for person in (nell, ben):
        told = parse_qs(urlsplit(came(ide, person, page).path).query)
        assert told["token"] == [f"{TOKEN}{ide.session}"] and told.get("folder", ["/home"]) == ["/home"]
        told = parse_qs(urlsplit(came(ide, person, f"/login?next={port}&token=forged&folder=x").path).query)
        assert told == {"next": [port], "folder": ["x"], "token": [f"{TOKEN}{ide.session}"]}


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/proxy/7001/page",
        "/proxy/7001/login",
        "/proxy/absolute/7001/lab",
        "/proxy/7001/desk?token=x",
        "/login/",
        "//login",
        "/%6cogin",
        "/proxy/7001/..%2f..%2flogin",
        "/desk/more",
        "/lab/tree/a.ipynb",
    ],
)
def test_no_other_page_gets_it_for_it_may_be_a_program_of_somebodys_own(ide: Ide, ben: Person, path: str) -> None:
    asked = came(ide, ben, path)
    assert TOKEN not in f"{asked.path} {asked.headers}"


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ("/session/on/desk?token=TOKEN&folder=%2Fhome", "/session/on/desk?folder=%2Fhome"),
        ("/session/on/desk?folder=x&token=TOKEN#a", "/session/on/desk?folder=x#a"),
        ("?token=TOKEN", "?"),
        ("/session/on/login?next=%2Fdesk%3Ftoken%3DTOKEN&a=1", "/session/on/login?a=1"),
        ("http://elsewhere.example/?a=TOKEN", "http://elsewhere.example/"),
        ("/session/on/TOKEN", "."),
        ("/session/on/desk#TOKEN", "."),
        ("/session/on/desk?token=another", "/session/on/desk?token=another"),
    ],
)
def test_an_ide_that_leads_on_with_what_it_was_asked_tells_no_browser(leading: Person, to: str, told: str) -> None:
    path = f"/session/on/desk?to={quote(to.replace('TOKEN', f'{TOKEN}on'))}"
    assert leading.client.get(path, follow_redirects=False).headers["location"] == told


def test_what_is_no_page_gets_none(ide: Ide, people: People, ben: Person) -> None:
    ide.asked.clear()
    with opened(people.hub, ide.session, cookies(ben)) as channel:
        assert says(channel)
    ben.client.get(f"/session/{ide.session}/login", headers={"Accept": "application/json"})
    wait_until(lambda: len(ide.asked) > 1)
    assert not [one for one in ide.asked if TOKEN in f"{one.path} {one.headers}"]
