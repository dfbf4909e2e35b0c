"""Which route leads where, and what is told to whoever comes to a session that is away."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.gateway import routes
from flows.gateway.proxy import Gateway
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.move_steps import State
from flows.sessions.containers.podman_records import as_address
from flows.sessions.model import PREFIX, Session
from flows.sessions.store import Store
from flows.waiting_page import page
from flows.waiting_page.app import WaitingPage, application
from flows.waiting_page.housekeeping import knocked_at
from flows.waiting_page.status import Seen, Why, tell
from tests.support.waiting import wait_until

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
ADA = Session(
    *("ada", "jupyter-minimal-deb12-py311", "2026a", f"sha256:{'a' * 64}", 200_000),
    home=Path("/homes/ada"),
    token_file=Path("/sessions/ada/token"),
    access=Access(port=8888, health="/api"),
    environment={PREFIX: routes.path("ada")},
)
MOVE = Move("m", ADA, replace(ADA, image=f"sha256:{'b' * 64}", generation=2), "", State.snapshotted, "", AT)
STOP = Entry("stop", Phase.intent, at=AT + timedelta(seconds=5))


def test_a_session_is_at_a_path_of_its_own_and_a_path_belongs_to_one_session() -> None:
    assert [routes.session(path) for path in ("/session/ada/lab", "/session/ada", "/sessions/ada", "/")] == [
        *("ada", "ada", "", "")
    ]
    assert routes.session(routes.path("ada-2")) == "ada-2"


def test_who_is_led_elsewhere_leaves_nobody_at_an_address_that_was_anothers() -> None:
    table = {"/": routes.WAITING_PAGE, "/session/ada": "http://10.0.0.2:8888", "/session/bob": "http://10.0.0.3:8888"}
    assert routes.leading(table, "ada", "http://10.0.0.2:8888") == {}
    assert routes.leading(table, "ada", "http://10.0.0.9:8888") == {"/session/ada": "http://10.0.0.9:8888"}
    taken = routes.leading(table, "ada", "http://10.0.0.3:8888")
    assert taken == {"/session/bob": routes.WAITING_PAGE, "/session/ada": "http://10.0.0.3:8888"}
    assert list(taken)[-1] == "/session/ada"


def test_only_routes_of_sessions_that_are_gone_are_superfluous() -> None:
    table = dict.fromkeys(("/", routes.COMPLETE, "/session/ada", "/session/bob"), routes.WAITING_PAGE)
    assert routes.superfluous(table, {"ada"}) == ("/session/bob",)


def test_a_gateway_that_never_ran_is_asked_nothing_and_keeps_nobody_waiting(settings: Settings) -> None:
    gateway = Gateway(settings)
    assert not gateway.runs
    gateway.lead("ada", "http://10.0.0.2:8888")
    gateway.turn_away("ada")
    assert gateway.url("/session/ada") == "http://127.0.0.1:17900/session/ada"


@pytest.mark.parametrize(
    ("network", "address"),
    [
        ({"IPAddress": "10.88.0.5"}, ("10.88.0.5", 8888)),
        ({"IPAddress": "", "Networks": {"podman": {"IPAddress": "10.88.0.6"}}}, ("10.88.0.6", 8888)),
        ({"IPAddress": "", "Networks": None}, None),
    ],
)
def test_a_container_that_runs_is_reached_at_its_own_address(
    network: dict[str, object], address: tuple[str, int] | None
) -> None:
    assert as_address({"State": {"Running": True}, "NetworkSettings": network}, 8888) == address
    assert as_address({"State": {"Running": False}, "NetworkSettings": network}, 8888) is None


@pytest.mark.parametrize(
    ("seen", "why", "said"),
    [
        (Seen("ada", None), Why.unknown, "no such session"),
        (Seen("ada", True, AT, True, MOVE, [STOP]), Why.moving, "another image (bbbbbbbbbbbb)"),
        (Seen("ada", True, AT, True, replace(MOVE, state=State.rolling_back), [STOP]), Why.moving, "goes back"),
        (Seen("ada", True, AT, False, MOVE, [STOP]), Why.interrupted, "refit migrate recover"),
        (Seen("ada", False, AT, False, MOVE, [STOP]), Why.stopped, "by its owner"),
        (Seen("ada", False, AT), Why.stopped, "refit session start ada"),
        (Seen("ada", True, AT, True), Why.starting, "is being started"),
        (Seen("ada", True, AT), Why.missing, "refit session start ada"),
    ],
)
def test_everybody_is_told_why_and_what_to_do(seen: Seen, why: Why, said: str) -> None:
    status = tell(seen)
    assert (status.why, status.session) == (why, "ada")
    assert said in f"{status.headline}. {status.text}"


def test_a_move_to_another_profile_names_it_and_says_how_long_it_usually_takes() -> None:
    switched = replace(MOVE, after=replace(MOVE.after, profile="vscode-minimal-deb12-py311"))
    status = tell(Seen("ada", True, AT, True, switched, [STOP], [9.0, 1.0, 4.0]))
    assert "vscode-minimal-deb12-py311" in status.headline
    assert (status.since, status.expected) == (STOP.at, 4.0)
    assert tell(Seen("ada", True, AT, True, MOVE)).expected is None


@pytest.mark.parametrize("seen", [Seen("ada", False, AT), Seen("ada", True, AT), Seen("ada", True, AT, False, MOVE)])
def test_where_people_log_in_no_command_of_the_shell_is_named(seen: Seen) -> None:
    status = tell(replace(seen, page="/services/sessions/sessions/ada"))
    assert "refit " not in status.text and "refit " in tell(seen).text
    if status.page:
        assert 'href="/services/sessions/sessions/ada"' in page.as_html(status)


def test_what_is_told_becomes_no_markup() -> None:
    html = page.as_html(replace(tell(Seen("ada", True)), headline="</h1><script>alert('x')</script>"))
    assert html.count("<script>") == 1 and "alert('x')" not in html


@pytest.fixture
def waiting_page(settings: Settings) -> Starlette:
    """A waiting_page who knows ada, whom nobody has asked to run."""
    settings.folder()
    database = open_database(settings.database)
    Store(database).add("ada", lambda uid: replace(ADA, uid=uid), uids=Span(first=200_000, last=200_001))
    return application(WaitingPage(settings, database))


def ask(waiting_page: Starlette, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=waiting_page)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(asked())


def test_browsers_get_a_page_and_programs_json_both_503_and_for_now(waiting_page: Starlette) -> None:
    browser = ask(waiting_page, "/session/ada/lab?token=secret", Accept="text/html,*/*;q=0.8")
    program = ask(waiting_page, "/session/ada/api/contents/x", "PUT")
    for answer in (browser, program):
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert (answer.headers["Cache-Control"], answer.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert browser.headers["Content-Type"].startswith("text/html")
    assert "ada was stopped" in browser.text and "secret" not in browser.text
    assert program.json()["why"] == json.loads(program.content)["why"] == "stopped"


def test_nobody_is_let_in_who_is_not_there(waiting_page: Starlette) -> None:
    for path in ("/", "/session/eve/lab", "/session/../ada", "/elsewhere"):
        answer = ask(waiting_page, path, Accept="text/html")
        assert answer.status_code == 404 and "Retry-After" not in answer.headers


def test_a_place_that_never_answers_is_seen_by_those_who_wait_there() -> None:
    with socket.socket() as silent, ExitStack() as waiting:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)  # whoever comes after the first is answered nothing
        host, port = silent.getsockname()
        table = {
            "/": routes.WAITING_PAGE,
            "/session/ada": f"http://{host}:{port}",
            "/session/bob": "http://10.0.0.9:8888",
        }
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((host, port))
        wait_until(lambda: knocked_at(table) == ("ada",))
    wait_until(lambda: knocked_at(table) == ())
