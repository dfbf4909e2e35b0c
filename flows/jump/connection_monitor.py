"""The monitor of the jump host: says which sessions a key opens now, and ends connections that may not go on.

It knows each connection by the process of sshd that asked about its key. A client may offer keys that aren't its own,
and is then asked to prove that it has them; the last one that a process asks about is the one that was proven.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil
from sqlalchemy import Engine

from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.jump import rules
from flows.jump.addresses import Addresses
from flows.jump.certificates import Certificates
from flows.jump.rules import End, Login
from flows.jump.sandbox import Sandbox
from flows.jump.sshd_keeper import Forwarding
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Entitlements, Role
from flows.sessions.people.person_keys import PersonKeys
from flows.sessions.people.share_records import Grants

logger = logging.getLogger("refit.jump")

LOOK_SECONDS = 0.5
# Between looks at those who have just logged in: `ssh ada.refit true` is over before the next look at all of them.
NEWCOMERS_SECONDS = 0.1
# Seconds from a login in which the connection leads somewhere, if it ever does.
_NEW_SECONDS = 10.0
# Seconds for which logins wait for a session that has just gone. sshd waits for ten for an answer about a key.
AWAY_SECONDS = 8.0
_PAUSE = 0.1
# Connections that a person may have at a time. More than there can be logins under way: they are counted as well, and
# somebody who only knows a public key can begin one.
MOST_CONNECTIONS = 64
# Of one person into a session, beyond which none is known as theirs there: a client can open hundreds by one login.
_MOST_FORWARDINGS = 64


@dataclass(frozen=True)
class Connection:
    """A process of sshd that serves one connection, and what was let in by it."""

    process: psutil.Process
    login: Login


@dataclass(frozen=True)
class Judged:
    """A connection as it is now: to where it leads, and why it has to end; none: it may go on."""

    connection: Connection
    forwardings: frozenset[Forwarding]
    why: End | None

    @property
    def targets(self) -> frozenset[str]:
        """The addresses to which it leads."""
        return frozenset(forwarding.target for forwarding in self.forwardings)


class ConnectionMonitor:
    """The connections of the jump host: answers for each key that is offered, and ends them when their right ends."""

    def __init__(
        self, settings: Settings, database: Engine, addresses: Addresses, sandbox: Sandbox, certificates: Certificates
    ) -> None:
        self._settings, self._database, self._sandbox = settings, database, sandbox
        self._addresses, self._certificates = addresses, certificates
        self._keys, self._grants = PersonKeys(database), Grants(database)
        self._connections: dict[int, Connection] = {}
        # Process of a connection that hasn't been seen to lead anywhere yet → when it logged in.
        self._newcomers: dict[int, float] = {}
        self._lock = threading.Lock()
        self._hosts = ""
        self._led: dict[str, str] = {}
        self._away: dict[str, float] = {}

    def answer(self, fingerprint: str, process: psutil.Process) -> str:
        """The line of `authorized_keys` for a key that is offered; empty: it lets nobody in.

        Args:
            fingerprint: of the key, as OpenSSH writes it.
            process: of sshd, that serves the connection.
        """
        if (key := self._keys.find(fingerprint)) is None:
            return ""
        entitlements = rights.entitlements(self._settings, self._database)
        if not entitlements.has_account(key.person):
            return ""
        sessions = rules.chosen(entitlements.usable_by(key.person))
        self._wait_for(sessions)
        login = Login(key.person, fingerprint, frozenset(sessions))
        with self._lock:
            self._drop_ended()
            others = sum(
                connection.login.person == key.person
                for pid, connection in self._connections.items()
                if pid != process.pid
            )
            if others >= MOST_CONNECTIONS:
                logger.warning("%s has %d connections, and gets no more", key.person, others)
                return ""
            self._connections[process.pid] = Connection(process, login)
            self._newcomers[process.pid] = time.monotonic()
        return rules.line(key.key, sessions)

    def look(self) -> None:
        """Let names lead to where sessions are now, and end the connections whose time is over."""
        addresses = self._addresses.now()
        self._write_hosts(addresses)
        if not (connections := self._open_connections()):
            return
        entitlements = rights.entitlements(self._settings, self._database)
        for judged in self._judged(connections, addresses, entitlements):
            person = judged.connection.login.person
            if judged.why is None:
                self._note(person, judged.targets, addresses, entitlements)
            else:
                logger.warning("a connection of %s ends: %s", person, judged.why.value)
                self._end(judged.connection)

    def kept(self, session: str) -> frozenset[tuple[str, int]]:
        """The connections to a session that may go on, by their ends here (address, port).

        Their people have the key with which they came in, and may use the session. Nothing that the session says
        counts for that.
        """
        addresses, connections = self._addresses.now(), self._open_connections()
        if not connections or session not in addresses:
            return frozenset()
        entitlements = rights.entitlements(self._settings, self._database)
        ends = defaultdict[str, set[tuple[str, int]]](set)
        for judged in self._judged(connections, addresses, entitlements):
            login = judged.connection.login
            if judged.why is None and entitlements.may_use(login.person, session):
                ends[login.person] |= {
                    (end.address, end.port) for end in judged.forwardings if end.target == addresses[session]
                }
        return frozenset(end for theirs in ends.values() if len(theirs) <= _MOST_FORWARDINGS for end in theirs)

    def _open_connections(self) -> tuple[Connection, ...]:
        with self._lock:
            self._drop_ended()
            return tuple(self._connections.values())

    def _judged(
        self, connections: Collection[Connection], addresses: Mapping[str, str], entitlements: Entitlements
    ) -> Iterator[Judged]:
        owners = {key.key.fingerprint: key.person for key in self._keys.all()}
        people = {connection.login.person for connection in connections}
        usable = {person: entitlements.usable_by(person) for person in people}
        for connection in connections:
            login, forwardings = connection.login, self._forwardings(connection.process)
            may = usable[login.person] if entitlements.has_account(login.person) else {}
            owner, targets = owners.get(login.fingerprint, ""), {end.target for end in forwardings}
            why = rules.why_to_end(login, owner, may, entitlements.owners, addresses, targets)
            yield Judged(connection, forwardings, why)

    def look_at_newcomers(self) -> None:
        """Write into the history to whom people come who have just logged in, and may be gone in a moment."""
        since = time.monotonic() - _NEW_SECONDS
        with self._lock:
            self._drop_ended()
            self._newcomers = {
                pid: at for pid, at in self._newcomers.items() if pid in self._connections and at > since
            }
            newcomers = [self._connections[pid] for pid in self._newcomers]
        led = [(newcomer, ends) for newcomer in newcomers if (ends := self._forwardings(newcomer.process))]
        if not led:
            return
        addresses, entitlements = self._addresses.now(), rights.entitlements(self._settings, self._database)
        for connection, ends in led:
            targets = {end.target for end in ends}
            self._note(connection.login.person, targets, addresses, entitlements)
            with self._lock:
                self._newcomers.pop(connection.process.pid, None)

    def connections(self) -> tuple[Login, ...]:
        """The logins of those who are in, or come in just now."""
        with self._lock:
            self._drop_ended()
            return tuple(connection.login for connection in self._connections.values())

    def _wait_for(self, sessions: Collection[str]) -> None:
        """Let a login wait for a session that was here a moment ago: it moves, and is back within seconds."""
        wait_until(lambda: not any(map(self._is_away, sessions)), seconds=AWAY_SECONDS, pause=_PAUSE)

    def _is_away(self, session: str) -> bool:
        return time.monotonic() - self._away.get(session, -AWAY_SECONDS) < AWAY_SECONDS

    def _write_hosts(self, addresses: Mapping[str, str]) -> None:
        led, now = self._certificates.ready(addresses), time.monotonic()
        self._away = self._away | dict.fromkeys(self._led.keys() - led.keys(), now)
        text = rules.hosts(led)
        if text != self._hosts:
            self._sandbox.publish_hosts(text)
            self._hosts = text
        # Not before: a login that has waited for a session asks for its name at once.
        self._away = {name: since for name, since in self._away.items() if name not in led}
        self._led = led

    def _note(
        self, person: str, targets: Collection[str], addresses: Mapping[str, str], entitlements: Entitlements
    ) -> None:
        """Write into the history who comes in that isn't the owner."""
        for session in (name for name, address in addresses.items() if address in targets):
            access = entitlements.may_use(person, session)
            if access and access.role is not Role.owner:
                self._grants.visited(session, person, access)

    def _forwardings(self, process: psutil.Process) -> frozenset[Forwarding]:
        """The connections to sessions that the processes of a connection have opened."""
        return self._sandbox.forwardings([process.pid, *(one.pid for one in _below(process))])

    def _end(self, connection: Connection) -> None:
        for process in (*_below(connection.process), connection.process):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with self._lock:
            self._connections.pop(connection.process.pid, None)

    def _drop_ended(self) -> None:
        for pid, connection in [*self._connections.items()]:
            if not _lives(connection.process):
                del self._connections[pid]


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _below(process: psutil.Process) -> Iterable[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return ()
