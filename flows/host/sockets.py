"""Sockets of this machine: which user's program listens on a port, who is connected where, and sockets for one user."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


# States of net/tcp_states.h.
_SYN_SENT, _LISTENS = "02", "0A"
# An address of IPv4 in one of IPv6 (RFC 4291, 2.5.5.2).
_MAPPED, _IPV6_BYTES = bytes(10) + b"\xff\xff", 16


class RemoteEnd(NamedTuple):
    """To what a program of this machine is connected by TCP, or wants to connect (`waits`)."""

    address: str
    port: int
    waits: bool


def remote_ends() -> frozenset[RemoteEnd]:
    """The remote ends of all TCP connections of this machine.

    `psutil.net_connections` goes through the open files of all processes, to name the program of each: too much for
    what is asked every second.
    """
    return connected_to(row for table in _SOCKETS if table.exists() for row in _rows(table))


def connected_to(rows: Iterable[str]) -> frozenset[RemoteEnd]:
    """The same by the rows of /proc/net/tcp and tcp6. Pure."""
    ends = set()
    for words in map(str.split, rows):
        place, _, number = words[2].partition(":")
        if words[3] != _LISTENS:
            ends.add(RemoteEnd(_address(place), int(number, 16), words[3] == _SYN_SENT))
    return frozenset(ends)


def private_listener(path: Path) -> socket.socket:
    """A Unix socket at this path for this user alone; uvicorn would let everybody on this machine write to it."""
    path.unlink(missing_ok=True)
    listener, before = socket.socket(socket.AF_UNIX), os.umask(0o077)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(before)
    return listener


def is_anothers(address: str, port: int) -> bool:
    """Whether a connection to this address and port of this machine would come to a program of another user than root.

    Any user may listen where a service of ours doesn't run just now, and would be told what it asks for.
    """
    users = listeners(address, port, (row for table in _SOCKETS if table.exists() for row in _rows(table)))
    return not users <= {0, os.geteuid()}


def listeners(address: str, port: int, rows: Iterable[str]) -> frozenset[int]:
    """The users (uids) who listen there, by the rows of /proc/net/tcp and tcp6 (proc(5)); empty: nobody does. Pure.

    Of those who listen at this very address and at all addresses, the kernel chooses the former.
    """
    sockets: dict[str, set[int]] = {}
    for words in map(str.split, rows):
        place, _, number = words[1].partition(":")
        if words[3] == _LISTENS and int(number, 16) == port:
            sockets.setdefault(_address(place), set()).add(int(words[7]))
    everywhere = sockets.get("0.0.0.0", set()) | sockets.get("::", set())
    return frozenset(sockets.get(address) or everywhere)


def written_ends(address: str, port: int) -> tuple[str, ...]:
    """An IP address with a port as the kernel writes it in /proc/net/tcp, and in tcp6 (proc(5)). Pure."""
    packed = ipaddress.ip_address(address).packed
    forms = (packed,) if len(packed) == _IPV6_BYTES else (packed, _MAPPED + packed)
    return tuple(f"{_digits(form)}:{port:04X}" for form in forms)


def why_unreached(address: str, port: int, seconds: float) -> str:
    """Why this machine doesn't reach another one; empty: it answers at the port, or says that nobody is there."""
    try:
        socket.create_connection((address, port), seconds).close()
    except ConnectionRefusedError:
        return ""
    except OSError as error:
        return error.strerror or "it doesn't answer in time"
    return ""


def _rows(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:]


def _digits(packed: bytes) -> str:
    """An address as the kernel prints it: words of 32 bits, each in the machine's own order of bytes."""
    words = [packed[start : start + 4] for start in range(0, len(packed), 4)]
    return b"".join(word[::-1] if sys.byteorder == "little" else word for word in words).hex().upper()


def _address(digits: str) -> str:
    """The address of such digits."""
    words = [bytes.fromhex(digits[start : start + 8]) for start in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
