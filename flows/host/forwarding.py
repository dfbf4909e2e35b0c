"""Ports of this host that are forwarded to containers, and by rules that outlived theirs.

A container whose end nobody saw to (its storage was removed, its supervisor killed) leaves its rules behind. They come
before any listener: whoever gets the port later is never reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from flows.core import command
from flows.core.command import ProgramFailed, ProgramMissing
from flows.host import tools

# Where the CNI plugin `portmap` keeps one rule for each container.
CHAIN = "CNI-HOSTPORT-DNAT"


@dataclass(frozen=True)
class Forwarding:
    """A rule of iptables that forwards ports to a container.

    Attributes:
        container: its id.
        ports: of this host.
        rule: chain and conditions, as `iptables -t nat -A` takes them.
    """

    container: str
    ports: tuple[int, ...]
    rule: str

    @property
    def removal(self) -> str:
        """The command that removes it."""
        return f"iptables -t nat -D {self.rule}"


def forwardings() -> tuple[Forwarding, ...]:
    """All of this machine; none where they can't be read: no iptables, or not by sudo."""
    program = tools.program("iptables")
    if program is None:
        return ()
    listing = [program, "--wait", "5", "-t", "nat", "-S", CHAIN]
    try:
        listed = command.run(listing, root=True, accepted=(0, 1), limit=10).stdout
    except (ProgramFailed, ProgramMissing):
        return ()
    return parse(listed)


def parse(listing: str) -> tuple[Forwarding, ...]:
    """The forwardings in what `iptables -t nat -S CNI-HOSTPORT-DNAT` prints. Pure."""
    found = re.finditer(rf'^-A ({CHAIN} .*id: \\"(\w+)\\".* --dports ([\d,]+) .*)$', listing, re.MULTILINE)
    return tuple(Forwarding(rule[2], tuple(map(int, rule[3].split(","))), rule[1]) for rule in found)


def taken_ports() -> frozenset[int]:
    """The ports that are forwarded to some container, living or not."""
    return frozenset(port for forwarding in forwardings() for port in forwarding.ports)


def stale() -> tuple[Forwarding, ...]:
    """The forwardings whose container is gone, whichever storage it was in."""
    known = forwardings()
    living = supervised(known)
    return tuple(forwarding for forwarding in known if forwarding.container not in living)


def supervised(known: Iterable[Forwarding]) -> frozenset[str]:
    """The containers of these forwardings that live: each has a supervisor (conmon) that bears its id in its words."""
    words = {word for process in psutil.process_iter(["cmdline"]) for word in process.info["cmdline"] or ()}
    return frozenset(forwarding.container for forwarding in known if forwarding.container in words)
