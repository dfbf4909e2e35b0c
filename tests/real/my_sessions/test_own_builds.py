"""Recipes that people send to the API and the page: what is refused, who may offer to whom, and who sees what."""

from __future__ import annotations

import gzip
import re
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from http import HTTPStatus

import httpx
import pytest

from flows.publishing.own_build_requests import BuildRequests
from flows.publishing.own_profiles import OwnProfiles
from flows.sessions.people import rights
from flows.web.people.scopes import Scope
from tests.support.hub import RELEASE, Hub, Person
from tests.support.my_sessions import BASE, Api, api
from tests.support.own_archives import RECIPE, encoded, special, tarred, zipped
from tests.support.waiting import wait_until

STEM = "jupyter-{}-deb12-py311"
GOOD = tarred(**RECIPE)
SHADOW = special(tarfile.SYMTYPE, "os", "/etc")
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a bomb of zip": lambda: zipped({f"f{number}": b"\0" * 900_000 for number in range(90)}),
    "a bomb of gzip": lambda: gzip.compress(b"\0" * 200_000_000),
    "above": lambda: tarred(**RECIPE, **{"../../x": b"x"}),
    "absolute": lambda: tarred(**RECIPE, **{"/etc/cron.d/x": b"* * * * * root id\n"}),
    "a link to the shadow": lambda: tarred(special(tarfile.SYMTYPE, "display.txt", "/etc/shadow"), **RECIPE),
    "a file below a link": lambda: tarred(SHADOW, **RECIPE, **{"os/os-packages.txt": b"x"}),
    "a link of zip": lambda: zipped({**RECIPE, "os/os-packages.txt": b"/etc/shadow"}, stat.S_IFLNK),
    "a hard link": lambda: tarred(special(tarfile.LNKTYPE, "os/os-packages.txt", "/etc/shadow"), **RECIPE),
    "a device": lambda: tarred(special(tarfile.BLKTYPE, "display.txt"), **RECIPE),
    "thousands of files": lambda: gzip.compress(tarred(**{f"f{number}": b"" for number in range(7000)})),
    "a name with an escape": lambda: tarred(**RECIPE, **{"a\x1b]0;x\x07": b"x"}),
    "a name of two lines": lambda: tarred(**RECIPE, **{"a\nRefit says: all is well": b"x"}),
    "no archive": lambda: b"x" * 1000,
    "a lock": lambda: tarred(**RECIPE, **{"py311/Pipfile.lock": b"{}"}),
    "no text": lambda: tarred(**{**RECIPE, "display.txt": b"\xff"}),
    "instructions that reach out": lambda: tarred(**RECIPE, **{"custom/custom.snippet.j2": b"COPY --from=x / /\n"}),
    "a template that reads": lambda: tarred(**RECIPE, **{"custom/custom.snippet.j2": b"{% include '/etc/shadow' %}\n"}),
}


def sends(mine: Api, name: str, archive: bytes = GOOD, **more: str) -> httpx.Response:
    return mine("POST", "/own-profiles/build", json={"name": name, "archive": encoded(archive), **more})


@pytest.fixture
def hers(ada: Person) -> Iterator[Api]:
    mine = api(ada)
    yield mine
    for one in mine("GET", "/own-profiles").json():
        mine("POST", "/own-profiles/remove", json={"name": one["name"], "confirm": one["name"]})


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_archives_of_the_worst_neighbour_are_refused_and_nothing_is_left(hub: Hub, hers: Api, kind: str) -> None:
    refused = sends(hers, "mine", HOSTILE[kind]())
    assert refused.status_code in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY), refused.text
    assert "root:" not in refused.text and "\x1b" not in refused.json().get("detail", "")
    assert hers("GET", "/own-profiles").json() == []
    assert BuildRequests(hub.sessions.store.database).all() == ()


