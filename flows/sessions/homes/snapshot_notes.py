"""Notes beside snapshots, which say what each one is: after a loss of the database they are found by these.

A note is written once its snapshot is whole, and removed before anything of the snapshot is. Their folders are root's.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from flows.core import fence
from flows.core.errors import RefitError
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
    draft = folder / f".{id}"
    if os.geteuid() == 0:  # three programs take longer than a snapshot
        fence.check()
        _write_as_root(draft, folder / id, text)
        return
    command.run(["install", "-d", "-m", "0700", folder], root=True)
    with NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        command.run(["install", "-m", "0600", "--", file.name, draft], root=True)
    command.run(["mv", "-T", "--", draft, folder / id], root=True)


def _write_as_root(draft: Path, note: Path, text: str) -> None:
    try:
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # of a process that was killed
        draft.touch(mode=0o600, exist_ok=False)
        draft.write_text(f"{text}\n", encoding="utf-8")
        draft.replace(note)
    except OSError as error:
        raise RefitError(
            f"The note about the snapshot {note.name} can't be written.",
            why=str(error),
            hint="make room on that disk; `refit home pool` says how full the pool is.",
        ) from error


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
