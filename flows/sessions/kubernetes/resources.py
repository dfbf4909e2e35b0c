"""Memory, cores and devices of a Pod and its containers, as the API server writes them. Pure.

Devices are resources of a device plugin, which it gives to one container, or devices of a class (DRA). A Pod has one
claim for devices of a class; its slots share it. Kubernetes makes it from a template, and removes it with the Pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from flows.sessions.model import Session

# The containers of a Pod in which its session runs; others are a webhook's.
SLOTS = ("a", "b")
# The claim of devices (DRA) of a Pod, as its containers name it.
CLAIM = "gpus"
_TEMPLATE = "refit-gpus-"
_AMOUNTS = ("limits", "requests")


def devices(session: Session) -> dict[str, str]:
    """Resource of a device plugin, or class of devices (DRA) → how many of it the Pod of a session asks for."""
    return {name: str(number) for name, number in sorted(Counter(session.devices).items())}


def is_of_plugin(name: str) -> bool:
    """Whether this is a resource of a device plugin: their names have a domain and `/`, as no class of devices has."""
    return "/" in name


def devices_of(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The devices that a Pod with this specification asks for: as `devices`, for each of its containers."""
    for container in spec["containers"]:
        for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if is_of_plugin(name):
                yield name, str(amount)
    yield from _claimed(spec)


def _claimed(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    slots = [each for each in spec["containers"] if each["name"] in SLOTS]
    if any({"name": CLAIM} not in ((each.get("resources") or {}).get("claims") or ()) for each in slots):
        return  # a webhook that writes their resources anew leaves the Pod its claim, and its slots without the devices
    for claim in spec.get("resourceClaims") or ():
        template = str(claim.get("resourceClaimTemplateName") or "")
        if claim.get("name") == CLAIM and template.startswith(_TEMPLATE):
            number, _, device_class = template.removeprefix(_TEMPLATE).partition(".")
            yield device_class, number


def wanted_class(session: Session) -> tuple[str, str] | None:
    """The class of devices of a session, and how many of it; none: it has none of a class."""
    return next((each for each in devices(session).items() if not is_of_plugin(each[0])), None)


def template_name(device_class: str, number: str) -> str:
    """The name of the template of claims for so many devices of a class."""
    return f"{_TEMPLATE}{number}.{device_class}"


def claims(session: Session) -> dict[str, Any]:
    """The part of the specification of a session's Pod that names its claim; empty: it has none."""
    if (claim := wanted_class(session)) is None:
        return {}
    return {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": template_name(*claim)}]}


def waits_for_devices(told: Mapping[str, Any]) -> Iterator[str]:
    """The claim of a Pod that has no node yet, in words: the scheduler's own name neither class nor number."""
    spec, status = told.get("spec") or {}, told.get("status") or {}
    there = {each.get("name") for each in status.get("resourceClaimStatuses") or () if each.get("resourceClaimName")}
    for device_class, number in () if spec.get("nodeName") else _claimed(spec):
        lacks = "" if CLAIM in there else ", and Kubernetes has made no such claim: its events, or a quota, may say why"
        yield f"It claims {number} of the device class {device_class}{lacks}."


def asked(memory: int, cpus: float, devices: Mapping[str, str], slots: int) -> dict[str, Any]:
    """The resources of one slot: limits hold for each; where there are two, half is asked for, as one of them sleeps.

    Args:
        memory: bytes; 0: no limit.
        cpus: cores; 0: no limit.
        devices: as `devices` says.
        slots: how many the Pod has.
    """
    limits = {name: number for name, number in devices.items() if is_of_plugin(name)}
    requests, claims = dict(limits), [{"name": CLAIM}] if len(limits) < len(devices) else []
    if memory:
        limits["memory"], requests["memory"] = quantity(memory * 1000), quantity(memory // slots * 1000)
    if cpus:
        limits["cpu"], requests["cpu"] = quantity(_cores(cpus)), quantity(_cores(cpus / slots))
    parts = {"limits": limits, "requests": requests, "claims": claims}
    return {kind: part for kind, part in parts.items() if part}


def part_asked(live: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a container's resources that Refit asked for: a LimitRange of the namespace, or a webhook, adds more.

    Args:
        live: as the API server tells of them.
        asked: the result of `asked`.
    """
    amounts = {kind: {name: (live.get(kind) or {}).get(name) for name in asked.get(kind, ())} for kind in _AMOUNTS}
    claims = [claim for claim in asked.get("claims", ()) if claim in (live.get("claims") or ())]
    return {kind: part for kind, part in {**amounts, "claims": claims}.items() if kind in asked}


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
