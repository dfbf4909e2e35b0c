"""Logs of builds of people's own profiles in the database: the page may run on another machine than the worker.

The file on the worker's machine is the log; a copy of it follows every few seconds, and at its end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, delete
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Table, write_rows
from flows.publishing.own_build_results import belongs

logger = logging.getLogger("refit.own-builds")
SECONDS = 5.0


class OwnBuildLogRow(Table):
    """The log of the last build of a bundle, as far as it was copied."""

    __tablename__ = "own_build_logs"

    bundle: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    machine: Mapped[str]
    text: Mapped[str]


@contextmanager
def followed(database: Engine, owner: str, bundle: str, machine: str, log: Path, most: int) -> Iterator[None]:
    """Copy a log again and again inside the `with` block, and at its end. A build doesn't fail for its log.

    Args:
        database: Refit's.
        owner: the owner of the bundle.
        bundle: that is built.
        machine: name of this machine.
        log: the file.
        most: bytes that are copied.
    """
    over, copied = threading.Event(), ""

    def copy() -> None:
        nonlocal copied
        try:
            with log.open("rb") as file:
                text = file.read(most).decode(errors="replace").replace("\0", "")  # PostgreSQL takes none
            if text != copied:
                write_rows(database, lambda rows: _put(rows, bundle, owner, machine, text))
                copied = text
        except FileNotFoundError:
            return  # another build of it is asked for, whose log begins anew
        except (OSError, SQLAlchemyError) as error:
            logger.warning("the log of %s isn't to be read on other machines now: %r", bundle, error)

    def follow() -> None:
        copy()
        while not over.wait(SECONDS):
            copy()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        copy()


def _put(rows: Session, bundle: str, owner: str, machine: str, text: str) -> None:
    if belongs(rows, bundle, owner):
        rows.merge(OwnBuildLogRow(bundle=bundle, owner=owner, machine=machine, text=text))


def of_another_machine(database: Engine, owner: str, bundle: str, here: str) -> bytes | None:
    """The log of a bundle whose last build was on another machine than `here`; none: it was here, or never."""
    with Session(database) as rows:
        row = rows.get(OwnBuildLogRow, bundle)
        return row.text.encode() if row and row.owner == owner and row.machine != here else None


def forget(rows: Session, bundle: str) -> None:
    """Remove, inside a transaction, the log of a bundle that is nobody's any more, or is built anew."""
    rows.execute(delete(OwnBuildLogRow).where(OwnBuildLogRow.bundle == bundle))
