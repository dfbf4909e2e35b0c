"""The verbs that sessions and migrations need of whatever runs containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from flows.sessions.model import Container, Session


class Engine(Protocol):
    """Where sessions run. Every verb can be repeated: what is done already is no error.

    Failures that a person can mend are `RefitError`.
    """

    at_once: int
    """How many sessions are moved at the same time at most: more would only make each of them wait longer."""

    def containers(self, session: str = "") -> tuple[Container, ...]:
        """All containers that Refit made, or those of one session, lowest generation first."""

    def pull(self, image: str) -> None:
        """Bring the image with this digest to where it will run."""

    def create(self, session: Session) -> Container:
        """Create the container of this session and generation without starting it."""

    def start(self, container: str) -> None:
        """Start a created or stopped container, with its home.

        Raises:
            RefitError: another container may write into that home.
        """

    def binds_late(self) -> bool:
        """Whether a home can come into a container that runs already."""

    def warm(self, session: Session) -> None:
        """Start a created container whose home comes later, and wait until it waits for nothing but that."""

    def stop(self, container: str, grace: float, settle: bool = True) -> None:
        """SIGTERM to every process in it, up to `grace` seconds, then SIGKILL; nothing of it has the home any more.

        What else the engine has to do for the end of a container is waited for if it is to `settle`.
        """

    def childless(self, container: str) -> bool:
        """Whether the main program of a running container has started nothing that still runs; no: nobody knows."""

    def remove(self, container: str) -> None:
        """Remove a container; its home stays."""

    def address(self, container: str, port: int) -> tuple[str, int]:
        """Host and port at which this port of a running container is reached from here; each start may change it."""

    def by_hand(self, session: Session) -> tuple[str, ...]:
        """What somebody changed about a session's container behind Refit's back, each in words."""

    def execute(self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0) -> str:
        """Run a program inside a running container, as its user, `limit` seconds at most; returns its output."""

    def shut_out(self, container: str, ports: Sequence[int]) -> Callable[[], None]:
        """Let nothing more come in through these ports of a running container; returns what undoes it at once.

        Connections stay, and wait.
        """

    def let_in(self, container: str) -> None:
        """Undo every `shut_out` of a running container, also those of a process that has died."""

    def attach(self, container: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        """Let this process become a program inside a running container, with a terminal of its own if so wished."""

    def logs(self, container: str, lines: int = 100) -> str:
        """The last lines that the container wrote."""
