"""Memory, cores and devices of a container, as the API server writes them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from flows.sessions.model import Session


def devices(session: Session) -> dict[str, str]:
    """Resource of a device plugin → how many of it the container of a session asks for."""
    return {name: str(number) for name, number in sorted(Counter(session.devices).items())}


def of_plugins(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The resources of device plugins that a container asks for: their names have a domain, as no others have."""
    for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
        if "/" in name:
            yield name, str(amount)


def asked(memory: int, cpus: float, devices: Mapping[str, str], slots: int) -> dict[str, Any]:
    """The resources of one slot: limits hold for each; where there are two, half is asked for, as one of them sleeps.

    Args:
        memory: bytes; 0: no limit.
        cpus: cores; 0: no limit.
        devices: resource of a device plugin → how many of it.
        slots: how many the Pod has.
    """
    limits, requests = dict(devices), dict(devices)
    if memory:
        limits["memory"], requests["memory"] = quantity(memory * 1000), quantity(memory // slots * 1000)
    if cpus:
        limits["cpu"], requests["cpu"] = quantity(_cores(cpus)), quantity(_cores(cpus / slots))
    return {"limits": limits, "requests": requests} if limits else {}


def quantity(thousandths: int) -> str:
    """An amount as the API server writes it, so that nobody takes it for changed when it is read back."""
    if thousandths % 1000:
        return f"{thousandths}m"
    amount, suffix = thousandths // 1000, ""
    for larger in "kMGTPE":
        if not amount or amount % 1000:
            break
        amount, suffix = amount // 1000, larger
    return f"{amount}{suffix}"


def _cores(cpus: float) -> int:
    """Thousandths of a core: the API server rounds up, and 0.29 isn't a bit more than 290 of them."""
    return ceil(round(cpus * 1000, 6))
