"""Where sessions are that people are led to, without those of which the engine knows that they aren't there any more.

The address of a Pod that has died is given to another one. Its session's host key keeps people from being taken in by
that one, and this keeps them from getting there at all.
"""

from __future__ import annotations

from flows.sessions.lifecycle import Sessions

LOOK_SECONDS = 0.5


class Addresses:
    """The addresses that the forwarder was told, checked by the engine; nobody waits for an engine that is away."""

    def __init__(self, sessions: Sessions) -> None:
        """Nothing is asked of the engine yet."""
        self._ssh, self._sshd = sessions.ssh, sessions.engine.sshd
        self._outdated = frozenset[tuple[str, str]]()

    def look(self) -> None:
        """Ask the engine.

        Raises:
            RefitError: it doesn't answer: what it said before goes on to hold.
        """
        told = self._ssh.addresses()
        self._outdated = frozenset((name, told[name]) for name in self._sshd.outdated(told))

    def now(self) -> dict[str, str]:
        """Session → IP address of its sshd."""
        told = self._ssh.addresses()
        return {name: address for name, address in told.items() if (name, address) not in self._outdated}
