"""One move in which things go wrong at random moments, and what has to be true when all is over."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from flows.core.errors import RefitError
from flows.migrations.move import Move, has_code
from flows.migrations.move_steps import FINAL, Code, State
from flows.migrations.recovery import recover_all, reopen
from flows.sessions.model import Running, Session
from tests.support.moving import check_no_gap
from tests.support.simulated.fleet import ACCESS, LATE, OWN, SILENT, Fleet
from tests.support.simulated.world import GOOD, Image, Killed, Point, differing

IMAGES = {
    "good": GOOD,
    "ends at once": Image(lives=False),
    "never ready": Image(answers=False),
    "miscalculates": Image(cell="41"),
    "writes into the home": Image(spoils={"work-5-notes": "spoiled", "new": "unasked"}),
    "deletes from the home, and ends": Image(lives=False, spoils={"work-5-notes": ""}),
}
ACCESSES = (ACCESS, LATE, SILENT, ACCESS.model_copy(update={"protocol": "none"}))
# Why a session may be stopped whatever works in it; each meets each way into sessions.
CONSENTS: tuple[dict[str, bool], ...] = ({}, {}, {"forced": True}, {"agreed": True})
# Upsets at a moment; each at most once.
UPSETS = (
    *("killed",) * 6,
    *("fails",) * 3,
    *("keeps failing", "old dies", "new dies", "somebody works", "a program works", "started by hand"),
)
OWNER = ("nothing", "nothing", "stops", "starts", "deletes", "works")
# A move that nothing upsets has about so many moments.
MOMENTS = 110
# Without database and engine nobody comes anywhere: they are mended before the next process begins.
NEEDED = {"begin", "journal", "end", "containers"}
MOST_LIVES = 12


@dataclass
class Upsets:
    """Upsets and their moments, for the session of one move.

    Attributes:
        due: number of the moment → what happens then.
        happened: the upsets that have happened.
        failing: the effects that fail until somebody has mended them.
    """

    fleet: Fleet
    session: Session
    due: dict[int, str]
    happened: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    moment: int = 0

    def __call__(self, point: Point) -> None:
        self.moment += 1
        what = self.due.pop(self.moment, "")
        if what:
            self.happened.append(f"{what} at {point.verb} ({point.when})")
            self._happen(what, point)
        if point.verb in self.failing:
            raise RefitError(f"{point.verb} fails: nobody has mended it yet.")

    def _happen(self, what: str, point: Point) -> None:
        world, session, name = self.fleet.world, self.session, self.session.name
        boxes = world.of(name)
        if what == "killed":
            world.alive = False
            raise Killed
        if what == "fails":  # not done, half done, or done and nobody knows: it depends on the moment
            raise RefitError(f"{point.verb} failed {point.when} it was done.")
        if what == "keeps failing":
            self.failing.add(point.verb)
        if what == "old dies" and boxes:
            world.die(boxes[0].session.container)
        # Whether somebody was in a container that has ended by itself, nobody can find out.
        if what == "new dies" and len(boxes) > 1 and not boxes[-1].used:
            world.die(boxes[-1].session.container)
        # Between the question whether anybody was there and the stop lie milliseconds that nothing can guard.
        if what == "somebody works" and (point.verb, point.when) != ("stop", "before"):
            world.work(name, f"moment {self.moment}")
        if what == "a program works":
            world.busy.add(name)
        # As short is the moment between the question whether it runs and its stop, or the restoring of its home.
        awaited = world.step != "stop" and (point.verb, point.when) != ("restore", "before")
        if what == "started by hand" and awaited and boxes and not any(box.running is Running.running for box in boxes):
            begin = world.warm if session.late_home else world.start  # nobody puts its home into its slot
            begin(boxes[0].session.container)

    def died(self) -> bool:
        return any(" dies at" in what for what in self.happened)


def trial(fleet: Fleet, number: int, seed: int) -> str:
    """Move a session while things go wrong; check that nothing is lost; returns how the move ended.

    Raises:
        AssertionError: something is lost or left over, or an invariant was violated.
    """
    chance = random.Random(f"{seed} {number}")
    kind = "good" if chance.random() < 0.6 else chance.choice(list(IMAGES))
    session = fleet.add(number, fleet.image("old"), ACCESSES[number % len(ACCESSES)])
    new, consent = fleet.image(kind, IMAGES[kind]), CONSENTS[number // len(ACCESSES) % len(CONSENTS)]
    amount = chance.choice((0, 1, 1, 2, 2, 3, 5))
    due = {chance.randint(1, MOMENTS): chance.choice(UPSETS) for _ in range(amount)}
    upsets = Upsets(fleet, session, due)
    if chance.random() < 0.1:
        owner_acts(fleet, session, chance.choice(OWNER), upsets)
    try:
        fleet.world.meanwhile = upsets
        line = fleet.to(session, new, **consent)
        _live_on(fleet, chance, upsets, lambda: fleet.executor().carry_out(line))
        fleet.world.meanwhile = lambda _: None
        state = _check(fleet, session, upsets)
        assert not fleet.world.violations, fleet.world.violations
        return state
    except AssertionError as error:
        case = f"seed {seed}, session {number}, image {kind!r}, {consent}"
        raise AssertionError(f"{case}, {upsets.happened}: {error}") from error
    finally:
        fleet.world.meanwhile, fleet.world.violations = lambda _: None, []


def _live_on(fleet: Fleet, chance: random.Random, upsets: Upsets, begin: Callable[[], object]) -> None:
    """Processes are begun, and killed, until one of them has brought the move to its end."""
    work = begin
    for _ in range(MOST_LIVES):
        with suppress(Killed, RefitError):
            work()
        owner_acts(fleet, upsets.session, chance.choice(OWNER) if not fleet.world.alive else "nothing", upsets)
        if fleet.world.alive and not fleet.journal.unfinished():
            return
        upsets.failing -= NEEDED
        work = lambda: recover_all(fleet.executor())  # noqa: E731
    raise AssertionError("the move has no end")


def owner_acts(fleet: Fleet, session: Session, what: str, upsets: Upsets) -> None:
    """An act of the owner while no process of ours lives, by the verbs that everybody uses."""
    upsets.happened += [f"its owner {what}"] if what != "nothing" else []
    sessions = fleet.sessions
    with fleet.world.person(), suppress(RefitError):
        if what == "stops":
            sessions.stop(session.name)
        if what == "starts":
            sessions.start(session.name)
        if what == "deletes":
            sessions.remove(session.name)
        if what == "works":
            fleet.world.work(session.name, f"after {upsets.moment} moments")


def _check(fleet: Fleet, session: Session, upsets: Upsets) -> str:
    moves = fleet.journal.history(session.name)
    for move in moves:
        assert move.state in FINAL
        check_no_gap(fleet.journal.entries(move))
    if moves and moves[-1].state is State.held:
        _check_held(fleet, moves[-1])
        upsets.failing.clear()
        reopen(fleet.executor(), session.name)
    ended = fleet.journal.history(session.name)[-1] if moves else None
    assert ended is None or ended.state is not State.held, f"held, and nothing fails any more: {ended.reason}"
    _check_home(fleet, session, ended)
    _check_containers(fleet, session, upsets)
    return moves[-1].state if moves else "not begun"


def _check_held(fleet: Fleet, move: Move) -> None:
    assert move.damaged and "refit migrate recover" in move.reason
    there = {box.session.container for box in fleet.world.of(move.before.name)}
    if result := fleet.sessions.store.find(move.before.name):
        assert result[0].container in there, "nothing is removed where somebody has to look"


def _check_home(fleet: Fleet, session: Session, move: Move | None) -> None:
    """All that people wrote is in the home, or in a snapshot of which they were told."""
    world, owed = fleet.world, fleet.world.owed[str(session.home)]
    lost = differing(owed, world.homes[str(session.home)], OWN)
    kept = world.snapshots.get((session.name, move.id), {}).get("", {}) if move else {}
    told = move is not None and move.damaged and has_code(fleet.journal.entries(move), Code.home_kept)
    spoiled = dict(world.images[move.after.image].spoils) if move else {}
    for path, how in lost.items():
        safe = told and path in spoiled and (how == "new" or kept.get(path) == owed[path])
        assert safe, f"{path!r} in the home is {how}"
    left = [key for key in world.snapshots if key[0] == session.name]
    assert left == ([(session.name, move.id)] if move and told else []), f"left over: {left}"


def _check_containers(fleet: Fleet, session: Session, upsets: Upsets) -> None:
    boxes, store = fleet.world.of(session.name), fleet.sessions.store
    if fleet.generation(session.name) is None:
        assert not boxes, "a session that was deleted has a container"
        return
    recorded = store.session(session.name)
    assert [box.session for box in boxes] == [recorded], f"orphans: {[box.session.container for box in boxes]}"
    if session.name in store.intents() and not upsets.died():
        assert boxes[0].writes, "it doesn't run with its home, and its owner wants it to"
    assert not (boxes[0].running is Running.running and boxes[0].shut), "nobody comes in any more"
