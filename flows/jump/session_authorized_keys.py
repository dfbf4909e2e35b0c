"""Keeps the `authorized_keys` of each session at the keys of the people who may use it now."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Engine

from flows.core.errors import RefitError
from flows.core.leases import LeaseTaken
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.jump import direct
from flows.sessions.engine import KEYS_SECONDS
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import SSH_PORT, EngineAway, Running
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Entitlements
from flows.sessions.people.person_keys import PersonKey, PersonKeys
from flows.sessions.ssh.keys import PublicKey, added

logger = logging.getLogger("refit.jump")

# Seconds: for a session on which somebody acts, and how long a port of this machine's own containers may be silent.
_LEASE_SECONDS, _CONNECT_SECONDS = 0.2, 1.0
# Seconds until it is tried again to bring keys that couldn't be brought: twice as long after each failure with the same
# keys, up to the longest.
_AGAIN_SECONDS, _LONGEST_AGAIN_SECONDS = 60.0, 3600.0
_MOST_DOUBLINGS = 10
# Seconds in which a session has to take its keys that didn't take them before. They lie there since that try, and the
# session is leased meanwhile.
_PROMPT_SECONDS = 10.0
# Seconds for which a look waits for sessions to get their keys: one that takes minutes holds up no other.
_AWAITED_SECONDS, _PAUSE_SECONDS = 1.0, 0.02
_NEVER = datetime.min.replace(tzinfo=UTC)

Keys = Mapping[str, tuple[PublicKey, ...]]


@dataclass(frozen=True)
class Failure:
    """Keys that couldn't be brought to a session.

    Attributes:
        keys: those of the last try.
        at: when it failed (seconds, monotonic).
        count: of failures of the session's own, one after another.
    """

    keys: tuple[PublicKey, ...]
    at: float
    count: int

    def is_over(self, keys: tuple[PublicKey, ...], now: float) -> bool:
        """Whether to try again: other keys, among which one may be missing that has to go, wait the shortest time."""
        doublings = min(max(self.count - 1, 0), _MOST_DOUBLINGS) if keys == self.keys else 0
        return now - self.at >= min(_AGAIN_SECONDS * 2.0**doublings, _LONGEST_AGAIN_SECONDS)


def keys_of_sessions(keys: Iterable[PersonKey], entitlements: Entitlements) -> dict[str, tuple[PublicKey, ...]]:
    """Session → the keys of those who may use it; sessions that nobody with a key may use are missing. Pure."""
    own, told = defaultdict[str, list[PublicKey]](list), defaultdict[str, list[PublicKey]](list)
    for registered in keys:
        label = f"{registered.person}: {registered.key.comment}" if registered.key.comment else registered.person
        own[registered.person].append(replace(registered.key, comment=label))
    for person, theirs in own.items():
        for session in entitlements.usable_by(person):
            told[session] += theirs
    return {session: added((), theirs) for session, theirs in told.items()}


class SessionAuthorizedKeys:
    """Writes the keys into the sessions; a session on which somebody acts just now is tried again later."""

    def __init__(
        self,
        settings: Settings,
        database: Engine,
        opened: Callable[[], Sessions],
        kept: Callable[[str], Collection[tuple[str, int]]],
    ) -> None:
        """Nothing is written yet.

        Args:
            settings: those in force.
            database: Refit's.
            opened: gives the sessions for a look.
            kept: session → ends on this machine of connections to it that the jump host lets go on.
        """
        self._settings, self._database, self._opened, self._kept = settings, database, opened, kept
        self._keys = PersonKeys(database)
        self._room, self._under_way = threading.BoundedSemaphore(opened().engine.at_once), set[str]()
        self._applied: dict[str, tuple[PublicKey, ...]] = {}
        self._connected = direct.connected()
        self._seen: tuple[object, ...] = ()
        self._allowed: Keys = {}
        self._failures: dict[str, Failure] = {}
        # Sessions whose keys were begun to be brought, and haven't come as far as anybody knows. Success alone ends it:
        # their keys are written down on Refit's machine already, which says nothing of the session then.
        self._unfinished = set[str]()
        # Sessions with connections that may have been opened by a key that they don't know any more.
        self._lost_keys = set[str]()

    def look(self) -> None:
        """Bring every session up to date whose keys have changed; those that take longer go on after it."""
        sessions = self._opened()
        names = {session.name for session in sessions.store.sessions()}
        by_session, begun = self._now_allowed(), list[str]()
        for name in {*list(self._applied), *list(self._unfinished), *list(self._failures)} - names:
            self._applied.pop(name, None)
            self._failures.pop(name, None)
            self._unfinished.discard(name)
        for name in sorted(names - self._under_way):
            keys = by_session.get(name, ())
            failure = self._failures.get(name)
            if self._applied.get(name) == keys or (failure and not failure.is_over(keys, time.monotonic())):
                continue
            if not self._room.acquire(timeout=_AWAITED_SECONDS):
                break
            self._under_way.add(name)
            threading.Thread(target=self._work, args=(sessions, name, keys), daemon=True).start()
            begun.append(name)
        wait_until(lambda: self._under_way.isdisjoint(begun), seconds=_AWAITED_SECONDS, pause=_PAUSE_SECONDS)

    def _work(self, sessions: Sessions, name: str, keys: tuple[PublicKey, ...]) -> None:
        try:
            self._try(sessions, name, keys)
        except Exception:
            logger.exception("the keys of %s can't be brought", name)
        finally:
            self._under_way.discard(name)
            self._room.release()

    def _try(self, sessions: Sessions, name: str, keys: tuple[PublicKey, ...]) -> None:
        before = self._failures.get(name)
        try:
            if not self._is_there(sessions, name, keys):
                self._bring(sessions, name, keys)
            elif name not in self._applied and sessions.ssh.addresses().get(name) in self._connected:
                # A process before this one may have died between key and connection.
                self._end_connections(sessions, name)
            self._applied[name] = keys
            self._unfinished.discard(name)
            self._failures.pop(name, None)
        except LeaseTaken:
            logger.info("the keys of %s wait: somebody acts on it", name)
        except RefitError as error:  # an image without sshd, for instance
            count = (before.count if before else 0) + (not isinstance(error, EngineAway))
            self._failures[name] = Failure(keys, time.monotonic(), count)
            logger.warning("the keys of %s can't be brought: %s", name, error)

    def _end_connections(self, sessions: Sessions, name: str) -> None:
        """End the connections to a session whose keys it doesn't know any more.

        Raises:
            RefitError: they can't be ended just now.
        """
        self._unfinished.add(name)
        self._lost_keys.add(name)
        direct.end_those_without_a_key(sessions, name, self._kept(name))
        self._lost_keys.discard(name)

    def _is_there(self, sessions: Sessions, name: str, keys: tuple[PublicKey, ...]) -> bool:
        """Whether nothing has to be done, as for most sessions after this process was started anew."""
        if name in self._unfinished or sessions.ssh.people_keys(name) != keys:
            return False
        if not sessions.engine.sshd.is_told(sessions.store.session(name)):
            # A process before this one wrote them down and died. People who came in by a key that went are in still.
            self._unfinished.add(name)
            self._lost_keys.add(name)
            return False
        address = sessions.ssh.addresses().get(name)
        return not keys or (address is not None and _listens(address))

    def _now_allowed(self) -> Keys:
        entitlements, keys = rights.entitlements(self._settings, self._database), self._keys.all()
        held = tuple(grant for grant in entitlements.grants if not grant.is_due(entitlements.at))
        seen = (keys, held, replace(entitlements, at=_NEVER))
        if seen != self._seen:
            self._allowed, self._seen = keys_of_sessions(keys, entitlements), seen
        return self._allowed

    def _bring(self, sessions: Sessions, name: str, keys: tuple[PublicKey, ...]) -> None:
        with sessions.alone(name, _LEASE_SECONDS):
            session = sessions.store.session(name)
            before = sessions.ssh.people_keys(name)
            if {key.body for key in before} - {key.body for key in keys}:
                self._lost_keys.add(name)
            if name in self._unfinished or before != keys:
                # Until it is done, nobody knows which keys the session has, nor whether those of before come again.
                self._applied.pop(name, None)
                self._unfinished.add(name)
                failure = self._failures.get(name)
                has_them = failure is not None and failure.count > 0
                sessions.ssh.authorize_people(session, keys, _PROMPT_SECONDS if has_them else KEYS_SECONDS)
            if name in self._lost_keys:
                self._end_connections(sessions, name)
            # One that had no key yet runs without sshd.
            if keys and sessions.running(session) is Running.running:
                host, _ = sessions.engine.address(session.container, SSH_PORT)
                if not _listens(host) or name not in sessions.ssh.addresses():
                    sessions.ssh.start(session)


def _listens(host: str) -> bool:
    with socket.socket() as trial:
        trial.settimeout(_CONNECT_SECONDS)
        return trial.connect_ex((host, SSH_PORT)) == 0
