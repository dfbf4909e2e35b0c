"""The only module that runs other programs, and the only importer of `sh`.

Arguments are lists, never shell text. Each call is logged as `+ …` with secrets taken out, its output goes to the
run's log while it runs and is bounded on request, it has a time limit, and whatever it started ends with it.

Inside `recorded(folder)` every program notes itself before it becomes the program: there is no moment in which it runs
and nobody knows; see `process_records`.
"""

from __future__ import annotations

import logging
import math
import os
import select
import shlex
import shutil
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from time import monotonic
from typing import IO, Any

import psutil
import sh

from flows.core import fence
from flows.core.errors import RefitError
from flows.core.programs.process_records import note_of
from flows.core.programs.process_tree import end_child, end_tree
from flows.core.programs.program_output import ProgramOutput, reading, redacted

logger = logging.getLogger("refit.command")
# Commands that ran belong into the log of a flow run; the root logger's level (WARNING) would swallow it.
logger.setLevel(logging.INFO)

# Bytes that a program may print whose words are somebody else's, like a session's owner's.
FOREIGN_OUTPUT = 1 << 20
_PASSED_ON = ("PATH", "HOME", "USER", "TERM", "TMPDIR", "XDG_RUNTIME_DIR")
# Pids that `terminating_children` has ended. It may say that all is well: a shell that is process 1 of a container
# ignores SIGTERM, and goes on when the program has died that it waited for.
_ended: set[int] = set()


@dataclass(frozen=True)
class Completed:
    """A program that ended as it should: its command, its standard output, its time in seconds."""

    argv: tuple[str, ...]
    stdout: str
    stderr: str
    exit_code: int
    seconds: float


class ProgramMissing(RefitError):
    """The program is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"The program {name!r} is not installed.", hint="run `refit doctor`; it names the package.")


class ProgramFailed(RefitError):
    """The program ended with an exit code that says failure, or is `CommandTimeout`."""

    def __init__(self, argv: Sequence[str], problem: str, tail: str, log: Path | None, exit_code: int | None) -> None:
        self.argv, self.tail, self.log, self.exit_code_of_program = tuple(argv), tail, log, exit_code
        self._brief = f"{Path(argv[0]).name} {problem}"
        super().__init__(
            f"{self._brief}: + {redacted(shlex.join(argv))}",
            why=tail and "The last lines that it wrote:\n" + "\n".join(f"  {line}" for line in tail.splitlines()),
            hint=f"the whole output is in {log}." if log else "",
        )

    @property
    def brief(self) -> str:
        """The failure without the command line."""
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
    """Once `over` is set, start no program inside the `with` block that is `recorded`; clearing up still runs."""
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
        root: run it as root, by sudo where the caller isn't root.
        env: variables on top of a small clean environment (PATH, HOME, LANG=C.UTF-8, …).
        stdin: text for its standard input, or a file that is its input; without it the input is empty.
        limit: seconds after which it is ended with all its descendants.
        accepted: exit codes that are no failure.
        on_line, on_output: called with each line as it comes, of its output and errors; of its standard output alone.
        secret: its output goes into no log.
        shown: the command that logs and errors show, if `argv` only wraps it.
        most: bytes of output after which it is ended with all its descendants; none: no bound.
        ending: ends what it has begun elsewhere, if it has to be ended itself.

    Raises:
        ProgramMissing: it is not installed.
        ProgramFailed: it failed.
        CommandTimeout: it reached its limit.
        TooMuchOutput: it printed more than `most`.
    """
    called = _Call([str(word) for word in argv], [str(word) for word in shown or argv], cwd, stdin, limit, ending)
    where = _recording.get()
    with ProgramOutput(*((None, None) if secret else (where.log, where.live)), on_line, on_output, most) as output:
        return called.complete(root, env or {}, accepted, output)


