"""Copies of folders, byte for byte: made, compared, and what differs in words.

Links are copied as links and never followed: what they point at is none of ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from flows import command, host
from flows.errors import RefitError

LIMIT = 6 * 3600.0
_VANISHED = 24  # rsync: a file was there when it listed the folder and gone when it came to copy it
_NANOSECONDS = "--modify-window=-1"  # rsync's default compares whole seconds, and misses two writes within one


def described(items: Iterable[str], except_paths: Collection[str] = ()) -> tuple[str, ...]:
    """rsync's itemised lines in words; folders that are there only to hold an exception are left out. Pure."""
    holders = {str(parent) for path in except_paths for parent in PurePosixPath(path.lstrip("/")).parents}
    return tuple(
        f"{_word(code)}: {name.strip()}"
        for code, _, name in (item.partition(" ") for item in items)
        if not (code.startswith("cd+") and name.strip().rstrip("/") in holders)
    )


def _word(code: str) -> str:
    if code.startswith("*deleting"):
        return "gone"
    return "new" if "+++" in code else "changed"


def size(home: Path) -> int:
    """How many bytes of the disk a home takes; files that vanish while they are counted are no failure."""
    options = ["--summarize", "--block-size=1", "--one-file-system", "--"]
    counted = command.run(["du", *options, home], root=True, limit=LIMIT, accepted=(0, 1)).stdout
    return int(counted.split()[0])


def all_of(home: Path) -> tuple[Path, ...]:
    """What there is of a copy: that of the home, and beside it those of the volumes; root's folder says so."""
    named = ["(", "-name", home.name, "-o", "-name", f"{home.name}.*", ")"]
    listed: list[str | Path] = ["find", home.parent, "-mindepth", "1", "-maxdepth", "1", *named, "-print0"]
    found = command.run(listed, root=True, accepted=(0, 1)).stdout
    return tuple(Path(path) for path in found.split("\0") if path)


def refuse_mounts(home: Path) -> None:
    """Find out whether a copy of a folder would hold all that is in it.

    Raises:
        RefitError: another file system is mounted inside.
    """
    if inside := [point for point in host.mounts_below(home) if point != home.resolve()]:
        raise RefitError(
            f"Other file systems are mounted inside {home}: {', '.join(map(str, inside))}.",
            why="What is in them is not in the snapshots of the home, and couldn't be brought back.",
            fix="unmount them; what a session needs besides its home is mounted elsewhere.",
        )


def duplicate(home: Path, target: Path) -> None:
    """Make `target` a copy of a home that may be in use."""
    if not target.exists():
        # Only cp shares blocks where the file system can. Where a file vanishes it fails, and rsync does the rest.
        options = ["--archive", "--reflink=auto", "--no-target-directory", "--"]
        command.run(["cp", *options, home, target], root=True, limit=LIMIT, accepted=(0, 1))
    mirror(home, target)


def mirror(source: Path, target: Path, options: Collection[str] = ()) -> str:
    """Make the folder `target` equal to `source`; returns what rsync said."""
    same = ["--archive", "--hard-links", "--acls", "--xattrs", "--sparse", "--numeric-ids", "--delete", _NANOSECONDS]
    called = ["rsync", *same, *options, "--", f"{source}/", f"{target}/"]
    return command.run(called, root=True, limit=LIMIT, accepted=(0, _VANISHED)).stdout