def test_a_recipe_waits_in_the_queue_and_is_its_owners_alone(hub: Hub, hers: Api, eve: Person) -> None:
    told = sends(hers, "mine")
    assert told.status_code == HTTPStatus.ACCEPTED, told.text
    assert (told.json()["profile"], told.json()["state"]) == (STEM.format("mine"), "waiting")
    [one] = BuildRequests(hub.sessions.store.database).all()
    assert (one.bundle, one.owner) == ("mine", "ada")
    others = api(eve)
    assert others("GET", "/own-profiles").json() == []
    for path in ("withdraw", "offer", "remove"):
        given = {
            "name": "mine",
            **({"people": "eve"} if path == "offer" else {"confirm": "mine"} if path == "remove" else {}),
        }
        nowhere = {key: value.replace("mine", "none") for key, value in given.items()}
        there = others("POST", f"/own-profiles/{path}", json=given)
        none = others("POST", f"/own-profiles/{path}", json=nowhere)
        assert there.status_code == none.status_code == HTTPStatus.NOT_FOUND
        assert there.text.replace("mine", "none") == none.text
    assert others("GET", "/own-profiles/log", params={"name": "mine"}).status_code == HTTPStatus.NOT_FOUND
    taken = sends(others, "mine")
    assert (taken.status_code, taken.json()["title"]) == (HTTPStatus.CONFLICT, "The name 'mine' is taken.")
    for name in ("minimal", "jupyter", "deb12", "../x", "Mine", "a" * 31, ""):
        assert sends(hers, name).status_code == HTTPStatus.CONFLICT, name
    for more in ({"ide": "none"}, {"os": "none"}, {"release": "../../x"}, {"release": "1999a"}, {"ide": "../x"}):
        assert sends(hers, "more", **more).status_code in (409, 422), more


def test_a_person_has_so_many_and_tokens_without_the_scope_none(hub: Hub, ada: Person, hers: Api) -> None:
    for number in range(hub.settings.personal_builds.profiles):
        assert sends(hers, f"own{number}").status_code == HTTPStatus.ACCEPTED
    over = sends(hers, "another")
    assert (over.status_code, over.json()["code"]) == (HTTPStatus.CONFLICT, "limit")
    unable = api(ada, [Scope.read, Scope.sessions, Scope.access])
    for path in ("build", "offer", "withdraw", "remove"):
        refused = unable("POST", f"/own-profiles/{path}", json={"name": "own0", "archive": encoded(GOOD)})
        assert (refused.status_code, refused.json()["code"]) == (HTTPStatus.FORBIDDEN, "scope-missing"), path
    nobody = Api(hub, "")("POST", "/own-profiles/build", content=b"x" * 5_000_000)
    assert nobody.json()["code"] == "not-logged-in"


def test_two_uploads_at_once_and_one_that_breaks_off(hub: Hub, ada: Person, hers: Api) -> None:
    with ThreadPoolExecutor(8) as pool:
        codes = {one.status_code for one in pool.map(lambda _: sends(hers, "mine"), range(8))}
    assert codes <= {HTTPStatus.ACCEPTED, HTTPStatus.TOO_MANY_REQUESTS} and HTTPStatus.ACCEPTED in codes
    assert len(BuildRequests(hub.sessions.store.database).all()) == 1
    before = OwnProfiles(hub.sessions.store.database).get("mine").files

    def broken() -> Iterator[bytes]:
        yield b'{"name": "mine", "archive": "'
        yield b"A" * 100_000
        raise OSError("the cable is out")

    for _ in range(10):
        with pytest.raises(OSError, match="cable"):
            hers("POST", "/own-profiles/build", content=broken(), headers={"Content-Length": "1000000"})

    def is_too_large() -> bool:
        huge = hers("POST", "/own-profiles/build", content=b"x" * 7_000_000)
        assert huge.status_code in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS), huge.text
        return huge.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE

    wait_until(is_too_large)  # as soon as it is noticed that the others have broken off
    assert OwnProfiles(hub.sessions.store.database).get("mine").files == before
    wait_until(lambda: sends(hers, "mine").status_code == HTTPStatus.ACCEPTED)  # nothing is held by those


