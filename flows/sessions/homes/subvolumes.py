"""Subvolumes of btrfs, by the kernel's own calls: a program for each would take longer than what it does.

All verbs need root; see `subvolumes_as_root`. This module is also a program, `python -m flows.sessions.homes.subvolumes
VERB …`, for which people wait while their session is away: it imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.sessions.homes import disk_quotas
from flows.sessions.homes.btrfs_calls import call, opened

# From linux/btrfs.h: the numbers of the calls, and the forms of what they take.
_CREATE, _SNAPSHOT, _DELETE, _INSIDE = 0x50009418, 0x50009417, 0x5000940F, 0xD000943D
_NAME = 0xD000943E
_WITH_OPTIONS, _PLAIN, _ROOTS, _NAMED = "=qQQ32x4040s", "=q4088s", "=Q4080sc7x", "=QQ256s3824s"
_ROOT = struct.Struct("=QQ")  # the number of a subvolume, and of the folder that it is in
_READ_ONLY = 1 << 1
_AT_CWD, _EXCHANGE = -100, 2  # from fcntl.h and linux/fs.h


def create(path: Path) -> None:
    """Make an empty subvolume."""
    with opened(path.parent) as folder:
        call(folder, _CREATE, struct.pack(_WITH_OPTIONS, 0, 0, 0, os.fsencode(path.name)))


def snapshot(source: Path, target: Path, *, writable: bool) -> None:
    """Make a subvolume that is what `source` is now; a subvolume nested in that is an empty folder there."""
    flags = 0 if writable else _READ_ONLY
    with opened(source) as original, opened(target.parent) as folder:
        call(folder, _SNAPSHOT, struct.pack(_WITH_OPTIONS, original, 0, flags, os.fsencode(target.name)))


def delete(path: Path) -> None:
    """Delete a subvolume in which no other is nested; none there is no error."""
    if path.exists():
        with opened(path.parent) as folder:
            call(folder, _DELETE, struct.pack(_PLAIN, 0, os.fsencode(path.name)))


def delete_all(path: Path) -> None:
    """Delete a subvolume with those that are nested in it; none there is no error.

    Its owner may move the content meanwhile: each part is reached folder by folder, and no link is followed.
    """
    if path.exists():
        with opened(path) as top:
            while _delete_nested(top):
                pass
        delete(path)


def _delete_nested(top: int) -> int:
    """How many were deleted; the kernel tells some of them at a time."""
    done = 0
    for path in reversed(_nested(top)):
        above, _, name = path.rpartition(b"/")
        with suppress(OSError), _below(top, above) as folder:  # in it there are others that weren't told
            call(folder, _DELETE, struct.pack(_PLAIN, 0, name))
            done += 1
    return done


def nested(path: Path) -> tuple[str, ...]:
    """The paths of subvolumes in a subvolume, outer ones first; of very many only some."""
    with opened(path) as top:
        return tuple(map(os.fsdecode, _nested(top)))


def has_nested(path: Path) -> bool:
    """Whether there are other subvolumes in a subvolume."""
    with opened(path) as subvolume:
        return bool(_direct(subvolume))


def _nested(top: int) -> list[bytes]:
    subvolumes: list[bytes] = []
    waiting = [b""]
    while waiting:
        above = waiting.pop()
        with _below(top, above) as subvolume:
            inside = [above + path for path in _direct(subvolume)]
        subvolumes += inside
        waiting += [path + b"/" for path in inside]
    return subvolumes


def _direct(subvolume: int) -> list[bytes]:
    """The paths of subvolumes that are nested in one, but not deeper: the first 255."""
    buffer = bytearray(struct.calcsize(_ROOTS))
    try:
        fcntl.ioctl(subvolume, _INSIDE, buffer)
    except OSError as error:
        if error.errno != errno.EOVERFLOW:  # it has told those that it had room for
            raise
    _, roots, count = struct.unpack(_ROOTS, buffer)
    return [_path(subvolume, number, folder) for number, folder in list(_ROOT.iter_unpack(roots))[: count[0]]]


def _path(subvolume: int, number: int, folder: int) -> bytes:
    answer = call(subvolume, _NAME, struct.pack(_NAMED, folder, number, b"", b""))
    _, _, name, path = struct.unpack(_NAMED, answer)
    return bytes(path.partition(b"\0")[0] + name.partition(b"\0")[0])


def exchange(one: Path, other: Path) -> None:
    """Let two paths change places, in one instant."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(one))


