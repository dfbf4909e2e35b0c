"""The sshd of simulated sessions."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flows.sessions.model import Session


class SimulatedSshd:
    """Implements `engine.Sshd`: nobody comes in."""

    def check(self, session: Session) -> None:
        pass

    def provide(self, session: Session, wait: float = 0) -> None:
        pass

    def is_told(self, session: Session) -> bool:
        return True

    def start(self, session: Session) -> None:
        pass

    def present(self, container: str) -> bool:
        return True

    def outdated(self, addresses: Mapping[str, str]) -> frozenset[str]:
        return frozenset()

    def end_logins(self, session: Session, good: Collection[str], kept: Collection[tuple[str, int]] = ()) -> int:
        return 0
