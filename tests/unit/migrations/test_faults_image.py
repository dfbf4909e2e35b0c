"""Fault cases 2, 3, 15 and 18: images that are gone, bad, replaced, or break a home.

Moves are carried out by what really does so: only engine, homes and IDEs are simulated.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.settings.policy import RolloutPolicy
from flows.images.registry_errors import NoAnswer
from flows.migrations.move_steps import State
from flows.migrations.planning.plan import plan
from flows.migrations.planning.rollout import Action, Candidate, PlanInput, Reason
from flows.migrations.recovery import recover_all
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.steps.compensations import UNUSED_GRACE
from flows.migrations.steps.failure_attribution import PUT_OFF
from flows.sessions.activity.evidence import Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.homes.copying import NobodyKnows
from flows.sessions.model import Running, Session, TokenRef
from flows.sessions.preferences import UpdatePreferences
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.faults import check_put_off, fail, failing, happening, healthy, kill, move, never_stopped
from tests.support.simulated.fleet import LATE, OWN, PROFILE, RELEASE, SILENT, Fleet, fleet
from tests.support.simulated.upsets import IMAGES
from tests.support.simulated.world import Image, Killed, Point


def test_f02_an_image_that_is_gone_from_the_registry_fails_and_nobody_is_stopped(sessions: Fleet, ada: Session) -> None:
    new = sessions.image("new")
    del sessions.world.images[new]
    result = move(sessions, ada, new)
    assert (result.state, result.downtime) == (State.rolled_back, None) and "no image" in result.reason
    assert never_stopped(sessions, ada)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "when", "why"),
    [
        ("pull", "before", "401: the credentials have expired"),
        ("pull", "after", "it took longer than 3600 s and was ended"),
        ("create", "before", "No space left on device"),
    ],
)
def test_f02_what_fails_for_one_session_before_its_stop_is_tried_again_and_others_go_on(
    rollout: Fleet, verb: str, when: str, why: str
) -> None:
    check_put_off(rollout, verb, when, why)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["ready", "check room", "shut out"])
def test_f02_nobody_is_tried_for_ever(rollout: Fleet, verb: str) -> None:
    planning, session = SessionPlanner(rollout.settings), rollout.sessions.store.session("s1")
    [line, _] = planning.plan([], "", begin=True)
    rollout.world.meanwhile = failing(verb, "it fails again")
    results = [rollout.executor().carry_out(line) for _ in range(PUT_OFF + 1)]
    assert [result.state for result in results] == [State.deferred] * PUT_OFF + [State.rolled_back]
    assert all(result.failed and "it fails again" in result.reason for result in results)
    rollout.world.meanwhile = lambda _: None
    assert never_stopped(rollout, session)
    [gone, other] = planning.plan([], "", begin=True)
    assert gone.reason is Reason.failed and other.detail == "100 %: failed"


@pytest.mark.slow
def test_f02_what_is_interrupted_before_the_stop_is_no_fault_of_the_image(sessions: Fleet, ada: Session) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    new = sessions.image("new")
    happening(sessions, "copy", "middle", interrupt)
    with pytest.raises(KeyboardInterrupt):
        move(sessions, ada, new)
    assert sessions.journal.latest()[ada.name].state is State.deferred and never_stopped(sessions, ada)
    assert move(sessions, ada, new).moved


@pytest.mark.slow
def test_f02_while_the_registry_is_away_nobody_is_stopped_and_nothing_is_said_of_the_image(
    sessions: Fleet, ada: Session
) -> None:
    def away() -> None:
        raise NoAnswer("The image registry doesn't answer.")

    happening(sessions, "pull", "before", away)
    result = move(sessions, ada)
    assert (result.state, result.failed) == (State.deferred, False) and "doesn't answer" in result.reason
    assert never_stopped(sessions, ada)
    assert move(sessions, ada).moved


@pytest.mark.parametrize("kind", [kind for kind in IMAGES if kind != "good"])
def test_f03_an_image_that_isnt_good_is_rolled_back(sessions: Fleet, ada: Session, kind: str) -> None:
    result = move(sessions, ada, sessions.image(kind, IMAGES[kind]))
    assert result.state is State.rolled_back and result.reason
    assert healthy(sessions, ada)


def test_f03_an_image_whose_ide_cant_be_imported_is_to_blame(sessions: Fleet) -> None:
    bob = sessions.add(2, sessions.image("old"), LATE)
    happening(sessions, "warm", "after", fail())
    assert move(sessions, bob, sessions.image("new")).state is State.rolled_back
    assert healthy(sessions, bob)


def test_f03_on_the_way_back_the_old_ide_is_imported_before_the_new_one_is_stopped(sessions: Fleet) -> None:
    bob = sessions.add(2, sessions.image("old"), LATE)
    happened: list[str] = []

    def meanwhile(point: Point) -> None:
        box = sessions.world.boxes[bob.container]
        if box.running is Running.running and not box.bound and (point.when == "before" or point.verb == "restore"):
            happened.append(point.verb)

    sessions.world.meanwhile = meanwhile
    result = move(sessions, bob, sessions.image("bad", IMAGES["writes into the home"]))
    assert result.state is State.rolled_back and healthy(sessions, bob)
    done = [verb for verb in happened if verb in ("stop", "restore", "start", "ready")]
    assert done == ["stop", "restore", "restore", "restore", "start"], "it has its home when that is as it was"
    notes = {entry.step: entry.note for entry in sessions.journal.entries(sessions.journal.latest()[bob.name])}
    assert (notes["rewarm"], notes["restore"][:9]) == ("", "restored:")


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_f03_an_old_ide_that_cant_be_imported_before_is_started_when_the_home_is_there(
    sessions: Fleet, killed: bool, when: str
) -> None:
    bob = sessions.add(2, sessions.image("old"), LATE)
    upset = kill(sessions) if killed else fail()
    happening(sessions, "start", "after", lambda: happening(sessions, "warm", when, upset))  # the second time
    with suppress(Killed):
        move(sessions, bob, sessions.image("bad", IMAGES["writes into the home"]))
    recover_all(sessions.executor())
    [done] = sessions.journal.history(bob.name)
    assert done.state is State.rolled_back and healthy(sessions, bob)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "grace"), [("never ready", UNUSED_GRACE), ("miscalculates", 20.0)])
def test_f03_who_has_nothing_to_save_has_little_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, grace: float
) -> None:
    given: dict[str, float] = {}
    stop = SimulatedEngine.stop

    def stops(engine: SimulatedEngine, container: str, grace: float, settle: bool = True) -> None:
        given.setdefault(container, grace)
        stop(engine, container, grace, settle)

    monkeypatch.setattr(SimulatedEngine, "stop", stops)
    with fleet(tmp_path / "home") as sessions:
        sessions.settings = sessions.settings.model_copy(update={"stop_grace_seconds": 20.0})
        ada = sessions.add(1, sessions.image("old"))
        happening(sessions, "cell", "before", lambda: sessions.world.work(ada.name, "the thesis"))
        assert move(sessions, ada, sessions.image(kind, IMAGES[kind])).state is State.rolled_back
        assert given[replace(ada, generation=2).container] == grace


@pytest.mark.slow
def test_f03_an_image_that_is_healthy_and_then_dies_is_rolled_back(tmp_path: Path) -> None:
    with fleet(tmp_path / "home", watch_seconds=0.2) as sessions:
        ada = sessions.add(1, sessions.image("old"))
        new = replace(ada, image=sessions.image("new"), generation=ada.generation + 1)

        def meanwhile(point: Point) -> None:
            if point.verb == "containers" and sessions.world.effects["cell"]:
                sessions.world.die(new.container)

        sessions.world.meanwhile = meanwhile
        result = move(sessions, ada, new.image)
        assert result.state is State.rolled_back and "ended within 0.2 s" in result.reason
        assert healthy(sessions, ada)


@pytest.mark.parametrize("access", [SILENT, SILENT.model_copy(update={"late_home": False})])
def test_f03_who_comes_back_at_once_to_an_ide_that_says_nothing_of_it_stays_in(sessions: Fleet, access: Access) -> None:
    bob = sessions.add(2, sessions.image("old"), access)
    happening(sessions, "lead", "after", lambda: sessions.world.work(bob.name, "at once"))
    result = move(sessions, bob)
    assert (result.state, result.damaged) == (State.cleaned, False), result.reason
    assert "work-7-at once" in sessions.world.homes[str(bob.home)] and healthy(sessions, bob)


@pytest.mark.parametrize("access", [SILENT, SILENT.model_copy(update={"late_home": False})])
@pytest.mark.parametrize("somebody", [False, True])
def test_f03_a_home_that_an_image_spoils_before_anybody_is_let_in_gets_back_what_it_had(
    sessions: Fleet, access: Access, somebody: bool
) -> None:
    bob = sessions.add(2, sessions.image("old"), access)
    if somebody:
        happening(sessions, "compare", "before", lambda: sessions.world.work(bob.name, "at once"))
    result = move(sessions, bob, sessions.image("bad", Image(spoils={"new": "unasked"})))
    assert not result.moved and "new: new" in result.reason
    assert not result.damaged and "new" not in sessions.world.homes[str(bob.home)]
    assert not sessions.world.lost(bob, (*OWN, "new"))


@pytest.mark.parametrize(("kind", "ends"), [("good", State.cleaned), ("writes into the home", State.rolled_back)])
def test_f03_a_home_that_nobody_can_compare_in_time_keeps_nobody_waiting(
    sessions: Fleet, ada: Session, kind: str, ends: State
) -> None:
    """Sizes and times are compared instead; where it has to go back, it is brought back without a comparison."""
    asked = []

    def slow(point: Point) -> None:
        if point.verb == "compare":
            asked.append(point)
            if len(asked) % 2:  # the other ones are at a glance
                raise NobodyKnows("Whether it is as it was can't be said.")

    sessions.world.meanwhile = slow
    assert move(sessions, ada, sessions.image("new", IMAGES[kind])).state is ends
    assert healthy(sessions, ada) and asked
    notes = "\n".join(entry.note for entry in sessions.journal.entries(sessions.journal.latest()[ada.name]))
    assert "can't be said" in notes


def test_f15_a_tag_that_moves_meanwhile_moves_nobody(sessions: Fleet, ada: Session) -> None:
    planned = sessions.image("planned")
    happening(sessions, "pull", "before", lambda: sessions.image("newer"))
    assert move(sessions, ada, planned).moved
    assert sessions.sessions.store.session(ada.name).image == planned and healthy(sessions, ada)


def test_f18_what_the_new_image_would_break_waits_for_its_owner() -> None:
    session = Session("ada", PROFILE, RELEASE, "sha256:old", 200001, Path("/h"), TokenRef("/t"), access=None)  # type: ignore[arg-type]
    now = datetime(2026, 11, 21, 9, tzinfo=UTC)
    idle = Seen("ada", Verdict.idle, now, True, ())
    ada = Candidate(session, running=True, seen=idle, blocked="numpy is built for Python 3.11")
    rollout = PlanInput(now, {(PROFILE, RELEASE): "sha256:new"}, RolloutPolicy())
    [line] = plan([ada], rollout)
    assert (line.action, line.reason) == (Action.wait, Reason.blocked) and "numpy" in line.detail
    [agreed] = plan([replace(ada, wish=UpdatePreferences(agreed="sha256:new"))], rollout)
    assert agreed.action is Action.migrate