@dataclass(frozen=True)
class _Call:
    argv: list[str]
    shown: list[str]
    cwd: Path | None
    stdin: str | IO[bytes] | None
    limit: float
    ending: Callable[[], None] | None

    def complete(
        self, root: bool, env: Mapping[str, str], accepted: Collection[int], output: ProgramOutput
    ) -> Completed:
        """Run it to its end; the errors are those of `run`."""
        where = _recording.get()
        if where.processes and is_over():
            raise ProgramFailed(self.shown, "was not started any more", "", where.log, None)
        program, argv, environment = prepared(self.argv, root, env)
        fence.check()
        output.write(f"+ {shlex.join(self.shown)}")
        logger.info("+ %s", redacted(shlex.join(self.shown)))
        started = monotonic()
        try:
            code = _execute(
                program, argv[1:], environment, self.cwd, self.stdin, self.limit, output, argv is not self.argv
            )
        except BaseException as error:
            _end_elsewhere(self.ending)
            if isinstance(error, TimeoutError):
                raise CommandTimeout(self.shown, str(error), output.tail(), output.path, None) from None
            raise
        self._check(code, accepted, output)
        stdout, stderr = "".join(output.stdout), "".join(output.stderr)
        return Completed(tuple(self.shown), stdout, stderr, code, monotonic() - started)

    def _check(self, code: int, accepted: Collection[int], output: ProgramOutput) -> None:
        if output.too_much:
            _end_elsewhere(self.ending)
            problem = f"printed more than {output.most} bytes and was ended"
            raise TooMuchOutput(self.shown, problem, output.tail(), output.path, None)
        if code not in accepted:
            problem = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
            raise ProgramFailed(self.shown, problem, output.tail(), output.path, code)


def _end_elsewhere(ending: Callable[[], None] | None) -> None:
    if ending:
        with suppress(OSError, RefitError):  # the reason why it has to end says more
            ending()


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
    output: ProgramOutput,
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
        reading(output) as (options["_out"], options["_err"], begun),
        _running(program, arguments, options) as process,
    ):
        begun()
        try:
            code = _exit_code(process, limit, output)
        except TimeoutError:
            raise TimeoutError(f"took longer than {limit:g} s and was ended") from None
    return -signal.SIGTERM if process.pid in _ended else code


def _exit_code(process: Any, limit: float, output: ProgramOutput) -> int:
    if not _ends(process.pid, limit, output.full):
        raise TimeoutError
    if output.too_much:
        end_tree(process.pid)
    try:
        process.wait()
    except sh.ErrorReturnCode as error:
        return int(error.exit_code)
    return 0


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
    note = note_of(_recording.get().processes)

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
                end_child(int(pid))
            if isinstance(error, sh.ForkException):  # it couldn't note itself: somebody has taken over
                fence.check()
            raise


@contextmanager
def terminating_children() -> Iterator[None]:
    """End what all threads run when the `with` block is left since this process was told to end (Ctrl-C, SIGTERM).

    Python tells the main thread alone, which then waits for the others; and of programs that run by sudo, nobody but
    sudo can end any. A `recorded` program that waits for its turn in another thread is then not started any more.
    """
    over = _recording.get().over or Event()
    try:
        with stopping(over):
            yield
    except Exception:
        raise
    except BaseException:
        over.set()  # first of all, or what is ended makes room for the next
        # A program that `start` started outlives this process, and has a session of its own.
        children = [child.pid for child in psutil.Process().children() if _session(child.pid) == os.getsid(0)]
        _ended.update(children)
        end_tree(*children)
        raise


def _session(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def prepared(words: list[str], root: bool, env: Mapping[str, str]) -> tuple[str, list[str], dict[str, str]]:
    """The path of what is executed, its arguments from its name on (`words` itself without sudo), its environment."""
    environment = {**{k: os.environ[k] for k in _PASSED_ON if k in os.environ}, "LANG": "C.UTF-8", **env}
    called = _elevated(words, env) if root and os.geteuid() != 0 else words
    program = shutil.which(called[0], path=environment.get("PATH"))
    if program is None:
        raise ProgramMissing(called[0])
    return program, called, environment
