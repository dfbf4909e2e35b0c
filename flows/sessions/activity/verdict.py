"""Whether somebody or something works in a session. Pure: facts go in, a verdict with its evidence comes out.

A sign without a harmless explanation is work: a program that nobody here knows keeps a session from being interrupted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from flows.core.formatting import duration, megabytes, some
from flows.sessions.activity.evidence import Activity, Evidence, Kernel, Look, Memory, Process, Verdict, as_moment
from flows.sessions.activity.program_kinds import (
    HELPERS,
    PLAIN_SHELLS,
    SHELLS,
    SSHD,
    is_open,
    is_repl,
    is_shell,
    matches,
    name_of,
    program_of,
    takes_commands,
    waits_for_ever,
)

# Limits for a program without work: share of a core, bytes a second.
IDLE_CPU, IDLE_BYTES, IDLE_NETWORK, IDLE_GPU = 0.25, 1_000_000, 100_000, 0.03
# Limit for a tunnel of ssh that nobody uses: keep-alives (bytes a second).
IDLE_TUNNEL = 1000
# Where cores are short even an idle program waits for one; a program that works gets at least this share of it.
LEAST_CPU = 0.05
# However little of a core it gets, a thread that computes runs or waits for one all the time; others sleep in between.
RESTLESS = 0.9
# Of a kernel's own threads, one looks each second whether the server is still there, and two read what the programs
# print that it starts (ipykernel: `ParentPoller`, `OutStream._watch_pipe_fd`).
_KERNELS_OWN: Mapping[str, int] = {"sleep": 1, "pipe": 2}
_NONE: Mapping[str, int] = {}
# Things for which threads wait that work.
_AT_WORK = frozenset({"child", "other", "pipe", "sleep"})
# A prompt takes keys, and beside them it may wait for others of its files, or for a time.
_AT_PROMPT = frozenset({"key", "line", "terminal", "timed"})
# The image itself starts its programs with the main program (seconds).
_START = 10.0
# The last activity of a kernel that nobody has used is when it was ready, so long after its start (seconds).
_KERNEL_START = 10.0
# An IDE that has just started was asked by Refit whether it works; a person who stays gives further signs (seconds).
_FIRST_HEARTBEAT = 30.0
# How the owner of a session says for how long it is to be left alone: `8h training`.
_LENGTH = re.compile(r"(?P<number>\d{1,4})(?P<unit>[mhd])\b", re.ASCII)
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_HELD_SECONDS = 86_400
# By so much a clock may be off without a word.
_CLOCK_SLACK = timedelta(seconds=45)


def judge(look: Look, helpers: Iterable[str] = (), quiet: float = 900.0) -> Activity:
    """The verdict on a look; any sign of work wins.

    Args:
        look: the facts that were seen.
        helpers: names of further programs that the IDE runs for itself (`Access.helpers`).
        quiet: seconds without a sign of a person after which nobody is there.
    """
    evidence = (*_general(look, quiet), *_Processes(look, (*HELPERS, *helpers), quiet).evidence())
    worst = next((kind for kind in Verdict if any(item.says is kind for item in evidence)), Verdict.idle)
    ordered = sorted(evidence, key=lambda item: list(Verdict).index(item.says))
    began = min((process.started for process in look.processes), default=look.at)
    used = max((moment for _, moment in _signs(look)), default=began)
    return Activity(worst, as_moment(look.at), as_moment(began), as_moment(max(used, began)), tuple(ordered))


def on_clock(activity: Activity, begun: datetime, ended: datetime) -> Activity:
    """The verdict with its moments by the clock of whoever looked, from `begun` until `ended`.

    The clock of another machine may be an hour off, and what is remembered is compared with the moments of promises
    and notices. The difference counts in whole minutes, so that it is the same at each look.
    """
    if begun - _CLOCK_SLACK <= activity.at <= ended + _CLOCK_SLACK:
        return activity
    off = timedelta(minutes=round((activity.at - ended) / timedelta(minutes=1)))
    return replace(activity, at=activity.at - off, began=activity.began - off, used=activity.used - off)


def remembered(activity: Activity, before: Memory | None) -> Memory:
    """The memory after a look, from that of the one before; none from a look at another container."""
    if before and before.since < activity.began:
        before = None
    last_busy = before.last_busy if before else None
    if activity.verdict is Verdict.busy:
        goes_on = before and before.verdict is Verdict.busy
        return Memory(Verdict.busy, before.since if before and goes_on else activity.at, activity.at)
    return Memory(activity.verdict, max(activity.used, last_busy) if last_busy else activity.used, last_busy)


def _general(look: Look, quiet: float) -> Iterator[Evidence]:
    """Signs that aren't seen by one process."""
    for problem in look.problems:
        yield Evidence(Verdict.busy, f"not known: {problem}")
    if look.hold:
        yield _held(look.at, *look.hold)
    if look.network >= IDLE_NETWORK:
        yield Evidence(Verdict.busy, f"the network carries {megabytes(look.network, 1)}/s")
    if look.gpu is None or look.gpu >= IDLE_GPU:
        yield Evidence(Verdict.busy, "a GPU is used" + (f" ({look.gpu:.0%})" if look.gpu else ""))
    for what, moment in _signs(look):
        if look.at - moment < quiet:
            yield Evidence(Verdict.busy, f"{what} {duration(look.at - moment)} ago")
    for kernel in look.kernels:
        yield Evidence(*_kernel(kernel, look), ends=True, kernel=kernel.id)
    if look.connections:
        yield Evidence(Verdict.idle, f"{look.connections} connected to the IDE: a page is open")


