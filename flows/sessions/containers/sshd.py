"""The sshd in a container of this machine, and the connections to it.

Which key let a connection in is in the log of the sshd alone. A program in the session can add lines there, and so no
line keeps a connection for which another one names a key that is no longer good.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from flows.core.programs.command import ProgramFailed
from flows.sessions.engine import KEYS_SECONDS, Engine
from flows.sessions.model import SSH_PORT, Session
from flows.sessions.ssh import host_certificates

# Every image's entry point; called again, it starts sshd if there are keys and none runs.
START = "/usr/local/bin/start-session"
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


class ContainerSshd:
    """Implements `engine.Sshd`: a container sees the folder itself, and the network of sessions is nobody else's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(self, session: Session) -> None:
        """Nothing is missing on this machine."""

    def provide(self, session: Session, wait: float = KEYS_SECONDS) -> None:
        """Nothing: containers see the folder as it is."""

    def is_told(self, session: Session) -> bool:
        """Always."""
        return True

    def start(self, session: Session) -> None:
        """Start it in the container of a session that runs without.

        Raises:
            RefitError: its image has none.
        """
        self._engine.execute(session.container, [START])

    def present(self, container: str) -> bool:
        """Let the sshd in a container that runs show the session's host certificate; no: it runs none yet.

        Raises:
            RefitError: it was started otherwise than Refit's images do.
        """
        try:
            host_certificates.present(partial(self._engine.execute, container))
        except ProgramFailed as error:
            if error.exit_code_of_program != host_certificates.NOT_YET:
                raise
            return False
        return True

    def outdated(self, addresses: Mapping[str, str]) -> frozenset[str]:
        """None: a container keeps its address until Refit ends it, or starts it anew."""
        return frozenset()

    def end_logins(self, session: Session, good: Collection[str], kept: Collection[tuple[str, int]] = ()) -> int:
        """End the connections to it by other keys than those with these fingerprints; returns how many there were.

        The log names the key of each, so none is `kept` for another reason.

        Raises:
            RefitError: its log can't be read.
        """
        containers = self._engine.containers(session.name)
        first = next((container.pid for container in containers if container.name == session.container), 0)
        served = _served(first) if first else {}
        if not served:
            return 0
        ended = over(served, keys_by_port(self._engine.logs(session.container, _LINES)), good)
        for port in ended:
            with suppress(psutil.NoSuchProcess):
                served[port].kill()
        return len(ended)


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
