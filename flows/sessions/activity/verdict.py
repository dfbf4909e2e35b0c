"""Whether somebody or something works in a session. Pure: what was seen goes in, a verdict with its evidence comes out.

Whatever has no harmless explanation is work: a program that nobody here knows keeps a session from being interrupted.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from flows.core.formatting import on_a_line, some

SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "tcsh", "zsh"})
# They read whole lines at their prompts; the others edit them, and take each key.
PLAIN_SHELLS = frozenset({"ash", "dash", "sh"})
# Those that wait for a person who has something open in them. A REPL is one only without a program to run.
EDITORS = ("editor", "emacs", "emacs-*", "less", "micro", "more", "nano", "nvim", "vi", "vim", "vim.*", "htop", "top")
REPLS = ("R", "ghci", "irb", "julia", "node", "python", "python3*")
# These have a prompt whatever they were begun with.
PROMPTS = ("bpython", "ipdb", "ipython", "ipython3*", "pdb", "ptpython", "pudb")
INTERPRETERS = (*SHELLS, "node", "perl", "python", "python3*", "ruby")
# Programs that wait for others to ask them, without a terminal; with work to do they show it by what they use.
HELPERS = (
    *("dbus-daemon", "dbus-launch", "dirmngr", "gpg-agent", "keyboxd", "scdaemon", "ssh-agent"),
    *("git-credential-cache--daemon", "git-fsmonitor--daemon", "watchman"),
    *("*-language-server", "*-language-server.js", "*-langserver", "*-langserver.js", "*-lsp", "clangd", "gopls"),
    *("jdtls", "pylsp", "rust-analyzer", "tsserver.js", "typingsInstaller.js", "multiprocessing.resource_tracker"),
)
# What OpenSSH calls the server of a connection, in its first word; the second name is that of 9.8 and later.
SSHD = ("sshd", "sshd-session")
# What a program without work may use: share of a core, bytes a second.
IDLE_CPU, IDLE_BYTES, IDLE_NETWORK, IDLE_GPU = 0.25, 1_000_000, 100_000, 0.03
# What a tunnel of ssh may carry that nobody uses: keep-alives (bytes a second).
IDLE_TUNNEL = 1000
# Where cores are short even an idle program waits for one; whatever works gets at least this share of it.
LEAST_CPU = 0.05
# Of a kernel's own threads, one looks each second whether the server is still there, and two read what the programs
# print that it starts (ipykernel: `ParentPoller`, `OutStream._watch_pipe_fd`).
_KERNELS_OWN: Mapping[str, int] = {"sleep": 1, "pipe": 2}
_NONE: Mapping[str, int] = {}
# What threads wait for that work.
_AT_WORK = frozenset({"child", "other", "pipe", "sleep"})
# What the image itself starts, it starts with the main program (seconds).
_START = 10.0
# The last activity of a kernel that nobody has used is when it was ready, so long after its start (seconds).
_KERNEL_START = 10.0
# An IDE that has just started was asked by Refit whether it works; a person who stays gives further signs (seconds).
_FIRST_HEARTBEAT = 30.0
_LONGEST = 80
# How the owner of a session says for how long it is to be left alone: `8h training`.
_LENGTH = re.compile(r"(?P<number>\d{1,4})(?P<unit>[mhd])\b", re.ASCII)
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_HELD_SECONDS = 86_400
# Evidence is kept and sent around; what people write on command lines may not be meant for that.
_SECRET = re.compile(r"((?:pass\w*|token|secret|\w*key)[= ]|://[^/\s:]*:)[^\s@]+", re.IGNORECASE)
# How Python starts a helper of its own.
_MODULE = re.compile(r"(?<=^from )multiprocessing\.resource_tracker(?= import main;)")
_NEVER = datetime.min.replace(tzinfo=UTC)


class Verdict(StrEnum):
    """What a look at a session says; `state`: nothing works, and something would be lost that can't be had again."""

    busy = "busy"
    state = "idle with state"
    idle = "idle"


