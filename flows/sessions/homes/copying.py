"""Copies of folders, byte for byte: made, compared, and what differs in words.

Links are copied as links and never followed: their targets are none of ours. Every program that reads or writes
below a home is `enclosed`, and bounded in time and room, since nobody knows what its owner has in it, or does
meanwhile.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flows.core.errors import RefitError
from flows.core.formatting import megabytes, on_a_line
from flows.core.programs import command
from flows.core.programs.command import CommandTimeout, Completed, ProgramFailed
from flows.host import mounts
from flows.sessions.homes import contents, enclosed
from flows.sessions.homes.space_reservation import SPARE, NoRoom

Call = Sequence[str | Path]

COUNT_SECONDS, REMOVE_SECONDS = 600.0, 1800.0
TRIES = 3  # of a copy of what somebody works in: a file that changes its kind under rsync is an error to it
_PARTIAL, _VANISHED = 23, 24  # rsync: something couldn't be copied; a file went while it was at it
_FULL = 128 + 14  # ended by SIGALRM, which nothing else sends
_LEFT = SPARE // 2  # bytes
_PROGRAM = Path(contents.__file__).read_text(encoding="utf-8")
_SAME = ("--archive", "--hard-links", "--acls", "--xattrs", "--sparse", "--numeric-ids", "--delete")
_NANOSECONDS = "--modify-window=-1"  # rsync's default compares whole seconds, and misses two writes within one

# Blocks and files; of a file with several names only one counts. Files beyond the most aren't counted.
_COUNT = """
find "$1" -xdev -printf '%n %i %b %y\\n' | awk -v most="$2" '
    $1 > 1 && $4 != "d" && seen[$2]++ { next }
    { blocks += $3; if (++files > most) exit }
    END { printf "%.0f %.0f\\n", blocks * 512, files }'
"""
# A disk that fills up is everybody's: the writer is ended before nothing is left.
_WATCHED = """
( while sleep 0.2; do [ "$(($(stat --file-system --format '%a * %S' -- "$1")))" -ge "$2" ] || kill -ALRM $$; done ) &
shift 2
exec "$@"
"""
# rsync reads all zeros of a file with holes. To look whether one claims more than it has takes 2 ms.
_WITHOUT_HOLES = """
large() { find "$1" -xdev -type f -size +1023k -printf "$2"; }
if large "$1" '%b %s\\n' | awk '$1 * 1024 < $2 { found = 1; exit } END { exit !found }'; then
    "$3" -I -S -B - bring "$1" "$2" find "$1" -xdev -type f -size +1023k -printf '%b %s %P\\0' || exit
fi
shift 3
exec "$@"
"""


class NobodyKnows(RefitError):
    """The differences between a home and its snapshot can't be found out in time."""


@dataclass(frozen=True)
class Extent:
    """The size of a folder on a disk: bytes, and the number of files and folders in it."""

    size: int = 0
    files: int = 0

    def __add__(self, other: Extent) -> Extent:
        return Extent(self.size + other.size, self.files + other.files)


def described(items: Iterable[str], except_paths: Collection[str] = ()) -> tuple[str, ...]:
    """rsync's itemised lines in words; folders that are there only to hold an exception are left out. Pure."""
    holders = {str(parent) for path in except_paths for parent in PurePosixPath(path.lstrip("/")).parents}
    return tuple(
        _in_words(code, name.strip())
        for code, _, name in (item.partition(" ") for item in items)
        if not (code.startswith("cd+") and name.strip().rstrip("/") in holders)
    )


def _in_words(code: str, name: str) -> str:
    if code == contents.MORE:
        return "and others"
    shown = on_a_line(name)  # rsync escapes what isn't UTF-8, and of what controls a terminal only ASCII's
    if code.startswith("*deleting"):
        return f"gone: {shown}"
    return f"{'new' if '+++' in code else 'changed'}: {shown}"


