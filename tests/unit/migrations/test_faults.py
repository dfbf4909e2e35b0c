"""Fault cases that need no real container, each by its number (docs/sessions.md lists them all).

Moves are carried out by what really does so: only engine, homes and IDEs are simulated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from flows.catalog.model import Access
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.leases import lease
from flows.core.policy import RolloutPolicy
from flows.images.registry_errors import NoAnswer
from flows.migrations import shutdown_notice
from flows.migrations.executor import LOOK_AGE
from flows.migrations.failure_attribution import PUT_OFF
from flows.migrations.move import Consent
from flows.migrations.move_steps import STEPS, State
from flows.migrations.notifications.teller import Teller
from flows.migrations.orphaned_moves import PATIENCE, IngressReopener, end_abandoned
from flows.migrations.planning.plan import plan
from flows.migrations.planning.rollout import Action, Candidate, PlanInput, Reason
from flows.migrations.results import Result
from flows.migrations.session_planner import SessionPlanner
from flows.migrations.steps.way_back import UNUSED_GRACE
from flows.sessions.activity import probes
from flows.sessions.activity.evidence import Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.homes.copying import NobodyKnows
from flows.sessions.model import Running, Session
from flows.sessions.preferences import UpdatePreferences
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.fleet import LATE, OWN, PROFILE, RELEASE, SILENT, Fleet, fleet
from tests.support.simulated.upsets import IMAGES
from tests.support.simulated.world import Image, Killed, Point, differing
from tests.support.waiting import free_port, wait_until
from tests.unit.core.test_operator_alerts import receiver

TESTS = Path(__file__).parents[2]
DOCS = TESTS.parent / "docs" / "sessions.md"
CASES = range(1, 21)


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    return sessions.add(1, sessions.image("old"))


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Fleet]:
    """Two sessions of one wave, and the image that both are to get."""
    with fleet(tmp_path / "home", waves=[100]) as found, found.in_charge():
        old = found.image("old")
        found.add(1, old)
        found.add(2, old)
        found.image("new")
        yield found


def move(sessions: Fleet, session: Session, image: str = "") -> Result:
    return sessions.carrier().carry_out(sessions.to(session, image or sessions.image("new")))


def happening(sessions: Fleet, verb: str, when: str, what: Callable[[], object]) -> None:
    """The first time that an effect is so far, something happens."""
    left = [what]

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == (verb, when) and left:
            left.pop()()

    sessions.world.meanwhile = meanwhile


def fail(why: str = "it failed") -> Callable[[], None]:
    def failing() -> None:
        raise RefitError(why)

    return failing


def healthy(sessions: Fleet, session: Session) -> bool:
    """It runs, open to people, in the only container that it has, with all that was in its home."""
    recorded = sessions.sessions.store.session(session.name)
    [box] = sessions.world.of(session.name)
    home = sessions.world.homes[str(session.home)]
    assert not differing(sessions.world.owed[str(session.home)], home, OWN)
    assert not sessions.world.snapshots and not sessions.journal.unfinished()
    assert not History(sessions.database).broken()
    return box.session == recorded and box.running is Running.running and not box.shut


def never_stopped(sessions: Fleet, session: Session) -> bool:
    return not sessions.world.stops[session.container] and healthy(sessions, session)


def failing(verb: str, why: str) -> Callable[[Point], None]:
    """An effect fails each time."""

    def meanwhile(point: Point) -> None:
        if (point.verb, point.when) == (verb, "before"):
            raise RefitError(why)

    return meanwhile


def check_put_off(rollout: Fleet, verb: str, when: str, why: str) -> None:
    """What fails once before a stop is no fault of the image: it is tried again, and the wave goes on."""
    planning, session = SessionPlanner(rollout.settings), rollout.sessions.store.session("s1")
    [line, other] = planning.plan([], "", begin=True)
    happening(rollout, verb, when, fail(why))
    result = rollout.carrier().carry_out(line)
    assert (result.state, result.downtime, result.failed) == (State.deferred, None, True) and why in result.reason
    assert never_stopped(rollout, session)
    [waits, goes_on] = planning.plan([], "", begin=True)
    assert (waits.reason, goes_on.action) == (Reason.deferred, Action.migrate)
    assert rollout.carrier().carry_out(other).moved and rollout.carrier().carry_out(line).moved
    [gate] = planning.fleet().rollouts[0].waves
    assert (gate.moved, gate.failed) == (2, 0)


def kill(sessions: Fleet) -> Callable[[], None]:
    def killing() -> None:
        sessions.world.alive = False
        raise Killed

    return killing


MOMENTS = [
    *((verb, when) for verb in ("pull", "create", "stop", "start", "remove", "forget") for when in ("before", "after")),
    *((verb, when) for verb in ("copy", "snapshot") for when in ("before", "middle", "after")),
    *((verb, "before") for verb in ("ready", "check room", "shut out", "compare", "lead", "cell", "end")),
    *((verb, "before") for verb in ("ready to look", "probe")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "when"), MOMENTS)
def test_f01_killed_before_and_after_every_effect_it_arrives(
    sessions: Fleet, ada: Session, verb: str, when: str
) -> None:
    happening(sessions, verb, when, kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    sessions.carrier().resume_all()
    [done] = sessions.journal.history(ada.name)
    assert done.state is State.cleaned and healthy(sessions, ada)


@pytest.mark.parametrize("journalled", [False, True])
def test_f01_a_session_that_a_killed_run_has_left_closed_is_opened_as_soon_as_it_cant_be_stopped_any_more(
    sessions: Fleet, ada: Session, journalled: bool
) -> None:
    def meanwhile(point: Point) -> None:
        closed = any(box.shut for box in sessions.world.of(ada.name))
        if closed and point.verb == ("journal" if journalled else "probe"):
            kill(sessions)()

    sessions.world.meanwhile = meanwhile
    with pytest.raises(Killed):
        move(sessions, ada)
    sessions.world.alive, sessions.world.meanwhile = True, lambda _: None
    doors, [box] = IngressReopener(sessions.sessions, sessions.journal), sessions.world.of(ada.name)[:1]
    assert box.shut and doors.open(now()) == ()
    later = now() + 2 * LOOK_AGE
    assert (doors.open(later), doors.open(later)) == ((ada.name,), ()) and not box.shut
    sessions.carrier().resume_all()
    assert healthy(sessions, sessions.sessions.store.session(ada.name))


@pytest.mark.parametrize("verb", ["copy", "stop", "snapshot", "start", "forget"])
def test_f01_a_session_that_a_killed_run_has_left_away_is_brought_back_without_anybody(
    sessions: Fleet, ada: Session, verb: str
) -> None:
    happening(sessions, verb, "after" if verb in ("stop", "start") else "before", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    journal, later = sessions.journal, now() + 2 * PATIENCE
    assert end_abandoned(journal, sessions.carrier, now()) == ()
    with lease(sessions.database, f"session {ada.name}"):  # somebody is at it
        assert end_abandoned(journal, sessions.carrier, later) == ()
    ended = [result.state for result in end_abandoned(journal, sessions.carrier, later)]
    if verb == "copy":  # it runs still: the next run moves it
        assert ended == [] and journal.unfinished()
    else:
        assert ended == [State.cleaned]
        assert healthy(sessions, sessions.sessions.store.session(ada.name))


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
    results = [rollout.carrier().carry_out(line) for _ in range(PUT_OFF + 1)]
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
    sessions.carrier().resume_all()
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
    assert sessions.carrier().resume_all() == () and sessions.world.effects["start"] == started
    broken = False
    mended = sessions.carrier().reopen(ada.name)
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
    sessions.carrier().resume_all()
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
    [result] = sessions.carrier().resume_all()
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
            sessions.carrier().resume_all()
    with sessions.world.person():
        sessions.sessions.stop(ada.name)
    [result] = sessions.carrier().resume_all()
    assert result.state is State.skipped and result.damaged and "work-10-the thesis" in result.reason
    assert not sessions.world.lost(ada, OWN)


def test_f06_who_deletes_a_session_in_mid_move_never_sees_it_again(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "ready", "before", lambda: None)
    happening(sessions, "start", "after", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
    [result] = sessions.carrier().resume_all()
    assert result.state is State.skipped and "deleted" in result.reason
    assert not sessions.world.of(ada.name) and not sessions.world.snapshots
    assert not sessions.world.lost(ada, OWN)


def test_f06_what_a_bad_image_did_to_the_home_of_a_deleted_session_can_be_undone(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "start", "after", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada, sessions.image("bad", IMAGES["writes into the home"]))
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
    [result] = sessions.carrier().resume_all()
    [kept] = sessions.world.snapshots.values()
    assert not differing(sessions.world.owed[str(ada.home)], kept[""], OWN)
    assert str(sessions.sessions.homes.snapshot(ada.name, sessions.journal.history(ada.name)[-1].id)) in result.reason


def test_f06_what_is_forgotten_of_a_deleted_session_without_a_result_is_forgotten(
    sessions: Fleet, ada: Session
) -> None:
    happening(sessions, "start", "after", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    with sessions.world.person():
        sessions.sessions.remove(ada.name)
    happening(sessions, "forget", "after", fail("it took longer than 60 s and was ended"))
    [held] = sessions.carrier().resume_all()
    assert held.state is State.held
    ended = sessions.carrier().reopen(ada.name)
    assert ended and ended.state is State.skipped and not sessions.world.snapshots


def test_f07_of_two_migrations_of_a_session_one_acts(sessions: Fleet, ada: Session) -> None:
    images = [sessions.image("one"), sessions.image("two")]
    carriers = [sessions.carrier(), sessions.carrier()]
    with ThreadPoolExecutor() as pool:
        pairs = zip(carriers, images, strict=True)
        results = list(pool.map(lambda pair: pair[0].carry_out(sessions.to(ada, pair[1])), pairs))
    assert sorted(result.moved for result in results) == [False, True]
    [other] = [result for result in results if not result.moved]
    assert other.reason == "it was given another image meanwhile" and healthy(sessions, ada)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["check room", "pull", "copy"])
def test_f08_where_the_disk_is_full_nobody_is_stopped_and_others_go_on(rollout: Fleet, verb: str) -> None:
    check_put_off(rollout, verb, "middle" if verb == "copy" else "before", "No space left on device")


def test_f09_a_gpu_that_is_taken_between_stop_and_start_sends_the_session_back(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "start", "before", fail("the GPU is taken"))
    result = move(sessions, ada)
    assert result.state is State.rolled_back and "GPU" in result.reason and healthy(sessions, ada)


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
    assert sessions.carrier().carry_out(line).moved and warned == [0]
    assert "saved at the end" in sessions.world.homes[str(ada.home)]
    assert healthy(sessions, sessions.sessions.store.session(ada.name))


def test_f11_on_days_on_which_nobody_is_moved_no_deadline_counts(tmp_path: Path) -> None:
    freeze = {"first": "2000-01-01", "last": "2999-12-31", "why": "for ever"}
    with fleet(tmp_path / "home", freezes=[freeze]) as sessions:
        ada = sessions.add(1, sessions.image("old"))
        result = sessions.carrier().carry_out(sessions.to(ada, sessions.image("new"), forced=True))
        assert (result.state, result.reason) == (State.deferred, Reason.frozen.text) and never_stopped(sessions, ada)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["pull", "create", "copy", "stop", "snapshot", "start", "remove", "forget"])
def test_f12_what_ends_without_a_result_is_looked_at_and_not_repeated(
    sessions: Fleet, ada: Session, verb: str, when: str
) -> None:
    happening(sessions, verb, when, fail("it took longer than 60 s and was ended"))
    result = move(sessions, ada)
    if result.state is State.held:  # only the cleaning was left
        assert sessions.carrier().reopen(ada.name)
    assert healthy(sessions, ada)


@pytest.mark.parametrize("step", [step.name for step in STEPS])
def test_f13_after_a_reboot_everybody_has_their_session_again(sessions: Fleet, ada: Session, step: str) -> None:
    steps = iter(STEPS)

    def reboot() -> None:
        for box in sessions.world.of(""):
            sessions.world.die(box.session.container)
        kill(sessions)()

    def meanwhile(point: Point) -> None:
        # Two lines of the journal for each step; the reboot comes when the first of them is written.
        begun = (point.verb, point.when) == ("journal", "after") and sessions.world.effects["journal"] % 4 == 2
        if begun and next(steps).name == step:
            reboot()

    sessions.world.meanwhile = meanwhile
    with pytest.raises(Killed):
        move(sessions, ada)
    sessions.world.meanwhile = lambda _: None
    sessions.carrier().resume_all()
    with sessions.world.person():
        assert not sessions.sessions.up()
    assert healthy(sessions, ada)


@pytest.mark.parametrize("why", ["the look took longer than 10 s", "there is no python3"])
def test_f14_who_cannot_be_looked_at_is_busy(sessions: Fleet, ada: Session, why: str) -> None:
    happening(sessions, "shut out", "before", lambda: happening(sessions, "probe", "before", fail(why)))
    result = move(sessions, ada)
    assert result.state is State.deferred and why in result.reason and never_stopped(sessions, ada)


def test_f14_a_last_look_that_could_not_be_made_ready_is_made_all_the_same(sessions: Fleet, ada: Session) -> None:
    def fails_next() -> None:
        happening(sessions, "ready to look", "before", fail("too many processes"))

    happening(sessions, "probe", "before", fails_next)  # the first look only says what is open in it
    assert move(sessions, ada).moved and healthy(sessions, ada)
    assert sessions.world.effects["ready to look"] == sessions.world.effects["probe"] + 1 == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("busy", "late", "shut"), [(False, 1, [False, False, True]), (True, 1, [False, False]), (False, 2, [False] * 3)]
)
def test_f14_a_last_look_that_takes_long_keeps_nobody_out(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch, busy: bool, late: int, shut: list[bool]
) -> None:
    """The door opens before the look has ended; who was not seen then is looked at again."""
    monkeypatch.setattr(probes, "CLOSED_SECONDS", (0.05, 60 if late == 1 else 0.05))
    look, box, doors = SimulatedEngine._look, sessions.world.boxes[ada.container], list[bool]()

    def slow(engine: SimulatedEngine, container: str) -> str:
        if 1 <= len(doors) <= late:  # the first only says what is open in it
            wait_until(lambda: not box.shut)
        doors.append(box.shut)
        return look(engine, container)

    monkeypatch.setattr(SimulatedEngine, "_look", slow)
    happening(sessions, "shut out", "before", lambda: sessions.world.busy.update([ada.name] if busy else []))
    result = move(sessions, ada)
    assert doors == shut and result.moved == shut[-1]
    assert healthy(sessions, ada if not result.moved else sessions.sessions.store.session(ada.name))
    if not result.moved:
        assert result.state is State.deferred and ("train.py" if busy else "can't be seen") in result.reason


def test_f15_a_tag_that_moves_meanwhile_moves_nobody(sessions: Fleet, ada: Session) -> None:
    planned = sessions.image("planned")
    happening(sessions, "pull", "before", lambda: sessions.image("newer"))
    assert move(sessions, ada, planned).moved
    assert sessions.sessions.store.session(ada.name).image == planned and healthy(sessions, ada)


@pytest.mark.parametrize("verb", ["copy", "snapshot"])
@pytest.mark.parametrize("when", ["before", "middle"])
def test_f16_without_a_snapshot_nothing_new_is_started(sessions: Fleet, ada: Session, verb: str, when: str) -> None:
    happening(sessions, verb, when, fail("the copy is not the same"))
    stopped = verb == "snapshot"
    assert move(sessions, ada).state is (State.rolled_back if stopped else State.deferred)
    assert healthy(sessions, ada)
    assert bool(sessions.world.stops[ada.container]) == stopped


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
            teller = Teller(
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
        assert sessions.carrier().carry_out(replace(line, action=Action.migrate)).moved
        kinds = [event.kind for event in History(sessions.database).events(ada.name) if "notice" in event.kind]
        assert kinds == [Kind.not_noticed, Kind.noticed]


def test_f18_what_the_new_image_would_break_waits_for_its_owner() -> None:
    session = Session("ada", PROFILE, RELEASE, "sha256:old", 200001, Path("/h"), Path("/t"), access=None)  # type: ignore[arg-type]
    now = datetime(2026, 11, 21, 9, tzinfo=UTC)
    idle = Seen("ada", Verdict.idle, now, True, ())
    ada = Candidate(session, running=True, seen=idle, blocked="numpy is built for Python 3.11")
    rollout = PlanInput(now, {(PROFILE, RELEASE): "sha256:new"}, RolloutPolicy())
    [line] = plan([ada], rollout)
    assert (line.action, line.reason) == (Action.wait, Reason.blocked) and "numpy" in line.detail
    [agreed] = plan([replace(ada, wish=UpdatePreferences(agreed="sha256:new"))], rollout)
    assert agreed.action is Action.migrate


def test_f20_a_container_that_was_made_by_hand_is_left_alone(sessions: Fleet, ada: Session) -> None:
    box = sessions.world.boxes[ada.container]
    box.session = replace(ada, environment={"BY": "hand"})
    result = move(sessions, ada)
    assert result.state is State.deferred and "made otherwise" in result.reason
    assert sessions.world.of(ada.name) == [box] and not sessions.world.stops


def test_every_fault_case_has_a_test_with_its_number_and_the_docs_name_them() -> None:
    defined = {
        name: int(number)
        for file in TESTS.rglob("*.py")
        for name, number in re.findall(r"^\s*def (test_f0*(\d+)_\w+)", file.read_text(), re.MULTILINE)
    }
    assert set(defined.values()) == set(CASES)
    rows = dict(re.findall(r"^\| F(\d+) \|.*\| (.*) \|$", DOCS.read_text(), re.MULTILINE))
    assert list(map(int, rows)) == list(CASES)
    for number, names in rows.items():
        listed = re.findall(r"`(test_\w+)`", names)
        assert listed and {defined.get(name) for name in listed} == {int(number)}, f"F{number}: {listed}"