@dataclass(frozen=True)
class Process:
    """A process as it was seen twice: `cpu` is the share of a core, `moved` bytes a second, in between.

    `waited` is the share of the time in which it would have worked, had there been a free core.

    Attributes:
        name: what the kernel calls it.
        state: one letter, as in proc(5).
        group: its process group.
        session: pid of the leader of its session.
        terminal: the terminal that controls it; empty: none.
        foregrounds: the process groups that the terminal's input went to.
        started: seconds since 1970.
        stdin: what its standard input is.
        memory: bytes of it that are in memory.
        gpu: whether it has a GPU open.
        waits: what its main thread waits for, as `look` names it; empty: it doesn't wait.
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
    """What was seen in a session; moments are seconds since 1970.

    Attributes:
        at: when.
        probe: the processes that looked.
        terminals: terminal → when something was last typed there.
        network: bytes a second, in and out.
        connections: how many are connected to the IDE.
        saved: when a document of Jupyter's that is open was last saved.
        heartbeat: when the IDE last said that somebody works in it.
        gpu: what share of the GPU is used, if a process here has one open.
        hold: when its owner wrote into `~/.config/refit/hold`, and what; none: there is no such file.
        problems: what couldn't be seen.
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
    """One thing that was seen, and what it says; what runs in a session may be called anything.

    Attributes:
        says: what follows from it.
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
    def reasons(self) -> tuple[str, ...]:
        """The evidence that made the verdict."""
        return tuple(found.text for found in self.evidence if found.says is self.verdict)

    @property
    def ending(self) -> tuple[Evidence, ...]:
        """The programs and kernels that a stop would end, but for those by which nothing would be lost."""
        return tuple(found for found in self.evidence if found.ends and found.says is not Verdict.idle)


@dataclass(frozen=True)
class Memory:
    """What is remembered of the looks at a session; `last_busy`: when one last found work."""

    verdict: Verdict
    since: datetime
    last_busy: datetime | None = None


def unknown(at: datetime, why: str) -> Activity:
    """The verdict if nobody could look: we don't know, so it is busy."""
    return Activity(Verdict.busy, at, _NEVER, at, (Evidence(Verdict.busy, f"nobody could look: {why}"),))


def judge(look: Look, helpers: Iterable[str] = (), quiet: float = 900.0) -> Activity:
    """What a look says; any sign of work wins.

    Args:
        look: what was seen.
        helpers: names of further programs that the IDE runs for itself (`Access.helpers`).
        quiet: seconds without a sign of a person after which nobody is there.
    """
    evidence = (*_general(look, quiet), *_Processes(look, (*HELPERS, *helpers), quiet).evidence())
    worst = next((kind for kind in Verdict if any(found.says is kind for found in evidence)), Verdict.idle)
    ordered = sorted(evidence, key=lambda found: list(Verdict).index(found.says))
    began = min((process.started for process in look.processes), default=look.at)
    used = max((moment for _, moment in _signs(look)), default=began)
    return Activity(worst, _moment(look.at), _moment(began), _moment(max(used, began)), tuple(ordered))


def remembered(activity: Activity, before: Memory | None) -> Memory:
    """What to remember after a look, with what was remembered of the one before; of another container: nothing."""
    if before and before.since < activity.began:
        before = None
    last_busy = before.last_busy if before else None
    if activity.verdict is Verdict.busy:
        goes_on = before and before.verdict is Verdict.busy
        return Memory(Verdict.busy, before.since if before and goes_on else activity.at, activity.at)
    return Memory(activity.verdict, max(activity.used, last_busy) if last_busy else activity.used, last_busy)


def _general(look: Look, quiet: float) -> Iterator[Evidence]:
    """What isn't seen by one process."""
    for problem in look.problems:
        yield Evidence(Verdict.busy, f"not known: {problem}")
    if look.hold:
        yield _held(look.at, *look.hold)
    if look.network >= IDLE_NETWORK:
        yield Evidence(Verdict.busy, f"the network carries {look.network / 1e6:.1f} MB/s")
    if look.gpu is None or look.gpu >= IDLE_GPU:
        yield Evidence(Verdict.busy, "a GPU is used" + (f" ({look.gpu:.0%})" if look.gpu else ""))
    for what, moment in _signs(look):
        if look.at - moment < quiet:
            yield Evidence(Verdict.busy, f"{what} {_ago(look.at - moment)} ago")
    for kernel in look.kernels:
        yield Evidence(*_kernel(kernel, look), ends=True, kernel=kernel.id)
    if look.connections:
        yield Evidence(Verdict.idle, f"{look.connections} connected to the IDE: a page is open")


