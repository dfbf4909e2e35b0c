"""Fault cases 1, 12 and 13: runs that are killed, results that are lost, and reboots.

Moves are carried out by what really does so: only engine, homes and IDEs are simulated.
"""

from __future__ import annotations

import pytest

from flows.catalog.model import Access
from flows.core.database import now
from flows.core.leases import lease
from flows.migrations.move import LOOK_AGE, Entry
from flows.migrations.move_steps import OF_EVERY_MOVE, State
from flows.migrations.orphaned_moves import PATIENCE, IngressReopener, end_abandoned
from flows.migrations.recovery import recover_all, reopen
from flows.sessions.activity import hook
from flows.sessions.ide.login_notice import LEFT
from flows.sessions.model import Session
from tests.support.simulated.faults import fail, happening, healthy, kill, move
from tests.support.simulated.fleet import ACCESS, LATE, Fleet
from tests.support.simulated.world import Killed, Point

MOMENTS = [
    *((verb, when) for verb in ("pull", "create", "stop", "start", "remove", "forget") for when in ("before", "after")),
    *((verb, when) for verb in ("favour", "level") for when in ("before", "after")),
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
    recover_all(sessions.executor())
    [done] = sessions.journal.history(ada.name)
    assert done.state is State.cleaned and healthy(sessions, ada)


@pytest.mark.parametrize("access", [ACCESS, LATE], ids=["cold", "warm"])
def test_a_session_has_a_higher_weight_until_the_commit_and_no_longer(sessions: Fleet, access: Access) -> None:
    bob = sessions.add(2, sessions.image("old"), access)
    weights: dict[str, bool] = {}

    def meanwhile(point: Point) -> None:
        if point.verb in ("stop", "ready", "level"):
            weights[f"{point.when} {point.verb}"] = any(box.favoured for box in sessions.world.of(bob.name))

    sessions.world.meanwhile = meanwhile
    assert move(sessions, bob).state is State.cleaned
    assert weights["before stop"] == access.late_home  # a warm one waits already, and nobody waits for its update
    assert weights["before ready"] and weights["before level"] and not weights["after level"]


@pytest.mark.slow
@pytest.mark.parametrize("access", [ACCESS, LATE], ids=["cold", "warm"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["favour", "start", "level", "remove"])
def test_a_killed_run_leaves_no_session_with_a_higher_weight(
    sessions: Fleet, access: Access, verb: str, when: str
) -> None:
    bob = sessions.add(2, sessions.image("old"), access)
    happening(sessions, verb, when, kill(sessions))
    with pytest.raises(Killed):
        move(sessions, bob)
    recover_all(sessions.executor())
    assert healthy(sessions, bob)  # which looks at the weight, too


def test_a_notice_that_a_killed_run_has_removed_is_no_change_by_the_new_image(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = sessions.world.homes
    homes[str(ada.home)][LEFT] = "This session moves at noon."

    def killed(*_: object) -> str:
        if homes[str(ada.home)].pop(LEFT, ""):
            kill(sessions)()
        return ""

    monkeypatch.setattr(hook, "disproof", killed)
    with pytest.raises(Killed):
        move(sessions, ada)
    recover_all(sessions.executor())
    [done] = sessions.journal.history(ada.name)
    assert done.state is State.cleaned and healthy(sessions, ada)


def test_a_session_that_cant_have_a_higher_weight_is_moved_all_the_same(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "favour", "before", fail("no control groups"))
    assert move(sessions, ada).moved and healthy(sessions, ada)
    assert any("its CPU weight stays as it was" in entry.note for entry in _entries(sessions, ada))


def test_a_weight_that_cant_be_taken_back_is_left_to_a_recovery(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "level", "before", fail("Podman took too long"))
    assert move(sessions, ada).state is State.held
    assert reopen(sessions.executor(), ada.name)
    assert healthy(sessions, ada)


def _entries(sessions: Fleet, session: Session) -> tuple[Entry, ...]:
    [moved] = sessions.journal.history(session.name)
    return sessions.journal.entries(moved)


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
    recover_all(sessions.executor())
    assert healthy(sessions, sessions.sessions.store.session(ada.name))


@pytest.mark.parametrize("verb", ["copy", "stop", "snapshot", "start", "forget"])
def test_f01_a_session_that_a_killed_run_has_left_away_is_brought_back_without_anybody(
    sessions: Fleet, ada: Session, verb: str
) -> None:
    happening(sessions, verb, "after" if verb in ("stop", "start") else "before", kill(sessions))
    with pytest.raises(Killed):
        move(sessions, ada)
    journal, later = sessions.journal, now() + 2 * PATIENCE
    assert end_abandoned(journal, sessions.executor, now()) == ()
    with lease(sessions.database, f"session {ada.name}"):  # somebody is at it
        assert end_abandoned(journal, sessions.executor, later) == ()
    ended = [result.state for result in end_abandoned(journal, sessions.executor, later)]
    if verb == "copy":  # it runs still: the next run moves it
        assert ended == [] and journal.unfinished()
    else:
        assert ended == [State.cleaned]
        assert healthy(sessions, sessions.sessions.store.session(ada.name))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["pull", "create", "copy", "stop", "snapshot", "start", "remove", "forget"])
def test_f12_what_ends_without_a_result_is_looked_at_and_not_repeated(
    sessions: Fleet, ada: Session, verb: str, when: str
) -> None:
    happening(sessions, verb, when, fail("it took longer than 60 s and was ended"))
    result = move(sessions, ada)
    if result.state is State.held:  # only the cleaning was left
        assert reopen(sessions.executor(), ada.name)
    assert healthy(sessions, ada)


@pytest.mark.parametrize("step", [step.name for step in OF_EVERY_MOVE])
def test_f13_after_a_reboot_everybody_has_their_session_again(sessions: Fleet, ada: Session, step: str) -> None:
    steps = iter(OF_EVERY_MOVE)

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
    recover_all(sessions.executor())
    with sessions.world.person():
        assert not sessions.sessions.up()
    assert healthy(sessions, ada)
