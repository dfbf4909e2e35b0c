"""Limits of single homes, which hold in the place of the general one: those of the people whose sessions they are.

A number in a file for each such session, so that a move or a start after a reboot knows it as well.
"""

from __future__ import annotations

from pathlib import Path

from flows.core.atomic_files import write_whole
from flows.core.settings import Settings
from flows.sessions.model import check_name

_FOLDER = "home-limits"


def choose(settings: Settings, session: str, most: int | None) -> None:
    """Let the home and each volume of a session take so many bytes from its next start on; none: as the settings say.

    Args:
        settings: those in force.
        session: its name, whether it is there already or not.
        most: bytes; 0: as many as there are.
    """
    if most is None:
        _file(settings, session).unlink(missing_ok=True)
    elif of(settings, session) != most:
        write_whole(settings.folder(_FOLDER) / check_name(session), f"{most}\n", private=True)


def of(settings: Settings, session: str) -> int | None:
    """The bytes that were chosen for a session; none: the settings say."""
    try:
        return int(_file(settings, session).read_text(encoding="ascii"))
    except FileNotFoundError:
        return None


def largest(settings: Settings) -> int | None:
    """The largest of all: copies for rehearsals don't bear the name of their session. None: there are none."""
    folder = settings.home / _FOLDER
    chosen = [int(file.read_text(encoding="ascii")) for file in folder.iterdir()] if folder.is_dir() else []
    return 0 if 0 in chosen else max(chosen, default=None)


def _file(settings: Settings, session: str) -> Path:
    return settings.home / _FOLDER / session
