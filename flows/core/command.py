"""The one door to other programs, and the only importer of `sh`.

Arguments are lists, never shell text. Each call is logged as `+ …` with secrets taken out, its output goes to the
run's log while it runs, it has a time limit, and whatever it started ends with it.

What a program of somebody else prints is bounded (`most`): it is ended when it has printed more.

Inside `recorded(folder)` every program notes its own pid and start time in `folder` before it becomes the program:
there is no moment in which it runs and nobody knows. After a crash, `end_recorded(folder)` ends what still runs.
"""

from __future__ import annotations

import codecs
import fcntl
import logging
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import IO, Any, NoReturn

import psutil
import sh

from flows.core import fence
from flows.core.errors import RefitError

logger = logging.getLogger("refit.command")
# What ran belongs into the log of a flow run; the root logger's level (WARNING) would swallow it.
logger.setLevel(logging.INFO)

GRACE_SECONDS = 5.0
TAIL_LINES = 25
# Bytes that a program may print whose words are somebody else's, like a session's owner's.
FOREIGN_OUTPUT = 1 << 20
# A line that is longer comes in parts: nothing has to be kept whole until its end.
_LONGEST_LINE = 16 << 20
_CHUNK = 1 << 16
_PASSED_ON = ("PATH", "HOME", "USER", "TERM", "TMPDIR", "XDG_RUNTIME_DIR")
_secrets: set[str] = set()
# The name of a note that isn't whole yet begins with it, and tells all that the note will.
_DRAFT = "."
# What `terminating_children` has ended. It may say that all is well: a shell that is process 1 of a container
# ignores SIGTERM, and goes on when the program has died that it waited for.
_ended: set[int] = set()


@dataclass(frozen=True)
class Completed:
    """A program that ended as it should: what it was called with, its standard output, how long it took (seconds)."""

    argv: tuple[str, ...]
    stdout: str
    stderr: str
    exit_code: int
    seconds: float


class ProgramMissing(RefitError):
    """The program is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The program {name!r} is not installed.", fix="run `refit doctor`; it names the package.")


class ProgramFailed(RefitError):
    """The program ended with an exit code that says failure, or is `CommandTimeout`."""

    def __init__(self, argv: Sequence[str], problem: str, tail: str, log: Path | None, exit_code: int | None) -> None:
        self.argv, self.tail, self.log, self.exit_code_of_program = tuple(argv), tail, log, exit_code
        self._brief = f"{Path(argv[0]).name} {problem}"
        super().__init__(
            f"{self._brief}: + {redacted(shlex.join(argv))}",
            why=tail and "Its last words:\n" + "\n".join(f"  {line}" for line in tail.splitlines()),
            fix=f"the whole output is in {log}." if log else "",
        )

    @property
    def brief(self) -> str:
        """What happened, without the command line."""
        return self._brief


class CommandTimeout(ProgramFailed):
    """The program reached its time limit, and was ended with all that it had started."""


class TooMuchOutput(ProgramFailed):
    """The program printed more than it may, and was ended with all that it had started."""


@dataclass(frozen=True)
class _Recording:
    log: Path | None = None
    live: Callable[[str | None], None] | None = None
    processes: Path | None = None
    over: Event | None = None


_recording: ContextVar[_Recording] = ContextVar("recording", default=_Recording())


def protect(secret: str) -> None:
    """Replace `secret` by `***` in every log line and error from now on."""
    if secret:
        _secrets.add(secret)


def redacted(text: str) -> str:
    """`text` without the secrets that were given to `protect`."""
    # Longest first, because one may be the beginning of another; a new list, because another thread may add one now.
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


@contextmanager
def logged(path: Path, live: Callable[[str | None], None] | None = None) -> Iterator[Path]:
    """Append the output of every program that runs inside the `with` block to the file `path`.

    Each line is also given to `live` as it comes, in a thread of its own, and None when its program has ended.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    token = _recording.set(replace(_recording.get(), log=path, live=live))
    try:
        yield path
    finally:
        _recording.reset(token)


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Note the pid and start time of every program that runs inside the `with` block in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    token = _recording.set(replace(_recording.get(), processes=folder))
    try:
        yield
    finally:
        _recording.reset(token)