def _held(at: float, since: float, text: str) -> Evidence:
    """The meaning of a hold, which says for how long it holds, and then why; one without a length ends after a day."""
    length = _LENGTH.match(text)
    seconds = int(length["number"]) * _UNITS[length["unit"]] if length else _HELD_SECONDS
    if at - since >= seconds:
        return Evidence(Verdict.idle, f"its hold has ended {duration(at - since - seconds)} ago")
    why = (text[length.end() :] if length else text).strip()
    return Evidence(
        Verdict.busy, f"its owner holds it for {duration(since + seconds - at)}" + (f": {why}" if why else "")
    )


def _signs(look: Look) -> Iterator[tuple[str, float]]:
    """Signs of a person, and when."""
    for terminal, moment in look.terminals.items():
        yield f"somebody typed in {terminal.removeprefix('/dev/')}", moment
    for kernel in look.kernels:
        yield f"a kernel ({kernel.name}) was used", kernel.last_activity.timestamp()
    if look.saved:
        yield "a document was saved", look.saved
    began = min((process.started for process in look.processes), default=0.0)
    if look.heartbeat and look.heartbeat - began > _FIRST_HEARTBEAT:
        yield "the IDE was used", look.heartbeat


def _kernel(kernel: Kernel, look: Look) -> tuple[Verdict, str]:
    memory = sum(process.memory for process in look.processes if any(kernel.id in word for word in process.argv))
    size = f" ({megabytes(memory)})" if memory else ""
    used, short = _is_used(kernel, look), f"kernel {kernel.name} {kernel.id[:8]}{size}"
    if kernel.execution_state == "dead":
        return Verdict.idle, f"{short} has died"
    if kernel.execution_state != "idle" and (used or kernel.execution_state != "starting"):
        return Verdict.busy, f"{short} is {kernel.execution_state}"
    if kernel.variables:
        return Verdict.state, f"{short} holds {some(kernel.variables, most=3)}"
    if used or kernel.variables is None:
        return Verdict.state, f"{short} may hold something"
    return Verdict.idle, f"{short} was never used"


