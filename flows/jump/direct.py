"""Connections to the sshd of a session that come past the jump host: from this machine itself, with a key it knew.

Which key let a connection in is in the log of the sshd alone. A program in the session can add lines there, and so no
line keeps a connection for which another one names a key that is no longer good.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from flows.core.errors import RefitError
from flows.host.sockets import remote_ends
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import SSH_PORT

logger = logging.getLogger("refit.jump")

_LINES = 5000
_ESTABLISHED = "01"
_ACCEPTED = re.compile(r"Accepted publickey for \S+ from \S+ port (\d{1,5}) ssh2: \S+ (SHA256:[A-Za-z0-9+/]{43})")


def keys_by_port(log: str) -> dict[int, frozenset[str]]:
    """The port that a connection came from → fingerprints of the keys that the log names for it. Pure."""
    named = defaultdict[int, set[str]](set)
    for port, fingerprint in _ACCEPTED.findall(log):
        named[int(port)].add(fingerprint)
    return {port: frozenset(keys) for port, keys in named.items()}


def over(ports: Iterable[int], named: Mapping[int, Collection[str]], good: Collection[str]) -> frozenset[int]:
    """The connections that have to end: those of keys that aren't good, and those that the log doesn't name. Pure."""
    return frozenset(port for port in ports if not named.get(port) or set(named[port]) - set(good))


def connected() -> frozenset[str]:
    """The addresses at which programs of this machine have an sshd of a session; one look for all of them."""
    return frozenset(end.address for end in remote_ends() if end.port == SSH_PORT)


def end_those_without_a_key(sessions: Sessions, name: str) -> int:
    """End the connections to a session whose key it doesn't know any more; returns how many.

    Raises:
        RefitError: its log can't be read.
    """
    session = sessions.store.session(name)
    first = next(
        (container.pid for container in sessions.engine.containers(name) if container.name == session.container), 0
    )
    served = _served(first) if first else {}
    if not served:
        return 0
    own, people = sessions.ssh.keys(name), sessions.ssh.people_keys(name)
    good = {key.fingerprint for key in (*own, *people)}
    ended = over(served, keys_by_port(sessions.engine.logs(session.container, _LINES)), good)
    for port in ended:
        with suppress(psutil.NoSuchProcess):
            served[port].kill()
    if ended:
        logger.warning("%d connections to %s end: their keys are not good any more", len(ended), name)
    return len(ended)


def end_quietly(sessions: Sessions, name: str) -> None:
    """End them; that it isn't possible is written into the log."""
    try:
        end_those_without_a_key(sessions, name)
    except RefitError as error:
        logger.error("connections to %s can't be looked at: %s", name, error)


def _served(first: int) -> dict[int, psutil.Process]:
    """The port that a connection to an sshd came from → the process that serves it.

    Args:
        first: pid of the first process of the container.
    """
    sockets = _sockets(first)
    served: dict[int, psutil.Process] = {}
    with suppress(psutil.Error):
        for child in psutil.Process(first).children(recursive=True) if sockets else ():
            served |= {sockets[name]: child for name in _held_by(child.pid) if name in sockets}
    return served


def _sockets(first: int) -> dict[str, int]:
    """Its open connections to an sshd, as links below `fd` name them → the port that each came from.

    psutil reads the network of this process, not that of another one.
    """
    sockets = {}
    for file in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{first}/net/{file}").read_text(encoding="ascii").splitlines()[1:]:
                here, remote, state, inode = (line.split()[place] for place in (1, 2, 3, 9))
                if state == _ESTABLISHED and _port(here) == SSH_PORT:
                    sockets[f"socket:[{inode}]"] = _port(remote)
    return sockets


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)


def _held_by(pid: int) -> list[str]:
    held = []
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                held.append(str(descriptor.readlink()))
    return held
