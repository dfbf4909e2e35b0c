"""The namespace of users that the sshd of the jump host runs in where Refit isn't root."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence

from flows.core.programs import spawn
from flows.host.user_namespace import ENTER
from flows.jump import sshd_keeper
from flows.jump.sshd_keeper import Forwarding


class Namespace:
    """The namespace with a program that runs in it, and one that looks at the connections of that.

    An ordinary user can end processes of such a namespace, and can't see their connections: root in there can.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        keeper = (sys.executable, "-I", "-B", sshd_keeper.__file__)
        self.process, self._lock = spawn.helper([*ENTER, *keeper, *argv], log=True), threading.Lock()

    def forwardings(self, pids: Collection[int], port: int) -> frozenset[Forwarding]:
        """The connections of these processes to this port, wherever that is.

        Raises:
            OSError: the program has ended.
        """
        asked = " ".join(map(str, (port, *pids)))
        with self._lock:
            if not (self.process.stdin and self.process.stdout):
                raise BrokenPipeError
            self.process.stdin.write(f"{asked}\n".encode())
            if not (told := self.process.stdout.readline()).endswith(b"\n"):
                raise BrokenPipeError
        ends = (word.split(",") for word in told.decode("ascii").split())
        return frozenset(Forwarding(address, int(number), target) for address, number, target in ends)