def _is_used(kernel: Kernel, look: Look) -> bool:
    begun = [p.started for p in look.processes if any(kernel.id in word for word in p.argv)]
    return not begun or kernel.last_activity.timestamp() - min(begun) > _KERNEL_START


class _Processes:
    """Explains every process of a look."""

    def __init__(self, look: Look, helpers: tuple[str, ...], quiet: float) -> None:
        self._look, self._helpers, self._quiet = look, helpers, quiet
        self._all = {process.pid: process for process in look.processes}
        self._groups = {process.group for process in look.processes}
        below_init = [process for process in look.processes if process.parent == 1]
        self._main = min(below_init, key=lambda process: process.pid, default=None)

    def evidence(self) -> Iterator[Evidence]:
        for process in self._look.processes:
            if process.pid == 1 or process.state in "ZX" or self._looks(process):
                continue
            says, text = self._explained(process)
            ends = not (self._is_crew(process) or self._is_kernel(process))
            yield Evidence(says, f"{text}: {process}" if text else str(process), ends)

    def _looks(self, process: Process) -> bool:
        """Whether it is a look at this session: this one, another one, or what they have started."""
        if process.pid in self._look.probe:
            return True
        parent = self._all.get(process.parent)
        return parent is not None and parent.pid != 1 and self._looks(parent)

    def _explained(self, process: Process) -> tuple[Verdict, str]:
        if process.state == "t":
            return self._debugged(process)
        if login := self._login(process):
            return login
        says, why = self._harmless(process) or (Verdict.busy, "runs")
        if says is Verdict.busy:
            return says, why
        if process.restless >= RESTLESS or (process.cpu >= LEAST_CPU and process.cpu + process.waited >= IDLE_CPU):
            return Verdict.busy, "computes"
        if process.moved >= IDLE_BYTES:
            return Verdict.busy, f"moves {megabytes(process.moved, 1)}/s"
        return says, why

    def _debugged(self, process: Process) -> tuple[Verdict, str]:
        debugger = self._all.get(process.parent)
        if debugger and is_repl(debugger) and self._asks(debugger):
            return Verdict.state, "stopped by a debugger at its prompt"
        return Verdict.busy, "stopped by a debugger"

    def _harmless(self, process: Process) -> tuple[Verdict, str] | None:
        """Why a process is no work as long as it uses next to nothing; none: it may be."""
        if self._is_crew(process):
            return Verdict.idle, "of the image"
        if self._is_kernel(process):
            works = _has_working_threads(process, _KERNELS_OWN)
            return (Verdict.busy, "a kernel with a thread that works") if works else (Verdict.idle, "a kernel")
        if process.terminal:
            return self._in_terminal(process)
        if process.name.startswith("tmux: server") or process.argv[0] == "SCREEN":
            return Verdict.idle, "keeps terminals"
        return (Verdict.idle, "a helper") if matches(program_of(process.argv), self._helpers) else None

    def _in_terminal(self, process: Process) -> tuple[Verdict, str] | None:
        if process.name.startswith("tmux: client") or program_of(process.argv) == "screen":
            return Verdict.state, "attached"
        if process.state == "T":
            return Verdict.state, "suspended"
        if is_shell(process) and process.argv[1:2] == ("-c",) and process.argv[-1] in SHELLS:
            return Verdict.idle, "waits for a shell"  # which is judged itself; tmux starts them so
        if takes_commands(process):
            return self._shell(process)
        if waits_for_ever(process.argv):
            return Verdict.state, "waits for ever"
        return self._in_foreground(process) if process.group in process.foregrounds else None

    def _in_foreground(self, process: Process) -> tuple[Verdict, str] | None:
        if is_open(process):
            return Verdict.state, "open"
        if is_repl(process):
            works = not (self._asks(process) or (process.waits == "child" and not _has_working_threads(process)))
            return (Verdict.busy, "executes") if works else (Verdict.state, "open")
        if self._asks(process):
            return Verdict.state, "waits for its user"
        if open_below := self._open_below(process):
            return Verdict.state, f"waits for {program_of(open_below.argv)}"
        return None

    def _asks(self, process: Process) -> bool:
        """Whether it has the terminal, and can't go on without its person: no thread of it does anything else."""
        if process.group not in process.foregrounds:
            return False
        if is_repl(process):
            return process.waits in _AT_PROMPT and not _has_working_threads(process)
        return process.waits in ("line", "terminal") and set(process.threads) <= {"lock"}

    def _open_below(self, process: Process) -> Process | None:
        """The program of a person's, for which another one waits that has started nothing else, maybe by a shell."""
        children = [each for each in self._all.values() if each.parent == process.pid and each.state not in "ZX"]
        waits = process.waits == "child"
        below = [e if is_open(e) or (waits and self._asks(e)) else self._open_below(e) for e in children]
        return below[0] if below and all(below) else None

    def _shell(self, process: Process) -> tuple[Verdict, str]:
        """The verdict on a shell that a person types into, or a copy that it has made of itself to work beside it."""
        if any(group > 0 and group not in self._groups for group in process.foregrounds):
            return Verdict.busy, "just ran something"
        plain = name_of(process) in PLAIN_SHELLS
        if process.waits in ("key", "terminal") or (process.waits == "line" and plain):
            return Verdict.idle, "at its prompt"
        if process.waits == "line":  # `read`, maybe in a loop; at its prompt it would take each key
            return Verdict.state, "asks for a line"
        if process.waits == "child":  # which is judged itself
            return Verdict.idle, "waits for what it has started"
        return Verdict.busy, "executes"

    def _login(self, process: Process) -> tuple[Verdict, str] | None:
        """The verdict on a server of one ssh connection; it writes into its argv whose it is and at which terminal."""
        server, _, title = " ".join(process.argv).partition(": ")
        if server not in SSHD:
            return None
        if "[listener]" in title:
            return Verdict.idle, "waits for logins"
        user, _, terminal = title.partition("@")
        if "[priv]" in user:
            return Verdict.idle, "the monitor of an ssh connection"
        programless = terminal in ("", "notty") and "[" not in user and not self._has_started(process)
        if programless and process.moved < IDLE_TUNNEL:
            return Verdict.state, "an ssh connection without a program: a tunnel that nobody uses now"
        typed = self._look.terminals.get(f"/dev/{terminal}")
        if typed is None or self._look.at - typed < self._quiet:
            return Verdict.busy, "an ssh connection"
        return Verdict.state, f"an ssh connection, nothing typed for {duration(self._look.at - typed)}"

    def _has_started(self, process: Process) -> bool:
        return any(each.parent == process.pid for each in self._all.values())

    def _is_crew(self, process: Process) -> bool:
        """Whether the image started it: the main program, and what came with it."""
        main = self._main
        if main is None or process.session != main.session or process.terminal:
            return False
        parent = self._all.get(process.parent)
        if process.started <= main.started + _START:
            return True
        # A program that a script of the image's starts now and then; programs of the IDE's start those of a person.
        return parent is not None and parent is not main and is_shell(parent) and self._is_crew(parent)

    def _is_kernel(self, process: Process) -> bool:
        """Whether Jupyter has started it; a kernel's programs work for a cell, also if init has adopted them."""
        is_kernel = any(kernel.id in word for kernel in self._look.kernels for word in process.argv)
        parent = self._all.get(process.parent)
        return is_kernel and parent is not None and parent.pid != 1 and self._is_crew(parent)


# A look waits until it is told to begin, and its text is the first line of its input.
PROBE = ("python3", "-I", "-c", "exec(input())")


def _has_working_threads(process: Process, own: Mapping[str, int] = _NONE) -> bool:
    """Whether more threads beside the main one wait for what work waits for than the program has of its `own`."""
    return bool(Counter(waits for waits in process.threads if waits in _AT_WORK) - Counter(own))
