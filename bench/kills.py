"""Moves on real Podman whose process is killed at a random moment, and again and again while it is brought to its end.

Sessions with a small web server for an IDE, so that it is done in minutes; half of them get their home late, into a
container that waits for it. One image in four spoils the home and ends.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from bench.lab import built, machine
from bench.results import Row
from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.policy import RolloutPolicy
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Move
from flows.migrations.move_steps import FINAL, State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.recovery import recover_all
from flows.migrations.rehearsals import rehearsal
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import HOME, Running
from tests.support.moving import check_no_gap, furnish, manifest
from tests.support.variants import LIGHT, WAITS, light

MOVES, LEAST, SEED = 204, 200, 20_261_121
LATE = LIGHT.model_copy(update={"late_home": True})
NAMES = {"ada": LIGHT, "bob": LIGHT, "cleo": LATE, "dan": LATE}  # moved at the same time
PROFILE, RELEASE = "light-minimal-deb12-py311", "2026a"
SPOILS, REHEARSED, KILLED_AGAIN = 0.25, 0.25, 0.3  # shares of the moves, and of the attempts to end one
SWEEP_SECONDS = 0.05
FINAL_SECONDS = 300.0


@dataclass
class Outcome:
    """How many moves were killed in the middle, in which of their steps, and what was wrong afterwards."""

    killed: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Count what another has found, too."""
        self.killed += other.killed
        self.steps += other.steps
        self.states += other.states
        self.problems += other.problems


def run() -> list[Row]:
    """At least 200 moves on real Podman, each killed (SIGKILL) at a random moment, then resumed and looked at."""
    outcome = killed_moves(MOVES)
    for title, said in (("killed in", outcome.steps), ("ended", outcome.states)):
        print(f"{title}: {', '.join(f'{name} {number}' for name, number in said.most_common())}", file=sys.stderr)
    for problem in outcome.problems:
        print(problem, file=sys.stderr)
    what = f"{outcome.killed} moves with kill -9 on real Podman, {len(NAMES)} at a time: violations"
    goal = "0 homes damaged, 0 orphans, 0 double mounts, history without gap"
    wrong = len(outcome.problems)
    return [Row(what, "violations", goal, wrong, not wrong and outcome.killed >= LEAST)]


