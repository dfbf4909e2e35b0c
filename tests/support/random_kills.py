"""Moves in a cluster whose process is killed at a moment drawn by lot, and what must hold of the session afterwards."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from flows.migrations.executor import MoveExecutor
from flows.migrations.move import unsettled
from flows.migrations.move_steps import State
from flows.migrations.recovery import recover_all
from tests.support.cluster import kubectl
from tests.support.cluster_moves import NAME, ClusterScene
from tests.support.moving import carry_out, to
from tests.support.processes import in_a_process

# Each program of a session takes this lock for as long as it lives, as one that writes: two at a time leave a trace.
_LOCKED = "import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)"
TRACE = ".two-writers"
WRITES = f'exec 9>>.writer; python3 -c "{_LOCKED}" || echo twice >>{TRACE}'
_KINDS = "pods,persistentvolumeclaims,secrets,configmaps"
# One of so many kills is followed by a kill of the process that brings the move to its end.
_KILLED_AGAIN = 3
# The share of moves to an image that fails.
_BAD = 0.4
# The share of kills that fall anywhere in the time of a move, and the seconds after a line in which others fall.
_ANYWHERE, _SOON = 0.5, 0.3
ENDS = {State.cleaned, State.rolled_back, State.deferred}


@dataclass
class Tally:
    """The kills so far: how many, at which steps of moves, and how these ended."""

    kills: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def told(self) -> str:
        """All of it in one line."""
        return f"{self.kills} kills; at {dict(self.steps)}; ends {dict(self.ends)}"


class Killer:
    """Kills moves of one session by lot, and looks after each whether anything of it is wrong."""

    def __init__(self, scene: ClusterScene, seed: str) -> None:
        """The seed decides all that is drawn."""
        self._scene, self._lot, self.tally = scene, random.Random(seed), Tally()
        self._seconds: dict[bool, float] = {}
        self._lines: dict[bool, int] = {}
        self._objects_before = self._objects()

    def _objects(self) -> Counter[str]:
        """The objects of the namespace by kind, and by name where it isn't one of a generation."""
        told = json.loads(kubectl("get", _KINDS, "-o", "json"))["items"]
        return Counter(
            f"{each['kind']} {labels.get('io.refit.kind')}"
            if "io.refit.generation" in (labels := each["metadata"].get("labels", {}))
            else f"{each['kind']} {each['metadata']['name']}"
            for each in told
        )

    def once(self) -> None:
        """Move, kill that, sometimes kill what ends the move as well, end it, and check."""
        scene, bad = self._scene, self._lot.random() < _BAD
        if bad not in self._seconds:
            self._seconds[bad] = self._measured(bad)
        files, before = scene.files(), scene.journal.latest()[NAME].id
        decision = to(scene.sessions, NAME, scene.renewed(scene.bad if bad else scene.other))
        self._kill(lambda: MoveExecutor.open(scene.settings).carry_out(decision), bad)
        while scene.journal.unfinished() and self._lot.randrange(_KILLED_AGAIN) == 0:
            self._kill(lambda: recover_all(MoveExecutor.open(scene.settings)), bad)
        scene.resume()
        self._check(files, before, bad)

    def _measured(self, bad: bool) -> float:
        """Seconds that such a move takes by itself."""
        scene, files, began = self._scene, self._scene.files(), time.monotonic()
        image = scene.renewed(scene.bad if bad else scene.other)
        carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
        seconds = time.monotonic() - began
        self._lines[bad] = len(scene.journal.entries(scene.journal.latest()[NAME]))
        self._check(files, "", bad)
        return seconds

    def _kill(self, work: Callable[[], object], bad: bool) -> None:
        """Let a process of its own do this, and kill it at some moment."""
        process = in_a_process(work)
        self._wait(process, bad)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            self.tally.kills += 1
            self.tally.steps[self._step()] += 1

    def _wait(self, process: BaseProcess, bad: bool) -> None:
        """Wait until some moment of the move: half of them fall anywhere, half right after a line of the journal.

        Most of the time goes to the pull and to looks, and without the second half hardly any kill would hit a stop.
        """
        if self._lot.random() < _ANYWHERE:
            process.join(self._lot.uniform(0.0, self._seconds[bad]))
            return
        lines, until = self._lot.randrange(self._lines[bad]), time.monotonic() + 2 * self._seconds[bad]
        written = self._written()
        while process.is_alive() and self._written() - written <= lines and time.monotonic() < until:
            process.join(0.01)
        process.join(self._lot.uniform(0.0, _SOON))

    def _written(self) -> int:
        """The number of lines that the journal has of the move that isn't finished."""
        journal = self._scene.journal
        return sum(len(journal.entries(move)) for move in journal.unfinished())

    def _step(self) -> str:
        """The step in which the move was killed, or the one after which it was."""
        for move in self._scene.journal.unfinished():
            entries = self._scene.journal.entries(move)
            return unsettled(entries) or (f"after {entries[-1].step}" if entries else "before check")
        return "outside of moves"

    def _check(self, files: object, before: str, bad: bool) -> None:
        """The session runs on the image that the journal says, with its home, and nothing else is left."""
        scene, move = self._scene, self._scene.journal.latest()[NAME]
        assert move.state in ENDS, (move.state, move.reason)
        assert not (bad and move.state is State.cleaned and move.id != before), move.reason
        scene.check(move.state, (move.after if move.state is State.cleaned else move.before).image, files)
        assert TRACE not in scene.sessions.execute(NAME, ["ls", "-A"]).split()
        assert self._objects() == self._objects_before
        if move.id != before:
            self.tally.ends[move.state] += 1
