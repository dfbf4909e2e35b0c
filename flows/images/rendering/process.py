"""The process that renders templates: started where it is needed first, asked by all threads, ended with this one."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from flows.core.programs import spawn

SECONDS = 60.0  # by the clock, in which an answer has to be there: its processor may have much else to do
MOST = 32_000_000  # bytes of an answer

_PROGRAM = Path(__file__).with_name("worker.py")


class Ended(Exception):
    """The process has ended instead of answering, or was ended; it says why."""


class Renderer:
    """The process, and who may ask it: one thread at a time. A fork has one of its own."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.end)

    def _forget(self) -> None:
        self._lock = Lock()
        self._process: spawn.Helper | None = None

    def start(self) -> None:
        """Start it, if it doesn't run: it gets ready while others do something else."""
        with self._lock:
            self._started()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            Ended: there is none.
        """
        content = json.dumps(request).encode()
        with self._lock:
            process = self._started()
            try:
                return _answered(process, struct.pack(">I", len(content)) + content)
            except BaseException as error:
                self._process = None
                spawn.end_helper(process)
                if isinstance(error, OSError | EOFError | ValueError | TimeoutError):
                    raise Ended(_why(process, error)) from None
                raise

    def end(self) -> None:
        """End it; it is started again where it is needed."""
        with self._lock:
            if self._process:
                spawn.end_helper(self._process)
            self._process = None

    def _started(self) -> spawn.Helper:
        if self._process is None:
            self._process = spawn.helper([sys.executable, "-I", "-B", _PROGRAM])
        return self._process


def _answered(process: spawn.Helper, content: bytes) -> dict[str, Any]:
    assert process.stdin and process.stdout
    until = monotonic() + SECONDS
    sent = memoryview(content)
    while sent:
        sent = sent[process.stdin.write(sent) or 0 :]
    (size,) = struct.unpack(">I", _read(process.stdout.fileno(), 4, until))
    if size > MOST:
        raise ValueError(f"its answer has more than {MOST // 1_000_000} MB")
    answer = json.loads(_read(process.stdout.fileno(), size, until))
    return dict(answer)


def _read(pipe: int, size: int, until: float) -> bytes:
    parts, waiting = list[bytes](), select.poll()
    waiting.register(pipe, select.POLLIN)
    while size:
        if not waiting.poll(max(0.0, until - monotonic()) * 1000):
            raise TimeoutError
        if not (part := os.read(pipe, size)):
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _why(process: spawn.Helper, error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"this took more than {SECONDS:g} s"
    if process.returncode == -signal.SIGXCPU:
        return "this took too much of the processor's time"
    return f"the process that renders templates has ended ({process.returncode}): {error or type(error).__name__}"


RENDERER = Renderer()
