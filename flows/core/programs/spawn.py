"""Programs that no call waits for: services, helpers of Refit's own, and the one that this process becomes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

from flows.core.programs.command import Completed, ProgramFailed, ProgramMissing, logger, prepared, run
from flows.core.programs.process_records import note_of
from flows.core.programs.program_output import redacted


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
    note = note_of(notes)

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


def helper(argv: Sequence[str | Path], *, log: bool = False) -> Helper:
    """Start a program of Refit's own that answers what is written to its input; without input it has to end by itself.

    It has nothing of this process's environment, and a session of its own: Ctrl-C is for this process to hear.

    Args:
        argv: the program and its arguments.
        log: its errors go where those of this process go, and nowhere otherwise.
    """
    return subprocess.Popen(
        [str(word) for word in argv],
        env={"LANG": "C.UTF-8"},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if log else subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )


def child(argv: Sequence[str | Path]) -> Helper:
    """Start a program that belongs to this service: it writes into the same log, and has nothing of the environment.

    To end with this process, whatever becomes of it, is the program's own business.
    """
    return subprocess.Popen(
        [str(word) for word in argv], env={"LANG": "C.UTF-8"}, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True
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
    program, called, environment = prepared(words, root, env or {})
    logger.info("+ %s", redacted(shlex.join(words)))
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so in the program
    if os.isatty(0):
        # `podman exec` would wait for ever for a terminal that is gone, if the shell above us ignores its loss.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execve(program, called, environment)


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

    The `with` block gets a function that sends it a line, and returns the next line of its standard output. It raises
    what `run` raises, if the program has ended instead of answering. After the block it has no more input, and isn't
    waited for.
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
