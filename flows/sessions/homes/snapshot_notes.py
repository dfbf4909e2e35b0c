"""Notes beside snapshots, which say what each one is: after a loss of the database they are found by these.

A note is written once its snapshot is whole, and removed before anything of the snapshot is. Their folders are root's.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile

from flows.core.programs import command
from flows.sessions.model import check_name

LONGEST = 1 << 16  # bytes of a note
_MOST = 1 << 22  # bytes of all notes of a session
_FOLDER = ".notes"  # no session is called so


def folder_of(snapshots: Path, session: str) -> Path:
    """The folder with the notes about a session's snapshots. Pure."""
    return snapshots / _FOLDER / check_name(session)


def write(snapshots: Path, session: str, id: str, text: str) -> None:
    """Write a note, on one line, whole or not at all.

    Raises:
        RefitError: it can't be written.
    """
    folder = folder_of(snapshots, session)
    command.run(["install", "-d", "-m", "0700", folder], root=True)
    with NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        draft = folder / f".{id}"
        command.run(["install", "-m", "0600", "--", file.name, draft], root=True)
    command.run(["mv", "-T", "--", draft, folder / id], root=True)


def read(snapshots: Path, session: str) -> tuple[str, ...]:
    """The texts of all notes about a session's snapshots."""
    folder = folder_of(snapshots, session)
    if not folder.parent.is_dir():
        return ()
    plain = ["-maxdepth", "1", "-type", "f", "-size", f"-{LONGEST}c", "!", "-name", ".*"]
    listing = command.run(
        ["find", folder, *plain, "-exec", "cat", "--", "{}", "+"], root=True, accepted=(0, 1), most=_MOST, secret=True
    )
    return tuple(line for line in listing.stdout.splitlines() if line)


def remove(snapshots: Path, session: str, id: str) -> None:
    """Remove a note; none is no error."""
    folder = folder_of(snapshots, session)
    if folder.parent.is_dir():
        command.run(["rm", "-f", "--", folder / id, folder / f".{id}"], root=True)
