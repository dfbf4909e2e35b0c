"""Named volumes: folders that persist beside the home of a session, or that sessions share. Pure.

The home of a session and its own volumes are one set: a snapshot, a copy and the way back are of all of them, or of
none. A shared volume belongs to no set: it is never brought back, since what others wrote would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import PurePosixPath

from flows.core.errors import RefitError
from flows.sessions.model import HOME, HomeRef, Session, Volume, check_name

# Folders of the image, the engine and Refit themselves.
_TAKEN = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc", "run", "sbin", "sys", "usr")
# Commas and colons have a meaning in what Podman is called with.
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+", re.ASCII)
_FORM = "write NAME:/path or NAME:/path:ro, e.g. data:/data."


@dataclass(frozen=True)
class Wanted:
    """A volume as a person asks for it: its name, and where it is to be inside the session."""

    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Part:
    """One home or volume of the set that a session persists in; `volume` is empty for the home."""

    volume: str
    ref: HomeRef

    def named(self, change: str) -> str:
        """A change of a path, with the volume in which it is."""
        return f"{change} (volume {self.volume})" if self.volume else change


@dataclass(frozen=True)
class DiskUse:
    """The disk that a home or a volume takes.

    Attributes:
        volume: its name; empty: the home.
        used: bytes.
        allowed: the most that it may take; none: there is no limit.
    """

    volume: str
    used: int
    allowed: int | None

    def __str__(self) -> str:
        """In words, e.g. "home 3.25 of 20 GB"."""
        of_limit = f" of {self.allowed / 1e9:.3g}" if self.allowed else ""
        return f"{f'volume {self.volume}' if self.volume else 'home'} {self.used / 1e9:.3g}{of_limit} GB"


def parts(session: Session) -> tuple[Part, ...]:
    """All that is to be as before when a session goes back; volumes that it can't write need no copy."""
    own = (Part(volume.name, volume.ref) for volume in session.volumes if is_own(volume))
    return (Part("", session.home), *own)


def is_own(volume: Volume) -> bool:
    """Whether a volume belongs to the set of its session."""
    return not volume.shared and not volume.read_only


def read_wanted(texts: Iterable[str]) -> tuple[Wanted, ...]:
    """The volumes that a person asks for, each written as `NAME:/path` or `NAME:/path:ro`.

    Raises:
        RefitError: one can't be, or two can't be together.
    """
    mounts = tuple(map(_read, texts))
    check_together(mounts)
    return mounts


def check_together(mounts: Sequence[Wanted]) -> None:
    """Find out whether a session can have all of these.

    Raises:
        RefitError: two have the same name, or one would be inside another.
    """
    for one, other in permutations(mounts, 2):
        if one.name == other.name:
            raise RefitError(f"The volume {one.name!r} is asked for twice.", hint="leave one out.")
        if PurePosixPath(one.path).is_relative_to(other.path):
            raise RefitError(
                f"The volume {one.name!r} at {one.path} would be inside {other.name!r} at {other.path}.",
                why="A snapshot of the one would hold an empty folder in the place of the other.",
                hint="give them paths beside each other.",
            )


def two_volumes(session: str, name: str) -> RefitError:
    """The error for a name that a volume of a session's own has, and a shared one."""
    return RefitError(
        f"There are two volumes {name!r}: one that was kept of {session!r}, and one that all share.",
        hint=f"remove the one that nobody needs: `refit volume rm {session}/{name}`, for instance.",
    )


def users(sessions: Iterable[Session], volume: HomeRef) -> tuple[str, ...]:
    """The names of the sessions that have a volume."""
    return tuple(sorted(s.name for s in sessions if any(own.ref == volume for own in s.volumes)))


def check_unused(name: str, using: Collection[str]) -> None:
    """Find out whether a volume may be removed.

    Raises:
        RefitError: a session has it.
    """
    if using:
        raise RefitError(
            f"The volume {name!r} can't be removed: {', '.join(using)} {'has' if len(using) == 1 else 'have'} it.",
            why="They would lose its content.",
            hint="remove the session first; that keeps its home and its volumes.",
        )


def _read(text: str) -> Wanted:
    name, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not path or mode not in ("", "ro"):
        raise RefitError(f"{text!r} is no volume.", hint=_FORM)
    check_name(name)
    _check_path(path)
    return Wanted(name, path, read_only=bool(mode))


def _check_path(path: str) -> None:
    plain = _PATH.fullmatch(path) and not {".", ".."} & set(path.split("/"))
    where = PurePosixPath(path)
    if not plain or PurePosixPath(HOME).is_relative_to(where):
        raise RefitError(
            f"No volume can be at {path!r}.",
            why=f"It is a path from / on, of letters, digits, '.', '_' and '-', and neither {HOME} nor above it.",
            hint=_FORM,
        )
    if where.parts[1] in _TAKEN:
        raise RefitError(
            f"No volume can be at {path!r}.",
            why=f"The files of the image or the system in /{where.parts[1]} would be hidden.",
            hint="choose /data, for instance, or a folder in the home.",
        )
