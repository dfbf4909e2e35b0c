"""The home of Refit is its owner's alone: it has the keys to all sessions, and records of who works when, on what."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings

# Files that are written as the umask lets, some of them by other people's programs. In a private home nobody reaches it
# by path; with these modes nobody does either while it lies in a home that was made when homes were open.
_FILES = ("refit.db*", "prefect/*.db*", "logs/**/*", "activity/*", "*.json", "*.lock")
_FOLDERS = ("logs", "activity", "prefect", "services", "running", "room", "scans", "locks")


def close(settings: Settings) -> None:
    """Make the home private, and what an earlier Refit left open in it.

    Raises:
        RefitError: it is somebody else's, who could exchange what Refit trusts in it.
    """
    home = settings.folder()
    owner, me = home.stat().st_uid, os.geteuid()
    if owner != me:
        raise RefitError(
            f"{home} belongs to uid {owner}, and this is uid {me}.",
            why="Its owner could exchange what Refit runs and trusts, and read the keys to all sessions.",
            hint=f"run Refit as its owner, or give the folder away: chown {me} {home} (and look at what is in it).",
        )
    _restrict(home, stat.S_IRWXU)
    for name in _FOLDERS:
        _restrict(home / name, stat.S_IRWXU)
    for file in (path for pattern in _FILES for path in home.glob(pattern)):
        _restrict(file, stat.S_IRWXU if file.is_dir() else stat.S_IRUSR | stat.S_IWUSR)


def _restrict(path: Path, most: int) -> None:
    """Take away what `most` doesn't allow; some of what lies there is root's, and what is a link is nobody's."""
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(seen.st_mode)
    if stat.S_ISLNK(seen.st_mode) or not mode & ~most:
        return
    if seen.st_uid == os.geteuid():
        path.chmod(mode & most)
    else:
        command.run(["chmod", f"{mode & most:04o}", "--", path], root=True)


def objections(home: Path, *, alone: bool = False) -> Iterator[str]:
    """Why a home isn't its owner's alone, each in words; where there is none yet, the folders above count.

    Where its owner is `alone`, as in a Pod, nobody is there who could write to these: that of a volume is its group's.
    """
    me = os.geteuid()
    if home.exists():
        seen = home.stat()
        if seen.st_uid != me:
            yield f"{home} belongs to uid {seen.st_uid}"
        if stat.S_IMODE(seen.st_mode) & 0o077:
            yield f"others may look into {home} (mode {stat.S_IMODE(seen.st_mode):04o})"
    for folder in () if alone else home.resolve().parents:
        if folder.exists() and (why := _replaceable(folder, me)):
            yield why


def _replaceable(folder: Path, me: int) -> str:
    """Why others could put something else in the place of what is in a folder."""
    seen = folder.stat()
    if seen.st_uid not in (0, me):
        return f"uid {seen.st_uid} owns {folder}, and could exchange what is in it"
    if seen.st_mode & 0o022 and not seen.st_mode & stat.S_ISVTX:
        return f"others may write to {folder}, and exchange what is in it"
    return ""