def test_the_others_are_served_while_uploads_drip(hub: Hub, hers: Api) -> None:
    over = threading.Event()

    def drip() -> Iterator[bytes]:
        yield b'{"name": "mine", "archive": "'
        over.wait(60)

    with ThreadPoolExecutor(8) as pool:
        slow = [
            pool.submit(hers, "POST", "/own-profiles/build", content=drip(), headers={"Content-Length": "1000000"})
            for _ in range(4)
        ]
        try:
            wait_until(lambda: sends(hers, "mine").status_code == HTTPStatus.TOO_MANY_REQUESTS)
            assert hers("GET", "/sessions/ada").status_code == HTTPStatus.OK
        finally:
            over.set()
        assert all(one.exception() for one in slow)


def test_people_offer_to_their_groups_and_to_people_and_operators_to_all(hub: Hub, ada: Person, hers: Api) -> None:
    boss, zoe = hub.person("chef", "--admin"), hub.person("zoe")
    for group in ("mine", "theirs"):
        boss.api("POST", f"/groups/{group}")
    assert boss.api("POST", "/groups/mine/users", users=["ada", "zoe"]).status_code == HTTPStatus.OK
    assert boss.api("POST", "/groups/theirs/users", users=["zoe"]).status_code == HTTPStatus.OK
    assert sends(hers, "offered").status_code == HTTPStatus.ACCEPTED
    sees = api(zoe)

    def profiles() -> set[str]:
        return {one["profile"] for one in sees("GET", "/profiles").json()}

    def offers(mine: Api = hers, **to: str) -> httpx.Response:
        return mine("POST", "/own-profiles/offer", json={"name": "offered", **to})

    wait_until(lambda: offers(groups="mine").status_code == HTTPStatus.OK)  # after the Hub's word of that group
    wait_until(lambda: STEM.format("offered") in profiles())
    refused = offers(groups="mine\ntheirs")
    assert (refused.status_code, refused.json()["code"]) == (HTTPStatus.FORBIDDEN, "not-yours")
    assert "theirs" in refused.json()["title"] and offers().status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert hers("POST", "/own-profiles/withdraw", json={"name": "offered"}).json()["groups"] == []
    assert STEM.format("offered") not in profiles()
    assert offers(people="zoe").json()["people"] == ["zoe"] and STEM.format("offered") in profiles()
    assert offers(people="x" * 3999).status_code == HTTPStatus.OK and STEM.format("offered") not in profiles()
    assert offers(people="a\x1b[2J").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    # A group to which an operator has offered it may stay; and those who administer the Hub offer theirs to all.
    hub.refit("profile", "offer", "offered", "--for", "ada", "--to", "theirs", "--to-person", "zoe")
    assert offers(groups="theirs").json()["groups"] == ["theirs"]
    theirs = api(boss)
    assert sends(theirs, "chefs").status_code == HTTPStatus.ACCEPTED
    given = {"name": "chefs", "groups": "theirs"}
    assert theirs("POST", "/own-profiles/offer", json=given).json()["groups"] == ["theirs"]
    assert theirs("POST", "/own-profiles/remove", json={"name": "chefs"}).json()["code"] == "unconfirmed"
    theirs("POST", "/own-profiles/remove", json={"name": "chefs", "confirm": "chefs"})