@contextmanager
def _below(top: int, path: bytes) -> Iterator[int]:
    """A folder below an open one, name by name: a link on the way is an error."""
    opened = os.dup(top)
    try:
        for name in filter(None, path.split(b"/")):
            above = opened
            opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            os.close(above)
        yield opened
    finally:
        os.close(opened)


# --- Whole verbs, each of which leaves nothing half done --------------------------------------------------------------


class Nested(OSError):
    """There are subvolumes in a subvolume: a snapshot would lack what is in them."""


def take(*paths: Path, writable: bool = False) -> None:
    """Let every second path be what the path before it is now, in the place of what it was: all of them, or none.

    Raises:
        Nested: that is not possible, for any of them.
    """
    pairs = _pairs(paths)
    if nested := [source for source, _ in pairs if has_nested(source)]:
        raise Nested(f"{nested[0]} has subvolumes inside")
    for _, target in pairs:
        delete(target)
    try:
        for source, target in pairs:
            snapshot(source, target, writable=writable)
    except BaseException:
        for _, target in pairs:
            delete(target)
        raise


def restore(removed: Path, *paths: Path) -> None:
    """Let every second path be what the snapshot before it is: all of them, or none.

    At every instant each is the one or the other as a whole; after a kill the same call does the rest. Somebody waits,
    and to delete what was there takes seconds where the kernel remembers its files: it goes to `removed`, for `sweep`.
    """
    following = [(home.with_name(f".{home.name}.next"), home) for _, home in _pairs(paths)]
    sources = [(snapshot, draft) for (snapshot, _), (draft, _) in zip(_pairs(paths), following, strict=True)]
    for draft, _ in following:
        set_aside(draft, removed)
    take(*(path for pair in sources for path in pair), writable=True)
    all_or_none(following, exchange)
    for draft, _ in following:
        set_aside(draft, removed)


def set_aside(path: Path, removed: Path) -> None:
    """Move a subvolume to those that `sweep` deletes, under a name of its own; none there is no error."""
    if path.exists():
        removed.mkdir(mode=0o700, exist_ok=True)
        path.rename(removed / os.urandom(16).hex())


def sweep(removed: Path) -> None:
    """Delete all that was set aside; others may do the same at the same time."""
    for path in removed.iterdir() if removed.exists() else ():
        with suppress(FileNotFoundError):
            try:
                delete(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # there are others inside
                    raise
                delete_all(path)


def all_or_none(pairs: Iterable[tuple[Path, Path]], switch: Callable[[Path, Path], None]) -> None:
    """Switch all pairs; where one fails, those before it are switched back. `switch` undoes itself."""
    switched: list[tuple[Path, Path]] = []
    try:
        for pair in pairs:
            switch(*pair)
            switched.append(pair)
    except BaseException:
        for pair in reversed(switched):
            switch(*pair)
        raise


def _pairs(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    return list(zip(paths[::2], paths[1::2], strict=True))


VERBS: Mapping[str, Callable[..., None]] = {
    "create": create,
    "delete": delete,
    "delete-all": delete_all,
    "restore": restore,
    "sweep": sweep,
    "take": take,
    "limit": lambda path, most: disk_quotas.limit(path, int(most.name)),
    "take-writable": lambda *paths: take(*paths, writable=True),
}


_ANSWERS: Mapping[str, Callable[[Path], object]] = {"nested": nested, "use": disk_quotas.use}


if __name__ == "__main__":
    verb, *names = sys.argv[1:]
    if verb in _ANSWERS:
        print(json.dumps(_ANSWERS[verb](Path(names[0]))))
    else:
        VERBS[verb](*map(Path, names))
