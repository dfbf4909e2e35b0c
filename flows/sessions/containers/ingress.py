"""The firewall of one container: which of its ports answer those outside."""

from __future__ import annotations

from collections.abc import Sequence

from flows.core import command
from flows.host import tools

_QUICK = 60.0  # seconds


def filter_input(network: str, shut: Sequence[int] = ()) -> None:
    """Let nothing come into a container's network by these ports, from one instant to the next."""
    called = ["nsenter", f"--net={network}", "--", *restoring()]
    command.run(called, root=True, stdin=input_rules(shut), limit=_QUICK)


def restoring() -> list[str]:
    """What changes the rules of the network that it runs in to those of `input_rules`."""
    return [tools.program("iptables-restore") or "iptables-restore", "--noflush", "--wait", "5"]


def input_rules(shut: Sequence[int]) -> str:
    """What `iptables-restore` reads to let nothing come in by these ports, and by all others. Pure."""
    rule = f"-A INPUT ! -i lo -p tcp -m multiport --dports {','.join(map(str, shut))} -j DROP\n" if shut else ""
    return f"*filter\n-F INPUT\n{rule}COMMIT\n"
