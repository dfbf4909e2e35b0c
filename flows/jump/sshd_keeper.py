"""Starts the sshd inside of its namespace, and says where its connections lead. It runs as root of that namespace.

It ends when the sshd ends, and, with the sshd, when its standard input does.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import psutil


class Forwarding(NamedTuple):
    """A connection that a process of the sshd has opened to a session, for its client.

    Attributes:
        address, port: its end on this machine.
        target: the address to which it leads.
    """

    address: str
    port: int
    target: str


def forwardings(pids: Iterable[int], port: int) -> frozenset[Forwarding]:
    """The connections of processes to this port, wherever that is.

    A process that has ended leads nowhere. Until its parent has heard of that, its files belong to the machine's root,
    who is nobody in a namespace of users.
    """
    open_ones = set[Forwarding]()
    for pid in pids:
        try:
            ends = psutil.Process(pid).net_connections("tcp")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        to_port = (end for end in ends if end.raddr and end.raddr.port == port)
        open_ones |= {Forwarding(end.laddr.ip, end.laddr.port, end.raddr.ip) for end in to_port}
    return frozenset(open_ones)


def main() -> None:
    """Answer each line `PORT PID …` with one of `ADDRESS,PORT,TARGET …`."""
    # It comes while a line is waited for.
    signal.signal(signal.SIGCHLD, lambda *_: sys.exit(1))
    # Its output is no answer, and goes where errors go.
    files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
    sshd = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=files)
    try:
        for line in sys.stdin:
            port, *pids = map(int, line.split())
            print(*(f"{end.address},{end.port},{end.target}" for end in forwardings(pids, port)), flush=True)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(ProcessLookupError):
            os.kill(sshd, signal.SIGKILL)


if __name__ == "__main__":
    main()
