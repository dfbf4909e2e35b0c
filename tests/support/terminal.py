"""A person at a terminal: a program with a pseudo-terminal of its own, what it shows, what is typed."""

from __future__ import annotations

import os
import pty
import select
import signal
from collections.abc import Mapping, Sequence
from time import monotonic

from tests.support.waiting import PATIENCE

CTRL_C = "\x03"
CTRL_Z = "\x1a"
END_SECONDS = max(60.0, PATIENCE)


class Terminal:
    """Runs `argv` as the program in the foreground of a new terminal."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.shown = ""
        self.ended_with: int | None = None  # what the program said when it ended
        self._pid, terminal = pty.fork()
        if self._pid == 0:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # what `nohup` and `&` let programs ignore
                signal.signal(number, signal.SIG_DFL)
            os.execve(argv[0], list(argv), dict(env or os.environ))
        os.set_inheritable(terminal, False)  # a terminal that anybody else has open isn't gone when we close it
        self._terminal: int | None = terminal

    def type(self, text: str) -> None:
        assert self._terminal is not None
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str, seconds: float = PATIENCE) -> None:
        """Wait until the program has shown `text`."""
        deadline = monotonic() + seconds
        while text not in self.shown:
            assert self._read(deadline), f"it has ended without {text!r}: {self.shown!r}"

    def close(self) -> None:
        """Take the terminal away; its programs are told so, and the one in the foreground has to end."""
        self._hang_up()
        self._end()

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Wait for the program's end."""
        deadline = monotonic() + seconds
        while self._read(deadline):
            pass
        self._hang_up()
        return self._end()

    def _hang_up(self) -> None:
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _end(self) -> int:
        """The program's exit code; one that goes on is killed, and that is a failure."""
        if self.ended_with is None:
            ended = self._ends(END_SECONDS)
            if not ended:
                os.kill(self._pid, signal.SIGKILL)
            self.ended_with = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            assert ended, f"it went on for {END_SECONDS:g} s without its terminal: {self.shown!r}"
        return self.ended_with

    def _ends(self, seconds: float) -> bool:
        process = os.pidfd_open(self._pid)
        try:
            return bool(select.select([process], [], [], seconds)[0])
        finally:
            os.close(process)

    def _read(self, deadline: float) -> bool:
        assert self._terminal is not None
        if not select.select([self._terminal], [], [], max(0.0, deadline - monotonic()))[0]:
            self.close()
            raise AssertionError(f"nothing more came: {self.shown!r}")
        try:
            chunk = os.read(self._terminal, 65536)
        except OSError:  # Linux says so when nobody has the other end open any more
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)