def _held(at: float, since: float, said: str) -> Evidence:
    """What a hold means, which says for how long it holds, and then why; one without a length ends after a day."""
    length = _LENGTH.match(said)
    seconds = int(length["number"]) * _UNITS[length["unit"]] if length else _HELD_SECONDS
    if at - since >= seconds:
        return Evidence(Verdict.idle, f"its hold has ended {_ago(at - since - seconds)} ago")
    why = (said[length.end() :] if length else said).strip()
    return Evidence(Verdict.busy, f"its owner holds it for {_ago(since + seconds - at)}" + (f": {why}" if why else ""))


def _signs(look: Look) -> Iterator[tuple[str, float]]:
    """What shows that a person was there, and when."""
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
    size = f" ({memory / 1e6:.0f} MB)" if memory else ""
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
            return Verdict.busy, "stopped by a debugger"
        if login := self._login(process):
            return login
        says, why = self._harmless(process) or (Verdict.busy, "runs")
        if says is Verdict.busy:
            return says, why
        if process.cpu >= LEAST_CPU and process.cpu + process.waited >= IDLE_CPU:
            return Verdict.busy, "computes"
        if process.moved >= IDLE_BYTES:
            return Verdict.busy, f"moves {process.moved / 1e6:.1f} MB/s"
        return says, why

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
        return (Verdict.idle, "a helper") if _matches(_program(process.argv), self._helpers) else None

    def _in_terminal(self, process: Process) -> tuple[Verdict, str] | None:
        if process.name.startswith("tmux: client") or _program(process.argv) == "screen":
            return Verdict.state, "attached"
        if process.state == "T":
            return Verdict.state, "suspended"
        if _is_shell(process) and process.argv[1:2] == ("-c",) and process.argv[-1] in SHELLS:
            return Verdict.idle, "waits for a shell"  # which is judged itself; tmux starts them so
        if _takes_commands(process):
            return self._shell(process)
        if _waits_for_ever(process.argv):
            return Verdict.state, "waits for ever"
        return self._in_foreground(process) if process.group in process.foregrounds else None

    def _in_foreground(self, process: Process) -> tuple[Verdict, str] | None:
        if _is_open(process):
            return Verdict.state, "open"
        if _is_repl(process):
            works = process.waits not in ("terminal", "line", "child") or _has_working_threads(process)
            return (Verdict.busy, "executes") if works else (Verdict.state, "open")
        if open_below := self._open_below(process):
            return Verdict.state, f"waits for {_program(open_below.argv)}"
        return None

    def _open_below(self, process: Process) -> Process | None:
        """The editor or pager for which a program waits that has started nothing else, maybe by a shell."""
        children = [each for each in self._all.values() if each.parent == process.pid and each.state not in "ZX"]
        found = [each if _is_open(each) else self._open_below(each) for each in children]
        return found[0] if found and all(found) else None

    def _shell(self, process: Process) -> tuple[Verdict, str]:
        """What a shell does that a person types into, or a copy that it has made of itself to work beside it."""
        if any(group > 0 and group not in self._groups for group in process.foregrounds):
            return Verdict.busy, "just ran something"
        if process.waits == "terminal" or (process.waits == "line" and _name(process) in PLAIN_SHELLS):
            return Verdict.idle, "at its prompt"
        if process.waits == "line":  # `read`, maybe in a loop; at its prompt it would take each key
            return Verdict.state, "asks for a line"
        if process.waits == "child":  # which is judged itself
            return Verdict.idle, "waits for what it has started"
        return Verdict.busy, "executes"

    def _login(self, process: Process) -> tuple[Verdict, str] | None:
        """What a server of one ssh connection says; it writes into its argv whose it is and at which terminal."""
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
        return Verdict.state, f"an ssh connection, nothing typed for {_ago(self._look.at - typed)}"

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
        # What a script of the image's does now and then; programs of the IDE's start those of a person.
        return parent is not None and parent is not main and _is_shell(parent) and self._is_crew(parent)

    def _is_kernel(self, process: Process) -> bool:
        """Whether Jupyter has started it; what a kernel has started works for a cell, also if init has adopted it."""
        known = any(kernel.id in word for kernel in self._look.kernels for word in process.argv)
        parent = self._all.get(process.parent)
        return known and parent is not None and parent.pid != 1 and self._is_crew(parent)


