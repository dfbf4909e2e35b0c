"""A simulated fleet: containers, homes and images as plain data, and what must never happen to them.

Every effect passes `World.at` before it begins, in its middle and when it is over: there it takes its time, and there
faults are injected. A process that was killed comes no further than the next of them. A change of
containers or homes checks the invariants.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from threading import RLock

from flows.core import fence
from flows.core.database import now
from flows.core.errors import RefitError
from flows.sessions.model import Container, Running, Session

Content = dict[str, str]
"""Path in a home → what is in it."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LOOK_SECONDS = 30.0
JOURNAL = {"begin", "journal", "end"}  # which asks for the lease itself
PERSON = timedelta(hours=1)  # until somebody does something


class Killed(BaseException):
    """The process is gone: nothing more of its work happens."""


class Violation(AssertionError):
    """Something happened that never may."""


@dataclass(frozen=True)
class Image:
    """The behaviour of a simulated image when it is started.

    Attributes:
        lives: whether its main program goes on.
        answers: whether its IDE gets ready.
        cell: its kernel's answer to 6 * 7.
        spoils: the files that it writes into homes, though nobody asked it to; no text: it removes the file.
    """

    lives: bool = True
    answers: bool = True
    cell: str = "42"
    spoils: Mapping[str, str] = field(default_factory=dict)


GOOD = Image()


@dataclass
class Box:
    """A simulated container.

    Attributes:
        shut: nobody comes in.
        led: people are led to it.
        used: somebody has worked in it since it started.
        bound: it has its home; one that is warm has not.
        favoured: it has a higher weight than other sessions, until it ends.
        started: when it last got its home.
        ended: when it last ended.
    """

    session: Session
    running: Running = Running.created
    shut: bool = False
    led: bool = False
    used: bool = False
    bound: bool = True
    favoured: bool = False
    started: datetime | None = None
    ended: datetime | None = None

    @property
    def writes(self) -> bool:
        """Whether it can write into its home."""
        return self.running is Running.running and self.bound

    @property
    def open(self) -> bool:
        """Whether people get in."""
        return self.writes and not self.shut and self.led

    @property
    def seen(self) -> Container:
        session = self.session
        name, generation = session.container, session.generation
        times = {"started": self.started, "ended": self.ended}
        warm = self.running is Running.running and not self.bound
        return Container(name, session.name, generation, session.image, self.running, session, warm=warm, **times)


@dataclass(frozen=True)
class Point:
    """A moment at which something can go wrong: which effect, on which session, and how far it is."""

    verb: str
    session: str
    when: str


def nothing(_: Point) -> None:
    """The event at most moments."""


