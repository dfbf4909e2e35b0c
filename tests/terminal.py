"""A person at a terminal: a program with a pseudo-terminal of its own, what it shows, what is typed."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic

CTRL_C = "\x03"
CTRL_Z = "\x1a"


class Terminal:
    """Runs `argv` as the program in the foreground of a new terminal."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.shown = ""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(argv[0], list(argv), dict(env or os.environ))

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        """Wait until the program has shown `text`."""
        deadline = monotonic() + seconds
        while text not in self.shown:
            assert self._read(deadline), f"it has ended without {text!r}: {self.shown!r}"

    def close(self) -> None:
        """Take the terminal away; its programs are told so."""
        with suppress(OSError):
            os.close(self._terminal)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def exit_code(self, seconds: float = 30.0) -> int:
        """Wait for the program's end."""
        deadline = monotonic() + seconds
        while self._read(deadline):
            pass
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _read(self, deadline: float) -> bool:
        if not select.select([self._terminal], [], [], max(0.0, deadline - monotonic()))[0]:
            os.close(self._terminal)  # which ends the program
            raise AssertionError(f"nothing more came: {self.shown!r}")
        try:
            chunk = os.read(self._terminal, 65536)
        except OSError:  # Linux says so when nobody has the other end open any more
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)
