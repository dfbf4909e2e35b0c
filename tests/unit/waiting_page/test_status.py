"""The reason that is given to people who come to a session that is away."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flows.catalog.model import Access
from flows.gateway import routes
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.move_steps import State
from flows.sessions.model import PREFIX, HomeRef, Session, TokenRef
from flows.waiting_page import page
from flows.waiting_page.status import Seen, Why, tell

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
ADA = Session(
    *("ada", "jupyter-minimal-deb12-py311", "2026a", f"sha256:{'a' * 64}", 200_000),
    home=HomeRef("/homes/ada"),
    token_ref=TokenRef("/sessions/ada/token"),
    access=Access(port=8888, health="/api"),
    environment={PREFIX: routes.path("ada")},
)
MOVE = Move("m", ADA, replace(ADA, image=f"sha256:{'b' * 64}", generation=2), "", State.snapshotted, "", AT)
STOP = Entry("stop", Phase.intent, at=AT + timedelta(seconds=5))


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
