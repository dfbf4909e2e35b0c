"""The token of an IDE, which the gateway adds on the way: its own pages get it, and nothing else in a session does."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.http11 import Request

from flows.catalog.model import Access
from tests.support.hub import Hub, Person
from tests.support.people import Ide, People, come_in, cookies, opened, says
from tests.support.variants import JUPYTER
from tests.support.waiting import wait_until

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


def test_what_is_no_page_gets_none(ide: Ide, people: People, ben: Person) -> None:
    ide.asked.clear()
    with opened(people.hub, ide.session, cookies(ben)) as channel:
        assert says(channel)
    ben.client.get(f"/session/{ide.session}/login", headers={"Accept": "application/json"})
    wait_until(lambda: len(ide.asked) > 1)
    assert not [one for one in ide.asked if TOKEN in f"{one.path} {one.headers}"]