def test_offers_end_with_the_owners_time_in_a_group_and_with_accounts(hub: Hub, ada: Person, hers: Api) -> None:
    boss, zara, olga = hub.person("warden", "--admin"), hub.person("zara"), hub.person("olga")
    for group in ("short", "hall"):
        boss.api("POST", f"/groups/{group}")
        assert boss.api("POST", f"/groups/{group}/users", users=["zara"]).status_code == HTTPStatus.OK
    assert boss.api("POST", "/groups/short/users", users=["ada"]).status_code == HTTPStatus.OK
    assert sends(hers, "leaving").status_code == HTTPStatus.ACCEPTED
    hub.refit("profile", "offer", "leaving", "--for", "ada", "--to", "hall")
    given = {"name": "leaving", "groups": "short\nhall", "people": "olga"}
    wait_until(lambda: hers("POST", "/own-profiles/offer", json=given).status_code == HTTPStatus.OK)
    of_olga = api(olga)
    assert sends(of_olga, "olgas").status_code == HTTPStatus.ACCEPTED
    given = {"name": "olgas", "people": "zara"}
    assert of_olga("POST", "/own-profiles/offer", json=given).status_code == HTTPStatus.OK
    sees = api(zara)

    def profiles() -> set[str]:
        return {one["profile"] for one in sees("GET", "/profiles").json()}

    def offered() -> tuple[list[str], list[str]]:
        [one] = [one for one in hers("GET", "/own-profiles").json() if one["name"] == "leaving"]
        return one["groups"], one["people"]

    wait_until(lambda: {STEM.format("leaving"), STEM.format("olgas")} <= profiles())
    assert boss.api("DELETE", "/groups/short/users", users=["ada"]).status_code == HTTPStatus.OK
    wait_until(lambda: offered() == (["hall"], ["olga"]))
    assert STEM.format("leaving") in profiles()  # by the group to which an operator has offered it
    assert boss.api("POST", "/groups/short/users", users=["ada"]).status_code == HTTPStatus.OK
    wait_until(lambda: "short" in (rights.last(hub.settings).rights.accounts or {})["ada"].groups)

    assert boss.api("DELETE", "/users/olga").status_code == HTTPStatus.NO_CONTENT
    assert offered() == (["hall"], []) and STEM.format("olgas") not in profiles()
    assert boss.api("POST", "/users/olga").status_code == HTTPStatus.CREATED  # another person of that name
    wait_until(lambda: "olga" in (rights.last(hub.settings).rights.accounts or {}))
    assert offered() == (["hall"], []) and STEM.format("olgas") not in profiles()
    records = OwnProfiles(hub.sessions.store.database)
    assert (records.get("olgas").offered, records.get("olgas").people) == ((), ())
    records.forget("olgas", "olga")
    BuildRequests(hub.sessions.store.database).drop("olgas")


def test_the_page_takes_a_file_and_shows_texts_as_text(hub: Hub, ada: Person, eve: Person, hers: Api) -> None:
    page = ada.client.get(f"{BASE}/profiles")
    assert "Your first one" in page.text and "<option selected>jupyter</option>" in page.text
    [key, *_] = re.findall(r'name="form" value="([^"]*)"', page.text)

    def sent(person: Person, archive: bytes, verb: str = "build", form: str = unescape(key)) -> httpx.Response:
        fields = {"form": form, "name": "mine", "ide": "jupyter", "os": "deb12", "release": RELEASE, "page": "own"}
        return person.client.post(f"{BASE}/do/{verb}", data=fields, files={"archive": ("mine.zip", archive)})

    bad = sent(ada, HOSTILE["a link of zip"]())
    assert bad.status_code == HTTPStatus.UNPROCESSABLE_ENTITY and "no plain file" in bad.text
    assert eve.client.get(f"{BASE}/profiles").status_code == HTTPStatus.OK
    assert sent(eve, zipped(RECIPE)).status_code == HTTPStatus.UNPROCESSABLE_ENTITY  # the key of another login
    assert sent(ada, zipped(RECIPE), "snapshot").status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert sent(ada, b"x" * 7_000_000).status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    good = sent(ada, zipped({f"mine/{path}": text for path, text in RECIPE.items()}))
    assert good.status_code == HTTPStatus.OK and STEM.format("mine") in good.text and "waiting" in good.text
    log = hub.settings.folder("logs", "own", "ada") / "mine.log"
    log.write_text("<script>alert(1)</script>\x1b[2J\n")
    shown = ada.client.get(f"{BASE}/profiles", params={"log": "mine"}).text
    assert "&lt;script&gt;" in shown and "<script>" not in shown and "\x1b" not in shown
    assert eve.client.get(f"{BASE}/profiles", params={"log": "mine"}).status_code == HTTPStatus.NOT_FOUND
    assert eve.client.get(f"{BASE}/profiles").status_code == HTTPStatus.OK
