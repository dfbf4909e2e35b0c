"""Answers from inside of sessions, and notices of moves that were called off while their sessions were stopped."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flows.migrations.notifications.notifier import Notifier, remove_called_off
from flows.migrations.planning.rollout import Action, Decision, Reason
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.ide.login_notice import LEFT
from flows.sessions.wishes import PreferenceStore
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


@pytest.mark.parametrize(
    ("line", "agreed"),
    [
        ({"action": Action.wait, "reason": Reason.ask}, "new"),
        ({"action": Action.wait, "reason": Reason.ask, "by": "eve"}, ""),
        ({"action": Action.skip, "reason": Reason.unknown_maker}, ""),
    ],
)
def test_an_answer_in_the_home_agrees_to_no_image_by_somebody_elses_recipe(
    sessions: Fleet, monkeypatch: pytest.MonkeyPatch, line: dict[str, object], agreed: str
) -> None:
    ada, charge = sessions.add(1, sessions.image("old")), sessions.sessions
    notice = SimpleNamespace(answer="now", id="new")
    pages = SimpleNamespace(notices=lambda: {"1": notice}, where="in JupyterLab", forget_answer=lambda _: None)
    monkeypatch.setattr(charge, "pages", lambda _: pages)
    History(sessions.database).add(Kind.noticed, session=ada.name, image="new", data={"page": True, "from": ada.image})
    notifier = Notifier(sessions.settings, charge, sessions.database, lambda *_: "", lambda _: None, lambda _: 8.0)
    heard = notifier.hear([Decision(session=ada.name, old=ada.image, new="new", **line)])  # type: ignore[arg-type]
    assert PreferenceStore(sessions.database).of(ada.name).agreed == agreed and bool(heard) is bool(agreed)
