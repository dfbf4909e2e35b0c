"""Notices of moves that were called off while their sessions were stopped go at the next start."""

from __future__ import annotations

import pytest

from flows.migrations.notifications.notifier import remove_called_off
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.ide.login_notice import LEFT
from tests.support.simulated.fleet import Fleet


@pytest.mark.parametrize(
    ("kinds", "goes"),
    [
        ((), False),
        ((Kind.noticed,), False),
        ((Kind.not_noticed, Kind.withdrawn), True),
        ((Kind.noticed, Kind.withdrawn, Kind.seen), True),
        ((Kind.noticed, Kind.withdrawn, Kind.noticed), False),
    ],
)
def test_a_notice_that_was_called_off_goes_and_one_that_holds_stays(
    sessions: Fleet, monkeypatch: pytest.MonkeyPatch, kinds: tuple[Kind, ...], goes: bool
) -> None:
    ada, bob = sessions.add(1, sessions.image("old")), sessions.add(2, sessions.image("old"))
    history, called = History(sessions.database), list[str]()
    history.add(Kind.withdrawn, session=bob.name, image="new")
    for kind in kinds:
        history.add(kind, session=ada.name, image="new")
    charge = sessions.sessions
    monkeypatch.setattr(charge.engine, "execute", lambda container, argv, **_: called.append(argv[-1]) or "")
    remove_called_off(charge, history, ada)
    assert [f"rm -f {LEFT}" in call for call in called] == [True] * goes