@contextmanager
def stopping(over: Event) -> Iterator[None]:
    """Once `over` is set, start no program inside the `with` block that is `recorded`; what clears up still runs."""
    token = _recording.set(replace(_recording.get(), over=over))
    try:
        yield
    finally:
        _recording.reset(token)


def is_over() -> bool:
    """Whether `stopping` or the end of `terminating_children` keeps programs that are `recorded` from starting here."""
    over = _recording.get().over
    return over is not None and over.is_set()


def run(
    argv: Sequence[str | Path],
    *,
    root: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | IO[bytes] | None = None,
    limit: float = 600.0,
    accepted: Collection[int] = (0,),
    on_line: Callable[[str], None] | None = None,
    on_output: Callable[[str], None] | None = None,
    secret: bool = False,
    shown: Sequence[str | Path] | None = None,
    most: int | None = None,
    ending: Callable[[], None] | None = None,
) -> Completed:
    """Run a program to its end.

    Args:
        argv: the program and its arguments.
        root: run it as root, by sudo where the caller isn't root.
        env: variables on top of a small clean environment (PATH, HOME, LANG=C.UTF-8, …).
        stdin: text for its standard input, or a file that is its input; without it the input is empty.
        limit: seconds after which it is ended with all its descendants.
        accepted: exit codes that are no failure.
        on_line: called with each line of its output as it comes, that on standard error as well.
        on_output: called with each line of its standard output alone.
        secret: its output goes into no log.
        shown: what logs and errors say was called, if `argv` only wraps it.
        most: bytes of output after which it is ended with all its descendants; none: as much as it likes.
        ending: ends what it has begun elsewhere, if it has to be ended itself.

    Raises:
        ProgramMissing: it is not installed.
        ProgramFailed: it failed.
        CommandTimeout: it reached its limit.
        TooMuchOutput: it printed more than `most`.
    """
    words = [str(word) for word in argv]
    told = words if shown is None else [str(word) for word in shown]
    where = _recording.get()
    if where.processes and is_over():
        raise ProgramFailed(told, "was not started any more", "", where.log, None)
    program, called, environment = _prepared(words, root, env or {})
    fence.check()
    with _Output(_Recording() if secret else where, on_line, on_output, most) as output:
        output.write(f"+ {shlex.join(told)}")
        logger.info("+ %s", redacted(shlex.join(told)))
        started = monotonic()
        try:
            code = _execute(program, called[1:], environment, cwd, stdin, limit, output, called is not words)
        except TimeoutError as error:
            _end_elsewhere(ending)
            raise CommandTimeout(told, str(error), output.tail(), output.path, None) from None
        except BaseException:
            _end_elsewhere(ending)
            raise
    if output.too_much:
        _end_elsewhere(ending)
        problem = f"printed more than {most} bytes and was ended"
        raise TooMuchOutput(told, problem, output.tail(), output.path, None)
    if code not in accepted:
        problem = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise ProgramFailed(told, problem, output.tail(), output.path, code)
    return Completed(tuple(told), "".join(output.stdout), "".join(output.stderr), code, monotonic() - started)


def _end_elsewhere(ending: Callable[[], None] | None) -> None:
    if ending:
        with suppress(OSError, RefitError):  # the reason why it has to end says more
            ending()


@contextmanager
def dialogue(
    argv: Sequence[str | Path],
    *,
    root: bool = False,
    cwd: Path | None = None,
    limit: float = 600.0,
    most: int | None = None,
    ending: Callable[[], None] | None = None,
) -> Iterator[Callable[[str], str]]:
    """Let a program that answers lines with lines run, for `limit` seconds and `most` bytes of output at most.

    What the `with` block gets sends it a line, and returns the next line of its standard output. It raises what `run`
    raises, if the program has ended instead of answering. After the block it has no more input, and isn't waited for.
    """
    heard: SimpleQueue[str] = SimpleQueue()
    reading, writing = os.pipe()

    def execute() -> Completed:
        with open(reading, "rb") as lines:  # noqa: PTH123 - a pipe
            try:
                bounds: Any = {"limit": limit, "most": most, "ending": ending}
                return run(argv, root=root, cwd=cwd, stdin=lines, on_output=heard.put, **bounds)
            finally:
                heard.put("")

    def ask(line: str) -> str:
        with suppress(BrokenPipeError):  # it has ended, and soon says so
            ours.write(f"{line}\n".encode())
        if answer := heard.get():
            return answer
        heard.put("")  # for whoever asks again
        ended = program.result()
        raise ProgramFailed(ended.argv, "ended without an answer", ended.stderr, None, ended.exit_code)

    pool = ThreadPoolExecutor(1)
    with open(writing, "wb", buffering=0) as ours:  # noqa: PTH123 - a pipe
        program = pool.submit(copy_context().run, execute)
        pool.shutdown(wait=False)
        yield ask