def extent(home: Path, most: int) -> Extent:
    """The size of a home, as far as `most` files; those that vanish while they are counted are no failure."""
    call: Call = ["sh", "-c", _COUNT, "sh", home, str(most)]
    counted = enclosed.run(call, reads=[home], limit=COUNT_SECONDS, yields=True, shown=["find", home])
    size, files = counted.stdout.split()
    return Extent(int(size), int(files))


def shares_blocks(folder: Path) -> bool:
    """Whether a copy takes no space until one of the two changes; `folder` is one in which that can be tried out."""
    for path in (original := folder / "original", copy := folder / "copy"):
        path.mkdir()
    (original / "file").write_bytes(b"x")
    call: Call = ["cp", "--reflink=always", "--", original / "file", copy / "file"]
    return enclosed.run(call, reads=[original], writes=[copy], limit=COUNT_SECONDS, accepted=(0, 1)).exit_code == 0


def all_of(home: Path) -> tuple[Path, ...]:
    """The parts of a copy: that of the home, and beside it those of the volumes; root's folder says so."""
    named = ["(", "-name", home.name, "-o", "-name", f"{home.name}.*", ")"]
    listed: Call = ["find", home.parent, "-mindepth", "1", "-maxdepth", "1", *named, "-print0"]
    listing = command.run(listed, root=True, accepted=(0, 1)).stdout
    return tuple(Path(path) for path in listing.split("\0") if path)


def refuse_mounts(home: Path) -> None:
    """Find out whether a copy of a folder would hold all that is in it.

    Raises:
        RefitError: another file system is mounted inside.
    """
    if inside := [point for point in mounts.mounts_below(home) if point != home.resolve()]:
        raise RefitError(
            f"Other file systems are mounted inside {home}: {', '.join(map(str, inside))}.",
            why="Snapshots of the home don't have their content, so it couldn't be brought back.",
            hint="unmount them; volumes that a session needs besides its home are mounted elsewhere.",
        )


def remove(folder: Path) -> None:
    """Remove a home, or what holds homes, or copies of them, with everything in it; nothing there is no error."""
    enclosed.remove(folder, REMOVE_SECONDS)


def duplicate(home: Path, target: Path, limit: float) -> None:
    """Make `target` a copy of a home that may be in use.

    Raises:
        RefitError: it takes longer than `limit` seconds, or fills the disk; the part that is there is left.
    """
    if not target.exists():
        _make(target)
        # Only cp shares blocks where the file system can. Where a file vanishes it fails, and rsync does the rest.
        call: Call = ["cp", "--archive", "--reflink=auto", "--no-target-directory", "--", home, target]
        _write(call, home, target, limit, (0, 1), call, yields=True)
    for tries in range(1, TRIES + 1):
        accepted = (0, _VANISHED) if tries == TRIES else (0, _VANISHED, _PARTIAL)
        if _mirror(home, target, limit, accepted, yields=True).exit_code != _PARTIAL:
            return


def mirror(source: Path, target: Path, limit: float) -> None:
    """Make the folder `target` equal to `source`, of which nobody writes to either; doing it again does the rest.

    Raises:
        RefitError: it takes longer than `limit` seconds, or fills the disk.
    """
    if not target.exists():
        _make(target)
    _mirror(source, target, limit, (0, _VANISHED))


def give_back(snapshot: Path, home: Path, limit: float) -> None:
    """Make a home equal to its snapshot, also where a quota lets nobody write any more; see `mirror`."""
    _mirror(snapshot, home, limit, (0, _VANISHED), beyond_quota=True)


