"""JupyterHub's view of sessions: names, routes, offers, invitations; without a Hub."""

from __future__ import annotations

import string
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows import services
from flows.catalog import load
from flows.catalog.model import Access, Profile, Resources
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.gateway import routes
from flows.publishing.signatures import Refusal
from flows.services import doctor_home
from flows.sessions.homes.folders import ref_of
from flows.sessions.model import Running, Session, TokenRef, check_name
from flows.sessions.overview import Status
from flows.sessions.store import HomeTaken, Store
from flows.sessions.wishes import PreferenceStore
from flows.signing.trust import Doubt
from flows.web.authorizer import admission, passes, service
from flows.web.hub import accounts, routing
from flows.web.people import names, offers, servers
from flows.web.people.client import Person

ROOT = Path(__file__).parents[4]
people = st.text(min_size=1, max_size=200).filter(lambda name: "/" not in name) | st.sampled_from(
    ["ada", "Ada", "ada@example.org", "ada.l", "ada-l", "ada--l", "ada l", "ádà", "安", "a" * 200, "1", "-", "session"]
)
_slugs = st.from_regex(r"[a-z][a-z0-9]{0,6}(-[a-z0-9]{1,5}){0,3}", fullmatch=True)
server_names = st.just("") | _slugs.filter(lambda name: len(name) <= 30) | st.just("a" * 30)


def session(name: str, environment: dict[str, str] | None = None) -> Session:
    home = Path("/h") / name
    return Session(
        name, "p", "2026a", "sha256:1", 200_000, ref_of(home), TokenRef("token"), Access(port=8000), environment or {}
    )


@given(st.lists(st.tuples(people, server_names), min_size=2, max_size=2, unique=True))
def test_no_two_servers_have_the_same_session_and_each_name_is_legal(pairs: list[tuple[str, str]]) -> None:
    first, second = (set(names.candidates(*pair)) for pair in pairs)
    for name in first | second:
        assert check_name(name) == name
    assert len(first) == 2 and not first & second


@pytest.mark.slow
@given(people, st.lists(server_names, unique=True, max_size=6), st.lists(_slugs, unique=True, max_size=6))
def test_every_session_of_a_person_is_one_server_with_a_name_that_the_hub_takes(
    person: str, made: list[str], elsewhere: list[str]
) -> None:
    own = {
        names.candidates(person, one)[0]: session(names.candidates(person, one)[0], names.environment(person, one))
        for one in made
    }
    others = {name: session(name) for name in elsewhere if name not in own}
    servers = names.servers(person, [*own.values(), *others.values()])
    assert sorted(one.name for one in servers.values()) == sorted([*own, *others])
    assert all(servers[one].name == names.candidates(person, one)[0] for one in made)
    assert all(not name or (len(name) <= 30 and "--" not in name and set(name) <= LEGAL) for name in servers)


LEGAL = {*string.ascii_lowercase, *string.digits, "-"}


def test_a_session_that_was_made_elsewhere_and_is_called_like_its_owner_is_the_default_server() -> None:
    servers = names.servers("ada", [session("ada"), session("notes"), session("my-data")])
    assert {name: one.name for name, one in servers.items() if one.name != "my-data"} == {"": "ada", "notes": "notes"}
    assert names.servers("ada", [session("ada", {names.PERSON: "eve", names.SERVER: "gpu"})])[""].name == "ada"


@pytest.mark.parametrize(
    ("url", "back"),
    [
        ("/session/ada/lab", "/session/ada/lab"),
        ("/session/ada/lab?token=x&a=1&token=y", "/session/ada/lab?a=1"),
        ("/session/ada?token=x", "/session/ada"),
        ("//evil.example/session/ada", "/hub/home"),
        ("/\\evil.example/session/ada", "/hub/home"),
        ("https://evil.example/session/ada", "/hub/home"),
        ("", "/hub/home"),
    ],
)
def test_a_login_leads_back_to_a_session_and_nowhere_else(url: str, back: str) -> None:
    assert admission.back_to(url) == back


def test_a_pass_is_its_makers_for_its_purpose_and_its_time() -> None:
    sealed = passes.seal("key", passes.PASS, 60, person="ada")
    records = passes.opened("key", passes.PASS, sealed)
    assert records and records["person"] == "ada"
    content, _, signature = sealed.partition(".")
    wrong = ("", ".", "x", content, f"{content}.", f".{signature}", f"{content}x.{signature}", f"{content}.ä", "ä.ö")
    assert not [text for text in wrong if passes.opened("key", passes.PASS, text)]
    assert passes.opened("other", passes.PASS, sealed) is None
    assert passes.opened("key", passes.STATE, sealed) is None
    assert passes.opened("key", passes.PASS, passes.seal("key", passes.PASS, -1, person="ada")) is None