def start(argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, log: Path, notes: Path) -> None:
    """Start a program that outlives this process, in a session of its own; `end_recorded(notes)` ends it.

    Args:
        argv: the program and its arguments.
        env: its whole environment.
        cwd: folder that it runs in.
        log: file that its output is appended to.
        notes: folder in which it notes its pid and start time before it becomes the program.

    Raises:
        ProgramMissing: it is not installed.
    """
    words = [str(word) for word in argv]
    if shutil.which(words[0], path=env.get("PATH")) is None:
        raise ProgramMissing(words[0])
    logger.info("+ %s &", redacted(shlex.join(words)))
    notes.mkdir(parents=True, exist_ok=True)
    note = _notes_itself(notes)

    def prepare() -> None:
        # A caller in the background of a script ignores SIGINT; a worker that inherits that never ends.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if note:
            note()

    log.touch(mode=0o600)
    with log.open("ab") as output:
        subprocess.Popen(
            words,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - no other way to know of it before it runs
        )


Helper = subprocess.Popen[bytes]


def helper(argv: Sequence[str | Path]) -> Helper:
    """Start a program of Refit's own that answers what is written to its input; without input it has to end by itself.

    It has nothing of this process's environment, and a session of its own: Ctrl-C is for this process to hear.
    """
    return subprocess.Popen(
        [str(word) for word in argv],
        env={"LANG": "C.UTF-8"},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )


def end_helper(process: Helper, patience: float = 0.2) -> None:
    """Take the input of a program of Refit's own away, and end it if it doesn't end by itself in some seconds."""
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(OSError):
                pipe.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def exec_replace(argv: Sequence[str | Path], *, root: bool = False, env: Mapping[str, str] | None = None) -> NoReturn:
    """Let this process become a program: terminal, input, outputs, signals and exit code are the program's from now on.

    It is for programs that a person works with: nothing is captured or logged, and there is no time limit.

    Args:
        argv: the program and its arguments.
        root: run it as root, by sudo where the caller isn't root.
        env: variables on top of a small clean environment.

    Raises:
        ProgramMissing: it is not installed.
    """
    words = [str(word) for word in argv]
    program, called, environment = _prepared(words, root, env or {})
    logger.info("+ %s", redacted(shlex.join(words)))
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so in the program
    if os.isatty(0):
        # `podman exec` would wait for ever for a terminal that is gone, if the shell above us ignores its loss.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execve(program, called, environment)


def _prepared(words: list[str], root: bool, env: Mapping[str, str]) -> tuple[str, list[str], dict[str, str]]:
    """The path of what is executed, its arguments from its name on (`words` itself without sudo), its environment."""
    environment = {**{k: os.environ[k] for k in _PASSED_ON if k in os.environ}, "LANG": "C.UTF-8", **env}
    called = _elevated(words, env) if root and os.geteuid() != 0 else words
    program = shutil.which(called[0], path=environment.get("PATH"))
    if program is None:
        raise ProgramMissing(called[0])
    return program, called, environment


