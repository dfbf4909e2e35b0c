"""A session whose IDE redirects outside of its path, through the real gateway: where its visitors get, and as whom."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import quote

import pytest

from tests.support.hub import Hub, Person
from tests.support.leading import Leading
from tests.support.people import People, come_in
from tests.support.waiting import serving

_HERE = "/session/leading"


@pytest.fixture(scope="module")
def visitor(hub: Hub, people: People) -> Iterator[Person]:
    """Somebody in such a session; they have another one as well."""
    mia = hub.person("mia")
    with serving(Leading) as port:
        people.session("leading", "mia", url=f"http://127.0.0.1:{port}")
        people.session("mine", "mia")
        come_in(mia, "leading")
        yield mia


def asked(to: str) -> str:
    return f"{_HERE}/x?to={quote(to)}"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"{_HERE}/lab?a=1#b", f"{_HERE}/lab?a=1#b"),
        ("lab", "lab"),
        # The address at which the gateway reaches it, or by which it calls itself, is nobody else's business.
        (f"http://127.0.0.1:PORT{_HERE}/lab?a=1#b", f"{_HERE}/lab?a=1#b"),
        (f"http://localhost:PORT{_HERE}/", f"{_HERE}/"),
        ("http://127.0.0.1:PORT//evil.example/", "/evil.example/"),
        ("http://127.0.0.1:1/", "http://127.0.0.1:1/"),
        # A link could lead there as well; where the browser gets, it comes as what it is.
        ("https://login.example/authorize?x=1", "https://login.example/authorize?x=1"),
        ("//login.example/", "//login.example/"),
        ("/hub/home", "/hub/home"),
        ("http://[", "http://["),
    ],
)
def test_a_redirect_is_told_as_it_is_or_without_an_address_that_only_the_gateway_reaches(
    visitor: Person, said: str, told: str
) -> None:
    answer = visitor.client.get(asked(said), follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (HTTPStatus.TEMPORARY_REDIRECT, told)


def test_a_redirect_leads_to_another_session_as_the_visitor_and_into_none_of_somebody_else(
    visitor: Person, lin: Person
) -> None:
    own = visitor.client.get(asked("/session/mine/api"))
    assert own.text.startswith("this is") and str(own.url.path) == "/session/mine/api"
    assert visitor.client.get(asked("/session/papers/api")).status_code == HTTPStatus.FORBIDDEN


def test_what_a_visitor_sends_is_no_form_of_refit_or_the_hub_where_an_ide_leads_it(
    visitor: Person,
) -> None:
    forms = {
        "/services/sessions/do/stop": {"session": "mine", "form": "x"},
        "/services/sessions/api/sessions/mine/stop": {},
        "/hub/accept-share": {"code": "x"},
        "/hub/api/users/mia/tokens": {},
        "/authorizer/guest": {},
    }
    for path, form in forms.items():
        answer = visitor.client.post(asked(path), data=form)
        assert answer.history and answer.url.path.startswith(path.rpartition("/")[0]), answer
        assert answer.status_code >= HTTPStatus.BAD_REQUEST, (path, answer.status_code)
