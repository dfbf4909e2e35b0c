"""The verbs that sessions and migrations need of whatever runs containers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from flows.sessions.model import Container, Session


class Engine(Protocol):
    """Where sessions run. Every verb can be repeated: what is done already is no error.

    Failures that a person can mend are `RefitError`.
    """

    def containers(self, session: str = "") -> tuple[Container, ...]:
        """All containers that Refit made, or those of one session, lowest generation first."""

    def pull(self, image: str) -> None:
        """Bring the image with this digest to where it will run."""

    def create(self, session: Session) -> Container:
        """Create the container of this session and generation without starting it."""

    def start(self, container: str) -> None:
        """Start a created or stopped container."""

    def stop(self, container: str, grace: float) -> None:
        """SIGTERM to every process in it, up to `grace` seconds, then SIGKILL."""

    def remove(self, container: str) -> None:
        """Remove a container; its home stays."""

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
