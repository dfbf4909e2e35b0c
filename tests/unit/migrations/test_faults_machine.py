"""Fault cases 8, 9, 14 and 16: disks, GPUs, looks and snapshots that fail.

Moves are carried out by what really does so: only engine, homes and IDEs are simulated.
"""

from __future__ import annotations

import pytest

from flows.migrations.move_steps import State
from flows.sessions.activity import probes
from flows.sessions.model import Session
from tests.support.simulated.engine import SimulatedEngine
from tests.support.simulated.faults import check_put_off, fail, happening, healthy, move, never_stopped
from tests.support.simulated.fleet import Fleet
from tests.support.waiting import wait_until


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["check room", "pull", "copy"])
def test_f08_where_the_disk_is_full_nobody_is_stopped_and_others_go_on(rollout: Fleet, verb: str) -> None:
    check_put_off(rollout, verb, "middle" if verb == "copy" else "before", "No space left on device")


def test_f09_a_gpu_that_is_taken_between_stop_and_start_sends_the_session_back(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "start", "before", fail("the GPU is taken"))
    result = move(sessions, ada)
    assert result.state is State.rolled_back and "GPU" in result.reason and healthy(sessions, ada)


@pytest.mark.parametrize("why", ["the look took longer than 10 s", "there is no python3"])
def test_f14_who_cannot_be_looked_at_is_busy(sessions: Fleet, ada: Session, why: str) -> None:
    happening(sessions, "shut out", "before", lambda: happening(sessions, "probe", "before", fail(why)))
    result = move(sessions, ada)
    assert result.state is State.deferred and why in result.reason and never_stopped(sessions, ada)


def test_f14_a_last_look_that_could_not_be_made_ready_is_made_all_the_same(sessions: Fleet, ada: Session) -> None:
    happening(sessions, "ready to look", "before", fail("too many processes"))
    assert move(sessions, ada).moved and healthy(sessions, ada)
    assert sessions.world.effects["ready to look"] == sessions.world.effects["probe"] + 1 == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("busy", "late", "shut"), [(False, 1, [False, False, True]), (True, 1, [False, False]), (False, 2, [False] * 3)]
)
def test_f14_a_last_look_that_takes_long_keeps_nobody_out(
    sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch, busy: bool, late: int, shut: list[bool]
) -> None:
    """The door opens before the look has ended; a session that was not seen then is looked at again."""
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


@pytest.mark.parametrize("verb", ["copy", "snapshot"])
@pytest.mark.parametrize("when", ["before", "middle"])
def test_f16_without_a_snapshot_nothing_new_is_started(sessions: Fleet, ada: Session, verb: str, when: str) -> None:
    happening(sessions, verb, when, fail("the copy is not the same"))
    stopped = verb == "snapshot"
    assert move(sessions, ada).state is (State.rolled_back if stopped else State.deferred)
    assert healthy(sessions, ada)
    assert bool(sessions.world.stops[ada.container]) == stopped
