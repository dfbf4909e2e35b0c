"""The state machine against a made-up world in which everything goes wrong at any moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flows.migrations.move import (
    ATTEMPTS,
    Do,
    End,
    Entry,
    GiveUp,
    Move,
    Next,
    Phase,
    Seen,
    Undo,
    decide,
    leads_to,
    state,
)
from flows.migrations.move_steps import FINAL, REVERT, STEPS, Code, State, Step, StepName, may_say, require_complete
from flows.sessions.model import Running, Session
from tests.support.examples import several
from tests.support.pods import SESSION
from tests.support.simulated.steps import BY_NAME, CRASHES, PEOPLE, World, turn, undoing

QUIET = Seen(session=True, should_run=True, old=Running.running, new=None)
FORWARD = [step.name for step in STEPS if step is not REVERT]
MOST_STEPS = 2 * len(STEPS) * (ATTEMPTS + 1) * 2


def entries(*lines: str) -> list[Entry]:
    """`create!` is an intent, `create` an intent and that it was done, `create-` that it failed."""
    results = []
    for line in lines:
        name = line.rstrip("!-")
        results.append(Entry(name, Phase.intent))
        if line.endswith("-"):
            results.append(Entry(name, Phase.failed, "because"))
        elif not line.endswith("!"):
            results.append(Entry(name, Phase.done))
    return results


UPSETS = st.sampled_from(["none"] * 4 + CRASHES + PEOPLE + ["fail", "new dies", "somebody works", "time passes"])


@pytest.mark.slow
@settings(max_examples=several(500), deadline=None)
@example(["none"] * 9 + ["fail"], True)  # the snapshot doesn't come back, beside a container that is warm
@given(st.lists(UPSETS, max_size=40), st.booleans())
def test_whatever_happens_it_ends_and_nothing_is_lost(upsets: list[str], reverts: bool) -> None:
    world, end = World(reverts=reverts), None
    for number in range(MOST_STEPS):
        end = turn(world, upsets[number] if number < len(upsets) else "none")
        if end:
            break
    assert end, "it does not terminate"
    assert end.state in FINAL
    reached = [result for entry in world.journal if (result := leads_to(entry))]
    assert (reached or [State.planned])[-1] == state(world.journal), "a line by itself says the same as all of them"
    check_the_end(world, end, touched_by_people=set(PEOPLE) & set(upsets))


def check_the_end(world: World, end: End, touched_by_people: set[str]) -> None:
    if end.state is State.cleaned:
        assert world.on_new and world.old is None and not world.snapshot
    if world.old is Running.running and end.state is not State.held:
        assert not world.shut, "nobody comes in any more"
    if end.state is State.deferred and not touched_by_people:
        assert world.old is Running.running and world.home == "old"
    if end.state in (State.rolled_back, State.skipped, State.deferred):
        assert world.new is None, "an orphan"
        assert not world.snapshot
        assert not world.on_new
    if end.state is State.rolled_back and not touched_by_people:
        assert world.old is Running.running and world.old_has_home and world.home == "old"
    if end.state is State.held:
        assert world.old or world.new or not world.session, "nothing is removed where somebody has to look"
        assert end.reason


def test_the_straight_way() -> None:
    world, passed = World(), [State.planned]
    while not (end := turn(world, "none")):
        if (now := state(world.journal)) != passed[-1]:
            passed.append(now)
    assert end == End(State.cleaned)
    assert passed == [
        State.planned,
        State.preflight,
        State.staged,
        State.locked,
        State.stopped,
        State.snapshotted,
        State.started,
        State.verified,
        State.committed,
    ]


@pytest.mark.parametrize("name", [*FORWARD, REVERT.name])
@pytest.mark.parametrize("when", ["crash before", "crash after"])
def test_a_crash_around_any_step_does_not_stop_it(name: str, when: str) -> None:
    world = World(reverts=name == REVERT.name)
    while not (end := turn(world, when if about_to(world) == name and not begun(world, name) else "none")):
        pass
    assert end.state is State.cleaned


def about_to(world: World) -> str:
    chosen = decide(world.journal, world.seen)
    return chosen.step.name if isinstance(chosen, Do) else ""


def begun(world: World, name: str) -> bool:
    return Entry(name, Phase.intent) in world.journal


STAGED = ("check", "pull", "rehearse", "create", "warm", "copy")
LOOKED = (*STAGED, "look")
STARTED = (*LOOKED, "stop", "snapshot", "start")
REVERTED = (*LOOKED, "stop", "snapshot")
BACK = ["halt", "restore", "revive", "reopen", "forget", "cool", "discard"]


@pytest.mark.parametrize(
    ("journal", "undone"),
    [
        (entries("check-"), []),
        (entries("check", "pull-"), []),
        (entries("check", "pull", "rehearse-"), []),
        (entries("check", "pull", "rehearse", "create-"), ["discard"]),
        (entries(*STAGED[:-2], "warm-"), ["cool", "discard"]),
        (entries(*STAGED[:-1], "copy-"), ["forget", "cool", "discard"]),
        (entries(*STAGED, "look-"), ["reopen", "forget", "cool", "discard"]),
        (entries(*LOOKED, "stop-"), ["revive", "reopen", "forget", "cool", "discard"]),
        (entries(*LOOKED, "stop", "snapshot-"), ["revive", "reopen", "forget", "cool", "discard"]),
        (entries(*STARTED[:-1], "start-"), BACK),
        (entries(*STARTED, "answer-"), ["rewarm", *BACK]),
        (entries(*STARTED, "answer", "verify-"), ["rewarm", *BACK]),
        (entries(*STARTED, "answer", "verify", "commit-"), ["rewarm", *BACK]),
        (entries(*REVERTED, "revert-"), ["reinstate", *BACK[2:]]),
        (entries(*REVERTED, "revert", "start-"), ["halt", "reinstate", *BACK[2:]]),
        (entries(*REVERTED, "revert", "start", "answer", "verify-"), ["rewarm", "halt", "reinstate", *BACK[2:]]),
    ],
    ids=lambda value: value[-1].step if value and isinstance(value[-1], Entry) else "",
)
def test_a_failure_undoes_what_was_begun_and_no_more(journal: list[Entry], undone: list[str]) -> None:
    seen, results = Seen(True, True, Running.stopped, Running.running), []
    while isinstance(chosen := decide(journal, seen), Undo):
        results.append(chosen.undo)
        journal = [*journal, Entry(chosen.undo, Phase.intent), Entry(chosen.undo, Phase.done)]
    assert results == undone
    assert chosen == End(State.rolled_back, "because")


def gives_up(chosen: Next, phase: Phase) -> bool:
    return isinstance(chosen, GiveUp) and chosen.phase is phase


def test_a_session_that_was_deleted_is_never_resurrected() -> None:
    gone = Seen(session=False, should_run=False, old=None, new=Running.stopped)
    journal = entries(*LOOKED, "stop")
    chosen = decide(journal, gone)
    assert gives_up(chosen, Phase.skipped)
    journal.append(Entry("snapshot", Phase.skipped, "deleted"))
    assert decide(journal, gone) == undoing(BY_NAME["look"])


@pytest.mark.parametrize(("session", "should_run"), [(True, False), (False, False)])
def test_on_the_way_back_nothing_is_made_warm_that_its_owner_has_ended(session: bool, should_run: bool) -> None:
    ended = Seen(session, should_run, Running.stopped, Running.running)
    assert decide(entries(*STARTED, "answer-"), ended) == undoing(BY_NAME["start"])


def test_a_session_that_its_owner_stopped_stays_stopped() -> None:
    chosen = decide(entries(*STAGED), Seen(True, True, Running.stopped, Running.created))
    assert gives_up(chosen, Phase.skipped)


def test_an_old_container_that_somebody_started_again_wins() -> None:
    running = Seen(True, True, Running.running, Running.created)
    assert gives_up(decide(entries(*LOOKED, "stop", "snapshot"), running), Phase.failed)
    # A process that was killed over the stop can't know that it had come to its end, and somebody may work in it again.
    assert gives_up(decide(entries(*LOOKED, "stop!"), replace(running, again=True)), Phase.failed)


@pytest.mark.parametrize("step", [step for step in STEPS[:-1] if step is not REVERT], ids=lambda step: step.name)
def test_a_step_that_is_always_interrupted_is_given_up(step: Step) -> None:
    before = FORWARD[: FORWARD.index(step.name)]
    old = Running.stopped if "stop" in before else Running.running
    journal = entries(*before, *[f"{step.name}!"] * ATTEMPTS)
    assert gives_up(decide(journal, Seen(True, True, old, None)), Phase.failed)


def test_f04_a_rollback_that_fails_is_held_until_it_is_reopened() -> None:
    journal = entries(*LOOKED, "stop", "snapshot-", "revive-")
    seen = Seen(True, True, Running.stopped, Running.created)
    held = decide(journal, seen)
    assert isinstance(held, End) and held.state is State.held
    assert "revive" in held.reason and "because" in held.reason
    journal.append(Entry("", Phase.reopened))
    assert decide(journal, seen) == undoing(BY_NAME["stop"])


def test_after_the_commit_there_is_no_way_back() -> None:
    seen = Seen(True, True, Running.stopped, Running.running)
    assert decide(entries(*STARTED, "verify", "commit"), seen) == Do(BY_NAME["clean"])
    held = decide(entries(*STARTED, "verify", "commit", "clean-"), seen)
    assert isinstance(held, End) and held.state is State.held


def test_a_session_in_which_somebody_works_is_deferred_and_not_touched() -> None:
    world, undone = World(), []
    while not (end := turn(world, "somebody works" if about_to(world) == "look" else "none")):
        undone += [entry.step for entry in world.journal[-1:] if entry.step in ("reopen", "forget", "cool", "discard")]
    assert end == End(State.deferred, "somebody works")
    assert undone == ["reopen", "forget", "cool", "discard"] and Entry("stop", Phase.intent) not in world.journal
    check_the_end(world, end, touched_by_people=set())


def test_who_was_killed_before_the_stop_looks_again_and_after_its_begin_does_not() -> None:
    old = Seen(True, True, Running.running, Running.created, fresh=False)
    assert decide(entries(*LOOKED), old) == Do(BY_NAME["look"])
    assert decide(entries(*LOOKED), replace(old, fresh=True)) == Do(BY_NAME["stop"])
    assert decide(entries(*LOOKED, "stop!"), old) == Do(BY_NAME["stop"])


def test_the_journal_of_a_quiet_session_begins_with_the_check() -> None:
    assert decide([], QUIET) == Do(BY_NAME["check"])


@pytest.mark.parametrize("old", [Running.stopped, Running.created, None])
def test_f5_a_session_that_its_owner_starts_moves_although_it_doesnt_run(old: Running | None) -> None:
    resting = replace(QUIET, old=old)
    assert isinstance(decide([], resting), GiveUp)
    starts = replace(resting, starts=True)
    for number, name in enumerate(FORWARD):
        assert decide(entries(*FORWARD[:number]), starts) == Do(BY_NAME[name])
    failed = entries(*FORWARD[: FORWARD.index("answer")], "answer-")
    assert decide(failed, starts) == undoing(BY_NAME["answer"])
    assert decide([*failed, *entries("rewarm", "halt", "restore")], starts) == undoing(
        BY_NAME["stop"]
    )  # it starts on the old one


def test_a_table_of_effects_with_a_gap_or_too_much_in_it_is_refused() -> None:
    require_complete({*StepName})
    with pytest.raises(TypeError, match="revive"):
        require_complete({*StepName} - {StepName.revive})
    with pytest.raises(TypeError, match="polish"):
        require_complete({*StepName, "polish"})


def test_a_step_says_only_what_the_table_lets_it_say() -> None:
    assert may_say(StepName.halt, Code.unused) and may_say(StepName.restore, Code.home_kept)
    assert may_say(StepName.pull, None) and not may_say(StepName.pull, Code.unused)
    assert not may_say(StepName.halt, Code.home_kept)


@pytest.mark.parametrize(
    ("after", "relocates"),
    [
        (replace(SESSION, generation=2), True),
        (replace(SESSION, generation=2, late_home=True, devices=("gpu.example.com",)), True),
        (replace(SESSION, generation=2, image=f"sha256:{'b' * 64}"), False),
        (replace(SESSION, generation=2, gpus=1, devices=("gpu.example.com",)), False),
    ],
    ids=["nothing else", "other GPUs", "another image", "more GPUs"],
)
def test_a_session_that_has_other_gpus_on_its_next_machine_only_goes_there(after: Session, relocates: bool) -> None:
    move = Move("ada-2", SESSION, after, "", State.planned, "", datetime.now(UTC))
    assert move.relocates is relocates
    assert not replace(move, back_to="snapshot").relocates
