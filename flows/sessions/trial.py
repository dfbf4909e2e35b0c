"""Trials: a session's next image runs beside the session, and nothing of it stays; and the names that they bear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.file_locks import if_alone
from flows.core.settings import Settings
from flows.sessions.model import HomeRef, Session, TokenRef, check_name
from flows.sessions.packages.model import Outcome

REHEARSAL = "REFIT_REHEARSAL"
QUICK, MOST_OUTPUT = 60.0, 1 << 20
# Nobody's uid: an image has to work with any.
_NOBODYS = 65_537
_SHOWN = 12  # characters of a digest


class NoTrial(RefitError):
    """There is no room for a trial just now, or nowhere to run one."""


class Trial(Protocol):
    """A container that a session's next image runs in."""

    def install(self, packages: Sequence[str]) -> Outcome:
        """Install system packages in it, before it is started.

        Raises:
            NoIndex: no index answers.
            RefitError: they can't be installed together.
        """

    def start(self) -> None:
        """Start it, with bounds in CPU and memory and as the session's user.

        Raises:
            NoTrial: there is no room for it after all.
            RefitError: the image doesn't start.
        """

    def execute(self, argv: Sequence[str], stdin: str = "", limit: float = QUICK, most: int = MOST_OUTPUT) -> str:
        """Run a program in it, as the session's user, for so many seconds and bytes of output at most; returns that."""

    def ended(self) -> str:
        """Why it doesn't run any more; empty: it does."""

    def last_words(self) -> str:
        """The last lines that it wrote."""


class Trials(Protocol):
    """Where images can be tried beside sessions."""

    with_home: bool
    """Whether a trial has a copy of the session's home; without one, its home is empty."""

    def begin(self, session: Session) -> AbstractContextManager[Trial]:
        """Prepare a trial of a session as it shall be, on its new image; nothing of it outlives the `with` block.

        Raises:
            NoTrial: there is no room for one.
            RefitError: the image can't be had.
        """

    def sweep(self) -> tuple[str, ...]:
        """Remove what killed trials have left; returns the names of their sessions."""


def alone(image: str, access: Access) -> Session:
    """A session that there isn't, for a trial of the image with this digest alone."""
    name = f"image-{image.rpartition(':')[2][:_SHOWN]}"
    return Session(name, "", "", image, _NOBODYS, HomeRef("."), TokenRef("token"), access)


@contextmanager
def named(settings: Settings, session: str) -> Iterator[str]:
    """A name that no other trial has or will have, locked inside the `with` block."""
    while True:
        id = f"{check_name(session)}.{uuid4().hex[:12]}"
        with if_alone(own := lock(settings, id)) as alone:
            if not alone or not own.exists():  # before it was locked, somebody has taken it for one that was left
                continue
            try:
                yield id
            finally:
                own.unlink(missing_ok=True)
            return


def names(settings: Settings) -> frozenset[str]:
    """The names of which there is a lock or a folder, also of trials that are under way."""
    folders = settings.folder("rehearsals").iterdir()
    return frozenset(path.stem if path.suffix == ".lock" else path.name for path in folders)


def lock(settings: Settings, id: str) -> Path:
    """The lock of a name."""
    return settings.folder("rehearsals") / f"{id}.lock"