@dataclass
class World:
    """The simulated world, and the looks at it.

    Attributes:
        images: digest → what it does; those that can be pulled.
        homes: path → content.
        snapshots: (session, id) → name of the volume, empty for the home → content.
        notes: (session, id) → what stands beside a snapshot.
        uids: path of a home → the uid that owns it.
        owed: path of a home → what people and their programs have written there: nothing of it may get lost.
        busy: the sessions in which somebody works.
        looks: session → when it was last found idle with its door shut (monotonic seconds).
        consents: session → why its last move may stop it whatever works in it; empty: it may not.
        current: says which generation of a session is on record; none: it was deleted.
        seconds: effect → seconds that it takes.
        stands: may let a run stand still at a moment, as a process that was stopped.
        meanwhile: called at a moment; may raise the error with which the effect fails.
        passed: the effects that have passed a moment, in their order.
        most_away: most sessions that were away at the same time, of those that have ever run.
        violations: events that never may happen, and did.
        step: the step of a move that is done just now, the last one that was begun.
    """

    images: dict[str, Image] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    families: dict[str, dict[str, Box]] = field(default_factory=dict)
    homes: dict[str, Content] = field(default_factory=dict)
    snapshots: dict[tuple[str, str], dict[str, Content]] = field(default_factory=dict)
    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    uids: dict[str, int] = field(default_factory=dict)
    owed: dict[str, Content] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    looks: dict[str, float] = field(default_factory=dict)
    consents: dict[str, str] = field(default_factory=dict)
    current: Callable[[str], int | None] = lambda _: None
    seconds: Mapping[str, float] = field(default_factory=dict)
    stands: Callable[[Point], None] = nothing
    meanwhile: Callable[[Point], None] = nothing
    passed: deque[str] = field(default_factory=deque)
    stops: Counter[str] = field(default_factory=Counter)
    away: set[str] = field(default_factory=set)
    most_away: int = 0
    violations: list[str] = field(default_factory=list)
    step: str = ""
    alive: bool = True
    by_hand: bool = False
    lock: RLock = field(default_factory=RLock)

    def at(self, verb: str, session: str, when: str = "before") -> None:
        """An effect begins, is in its middle, or is over."""
        if self.by_hand:
            return
        if not self.alive:
            raise Killed
        self.stands(Point(verb, session, when))
        if when != "after" and verb not in JOURNAL:  # as before every program, and to those that a successor ends
            fence.check()
        if when == "before" and (seconds := self.seconds.get(verb)):
            time.sleep(seconds)
        self.passed.append(verb)  # without the lock, for which hundreds of threads would queue each time
        if self.meanwhile is not nothing:
            with self.lock:
                self.meanwhile(Point(verb, session, when))

    @property
    def effects(self) -> Counter[str]:
        """How many effects of each kind have passed a moment so far."""
        return Counter(self.passed)

    def never(self, what: str) -> Violation:
        """Remember what never may happen: the code that carries moves out takes it for a failure like any other."""
        self.violations.append(what)
        return Violation(what)

    @contextmanager
    def person(self) -> Iterator[None]:
        """A person acts inside the `with` block: no fault of ours, and it takes no time."""
        before, self.by_hand = self.by_hand, True
        try:
            yield
        finally:
            self.by_hand = before

    def of(self, session: str) -> list[Box]:
        """The containers of a session, lowest generation first; of all, if it has no name."""
        with self.lock:
            boxes = list(self.boxes.values()) if not session else list(self.families.get(session, {}).values())
        return sorted(boxes, key=lambda box: (box.session.name, box.session.generation))

    def make(self, session: Session) -> Box:
        with self.lock:
            if not DIGEST.fullmatch(session.image):
                raise self.never(f"I6: {session.image!r} is no digest")
            if session.image not in self.images:
                raise RefitError(f"There is no image {session.image}.")
            box = self.boxes.setdefault(session.container, Box(session))
            return self.families.setdefault(session.name, {}).setdefault(session.container, box)

    def warm(self, name: str) -> None:
        """Start it without its home."""
        with self.lock:
            box = self._box(name)
            if box.running is not Running.running:
                box.running, box.shut, box.used, box.bound = Running.running, False, False, False

    def start(self, name: str) -> None:
        with self.lock:
            box = self._box(name)
            if box.writes:
                return
            home, image = str(box.session.home), self.images[box.session.image]
            if writers := self.writers(box.session):
                raise self.never(f"I1: {name} and {writers[0]} would both write into {home}")
            box.running, box.shut, box.used, box.bound, box.started = Running.running, False, False, True, now()
            box.led = False
            self.homes[home] |= {".cache/ide": name}
            for path, text in image.spoils.items():
                if text:
                    self.homes[home][path] = text
                else:
                    self.homes[home].pop(path, None)
            if not image.lives:
                self._end(box)
            self._count(box.session.name)

    def writers(self, session: Session) -> list[str]:
        """The names of the containers that can write into the home of a session now."""
        boxes = (box for box in self.of(session.name) if box.writes and box.session.home == session.home)
        return [box.session.container for box in boxes]

    def stop(self, name: str) -> None:
        """SIGTERM: files that its programs save then belong to the home."""
        with self.lock:
            box = self.boxes.get(name)
            if box is None or box.running is not Running.running:
                return
            own = box.bound and self.current(box.session.name) == box.session.generation
            age = time.monotonic() - self.looks.pop(box.session.name, -LOOK_SECONDS)
            consent = self.by_hand or self.consents.get(box.session.name)
            if own and not consent and age > LOOK_SECONDS:
                raise self.never(f"I3: {name} is stopped, and nobody has looked whether somebody works in it")
            if own:
                self._write(box, "saved at the end", f"by {name}")
            self._end(box)
            self.stops[name] += 1
            self._count(box.session.name)

    def die(self, name: str) -> None:
        """Its main program ends by itself."""
        with self.lock:
            if (box := self.boxes.get(name)) and box.running is Running.running:
                self._end(box)

    def remove(self, name: str) -> None:
        with self.lock:
            box = self.boxes.get(name)
            if box is None:
                return
            if box.running is Running.running:
                raise RefitError(f"{name} runs.")
            if not self.by_hand and self.current(box.session.name) == box.session.generation:
                raise self.never(f"I2: {name} is removed, and it is the one that the session has")
            del self.boxes[name], self.families[box.session.name][name]

    def work(self, session: str, text: str) -> None:
        """Somebody works in a session, if it runs and lets them in."""
        with self.lock:
            for box in self.of(session):
                if box.open and self.images[box.session.image].answers:
                    box.used = True
                    self._write(box, f"work-{len(text)}-{text}", text)

    def _write(self, box: Box, path: str, text: str) -> None:
        home = str(box.session.home)
        self.homes[home][path] = self.owed[home][path] = text

    def found_idle(self, session: str, idle: bool) -> None:
        """Somebody has looked; only a look behind a door that is shut counts."""
        with self.lock:
            shut = any(box.shut for box in self.of(session) if box.running is Running.running)
            if idle and shut:
                self.looks[session] = time.monotonic()
            else:
                self.looks.pop(session, None)

    def door(self, name: str, shut: bool) -> None:
        with self.lock:
            box = self._box(name)
            if box.running is not Running.running:
                raise RefitError(f"{name} has no network of its own.")
            box.shut = shut

    def address(self, name: str, port: int) -> tuple[str, int]:
        with self.lock:
            box = self._box(name)
            if box.running is not Running.running:
                raise RefitError(f"{name} has no network of its own.")
            return name, port

    def reached(self, session: Session) -> Box:
        """The container of a session whose IDE is asked something."""
        box = self._box(session.container)
        if not box.writes or box.shut:
            raise RefitError(f"Nothing answers at {session.container}.")
        return box

    def lost(self, session: Session, path_of_own: tuple[str, ...]) -> dict[str, str]:
        """The files of a home that aren't as its owner left them: path → what is wrong."""
        home, owed = self.homes.get(str(session.home), {}), self.owed[str(session.home)]
        return differing(owed, home, path_of_own)

    def _end(self, box: Box) -> None:
        box.favoured = False
        box.running, box.shut, box.ended = Running.stopped, False, now() + (PERSON if self.by_hand else timedelta())

    def _box(self, name: str) -> Box:
        if name not in self.boxes:
            raise RefitError(f"There is no container {name}.")
        return self.boxes[name]

    def _count(self, session: str) -> None:
        up = any(box.running is Running.running for box in self.of(session))
        (self.away.discard if up else self.away.add)(session)
        self.most_away = max(self.most_away, len(self.away))


def differing(before: Content, after: Content, except_paths: tuple[str, ...] = ()) -> dict[str, str]:
    """Path → whether it is new, changed or gone; a file that matches a pattern of rsync's may differ. Pure."""
    differences = {}
    for path in sorted(before.keys() | after.keys()):
        excepted = any(fnmatchcase(f"/{path}", f"/{pattern.strip('/')}*") for pattern in except_paths)
        if not excepted and before.get(path) != after.get(path):
            differences[path] = "gone" if path not in after else "new" if path not in before else "changed"
    return differences


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def nothing_at_work(connections: int = 0) -> str:
    """The output of `sessions.look` of a session in which nothing works."""
    return json.dumps({"at": time.time(), "connections": connections})


def somebody_at_work() -> str:
    """Its output where a program works."""
    argv = ["python3", "train.py"]
    process = {"pid": 812, "parent": 1, "argv": argv, "name": "python3", "cpu": 0.93, "started": time.time() - 3600}
    return json.dumps({"at": time.time(), "processes": [process]})