def differing(
    home: Path, snapshot: Path, limit: float, excluded: Iterable[str] = (), *, at_a_glance: bool = False
) -> tuple[str, ...]:
    """rsync's itemised lines for what of a home is not as in its snapshot, as far as anybody wants to read them.

    Args:
        home: the folder.
        snapshot: the one that it is compared with.
        limit: seconds after which nobody knows.
        excluded: patterns of rsync for what may differ.
        at_a_glance: files of the same size and time (ns) count as the same.

    Raises:
        NobodyKnows: it takes longer than that.
    """
    # A folder's own time changes with every exception inside it, and says nothing that its content doesn't.
    looking = ["--dry-run", "--omit-dir-times", "--out-format=%i %n", *([] if at_a_glance else ["-ii"])]
    rsync = _rsync(home, snapshot, [*looking, *(f"--exclude={pattern}" for pattern in excluded)])
    call = enclosed.python("glance" if at_a_glance else "compare", home, snapshot, *rsync)
    try:
        done = enclosed.run(
            call,
            reads=[home, snapshot],
            limit=limit,
            accepted=(0, _VANISHED),
            stdin=_PROGRAM,
            yields=not at_a_glance,
            shown=rsync,
        )
    except CommandTimeout as error:
        raise NobodyKnows(
            f"Whether {home} is as it was can't be said: to compare it takes longer than {limit / 60:g} minutes.",
            why="It is too large, or has too many files.",
            hint="give it longer by the setting `compare_timeout_minutes`, in minutes.",
        ) from error
    return tuple(filter(None, done.stdout.split("\n")))


def _make(target: Path) -> None:
    command.run(["install", "-d", "-m", "0700", target], root=True)


def _rsync(source: Path, target: Path, options: Iterable[str] = ()) -> Call:
    return ["rsync", *_SAME, _NANOSECONDS, *options, "--", f"{source}/", f"{target}/"]


def _mirror(
    source: Path,
    target: Path,
    limit: float,
    accepted: Collection[int],
    *,
    beyond_quota: bool = False,
    yields: bool = False,
) -> Completed:
    rsync, python = _rsync(source, target), enclosed.python()[0]
    whole: Call = ["sh", "-c", _WITHOUT_HOLES, "sh", source, target, python, *rsync]
    return _write(whole, source, target, limit, accepted, rsync, beyond_quota=beyond_quota, yields=yields)


def _write(
    argv: Call,
    source: Path,
    target: Path,
    limit: float,
    accepted: Collection[int],
    shown: Call,
    *,
    beyond_quota: bool = False,
    yields: bool = False,
) -> Completed:
    least = 0 if beyond_quota else _LEFT
    call = ["sh", "-c", _WATCHED, "sh", target, str(least), *argv]
    try:
        return enclosed.run(
            call,
            reads=[source],
            writes=[target],
            limit=limit,
            accepted=accepted,
            stdin=_PROGRAM,
            beyond_quota=beyond_quota,
            yields=yields,
            shown=shown,
        )
    except CommandTimeout as error:
        raise RefitError(
            f"To copy {source} takes longer than {limit / 60:g} minutes.",
            why="It is too large, or its disk too slow.",
            hint="give it longer by the setting `copy_timeout_minutes`, or let its owner delete what nobody needs.",
        ) from error
    except ProgramFailed as error:
        if error.exit_code_of_program == _FULL or (least and shutil.disk_usage(target).free < least):
            raise NoRoom(
                f"{source} can't be copied any further: less than {megabytes(least)} are free in {target}.",
                why="Something has filled that disk since the copy began.",
                hint="make room on that disk.",
            ) from error
        raise


def extent_of(folders: Iterable[Path], most: int) -> Extent:
    """The size of home and volumes, unless they have more than `most` files and folders.

    Raises:
        RefitError: they have so many files that nobody could wait for a copy.
    """
    total = sum((extent(folder, most) for folder in folders), start=Extent())
    if total.files > most:
        raise RefitError(
            f"The home has more than {most} files and folders, with its volumes.",
            why="Each of them is looked at while the session is away.",
            hint="let its owner pack or delete some, bring the home into a pool (`refit home pool add`), or let "
            "homes have more by the setting `home_files`.",
        )
    return total