def ours(*sessions: Session) -> dict[str, dict[str, Session]]:
    return {"ada": names.servers("ada", sessions), "b@c": {"": session("b-c-12345678")}}


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/user/ada", "/session/ada?x=1"),
        ("/user/ada/", "/session/ada/?x=1"),
        ("/user/ada/lab/tree/a%20b", "/session/ada/lab/tree/a%20b?x=1"),
        ("/user/ada/notes/lab", "/session/notes/lab?x=1"),
        ("/user/ada/notes", "/session/notes?x=1"),
        ("/user/b%40c/lab", "/hub/user/b%40c/lab?x=1"),  # it is down
        ("/user/eve/lab", "/hub/user/eve/lab?x=1"),
        ("/user/", "/hub/user/?x=1"),
        ("/user/ada//evil.example/", "/session/ada//evil.example/?x=1"),
    ],
)
def test_the_addresses_of_the_hub_lead_to_sessions_that_are_up_and_to_the_hub_otherwise(path: str, target: str) -> None:
    assert service.led_to(path, "x=1", ours(session("ada"), session("notes")), frozenset({"ada", "notes"})) == target


def test_the_hub_is_told_of_what_it_does_not_know_and_of_nothing_twice() -> None:
    records = (Person("ada", False, "", {"notes": True, "old": False}), Person("eve", False, "", {}))
    servers = ours(*map(session, ("ada", "notes", "old", "new")))
    up = frozenset({"ada", "notes"})
    assert service.unknown(records, servers, up) == [("ada", "", True), ("ada", "new", False)]
    told = (Person("ada", False, "", {"": True, "notes": True, "old": False, "new": False}),)
    assert service.unknown(told, servers, up) == []
    assert service.unknown(told, servers, frozenset({*up, "old"})) == [("ada", "old", True)]


def test_the_hub_sees_a_server_at_the_gateway_wherever_its_session_is() -> None:
    gateway = "http://127.0.0.1:17900"
    records: dict[str, dict[str, Any]] = {
        "/": {"target": routes.WAITING_PAGE},
        "/hub": {"target": "http://127.0.0.1:17902"},
        "/user": {"target": routes.AUTHORIZER},
        "/authorizer": {"target": routes.AUTHORIZER},
        "/session/ada": {"target": "http://10.88.0.7:8888", "last_activity": "2026-11-24T00:00:00Z"},
        "/session/else": {"target": "http://10.88.0.8:8888"},
        "/services/x": {"target": "http://127.0.0.1:1", "service_of_hub": True, "data": {"service": "x"}},
    }
    specs = {"/user/ada/": ("ada", "ada", ""), "/user/ada/gone/": ("gone", "ada", "gone")}
    seen = routing.as_hub_sees(records, specs, gateway)
    assert set(seen) == {"/hub/", "/services/x/", "/user/ada/"}
    assert seen["/user/ada/"]["target"] == gateway and seen["/services/x/"]["data"] == {"service": "x"}
    moved = {**records, "/session/ada": {"target": routes.WAITING_PAGE, "last_activity": "2026-11-24T00:00:00Z"}}
    assert routing.as_hub_sees(moved, specs, gateway) == seen


@pytest.mark.parametrize("path", ["/", "/session", "/session/ada", "/hub", "/hub/", "/user/ada", "/complete", "x"])
def test_the_hub_has_no_say_about_refits_own_paths(path: str) -> None:
    assert not routes.is_free(path)
    assert routes.is_free("/services/announcement/") and routes.is_free("/sessions")


@pytest.mark.parametrize(
    ("running", "should_run", "busy", "moving", "up"),
    [
        (Running.running, True, False, False, True),
        (Running.running, False, False, False, False),
        (Running.stopped, True, False, False, False),
        (Running.stopped, True, True, False, True),
        (None, True, False, True, True),
        (Running.stopped, False, True, True, False),
    ],
)
def test_a_server_that_moves_or_starts_counts_as_running(
    running: Running | None, should_run: bool, busy: bool, moving: bool, up: bool
) -> None:
    assert servers.is_up(Status(session("ada"), running, should_run), busy=busy, moving=moving) is up
    assert not servers.is_up(None, busy=True, moving=True)


def test_options_that_are_not_the_forms_are_refused() -> None:
    assert servers.choice_of({"release": "2026a", "profile": "p"}) == servers.Wanted("p", "2026a")
    assert servers.choice_of({}) is None
    for wrong in ({"release": "2026a"}, {"profile": ["p"], "release": "2026a"}, {"profile": 1, "release": 2}):
        with pytest.raises(RefitError):
            servers.choice_of(wrong)
    assert offers.read({"profile": ["2026a/jupyter-minimal"]}) == {"release": "2026a", "profile": "jupyter-minimal"}
    for sent in ({}, {"profile": []}, {"profile": [""]}, {"profile": ["2026a"]}, {"profile": ["/x"]}):
        with pytest.raises(RefitError):
            offers.read(sent)


def profile(**more: Any) -> Profile:
    catalog = load.profile(load.load_catalog(ROOT), "2026a", "jupyter-minimal-deb12-py311")
    return replace(catalog, **more)


