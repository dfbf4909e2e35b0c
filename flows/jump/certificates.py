"""Host certificates of sessions whose sshd has just started, before anybody is led there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from flows.core.errors import RefitError, UnknownName
from flows.core.leases import LeaseTaken
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import SSH_PORT, Running, Session

logger = logging.getLogger("refit.jump")

LOOK_SECONDS = 0.3
# Seconds for which people aren't led to an sshd that shows no certificate yet.
HELD_SECONDS = 6.0
# Seconds until one that shows none by then is tried again.
_AGAIN_SECONDS = 10.0
# Seconds for a session on which somebody acts.
_LEASE_SECONDS = 0.2
# Sessions in a look, so that those that move needn't wait for all the others after this process was started anew.
_AT_ONCE = 4
_DAY = 86_400.0


class Certificates:
    """Lets each sshd show its certificate, and says which of them people may be led to."""

    def __init__(self, opened: Callable[[], Sessions]) -> None:
        """Nothing is shown yet; `opened` gives the sessions for a look."""
        self._opened = opened
        self._shown: dict[str, tuple[str, int]] = {}
        self._held: dict[str, tuple[str, float]] = {}
        self._not_before: dict[tuple[str, str], float] = {}
        self._addresses: dict[str, str] = {}
        self._begun = False

    def look(self) -> None:
        """Let some of the sshds show theirs that don't yet; once a day, one that is due is renewed."""
        addresses, day = self._addresses, int(time.time() / _DAY)
        for name in self._shown.keys() - addresses.keys():
            del self._shown[name]
        outdated = [name for name, address in addresses.items() if self._shown.get(name) != (address, day)]
        outdated = [name for name in outdated if time.monotonic() >= self._not_before.get((name, addresses[name]), 0.0)]
        if not outdated:
            return
        sessions = self._opened()
        newest = sorted(outdated, key=lambda name: -self._held.get(name, ("", 0.0))[1])
        for name in newest[:_AT_ONCE]:
            if self._show(sessions, name, addresses[name]):
                self._not_before.pop((name, addresses[name]), None)
                self._shown[name] = (addresses[name], day)
            elif self._waited(name) > HELD_SECONDS:
                self._not_before[name, addresses[name]] = time.monotonic() + _AGAIN_SECONDS

    def ready(self, addresses: Mapping[str, str]) -> dict[str, str]:
        """Those of the addresses to which people may be led: all but those that are new and show no certificate yet."""
        now = time.monotonic()
        self._addresses = dict(addresses)
        for name, address in addresses.items():
            if self._held.get(name, ("", 0.0))[0] != address:
                self._held[name] = (address, now if self._begun else -HELD_SECONDS)
        for name in self._held.keys() - addresses.keys():
            del self._held[name]
        self._begun = True
        return {name: address for name, address in addresses.items() if self._is_ready(name, address, now)}

    def _is_ready(self, name: str, address: str, now: float) -> bool:
        shown, _ = self._shown.get(name, ("", 0))
        return shown == address or now - self._held[name][1] >= HELD_SECONDS

    def _waited(self, name: str) -> float:
        """Seconds since people were first kept from being led there."""
        return time.monotonic() - self._held.get(name, ("", 0.0))[1]

    def _show(self, sessions: Sessions, name: str, address: str) -> bool:
        """Let an sshd show its certificate; returns whether that is over. A session that moves isn't there yet."""
        try:
            session = sessions.store.session(name)
        except UnknownName:  # it was removed just now
            return True
        try:
            containers = sessions.engine.containers(name)
        except RefitError:
            return False
        if not containers:
            return True
        # While it moves, the record still names the container that it leaves.
        up = (container.name for container in containers if container.running is Running.running)
        here = next((container for container in up if _address(sessions, container) == address), "")
        return bool(here) and _renew(sessions, session) and sessions.ssh.present(session, here)


def _renew(sessions: Sessions, session: Session) -> bool:
    """Bring a session a certificate in the place of one that is due; returns whether that is over."""
    try:
        if sessions.ssh.has_due_certificate(session):
            with sessions.alone(session.name, _LEASE_SECONDS):  # its keys come the same way
                sessions.ssh.prepare(session)
    except LeaseTaken:
        return False
    except RefitError as error:
        logger.warning("%s gets no new host certificate: %s", session.name, error)
    return True


def _address(sessions: Sessions, container: str) -> str:
    """Where its sshd is or will be; empty: it has just ended."""
    try:
        return sessions.engine.address(container, SSH_PORT)[0]
    except RefitError:
        return ""
