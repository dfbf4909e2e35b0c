"""The output of a program: read as it comes, bounded, without secrets, copied to the log of its run."""

from __future__ import annotations

import codecs
import fcntl
import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from threading import Thread

TAIL_LINES = 25


# A line that is longer comes in parts: nothing has to be kept whole until its end.
_LONGEST_LINE = 16 << 20


_CHUNK = 1 << 16


_secrets: set[str] = set()


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
def reading(output: ProgramOutput) -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Read what a program prints inside the `with` block, in a thread of its own; `sh` would keep a line of any length.

    Gives what is to be the program's standard output and standard error, and what is to be called once it has them.
    All output up to the end of the block is read; output of a descendant after that is not.
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

    A descendant that outlives the program may print for ever: all output of the program itself fits into its pipes.
    """
    looking = select.poll()
    for file in (*feeds, over):
        looking.register(file, select.POLLIN)
    pending, wait = set(feeds), None
    unread = sum(fcntl.fcntl(file, fcntl.F_GETPIPE_SZ) for file in feeds)
    while pending and unread > 0:
        ready = {file for file, _ in looking.poll(wait)}
        if over in ready:
            looking.unregister(over)
            wait = 0
        if wait == 0 and not ready & pending:
            break
        for file in ready & pending:
            if chunk := os.read(file, _CHUNK):
                feeds[file].feed(chunk)
                unread -= len(chunk) if wait == 0 else 0
            else:
                looking.unregister(file)
                pending.remove(file)
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


class ProgramOutput:
    """Collects a program's output, copies it to the log, remembers the end of it."""

    def __init__(
        self,
        log: Path | None,
        live: Callable[[str | None], None] | None,
        on_line: Callable[[str], None] | None,
        on_output: Callable[[str], None] | None,
        most: int | None = None,
    ) -> None:
        self.path, self._live, self._on_line, self._on_output = log, live, on_line, on_output
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._left, self.most, self.too_much = most, most, False
        self.longest = _LONGEST_LINE if most is None else most
        self.full = os.eventfd(0)  # can be read as soon as it is too much
        if self.path:
            self.path.touch(mode=0o600)
        self._file = self.path.open("a", encoding="utf-8") if self.path else None

    def __enter__(self) -> ProgramOutput:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live(None)
        if self._file:
            self._file.close()
        os.close(self.full)

    def write(self, line: str) -> None:
        """Copy a line to the log, without secrets."""
        if self._file:
            with suppress(ValueError):  # a descendant that outlives the program may still write
                self._file.write(redacted(line.rstrip("\n")) + "\n")
                self._file.flush()

    def take_stdout(self, chunk: str) -> None:
        """Take a line that the program has printed, or a part of a long one."""
        if self._may_come(chunk):
            self.stdout.append(chunk)
            self._take(chunk)
            if self._on_output:
                self._on_output(chunk)

    def take_stderr(self, chunk: str) -> None:
        """Take a line of its standard error, or a part of a long one."""
        if self._may_come(chunk):
            self.stderr.append(chunk)
            self._take(chunk)

    def _may_come(self, chunk: str) -> bool:
        """Whether there is still room for it; output beyond the bound isn't kept."""
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
        """The last lines, for an error message."""
        return "\n".join(self._tail)