def test_the_form_says_what_cannot_be_had_and_why_and_shows_text_as_text() -> None:
    image = offers.Image(1_230_000_000, datetime(2026, 11, 1, tzinfo=UTC))
    good = offers.judge(profile(), image, 0)
    assert good.why_not == "" and good.size == "1.2 GB" and "requests, rich" in good.contents
    assert good.age(datetime(2026, 11, 3, tzinfo=UTC)) == "2 days old"
    gpu = offers.judge(profile(resources=Resources(gpus=2)), image, 1)
    assert "2 GPUs" in gpu.why_not
    none = offers.judge(profile(), None, 0)
    refused = offers.judge(profile(), Refusal("sha256:1", Doubt.revoked), 0)
    assert none.why_not and refused.why_not and len({none.why_not, refused.why_not, gpu.why_not}) == 3
    shown = offers.form([gpu, replace(good, text="<script>alert(1)</script>")])
    assert "<script>" not in shown and shown.count(" disabled") == 1 and shown.count(" checked") == 1
    assert shown.index("&lt;script&gt;") < shown.index("2 GPUs") and shown.count("requests, rich") == 2
    assert "No release" in offers.form([])


def test_an_invitation_works_once_until_it_expires_and_a_newer_one_replaces_it(tmp_path: Path) -> None:
    code = accounts.invite(tmp_path, "ada", 60)
    [file] = tmp_path.iterdir()
    assert code not in file.name and code not in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    assert accounts.look(tmp_path, code) == accounts.take(tmp_path, code)
    assert accounts.take(tmp_path, code) is None
    old, new = accounts.invite(tmp_path, "ada", 60), accounts.invite(tmp_path, "ada", 60, admin=True)
    assert accounts.look(tmp_path, old) is None
    invitation = accounts.look(tmp_path, new)
    assert invitation and invitation.admin and invitation.until <= time.time() + 60
    late = accounts.invite(tmp_path, "bob", -1)
    assert accounts.take(tmp_path, late) is None
    for wrong in ("", "../x", new[:-1], f"{new}x", "/etc/passwd"):
        assert accounts.take(tmp_path, wrong) is None


@pytest.mark.parametrize("name", ["", " ada", "Ada", "a/b", "a,b", "a b", "a" * 201, "a\n", "\x1b[31m"])
def test_nobody_is_called_what_the_hub_would_change_or_refuse(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefitError):
        accounts.invite(tmp_path, name, 60)
    assert not accounts.why_no_name("ada.lovelace@example.org") and not accounts.why_no_name("安")


@pytest.mark.parametrize(
    ("password", "again"), [("short", "short"), ("long enough", "other one"), ("ä" * 40, "ä" * 40)]
)
def test_a_password_that_bcrypt_would_cut_or_anybody_would_guess_is_refused(password: str, again: str) -> None:
    assert accounts.why_no_password(password, again)
    assert not accounts.why_no_password("correct horse", "correct horse")


def test_a_home_that_was_kept_is_its_owners_alone(tmp_path: Path) -> None:
    store = Store(open_database(f"sqlite:///{tmp_path / 'refit.db'}"))

    def add(name: str, owner: str) -> Session:
        span = Span(first=300_000, last=300_009)
        return store.add(name, lambda uid: replace(session(name), uid=uid), uids=span, owner=owner)

    add("ada", "ada")
    assert store.owners() == {"ada": "ada"}
    store.forget("ada")
    with pytest.raises(HomeTaken):
        add("ada", "eve")
    add("ada", "ada")
    PreferenceStore(store.database).change("ada", "root", owner="bob")
    store.forget("ada")
    with pytest.raises(HomeTaken):
        add("ada", "ada")
    store.give_home("ada", "ada")
    assert add("ada", "ada").name == "ada"
    add("nobodys", "")
    store.forget("nobodys")
    with pytest.raises(HomeTaken):
        add("nobodys", "eve")


def test_a_hub_runs_where_it_is_wanted_and_its_unit_holds_no_secret(tmp_path: Path) -> None:
    chosen = Settings(home=tmp_path, hub=True)
    units = services.units(chosen)
    assert {"refit-hub.service", "refit-authorizer.service"} <= set(units)
    assert {"refit-hub.service"} <= set(services.units(Settings(home=tmp_path)))
    assert not {"refit-hub.service"} & set(services.units(Settings(home=tmp_path, hub=False)))
    assert not {"refit-hub.service"} & set(services.units(Settings(home=tmp_path, hub=True, gateway=False)))
    assert (
        "refit-gateway.service" in units["refit-hub.service"] and str(chosen.hub_port) not in units["refit-hub.service"]
    )
    assert [finding.ok for finding in doctor_home.hub(chosen)] == [True]
    assert [finding.ok for finding in doctor_home.hub(Settings(home=tmp_path, hub=True, gateway=False))] == [False]
    assert not [*doctor_home.hub(Settings(home=tmp_path, hub=False))]
