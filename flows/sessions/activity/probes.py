"""Looks at sessions, and remembers since when each of them is as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, Timer
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from flows.core.atomic_files import write_whole
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.threads import QUESTIONS, at_once
from flows.sessions.activity import inspect_processes
from flows.sessions.activity.evidence import Activity, Look, Memory, Verdict, unknown
from flows.sessions.activity.seen import Seen
from flows.sessions.activity.verdict import PROBE, judge, on_clock, remembered
from flows.sessions.engine import Engine
from flows.sessions.model import Session, check_name

LOOKS = Path(inspect_processes.__file__)
_LOOK, _MEMORY = TypeAdapter(Look), TypeAdapter(Memory)
# A kernel is asked on its control channel, where no cell is waited for; Jupyter doesn't count this message as activity.
# A line without a type is a group: of special ones and functions, which every kernel has, or of classes.
_ASK_VARIABLES = """
import json, sys
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
asked = client.session.msg(
    "debug_request", {"seq": 1, "type": "request", "command": "inspectVariables", "arguments": {}}
)
client.control_channel.send(asked)
while (answer := client.get_control_msg(timeout=3))["parent_header"].get("msg_id") != asked["header"]["msg_id"]:
    pass
found = answer["content"]["body"]["variables"]
print(json.dumps([f"{one['name']} ({one['type']})" for one in found if one["type"] or "class" in one["name"]]))
client.stop_channels()
"""


class Inside(Protocol):
    """Where a program can run beside a session; see `Engine.dialogue`."""

    def dialogue(
        self, container: str, argv: Sequence[str], limit: float = 600.0
    ) -> AbstractContextManager[Callable[[str], str]]:
        """Let a program inside a running container answer lines with lines."""


@dataclass(frozen=True)
class ProbeSpec:
    """How a session is looked at.

    Attributes:
        seconds: how long it looks: work shows in changes meanwhile.
        limit: seconds after which the look has failed, because the machine or the container hangs.
    """

    seconds: float = 1.0
    limit: float = 30.0


# Sessions elsewhere that are looked at at the same time: each look waits for a second, and takes 3 ms of this machine's
# CPU. It starts a Python on the session's node: one in 16 are 7 on a node of 110 Pods, which are kubelet's most.
_ELSEWHERE_LEAST, _ELSEWHERE_MOST, _ELSEWHERE_SHARE = 48, 192, 16
# Right before a stop, while people are kept waiting.
FINAL_PROBE = ProbeSpec(seconds=0.2, limit=10.0)
# So long a session is closed for each attempt at a last look. The first finds who works there, also if it ends late:
# into a session that is closed for longer, nobody came a moment before.
CLOSED_SECONDS = (1.0, 2.0, 4.0)


@contextmanager
def ready_to_look(engine: Inside, session: Session, manner: ProbeSpec = ProbeSpec()) -> Iterator[Callable[[], Look]]:
    """Start what looks at a session that runs: it begins to look when what the `with` block gets is called.

    Raises:
        RefitError: nothing can be seen; on the call as well.
    """
    with engine.dialogue(session.container, PROBE, manner.limit) as ask:
        ask(f"exec({LOOKS.read_text(encoding='utf-8')!a})")
        yield lambda: read_look(session, ask(asked(session, manner)))


def asked(session: Session, manner: ProbeSpec) -> str:
    """The question for a look."""
    access = session.access
    return json.dumps(
        {
            "seconds": manner.seconds,
            "port": access.port,
            "protocol": access.protocol,
            "heartbeat": access.heartbeat,
            "ask": _ASK_VARIABLES,
        }
    )


def read_look(session: Session, output: str) -> Look:
    """The answer to the question for a look.

    Raises:
        RefitError: it is none.
    """
    try:
        return _LOOK.validate_json(output)
    except ValidationError as error:
        what, hint = (
            f"The look into {session.name!r} printed no report of a look.",
            f"`refit session logs {session.name}`.",
        )
        raise RefitError(what, why=str(error), hint=hint) from None


def see(engine: Inside, session: Session, manner: ProbeSpec = ProbeSpec()) -> Look:
    """Look at a session that runs; doesn't count as activity.

    Raises:
        RefitError: nothing could be seen.
    """
    with ready_to_look(engine, session, manner) as look:
        return look()


def probe(engine: Engine, session: Session, quiet: float, manner: ProbeSpec = ProbeSpec()) -> Activity:
    """The verdict on a session that runs; busy if it can't be looked at. `quiet` as in `judge`."""
    return _judged(partial(see, engine, session, manner), session, quiet)


