"""Fault cases 4 to 7, 10, 11, 17 and 20: what people do meanwhile, and what they have to be told.

Moves are carried out by what really does so: only engine, homes and IDEs are simulated.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from flows.core.errors import RefitError
from flows.migrations.move import Consent
from flows.migrations.move_steps import State
from flows.migrations.notifications.notifier import Notifier
from flows.migrations.planning.rollout import Action, Reason
from flows.migrations.recovery import recover_all, reopen
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.steps import shutdown_notice
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.model import Running, Session
from tests.support.receiver import receiver
from tests.support.simulated.faults import fail, happening, healthy, kill, move, never_stopped
from tests.support.simulated.fleet import OWN, SILENT, Fleet, fleet
from tests.support.simulated.upsets import IMAGES
from tests.support.simulated.world import Killed, Point, differing
from tests.support.waiting import free_port


def test_f04_where_the_way_back_fails_nothing_more_happens_until_a_person_has_looked(
    sessions: Fleet, ada: Session
) -> None:
    broken = True

    def meanwhile(point: Point) -> None:
        if broken and (point.verb, point.when) == ("start", "before"):
            raise RefitError("no container starts")

    sessions.world.meanwhile = meanwhile
    new = sessions.image("new")
    assert move(sessions, ada, new).state is State.held
    assert ada in [box.session for box in sessions.world.of(ada.name)] and sessions.world.snapshots
    started = sessions.world.effects["start"]
    assert recover_all(sessions.executor()) == () and sessions.world.effects["start"] == started
    broken = False
    mended = reopen(sessions.executor(), ada.name)
    assert mended and mended.state is State.rolled_back and healthy(sessions, ada)


@pytest.mark.parametrize(("verb", "state"), [("stop", Running.stopped), ("start", Running.running)])
def test_f05_who_stops_or_starts_a_session_while_nobody_looks_has_it_so(
    sessions: Fleet, ada: Session, verb: str, state: Running
) -> None:
    happening(sessions, "snapshot", "before", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    with sessions.world.person():
        getattr(sessions.sessions, verb)(ada.name)
    recover_all(sessions.executor())
    [box] = sessions.world.of(ada.name)
    assert (box.session, box.running) == (ada, state)


def test_f05_who_starts_a_session_after_a_stop_that_was_cut_short_is_not_stopped_again(
    sessions: Fleet, ada: Session
) -> None:
    happening(sessions, "stop", "after", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    with sessions.world.person():
        sessions.sessions.start(ada.name)
    sessions.world.work(ada.name, "at once")
    [result] = recover_all(sessions.executor())
    assert result.state is State.rolled_back and "started by somebody else" in result.reason
    assert sessions.world.stops[ada.container] == 1 and healthy(sessions, ada)


@pytest.mark.parametrize("again", [False, True])
def test_f05_what_somebody_did_while_nobody_watched_stays_whoever_ends_the_move(
    sessions: Fleet, ada: Session, again: bool
) -> None:
    """The one case of 10,000 in which work was lost: it was done in a new container that its owner stopped then."""
    happening(sessions, "compare", "before", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    sessions.world.work(ada.name, "the thesis")
    if again:  # one that goes on with the move sees the container run, and is killed as well
        happening(sessions, "compare", "before", kill(sessions))
        with pytest.raises(Killed):
            recover_all(sessions.executor())
    with sessions.world.person():
        sessions.sessions.stop(ada.name)
    [result] = recover_all(sessions.executor())
    assert result.state is State.skipped and result.damaged and "work-10-the thesis" in result.reason
    assert not sessions.world.lost(ada, OWN)


def test_f06_who_deletes_a_session_in_mid_move_never_sees_it_again(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "ready", "before", lambda: None)
    happening(sessions, "start", "after", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
    [result] = recover_all(sessions.executor())
    assert result.state is State.skipped and "deleted" in result.reason
    assert not sessions.world.of(ada.name) and not sessions.world.snapshots
    assert not sessions.world.lost(ada, OWN)


def test_f06_what_a_bad_image_did_to_the_home_of_a_deleted_session_can_be_undone(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "start", "after", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada, sessions.image("bad", IMAGES["writes into the home"]))
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
    [result] = recover_all(sessions.executor())
    [kept] = sessions.world.snapshots.values()
    assert not differing(sessions.world.owed[str(ada.home)], kept[""], OWN)
    assert sessions.sessions.homes.snapshot_place(ada.name, sessions.journal.history(ada.name)[-1].id) in result.reason


def test_f06_what_is_forgotten_of_a_deleted_session_without_a_result_is_forgotten(
    sessions: Fleet, ada: Session
) -> None:
    happening(sessions, "start", "after", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
    happening(sessions, "forget", "after", fail("it took longer than 60 s and was ended"))
    [held] = recover_all(sessions.executor())
    assert held.state is State.held
    ended = reopen(sessions.executor(), ada.name)
    assert ended and ended.state is State.skipped and not sessions.world.snapshots


def test_f07_of_two_migrations_of_a_session_one_acts(sessions: Fleet, ada: Session) -> None:
    images = [sessions.image("one"), sessions.image("two")]
    carriers = [sessions.executor(), sessions.executor()]
    with ThreadPoolExecutor() as pool:
        pairs = zip(carriers, images, strict=True)
        results = list(pool.map(lambda pair: pair[0].carry_out(sessions.to(ada, pair[1])), pairs))
    assert sorted(result.moved for result in results) == [False, True]
    [other] = [result for result in results if not result.moved]
    assert other.reason == "it was given another image meanwhile" and healthy(sessions, ada)


def test_f10_work_that_begins_before_the_stop_is_seen(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "shut out", "before", lambda: sessions.world.busy.add(ada.name))
    result = move(sessions, ada)
    assert result.state is State.deferred and "train.py" in result.reason and never_stopped(sessions, ada)


@pytest.mark.parametrize("consent", [Consent.forced, Consent.agreed])
def test_f11_whoever_works_at_the_deadline_or_has_agreed_is_warned_and_moved(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch, consent: Consent
) -> None:
    warned = list[int]()
    monkeypatch.setattr(shutdown_notice, "warn", lambda *_: warned.append(sessions.world.stops[ada.container]))
    sessions.world.busy.add(ada.name)
    line = sessions.to(ada, sessions.image("new"), forced=consent is Consent.forced, agreed=consent is Consent.agreed)
    assert line.consent is consent
    assert sessions.executor().carry_out(line).moved and warned == [0]
    assert "saved at the end" in sessions.world.homes[str(ada.home)]
    assert healthy(sessions, sessions.sessions.store.session(ada.name))


def test_f11_on_days_on_which_nobody_is_moved_no_deadline_counts(tmp_path: Path) -> None:
    freeze = {"first": "2000-01-01", "last": "2999-12-31", "why": "for ever"}
    with fleet(tmp_path / "home", freezes=[freeze]) as sessions:
        ada = sessions.add(1, sessions.image("old"))
        result = sessions.executor().carry_out(sessions.to(ada, sessions.image("new"), forced=True))
        assert (result.state, result.reason) == (State.deferred, Reason.frozen.text) and never_stopped(sessions, ada)


@pytest.mark.slow
def test_f17_while_the_channel_is_down_nobody_is_forced(tmp_path: Path) -> None:
    soon = {"deadline_days": 1e-6, "notice_hours": 0}
    with fleet(tmp_path / "home", waves=[100], sessions=soon) as sessions, sessions.in_charge():
        ada = sessions.add(1, sessions.image("old"), SILENT)
        sessions.image("new")
        sessions.world.busy.add(ada.name)
        planning = SessionPlanner(sessions.settings)

        def told(address: str) -> bool:
            outside = sessions.settings.model_copy(update={"notify_owners": {"*": (SecretStr(address),)}})
            teller = Notifier(
                outside, sessions.sessions, sessions.database, lambda *_: "", planning.deadline, planning.keeps
            )
            return bool(teller.tell(planning.plan([], "", begin=True)))

        assert not told(f"json://127.0.0.1:{free_port()}/")
        [line] = planning.plan([], "", begin=True)
        assert (line.action, line.deadline, line.forced) == (Action.wait, None, False)
        with receiver() as (url, received):
            assert told(url) and len(received) == 1
        [line] = planning.plan([], "", begin=True)
        assert line.deadline and line.forced
        assert sessions.executor().carry_out(replace(line, action=Action.migrate)).moved
        kinds = [event.kind for event in History(sessions.database).events(ada.name) if "notice" in event.kind]
        assert kinds == [Kind.not_noticed, Kind.noticed]


def test_f20_a_container_that_was_made_by_hand_is_left_alone(sessions: Fleet, ada: Session) -> None:
    box = sessions.world.boxes[ada.container]
    box.session = replace(ada, environment={"BY": "hand"})
    result = move(sessions, ada)
    assert result.state is State.deferred and "differs from Refit's record" in result.reason
    assert sessions.world.of(ada.name) == [box] and not sessions.world.stops
