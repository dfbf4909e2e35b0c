"""Outages of the Hub, the authorizer and the gateway, for real: people inside stay in, rights still end."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from time import monotonic

import httpx
from jupyterhub import dbutil

from flows import services
from flows.gateway import routes
from flows.gateway.proxy import Visit
from flows.sessions.people.share_records import Grants
from flows.web.authorizer import passes
from tests.support.hub import Hub, Person
from tests.support.hub_faults import kill, kill_for_good, standing_still
from tests.support.people import People, come_in, cookies, opened, says, status
from tests.support.waiting import PATIENTLY, wait_until

MANY = 50
# Seconds: `REMEMBERED` of gateway.mjs.
REMEMBERED = 15.0
TRIES = 3
# The revision of the Hub's tables before the newest one.
BEFORE = "ff1860e38070"


def login(hub: Hub, person: Person) -> str:
    key = (hub.settings.home / "services/authorizer/key").read_text()
    told = passes.opened(key, passes.PASS, (person.client.cookies.get(passes.PASS) or "").strip('"'))
    return str(told and told["login"])


def test_fifty_terminals_come_back_after_the_gateway_began_anew(hub: Hub, people: People, lin: Person) -> None:
    come_in(lin, "papers")
    with ExitStack() as stack:
        terminals = [stack.enter_context(opened(hub, "papers", cookies(lin))) for _ in range(MANY)]
        assert all(map(says, terminals))
        visits = [visit for visit in hub.sessions.gateway.visits() if visit.login == login(hub, lin)]
        [visit] = [visit for visit in visits if visit.session == "papers"]
        assert visit.person == "lin"
        kill(hub, "gateway")
    hub.again()
    wait_until(lambda: lin.client.get("/hub/home").status_code == 200)
    # Until then the waiting page still tells the gateway where the sessions are that have containers.
    wait_until(lambda: routes.COMPLETE in (hub.sessions.gateway.table() or ()))
    people.lead("papers")
    with ExitStack() as stack:
        wait_until(lambda: status(hub, "papers", cookies(lin)) == 200)
        terminals = [stack.enter_context(opened(hub, "papers", cookies(lin))) for _ in range(MANY)]
        assert all(map(says, terminals))
        assert hub.sessions.gateway.end_visits([visit]) == MANY
        assert hub.sessions.gateway.end_visits([Visit("papers", "ghost", "a1")]) == 0


def test_answers_about_owners_are_remembered_as_long_as_the_hub_tells_of_changes(
    hub: Hub, people: People, lin: Person
) -> None:
    token = (hub.settings.home / "services/gateway/token").read_text()
    told = f"http://127.0.0.1:{hub.settings.gateway_api_port}/api/visits"

    def remembered() -> bool:
        """Whether Lin would be let in without a question; nobody asks for the session meanwhile."""
        answer = httpx.get(told, headers={"Authorization": f"token {token}"}, **PATIENTLY)
        return any(session == "long" for (session, *_), _ in answer.raise_for_status().json())

    def stays_remembered() -> bool:
        come_in(lin, "long")
        since = monotonic()
        wait_until(lambda: monotonic() - since > REMEMBERED + 3 or not remembered())
        return remembered()

    people.session("long", "lin")
    # The Hub of a machine that gets nothing done for a while tells nothing either.
    assert any(stays_remembered() for _ in range(TRIES))
    people.lead("long", "http://127.0.0.1:1")  # as another session in its place
    assert not remembered()
    people.lead("long")
    come_in(lin, "long")
    with standing_still(hub, "hub"):
        wait_until(lambda: not remembered())
        assert status(hub, "long", cookies(lin)) == 200
    wait_until(lambda: lin.client.get("/hub/home").status_code == 200)


def columns(hub: Hub) -> set[str]:
    with closing(sqlite3.connect(hub.settings.home / "services/hub/jupyterhub.sqlite")) as database:
        return {row[1] for row in database.execute("PRAGMA table_info(spawners)")}


def test_an_upgraded_hub_takes_its_tables_along_and_disturbs_nobody(hub: Hub, people: People, lin: Person) -> None:
    come_in(lin, "papers")
    file = hub.settings.home / "services/hub/jupyterhub.sqlite"

    def was_killed_with_older_tables() -> bool:
        with standing_still(hub, "hub"), dbutil._temp_alembic_ini(f"sqlite:///{file}") as ini:
            older = [sys.executable, "-m", "alembic", "-c", ini, "downgrade", BEFORE]
            done = subprocess.run(older, check=False, capture_output=True, text=True)
            if "database is locked" in done.stderr:  # the Hub stands still in the middle of a transaction
                return False
            assert done.returncode == 0 and "display_name" not in columns(hub), done.stderr
            kill(hub, "hub")
        return True

    with opened(hub, "papers", cookies(lin)) as terminal:
        wait_until(was_killed_with_older_tables)
        hub.again()
        wait_until(lambda: "display_name" in columns(hub))
        wait_until(lambda: lin.client.get("/hub/home").status_code == 200)
        assert says(terminal) and status(hub, "papers", cookies(lin)) == 200
    assert "/hub/home" in str(lin.client.get("/hub/home").url)  # nobody logs in again
    kept = [one for one in file.parent.iterdir() if one.name.startswith(file.name)]
    assert len(kept) > 1 and {one.stat().st_mode & 0o077 for one in kept} == {0}  # the old tables hold secrets, too


def test_while_the_hub_is_away_people_inside_stay_and_rights_end_still(
    hub: Hub, people: People, lin: Person, ben: Person
) -> None:
    people.session("notes", "lin")
    token = lin.token()
    assert status(hub, "notes", token) == 200
    hub.refit("session", "share", "notes", "--with", "ben")
    ben.log_in()
    come_in(ben, "notes")
    come_in(lin, "notes")
    unseen = lin.token()
    with opened(hub, "notes", cookies(lin)) as terminal:
        kill_for_good(hub)
        assert says(terminal) and status(hub, "notes", token) == 200
        away = httpx.get(f"{hub.settings.gateway_url}/session/papers/api", headers=unseen, **PATIENTLY)
        assert away.status_code == 503 and "Hub is away" in away.text  # nobody else knows this token
        stranger = httpx.get(f"{hub.settings.gateway_url}/hub/login", headers={"Accept": "text/html"}, **PATIENTLY)
        assert stranger.status_code == 503 and "Retry-After" in stranger.headers
        assert "doesn't answer" in hub.fails("session", "unshare", "notes", "--with", "ben")
        assert status(hub, "notes", cookies(ben)) == 200
        kill(hub, "authorizer")  # what it knew stands in a file
        services.up(hub.settings, only=("authorizer",))
        assert status(hub, "notes", cookies(ben)) == 200 and status(hub, "notes", cookies(lin)) == 200
        hub.refit("session", "owner", "notes", "ben")
        wait_until(lambda: status(hub, "notes", cookies(lin)) == 403)
        hub.again()
        wait_until(lambda: lin.client.get("/hub/home").status_code == 200)
    wait_until(
        lambda: not Grants(hub.sessions.store.database).open()
    )  # the share ended with its owner, and stays ended
    hub.refit("session", "owner", "notes", "lin")
    wait_until(lambda: status(hub, "notes", unseen) == 200)
    wait_until(lambda: status(hub, "notes", cookies(ben)) == 403)


def test_nobody_without_the_gateways_token_sees_or_ends_visits(hub: Hub, people: People, lin: Person) -> None:
    url = f"http://127.0.0.1:{hub.settings.gateway_api_port}/api/visits"
    come_in(lin, "papers")
    for headers in ({}, {"Authorization": "token x"}, {"Authorization": ""}, lin.token()):
        assert httpx.get(url, headers=headers, **PATIENTLY).status_code == 403
        assert httpx.request("DELETE", url, headers=headers, json=[], **PATIENTLY).status_code == 403
    own = {"Authorization": f"token {(hub.settings.home / 'services/gateway/token').read_text()}"}
    assert httpx.request("DELETE", url, headers=own, content=b"[" * 2_000_000, **PATIENTLY).status_code == 413
    assert httpx.request("DELETE", url, headers=own, content=b"{", **PATIENTLY).status_code == 400
    assert httpx.get(url, headers=own, **PATIENTLY).status_code == 200