# A look waits until it is told to begin, and its text is the first line of its input.
PROBE = ("python3", "-I", "-c", "exec(input())")


def _takes_commands(process: Process) -> bool:
    """Whether it is a shell into which a person types: no script, no command, no pipe."""
    words = [word for word in process.argv[1:] if not word.startswith("-")]
    rc = [
        after for word, after in zip(process.argv, process.argv[1:], strict=False) if word.endswith(("-file", "rcfile"))
    ]
    return _is_shell(process) and "-c" not in process.argv and words == rc and _at_terminal(process)


def _is_repl(process: Process) -> bool:
    """Whether a person types into it what it is to execute."""
    program, words = _program(process.argv), process.argv[1:]
    if not _at_terminal(process) or any(word.startswith(("--file=", "-f=")) for word in words):
        return False
    if _matches(program, PROMPTS):
        return True
    name = PurePosixPath(process.argv[0]).name
    return _matches(name, REPLS) and (not _operands(process.argv) or "-i" in words)


def _is_open(process: Process) -> bool:
    """Whether a person has an editor or pager open in it."""
    return _matches(_program(process.argv), EDITORS) and process.group in process.foregrounds


def _waits_for_ever(argv: tuple[str, ...]) -> bool:
    """Whether a program does nothing by itself, and never ends: its person looks at it, or has forgotten it."""
    name, words = PurePosixPath(argv[0]).name, argv[1:]
    follows = any(re.fullmatch(r"-[a-zA-Z]*[fF][a-zA-Z]*|--follow(=.*)?", word) for word in words)
    return (name == "tail" and follows) or (name == "sleep" and words in (("infinity",), ("inf",)))


def _has_working_threads(process: Process, own: Mapping[str, int] = _NONE) -> bool:
    """Whether more threads beside the main one wait for what work waits for than the program has of its `own`."""
    return bool(Counter(waits for waits in process.threads if waits in _AT_WORK) - Counter(own))


def _is_shell(process: Process) -> bool:
    return _name(process) in SHELLS


def _name(process: Process) -> str:
    return PurePosixPath(process.argv[0].removeprefix("-")).name


def _at_terminal(process: Process) -> bool:
    return process.stdin.startswith(("/dev/pts/", "/dev/tty", "/dev/console"))


def _program(argv: tuple[str, ...]) -> str:
    """The name of a program; behind an interpreter, that of what it runs, empty for text on its command line."""
    name = PurePosixPath(argv[0].removeprefix("-")).name
    if not (rest := _operands(argv)):
        return name
    if name == "git":
        return f"git-{rest[0]}"
    if not _matches(name, INTERPRETERS):
        return name
    if rest[0] == "-c":
        return (_MODULE.search(argv[-1]) or [""])[0]
    return PurePosixPath(rest[0]).name


def _operands(argv: tuple[str, ...]) -> tuple[str, ...]:
    """What comes after the options; `-c` stands for text, and a module of Python for a program."""
    words = iter(argv[1:])
    for word in words:
        if word in ("-c", "-e", "--eval", "-p"):
            return ("-c",)
        if word == "-m":
            return tuple(words)
        if word in ("-W", "-X", "-r", "--require"):
            next(words, "")
        elif not word.startswith("-") or word == "-":
            return (word, *words)
    return ()


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
