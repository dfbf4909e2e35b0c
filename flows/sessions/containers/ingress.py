"""The firewall of one container: which of its ports answer those outside."""

from __future__ import annotations

from collections.abc import Sequence

from flows.core.programs import command
from flows.host import tools

_QUICK = 60.0  # seconds


def filter_input(network: str, shut: Sequence[int] = ()) -> None:
    """Let nothing come into a container's network by these ports, from one instant to the next."""
    called = ["nsenter", f"--net={network}", "--", *restoring()]
    command.run(called, root=True, stdin=input_rules(shut), limit=_QUICK)


def restoring() -> list[str]:
    """The command that changes the rules of its network to those of `input_rules`."""
    return [tools.program("iptables-restore") or "iptables-restore", "--noflush", "--wait", "5"]


def input_rules(shut: Sequence[int]) -> str:
    """The input of `iptables-restore` that closes these ports and opens all others. Pure."""
    rule = f"-A INPUT ! -i lo -p tcp -m multiport --dports {','.join(map(str, shut))} -j DROP\n" if shut else ""
    return f"*filter\n-F INPUT\n{rule}COMMIT\n"