def _judged(look: Callable[[], Look], session: Session, quiet: float) -> Activity:
    begun = now()
    try:
        return on_clock(judge(look(), session.access.helpers, quiet), begun, now())
    except RefitError as error:
        return unknown(begun, error.brief)


class _Ingress:
    """The way into a session, closed to new input for some seconds at most."""

    def __init__(self, engine: Engine, session: Session, seconds: float) -> None:
        self._lock, self._opened = Lock(), False
        self._timer = Timer(seconds, copy_context().run, [self.open])
        self._allow_ingress = engine.block_ingress(session.container, session.entry_ports)
        self._timer.start()

    def open(self) -> None:
        self._timer.cancel()
        with self._lock:
            if not self._opened:
                self._allow_ingress()
                self._opened = True

    def stays_closed(self) -> bool:
        """Close it for good, unless its time was up."""
        self._timer.cancel()
        with self._lock:
            return not self._opened


class Watch:
    """Looks at sessions, and remembers what it saw in a folder of this machine."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings, self._engine, self._folder = settings, engine, settings.folder("activity")
        self._quiet = settings.idle_minutes * 60

    def look(self, session: Session) -> Seen:
        """Look at a session that runs, and remember what was seen."""
        return self._remember(session, probe(self._engine, session, self._quiet))

    def look_by(self, session: Session, look: Callable[[], Look]) -> Seen:
        """Remember what a look of the caller's own shows; a session that it can't see is busy."""
        return self._remember(session, _judged(look, session, self._quiet))

    def look_last(
        self, session: Session, objection: Callable[[Seen], str], first: Callable[[], Look] | None = None
    ) -> str:
        """Close a session to new input and look a last time, right before it is stopped.

        It stays closed, so that nobody can begin anything before the stop. If there is an objection to what was seen,
        or a look takes longer, it is open again within about a second, and what was typed meanwhile arrives late.
        Sessions that were not seen then are looked at again.

        Args:
            session: one that runs.
            objection: says why it isn't to be stopped after all; empty: it is.
            first: the first look, whose program has been started; none: it is started here.

        Returns:
            that objection.
        """
        for seconds in CLOSED_SECONDS:
            why, closed = self._look_closed(session, objection, seconds, first)
            if why or closed:
                return why
            first = None
        return f"what works in it can't be seen within {CLOSED_SECONDS[-1]:g} s"

    def _look_closed(
        self, session: Session, objection: Callable[[Seen], str], seconds: float, first: Callable[[], Look] | None
    ) -> tuple[str, bool]:
        """The objection to what is seen, and whether the session was closed all the time, and is."""
        with ExitStack() as started:
            try:
                look = first or started.enter_context(ready_to_look(self._engine, session, FINAL_PROBE))
            except RefitError:  # maybe another one can be started, else that one says why not
                look = partial(see, self._engine, session, FINAL_PROBE)
            ingress = _Ingress(self._engine, session, seconds)
            try:
                why = objection(self._remember(session, _judged(look, session, self._quiet)))
            except BaseException:
                ingress.open()
                raise
            if why:
                ingress.open()
            return why, ingress.stays_closed()

    def _remember(self, session: Session, activity: Activity) -> Seen:
        file = self._folder / f"{check_name(session.name)}.json"
        memory = remembered(activity, _read(file))
        write_whole(file, _MEMORY.dump_json(memory), private=True)
        free = activity.verdict is Verdict.idle
        return Seen(session.name, activity.verdict, memory.since, free, activity.evidence, activity.failed)


def look_at(settings: Settings, engine: Engine, sessions: Iterable[Session]) -> tuple[Seen, ...]:
    """Look at sessions that run, some at the same time: each takes a second, and elsewhere not of this machine."""
    watch, chosen = Watch(settings, engine), [*sessions]
    return at_once(watch.look, chosen, QUESTIONS if engine.on_this_machine else elsewhere_at_once(len(chosen)))


def elsewhere_at_once(number: int) -> int:
    """How many of so many sessions on other machines are looked at at the same time. Pure."""
    return max(_ELSEWHERE_LEAST, min(_ELSEWHERE_MOST, number // _ELSEWHERE_SHARE))


def _read(file: Path) -> Memory | None:
    try:
        return _MEMORY.validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):  # nobody has looked yet, or another version of Refit has
        return None