def killed_moves(number: int, seed: int = SEED) -> Outcome:
    """Kill so many moves of four sessions, bring each to its end, and look for what is wrong."""
    result = Outcome()
    with machine(stop_grace_seconds=5.0, ready_timeout_seconds=20.0, warm_memory=0.0) as settings:
        sessions, base = Sessions.open(settings), next(built(settings))
        images = {access.late_home: _images(settings, base, access) for access in (LIGHT, LATE)}
        for name, access in NAMES.items():
            sessions.create(name, PROFILE, RELEASE, images[access.late_home][0], access)
            furnish(sessions, name)
        share = partial(_share, settings, images, -(-number // len(NAMES)), seed)
        with (
            _mounts_watched(settings, result),
            ProcessPoolExecutor(len(NAMES), mp_context=get_context("spawn")) as pool,
        ):
            for part in pool.map(share, NAMES):
                result.add(part)
        result.problems += _left(settings)
    return result


def _images(settings: Settings, base: Built, access: Access) -> tuple[str, str, str]:
    """Two that work, and one that doesn't; all are on the machine."""
    registry, labels = Registry(settings), {"io.refit.access": access.model_dump_json()}
    waits = WAITS if access.late_home else "true"
    one, two, bad = (
        light(settings, registry, base, name, f"{waits}; {then}", labels)
        for name, then in {"one": "true", "two": "true", "bad": "echo spoiled >>project/work.py; exit 3"}.items()
    )
    for image in (one, two, bad):
        Sessions.open(settings).engine.pull(image)
    return one, two, bad


# --- One session ----------------------------------------------------------------------------------------------------


def _share(settings: Settings, images: Mapping[bool, Sequence[str]], number: int, seed: int, name: str) -> Outcome:
    """Kill so many moves of this session."""
    one = _Session(settings, images[NAMES[name].late_home], name, random.Random(f"{seed} {name}"))
    one.move_and_kill(within=None)
    while one.outcome.killed < number and not one.outcome.problems:  # one that is held would never move again
        one.move_and_kill(within=one.longest)
    return one.outcome


class _Session:
    """A session that is moved, and the ways in which that is interrupted."""

    def __init__(self, settings: Settings, images: Sequence[str], name: str, chance: random.Random) -> None:
        self._settings, self._images, self._name, self._chance = settings, images, name, chance
        self._careful = settings.model_copy(update={"migration": RolloutPolicy()})
        self.longest, self.outcome = 0.0, Outcome()

    @cached_property
    def _sessions(self) -> Sessions:
        return Sessions.open(self._settings)

    @cached_property
    def _journal(self) -> Journal:
        return Journal(open_database(self._settings.database))

    def move_and_kill(self, within: float | None) -> None:
        """Begin a move, kill it within so many seconds (none: don't), bring it to its end, look at what is there.

        The first one is not killed: it shows how long a move takes, and so does each that ends before it is killed.
        """
        good, other = self._images[:2], self._images[2]
        session = self._sessions.store.session(self._name)
        expected = next(image for image in good if image != session.image)
        image = other if within and self._chance.random() < SPOILS else expected
        settings = self._careful if within and self._chance.random() < REHEARSED else self._settings
        home, begun = manifest(session.home), len(self._journal.history(self._name))
        decision = Decision(self._name, Action.migrate, session.image, image)
        seconds = self._attempt(lambda: MoveExecutor.open(settings).carry_out(decision), within)
        if len(history := self._journal.history(self._name)) > begun:
            if seconds and history[-1].state is State.cleaned:
                self.longest = seconds
            self._end(history[-1], settings)
            self._look_at(self._journal.move(history[-1].id), home)

    def _attempt(self, work: Callable[[], object], within: float | None) -> float | None:
        """Let a process of its own do something, and kill it within so many seconds; the programs that it runs not.

        Returns the seconds that it took; none: it was killed.
        """
        started = time.monotonic()
        process = get_context("fork").Process(target=work)
        process.start()
        process.join(self._chance.uniform(0, within) if within else None)
        if not process.is_alive():
            return time.monotonic() - started
        _kill(process)
        return None

    def _end(self, move: Move, settings: Settings) -> None:
        """Bring a move to its end, as the next run does, which is killed as well now and then."""
        if self._journal.move(move.id).state in FINAL:
            return
        self.outcome.killed += 1
        self.outcome.steps[self._step(move)] += 1
        until = time.monotonic() + FINAL_SECONDS
        while self._journal.move(move.id).state not in FINAL and time.monotonic() < until:
            again = self._chance.random() < KILLED_AGAIN
            self._attempt(lambda: recover_all(MoveExecutor.open(settings)), self.longest if again else FINAL_SECONDS)

    def _step(self, move: Move) -> str:
        """The step that was interrupted."""
        last = next(reversed(self._journal.entries(move)), None)
        return f"{last.step} ({last.phase})" if last else "nothing"

    def _look_at(self, move: Move, home: object) -> None:
        """Write down what isn't as it should be after a move."""
        self.outcome.states[move.state] += 1
        for problem in self._problems(move, home):
            self.outcome.problems.append(f"{move.id} ({move.state}; {move.reason}): {problem}")

    def _problems(self, move: Move, home: object) -> Iterator[str]:
        session = self._sessions.store.session(self._name)
        if move.state not in FINAL - {State.held}:
            yield "it has not come to its end"
        if manifest(session.home) != home:
            yield "the home is not as it was"
        if session != (move.after if move.state is State.cleaned else move.before):
            yield "the session is not the one that it should be"
        containers = self._sessions.engine.containers(self._name)
        if [(one.made_from, one.running) for one in containers] != [(session, Running.running)]:
            yield f"there are other containers than the session's: {containers}"
        if list(self._settings.folder("snapshots", self._name).iterdir()):
            yield "a snapshot is left"
        entries = self._journal.entries(move)
        try:
            check_no_gap(entries)
            self._sessions.wait_ready(session)
        except AssertionError as gap:
            yield f"its journal has a gap: {gap}"
        except RefitError as error:
            yield f"it doesn't answer: {error}"


def _kill(process: BaseProcess) -> None:
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()


# --- The machine ----------------------------------------------------------------------------------------------------


def _left(settings: Settings) -> Iterator[str]:
    """Mistakes at the end."""
    sessions, database = Sessions.open(settings), open_database(settings.database)
    rehearsal.sweep(settings, sessions.homes)
    asked = [*tools.podman(settings), "ps", "--all", "--format", "{{.Names}}"]
    there = sorted(command.run(asked, root=True).stdout.split())
    if there != sorted(sessions.store.session(name).container for name in NAMES):
        yield f"there are other containers than those of the sessions: {there}"
    if left := [path.name for path in settings.folder("running").iterdir()]:
        yield f"programs are still on record: {left}"
    history = History(database)
    if broken := history.broken():
        yield f"the chain of the history breaks: {broken}"
    moves = len(Journal(database).history())
    told = Counter(event.kind for event in history.events())
    if not moves == told[Kind.move_begun] == told[Kind.move_ended]:
        yield f"of {moves} moves, the history tells of {told[Kind.move_begun]} begun and {told[Kind.move_ended]} ended"


@contextmanager
def _mounts_watched(settings: Settings, result: Outcome) -> Iterator[None]:
    """Look all the time, from a process of its own, whether two containers have one home."""
    ours, theirs = get_context("spawn").Pipe()
    homes = {name: f"{settings.home}/homes/{name}" for name in NAMES}
    process = get_context("spawn").Process(target=_watch_mounts, args=(homes, theirs), daemon=True)
    process.start()
    try:
        yield
    finally:
        ours.send("enough")
        sweeps, twice = ours.recv()
        process.join()
        print(f"looked {sweeps:,} times for homes that two containers have", file=sys.stderr)
        result.problems += twice


def _watch_mounts(homes: dict[str, str], pipe: Connection) -> None:
    sweeps, twice = 0, set[str]()
    while not pipe.poll(SWEEP_SECONDS):
        sweeps += 1
        everywhere = other_mounts()
        for name, home in homes.items():
            if sum(any(shows(mount, home, HOME) for mount in mounts) for mounts in everywhere) > 1:
                twice.add(f"the home of {name} was mounted in two containers at the same time")
    pipe.send((sweeps, sorted(twice)))


def other_mounts() -> list[list[str]]:
    """The lines of mountinfo of each mount namespace other than ours."""
    results: dict[str, list[str]] = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (namespace := (process / "ns/mnt").readlink().name) not in results:
                results[namespace] = (process / "mountinfo").read_text().splitlines()
        except OSError:  # it has ended
            continue
    results.pop(Path("/proc/self/ns/mnt").readlink().name, None)
    return [*results.values()]


def shows(mount: str, folder: str, point: str) -> bool:
    """Whether a line of mountinfo says that a folder is mounted at a place and can be written to. Pure."""
    words = mount.split()
    # It names the folder from the root of its file system, which isn't ours where /tmp is one of its own. A container
    # that begins has all mounts of the host for a moment, at other places.
    return words[4] == point and len(words[3]) > 1 and folder.endswith(words[3]) and "rw" in words[5].split(",")
