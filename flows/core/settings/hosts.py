"""Hosts at which browsers reach the gateway. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

# Each loopback address, and the other one at which browsers look for localhost as well.
LOOPBACK = MappingProxyType({"127.0.0.1": "::1", "::1": "127.0.0.1"})
# Programs differ in which of the two they take localhost for.
Address = Annotated[str, AfterValidator(lambda given: "127.0.0.1" if given == "localhost" else given)]
_PORTS = {"http": 80, "https": 443}


def as_browsers_say(url: str) -> str:
    """An address without a path, as browsers name it: without the port that its scheme has anyway."""
    split = urlsplit(url)
    if split.port != _PORTS[split.scheme]:
        return url
    return f"{split.scheme}://{split.hostname}"


def second_loopback(people_host: str, bind_address: str) -> str:
    """The other loopback address at which browsers look for the gateway; empty: none.

    RFC 6761 leaves it to programs which of the two addresses localhost is; Chromium tries `::1` first.
    """
    return LOOPBACK.get(bind_address, "") if urlsplit(people_host).hostname == "localhost" else ""


def seen_from_here(bind_address: str) -> str:
    """The host in URLs of what listens on an address, for programs of this machine."""
    if bind_address in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{bind_address}]" if ":" in bind_address else bind_address