def _elevated(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    # Names only: values may be secret, and sudo's argv is public.
    kept = [f"--preserve-env={','.join(env)}"] if env else []
    return ["sudo", "-n", *kept, "--", *words]


# How `sh` starts every program.
_ALWAYS: Mapping[str, Any] = {
    "_bg": True,
    "_bg_exc": False,
    "_decode_errors": "replace",
    "_return_cmd": True,
    "_tty_out": False,
    "_new_session": False,  # sudo remembers a password for the terminal
}


def _execute(
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path | None,
    stdin: str | IO[bytes] | None,
    limit: float,
    output: _Output,
    elevated: bool,
) -> int:
    """Returns the exit code; a signal that ended the program is a negative number."""
    options: dict[str, Any] = {
        **_ALWAYS,
        "_in": stdin if stdin is not None else "",
        "_env": dict(environment),
        # A worker that cancels signals the whole group: a program in a group of its own would not hear of it. One that
        # sudo runs as root doesn't anyway, and the worker would wait for the group's end in vain.
        "_new_group": elevated,
    }
    if cwd is not None:
        options["_cwd"] = str(cwd)
    with (
        _reading(output) as (options["_out"], options["_err"], begun),
        _running(program, arguments, options) as process,
    ):
        begun()
        try:
            code = _exit_code(process, limit, output)
        except TimeoutError:
            raise TimeoutError(f"took longer than {limit:g} s and was ended") from None
    return -signal.SIGTERM if process.pid in _ended else code


def _exit_code(process: Any, limit: float, output: _Output) -> int:
    if not _ends(process.pid, limit, output.full):
        raise TimeoutError
    if output.too_much:
        end_tree(process.pid)
    try:
        process.wait()
    except sh.ErrorReturnCode as error:
        return int(error.exit_code)
    return 0


@contextmanager
def _reading(output: _Output) -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Read what a program prints inside the `with` block, in a thread of its own; `sh` would keep a line of any length.

    Gives what is to be the program's standard output and standard error, and what is to be called once it has them.
    What it has printed when the block is left is read to its end; what a descendant prints after that, nobody reads.
    """
    (out, for_out), (err, for_err), (over, ended) = os.pipe(), os.pipe(), os.pipe()
    ours = [for_out, for_err]

    def begun() -> None:
        while ours:
            os.close(ours.pop())

    feeds = {out: _Lines(output.take_stdout, output.longest), err: _Lines(output.take_stderr, output.longest)}
    reader = Thread(target=copy_context().run, args=[_read, feeds, over], daemon=True)
    reader.start()
    try:
        yield for_out, for_err, begun
    finally:
        begun()
        os.close(ended)
        reader.join()
        for end in (out, err, over):
            os.close(end)


def _read(feeds: Mapping[int, _Lines], over: int) -> None:
    """Feed what can be read to its lines, until all is at its end, or `over` is and there is nothing more.

    A descendant that outlives the program may print for ever: what the program has printed fits into its pipes.
    """
    looking = select.poll()
    for file in (*feeds, over):
        looking.register(file, select.POLLIN)
    left, wait = set(feeds), None
    unread = sum(fcntl.fcntl(file, fcntl.F_GETPIPE_SZ) for file in feeds)
    while left and unread > 0:
        ready = {file for file, _ in looking.poll(wait)}
        if over in ready:
            looking.unregister(over)
            wait = 0
        if wait == 0 and not ready & left:
            break
        for file in ready & left:
            if chunk := os.read(file, _CHUNK):
                feeds[file].feed(chunk)
                unread -= len(chunk) if wait == 0 else 0
            else:
                looking.unregister(file)
                left.remove(file)
    for lines in feeds.values():
        lines.end()


class _Lines:
    """Cuts what comes into lines, and very long ones into parts."""

    def __init__(self, take: Callable[[str], None], longest: int) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._take, self._longest, self._rest = take, longest, ""

    def feed(self, chunk: bytes, final: bool = False) -> None:
        *lines, rest = (self._rest + self._decode(chunk, final)).split("\n")
        for line in lines:
            self._take(f"{line}\n")
        if len(rest) > self._longest:
            self._take(rest)
            rest = ""
        self._rest = rest

    def end(self) -> None:
        self.feed(b"", final=True)
        if self._rest:
            self._take(self._rest)


def _ends(child: int, seconds: float, full: int) -> bool:
    """Whether a child ends, or is to be ended since `full` can be read, within some seconds.

    This is told at once, where `sh` would look ten times a second.
    """
    try:
        opened = os.pidfd_open(child)
    except ProcessLookupError:  # and somebody knows already
        return True
    try:
        waiting = select.poll()
        waiting.register(opened, select.POLLIN)
        waiting.register(full, select.POLLIN)
        return bool(waiting.poll(math.ceil(seconds * 1000)))
    finally:
        os.close(opened)


@contextmanager
def _running(program: str, arguments: Sequence[str], options: Mapping[str, Any]) -> Iterator[Any]:
    """Start a program by `sh`, and end it if the `with` block is left by an exception.

    One that comes before `sh` has said which process it is, Ctrl-C for instance, ends the program, too.
    """
    heard, said = os.pipe()
    note = _notes_itself(_recording.get().processes)

    def prepare() -> None:
        os.write(said, str(os.getpid()).encode())
        if note:
            note()

    with open(heard) as listening, open(said, "w") as speaking:  # noqa: PTH123 - pipes
        try:
            yield sh.Command(program)(*arguments, **options, _preexec_fn=prepare)
        except BaseException as error:
            speaking.close()
            if pid := os.read(listening.fileno(), 32):
                _end_own(int(pid))
            if isinstance(error, sh.ForkException):  # it couldn't note itself: somebody has taken over
                fence.check()
            raise


class _Output:
    """Collects a program's output, copies it to the log, remembers the end of it."""

    def __init__(
        self,
        where: _Recording,
        on_line: Callable[[str], None] | None,
        on_output: Callable[[str], None] | None,
        most: int | None = None,
    ) -> None:
        self.path, self._live, self._on_line, self._on_output = where.log, where.live, on_line, on_output
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._left, self.too_much = most, False
        self.longest = _LONGEST_LINE if most is None else most
        self.full = os.eventfd(0)  # can be read as soon as it is too much
        if self.path:
            self.path.touch(mode=0o600)
        self._file = self.path.open("a", encoding="utf-8") if self.path else None

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live(None)
        if self._file:
            self._file.close()
        os.close(self.full)

    def write(self, line: str) -> None:
        if self._file:
            with suppress(ValueError):  # a descendant that outlives the program may still write
                self._file.write(redacted(line.rstrip("\n")) + "\n")
                self._file.flush()

    def take_stdout(self, chunk: str) -> None:
        if self._may_come(chunk):
            self.stdout.append(chunk)
            self._take(chunk)
            if self._on_output:
                self._on_output(chunk)

    def take_stderr(self, chunk: str) -> None:
        if self._may_come(chunk):
            self.stderr.append(chunk)
            self._take(chunk)

    def _may_come(self, chunk: str) -> bool:
        """Whether there is still room for it; what comes after too much isn't kept."""
        if self._left is None:
            return True
        self._left -= len(chunk.encode())
        if self._left < 0 and not self.too_much:
            self.too_much = True
            os.eventfd_write(self.full, 1)
        return not self.too_much

    def _take(self, chunk: str) -> None:
        line = redacted(chunk.rstrip("\n"))
        self._tail.append(line)
        self.write(chunk)
        if self._live:
            self._live(line)
        if self._on_line:
            self._on_line(chunk.rstrip("\n"))

    def tail(self) -> str:
        return "\n".join(self._tail)


@dataclass(frozen=True)
class ProcessId:
    """A process that can't be mistaken for a later one with the same pid: boot and start time belong to it."""

    pid: int
    boot: str
    started: str = field(metadata={"unit": "clock ticks since boot"})

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a running process; none if there is none with that pid."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return None
        after_name = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets: proc(5)
        return None if after_name[0] == "Z" else cls(pid, boot, after_name[19])

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self


def _notes_itself(folder: Path | None) -> Callable[[], None] | None:
    if folder is None:
        return None

    def note() -> None:
        me = ProcessId.of(os.getpid())
        if me:
            draft = folder / f"{_DRAFT}{me.pid} {me.boot} {me.started}"
            draft.write_text(f"{me.boot} {me.started}\n")
            draft.rename(folder / str(me.pid))

    return note


def noted(folder: Path) -> tuple[ProcessId, ...]:
    """The processes that were noted in `folder` and still run; notes and folder may go meanwhile."""
    notes = list[Path]()
    with suppress(FileNotFoundError):
        notes += folder.iterdir()
    read = (_read_note(note) for note in notes if note.name.isdigit())
    return tuple(process for process in filter(None, read) if process.alive)


def end_for_good(folder: Path, grace: float = GRACE_SECONDS) -> int:
    """As `end_recorded`, and remove the folder: from then on no program that would note itself there starts any more.

    Whoever is just about to start one finds no folder, and the program isn't started.
    """
    ended = 0
    while folder.exists():
        ended += end_recorded(folder, grace)
        with suppress(OSError):  # one has noted itself meanwhile
            folder.rmdir()
    return ended


def end_recorded(folder: Path, grace: float = GRACE_SECONDS) -> int:
    """End every process tree that was noted in `folder` and forget it; returns how many still ran."""
    running = noted(folder)
    end_tree(*(process.pid for process in running), grace=grace)
    with suppress(FileNotFoundError):
        for note in filter(_is_over, folder.iterdir()):
            note.unlink(missing_ok=True)
    return len(running)


def _is_over(note: Path) -> bool:
    """Whether what noted itself has ended: what has begun meanwhile, or is about to, is left to the next look."""
    process = _read_note(note)
    return process is None or not process.alive


def _read_note(note: Path) -> ProcessId | None:
    """The process of a note or of its draft; none of what is neither, such as a way through the fence."""
    with suppress(FileNotFoundError, ValueError):
        if note.name.startswith(_DRAFT):
            pid, boot, started = note.name.removeprefix(_DRAFT).split(" ")
            return ProcessId(int(pid), boot, started)
        if note.name.isdigit():
            boot, _, started = note.read_text().strip().partition(" ")
            return ProcessId(int(note.name), boot, started)
    return None


def end_tree(*pids: int, grace: float = GRACE_SECONDS) -> None:
    """End processes and all their descendants: SIGTERM, `grace` seconds, SIGKILL."""
    tree = [process for pid in pids for process in _tree(pid)]
    _signal(tree, signal.SIGTERM)
    alive = _running_after(grace, tree)
    _signal({process for parent in alive for process in _tree(parent.pid)}, signal.SIGKILL)
    _running_after(grace, alive)


def _end_own(child: int) -> None:
    """End a child of this process whose exit code nobody asks for any more, with all its descendants."""
    end_tree(child)
    with suppress(ChildProcessError):  # `sh` has asked
        os.waitpid(child, os.WNOHANG)


def _running_after(seconds: float, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that haven't ended after some seconds.

    The exit code of a child stays for the thread that began it; `psutil` would take it.
    """
    end = monotonic() + seconds
    return [process for process in processes if not _ends_by(end, process)]


def _ends_by(end: float, process: psutil.Process) -> bool:
    try:
        opened = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.is_running():  # the number is another process's, and may have been when it was opened
            return True
        waiting = select.poll()
        waiting.register(opened, select.POLLIN)
        return bool(waiting.poll(max(0, end - monotonic()) * 1000))
    finally:
        os.close(opened)


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    return []


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    roots = []
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied:  # it runs as root, by sudo
            roots.append(str(process.pid))
    if roots:
        with suppress(ProgramFailed), fence.lifted():  # one may have ended before its turn came
            run(["kill", f"-{number.name.removeprefix('SIG')}", *roots], root=True, limit=10)


@contextmanager
def terminating_children() -> Iterator[None]:
    """End what all threads run when the `with` block is left since this process was told to end (Ctrl-C, SIGTERM).

    Python tells the main thread alone, which then waits for the others; and of programs that run by sudo, nobody but
    sudo can end any. What waits for its turn in another thread is then not started any more, if it is `recorded`.
    """
    over = _recording.get().over or Event()
    try:
        with stopping(over):
            yield
    except Exception:
        raise
    except BaseException:
        over.set()  # first of all, or what is ended makes room for the next
        # What `start` started outlives this process, and has a session of its own.
        children = [child.pid for child in psutil.Process().children() if _session(child.pid) == os.getsid(0)]
        _ended.update(children)
        end_tree(*children)
        raise


def _session(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return None
