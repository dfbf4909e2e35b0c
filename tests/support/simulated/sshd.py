"""The sshd of simulated sessions."""

from __future__ import annotations

from collections.abc import Collection

from flows.sessions.model import Session


class SimulatedSshd:
    """Implements `engine.Sshd`: nobody comes in."""

    def check(self, session: Session) -> None:
        pass

    def provide(self, session: Session, wait: bool = True) -> None:
        pass

    def start(self, session: Session) -> None:
        pass

    def end_logins(self, session: Session, good: Collection[str]) -> int:
        return 0
