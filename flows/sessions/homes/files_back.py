"""Single files and folders of a snapshot, brought back into the home or beside what is there now.

Paths are a person's. In the snapshot no link on the way is followed; in the home, whose owner may exchange folders for
links meanwhile, the program sees nothing but this home (`enclosed`), and makes a folder again where it meets a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flows.core.errors import RefitError
from flows.core.formatting import on_a_line
from flows.core.programs.command import ProgramFailed
from flows.sessions.homes import enclosed
from flows.sessions.homes.volumes import Part, is_own
from flows.sessions.model import HOME, Session

_MISSING, _LINK, _THERE = 3, 4, 5
# Each path by itself: the first one that isn't there, or leads over a link, is printed.
_LOOK = """
import os, sys
top = os.fsencode(sys.argv[1])
for path in map(os.fsencode, sys.argv[2:]):
    at = top
    *above, last = path.split(b"/")
    for name in above:
        at += b"/" + name
        if os.path.islink(at):
            sys.exit((sys.stdout.buffer.write(path), 4)[1])
    if not os.path.lexists(at + b"/" + last):
        sys.exit((sys.stdout.buffer.write(path), 3)[1])
"""
_BESIDE = """
if [ -e "$1" ] || [ -L "$1" ]; then exit 5; fi
mkdir -m 0700 -- "$1" && chown -h -- "$2:0" "$1"
"""
_SAME = ("--archive", "--hard-links", "--acls", "--xattrs", "--sparse", "--numeric-ids", "--relative")
_NANOSECONDS = "--modify-window=-1"


@dataclass(frozen=True)
class Chosen:
    """Paths of one part of a session, from the top of it; none of them is the top itself."""

    part: Part
    paths: tuple[str, ...]


def chosen(session: Session, paths: Iterable[str]) -> tuple[Chosen, ...]:
    """To which parts of a session these paths belong: as the session sees them, or from the top of its home. Pure.

    Raises:
        RefitError: one isn't below the home or an own volume, or is no plain path.
    """
    inside_of: dict[Part, list[str]] = {}
    places: Mapping[str, Part] = {
        **{volume.path: Part(volume.name, volume.ref) for volume in session.volumes if is_own(volume)},
        HOME: Part("", session.home),
    }
    for path in paths:
        place, inside = _placed(path, places)
        inside_of.setdefault(places[place], []).append(inside)
    return tuple(Chosen(part, tuple(dict.fromkeys(inside))) for part, inside in inside_of.items())


def _placed(path: str, places: Mapping[str, Part]) -> tuple[str, str]:
    whole = PurePosixPath(HOME, path.removeprefix("~/"))
    place = next((place for place in places if whole.is_relative_to(place)), "")
    if not place or ".." in whole.parts or "\0" in path or whole == PurePosixPath(place):
        raise RefitError(
            f"{on_a_line(path)!r} can't be brought back.",
            why=f"It isn't below {', '.join(sorted(places))}, or it leads up again by '..'.",
            hint="name files and folders in the home, e.g. project/work.py; without `--only` all goes back.",
        )
    return place, str(whole.relative_to(place))


def look(source: Path, paths: Sequence[str]) -> None:
    """Find out whether these paths are in a snapshot.

    Raises:
        RefitError: one isn't there, or a link is on the way to it.
    """
    call = enclosed.python(source, *paths)
    done = enclosed.run(call, reads=[source], limit=60.0, accepted=(0, _MISSING, _LINK), stdin=_LOOK)
    if done.exit_code:
        path = on_a_line(done.stdout)
        link = done.exit_code == _LINK
        raise RefitError(
            f"{path!r} isn't in the snapshot." if not link else f"{path!r} leads over a link in the snapshot.",
            why="" if not link else "The link may point elsewhere by now.",
            hint="`refit session diff` shows what is there." if not link else "name the path without the link.",
        )


def bring(source: Path, target: Path, paths: Sequence[str], limit: float, *, suffix: str = "") -> None:
    """Let these paths below `target` be what they are below `source`; files that were made inside folders since stay.

    Args:
        source: the folder of the snapshot, which nobody changes.
        target: the folder of the home.
        paths: from the top of both, as `look` has found them.
        limit: seconds that it may take.
        suffix: appended to the names of files that are overwritten, which stay then; empty: they go.

    Raises:
        ProgramFailed: it failed on the way, as where the disk is full; some may have been brought.
    """
    kept = ["--backup", f"--suffix={suffix}"] if suffix else []
    froms = [f"{source}/./{path}" for path in paths]
    call: list[str | Path] = ["rsync", *_SAME, _NANOSECONDS, *kept, "--", *froms, f"{target}/"]
    enclosed.run(call, reads=[source], writes=[target], limit=limit)


def make_beside(home: Path, name: str, uid: int, limit: float) -> Path:
    """Make a new folder of the session's user in a home, for what is brought back beside what is there.

    Raises:
        RefitError: there is something of that name, or no folder to make it in.
    """
    call: list[str | Path] = ["sh", "-c", _BESIDE, "sh", home / name, str(uid)]
    try:
        enclosed.run(call, writes=[home], limit=limit)
    except ProgramFailed as error:
        exists = error.exit_code_of_program == _THERE
        raise RefitError(
            f"The folder {on_a_line(name)!r} can't be made.",
            why="There is something of that name already." if exists else error.tail.strip(),
            hint="choose another name, in a folder that is there." if not exists else "choose another name.",
        ) from error
    return home / name
