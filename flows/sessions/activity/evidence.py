"""A look at a session, and the signs of work in it. Plain data. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from flows.core.formatting import on_a_line

_LONGEST = 80


# Evidence is kept and sent around; command lines of people may not be meant for that.
_SECRET = re.compile(r"((?:pass\w*|token|secret|\w*key)[= ]|://[^/\s:]*:)[^\s@]+", re.IGNORECASE)


_NEVER = datetime.min.replace(tzinfo=UTC)


class Verdict(StrEnum):
    """The verdict of a look; `state`: nothing works, and something would be lost that can't be had again."""

    busy = "busy"
    state = "idle with state"
    idle = "idle"


@dataclass(frozen=True)
class Process:
    """A process as it was seen twice: `cpu` is the share of a core, `moved` bytes a second, in between.

    `waited` is the share of the time in which it would have worked, had there been a free core; `restless` the share in
    which that thread of it worked or would have that did so most: a thread that computes never rests.

    Attributes:
        name: the kernel's name for it.
        state: one letter, as in proc(5).
        group: its process group.
        session: pid of the leader of its session.
        terminal: the terminal that controls it; empty: none.
        foregrounds: the process groups that the terminal's input went to.
        started: seconds since 1970.
        stdin: the kind of its standard input.
        memory: bytes of it that are in memory.
        gpu: whether it has a GPU open.
        waits: the event that its main thread waits for, as `look` names it; empty: it doesn't wait.
        threads: the same of its other threads.
    """

    pid: int
    parent: int
    argv: tuple[str, ...]
    name: str = ""
    state: str = "S"
    group: int = 0
    session: int = 0
    terminal: str = ""
    foregrounds: tuple[int, ...] = ()
    started: float = 0.0
    cpu: float = 0.0
    waited: float = 0.0
    restless: float = 0.0
    moved: float = 0.0
    stdin: str = ""
    memory: int = 0
    gpu: bool = False
    waits: str = "other"
    threads: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = _SECRET.sub(r"\1***", shlex.join(self.argv))
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        used = f", {self.cpu:.0%} CPU" if self.cpu >= 0.01 else ""
        return f"{shown}{used}, pid {self.pid}"


@dataclass(frozen=True)
class Kernel:
    """A kernel that Jupyter knows; `variables`: those that it holds, none: it couldn't be asked."""

    id: str
    name: str
    execution_state: str
    last_activity: datetime
    variables: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Look:
    """A look at a session; moments are seconds since 1970.

    Attributes:
        at: when.
        probe: the processes that looked.
        terminals: terminal → when something was last typed there.
        network: bytes a second, in and out.
        connections: how many are connected to the IDE.
        saved: when a document of Jupyter's that is open was last saved.
        heartbeat: when the IDE last said that somebody works in it.
        gpu: the share of the GPU that is used, if a process here has one open.
        hold: when its owner wrote into `~/.config/refit/hold`, and what; none: there is no such file.
        problems: facts that couldn't be seen.
    """

    at: float
    processes: tuple[Process, ...] = ()
    probe: tuple[int, ...] = ()
    terminals: Mapping[str, float] = field(default_factory=dict)
    network: float = 0.0
    connections: int = 0
    kernels: tuple[Kernel, ...] = ()
    saved: float | None = None
    heartbeat: float | None = None
    gpu: float | None = 0.0
    hold: tuple[float, str] | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """One thing that was seen, and what it says; a program in a session may be called anything.

    Attributes:
        says: the conclusion from it.
        text: in words.
        ends: whether it is a program or kernel of a person's, which a stop of the session ends.
        kernel: the id of that kernel; empty: it is none.
    """

    says: Verdict
    text: str
    ends: bool = False
    kernel: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", on_a_line(self.text))

    def __str__(self) -> str:
        return f"{self.says}: {self.text}"


@dataclass(frozen=True)
class Activity:
    """The verdict on a session at a moment, with all evidence.

    `began` is when its first process started, `used` the last sign of a person that has a date: not before `began`.
    """

    verdict: Verdict
    at: datetime
    began: datetime
    used: datetime
    evidence: tuple[Evidence, ...]

    @property
    def failed(self) -> bool:
        """Whether nobody could look."""
        return self.began == _NEVER

    @property
    def reasons(self) -> tuple[str, ...]:
        """The evidence that made the verdict."""
        return tuple(evidence_item.text for evidence_item in self.evidence if evidence_item.says is self.verdict)

    @property
    def ending(self) -> tuple[Evidence, ...]:
        """The programs and kernels that a stop would end, but for those by which nothing would be lost."""
        return tuple(item for item in self.evidence if item.ends and item.says is not Verdict.idle)


@dataclass(frozen=True)
class Memory:
    """The memory of the looks at a session; `last_busy`: when one last found work."""

    verdict: Verdict
    since: datetime
    last_busy: datetime | None = None


def unknown(at: datetime, why: str) -> Activity:
    """The verdict if nobody could look: we don't know, so it is busy."""
    return Activity(Verdict.busy, at, _NEVER, at, (Evidence(Verdict.busy, f"nobody could look: {why}"),))


def as_moment(seconds: float) -> datetime:
    """The moment so many seconds after the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
