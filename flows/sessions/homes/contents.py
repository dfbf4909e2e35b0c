"""Compares two folders, or brings files with holes from one into the other: runs as a program of its own, enclosed.

`rsync` says what differs in size, time, owner, mode, attributes and links. Files that it takes for the same are
compared here byte by byte. Holes, terabytes of zeros in a file that takes no room, are left out in both. Only the
standard library is used, and as little of it as can be: somebody may be waiting.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

CHUNK = 1 << 20
LEAST = 1 << 20  # bytes: of smaller files rsync may read all zeros that there are
MOST = 1000  # differences that are told
MORE = "*more"  # the last line, if there are others
_SAME = b".f         "
_ESCAPED = re.compile(rb"\\#([0-7]{3})")
_AS_IS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def compare(one: bytes, other: bytes, contents: bool, rsync: list[bytes]) -> int:
    """Print what `rsync` itemises, and files that differ in nothing but their contents; returns its exit code."""
    told = 0
    with _output(rsync) as (lines, ended):
        for line in _lines(lines, b"\n"):
            code, name = line[:11], line[12:]
            if code[:1] in b".h" and not code[2:].strip():  # h: compared by its other name
                if code != _SAME or not contents or _equal(one, other, _unescaped(name)):
                    continue
                code = b">fc........"
            if told == MOST:
                sys.stdout.write(f"{MORE} \n")
                return 0
            told += 1
            sys.stdout.buffer.write(code + b" " + name + b"\n")
    return ended()


def bring(source: bytes, target: bytes, find: list[bytes]) -> int:
    """Copy the files with large holes that `find` names (blocks, bytes, path) and that rsync would copy."""
    with _output(find) as (paths, _):
        for line in _lines(paths, b"\0"):
            blocks, size, name = line.split(b" ", 2)
            if int(size) >= LEAST and int(blocks) * 1024 < int(size):
                with suppress(OSError):  # it is gone, or in the way there is what rsync has to remove first
                    _bring(posixpath.join(source, name), target, name)
    return 0


def _equal(one: bytes, other: bytes, name: bytes) -> bool:
    try:
        with _opened(posixpath.join(one, name)) as first, _opened(posixpath.join(other, name)) as second:
            return _same_bytes(first, second)
    except OSError:  # it has gone or become another thing since
        return False


def _same_bytes(one: int, other: int) -> bool:
    if (size := os.fstat(one).st_size) != os.fstat(other).st_size:
        return False
    at = 0
    while (at := min(_data(one, at, size), _data(other, at, size))) < size:
        chunk = min(CHUNK, size - at)
        if os.pread(one, chunk, at) != os.pread(other, chunk, at):
            return False
        at += chunk
    return True


def _data(file: int, at: int, size: int) -> int:
    """Where there is something in a file again; its size: nowhere."""
    return _sought(file, at, os.SEEK_DATA, size, at)


def _hole(file: int, at: int, size: int) -> int:
    """Where there is nothing in a file again; its size: nowhere before its end."""
    return _sought(file, at, os.SEEK_HOLE, size, size)


def _sought(file: int, at: int, what: int, size: int, unknown: int) -> int:
    try:
        return os.lseek(file, at, what)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno == errno.EINVAL:  # a file system that doesn't know of holes
            return unknown
        raise


def _bring(path: bytes, target: bytes, name: bytes) -> None:
    folder = _folder(target, posixpath.dirname(name))
    try:
        with _opened(path) as source:
            status, last = os.fstat(source), posixpath.basename(name)
            if not _differs(status, folder, last):
                return
            draft = b"." + last[:200] + b".new"
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | _AS_IS, 0o600, dir_fd=folder)
            try:
                _copy(source, descriptor, status.st_size)
                os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))  # rsync sees to the rest
                _put(draft, last, folder)
            except BaseException:
                os.unlink(draft, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)
    finally:
        os.close(folder)


def _put(draft: bytes, name: bytes, folder: int) -> None:
    try:
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except IsADirectoryError:
        import shutil  # noqa: PLC0415 - it is hardly ever needed, and takes longer than all others

        shutil.rmtree(name, dir_fd=folder)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


def _differs(status: os.stat_result, folder: int, name: bytes) -> bool:
    try:
        there = os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    same = (there.st_size, there.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    return not (stat.S_ISREG(there.st_mode) and same)


def _copy(source: int, target: int, size: int) -> None:
    os.ftruncate(target, size)
    at = 0
    while (at := _data(source, at, size)) < size:
        until = min(size, _hole(source, at, size))
        while at < until:
            if not (chunk := os.pread(source, min(CHUNK, until - at), at)):
                return  # it has become shorter
            at += os.pwrite(target, chunk, at)


def _folder(top: bytes, path: bytes) -> int:
    """A folder below another one, made if need be; anything in its place goes."""
    opened = os.open(top, os.O_RDONLY | os.O_DIRECTORY | _AS_IS)
    for name in filter(None, path.split(b"/")):
        above = opened
        try:
            opened = _inner(above, name)
        finally:
            os.close(above)
    return opened


def _inner(folder: int, name: bytes) -> int:
    kind = os.O_RDONLY | os.O_DIRECTORY | _AS_IS
    try:
        return os.open(name, kind, dir_fd=folder)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        os.unlink(name, dir_fd=folder)
    os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, kind, dir_fd=folder)


@contextmanager
def _opened(path: bytes) -> Iterator[int]:
    opened = os.open(path, os.O_RDONLY | _AS_IS)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(0, "no plain file")
        yield opened
    finally:
        os.close(opened)


def _unescaped(name: bytes) -> bytes:
    """A path as rsync prints it, which stays in one line."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), name)


@contextmanager
def _output(argv: list[bytes]) -> Iterator[tuple[int, Callable[[], int]]]:
    """The standard output of a program, and what says how it ended."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.dup2(writing, 1)
        os.execvp(argv[0], argv)
    os.close(writing)
    yield reading, lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _lines(file: int, end: bytes) -> Iterator[bytes]:
    rest = b""
    while chunk := os.read(file, CHUNK):
        *lines, rest = (rest + chunk).split(end)
        yield from lines
    if rest:
        yield rest


def main(verb: str, one: str, other: str, *call: str) -> int:
    """`compare`, `glance` (sizes and times alone) or `bring`, with the call of rsync or find."""
    first, second, argv = os.fsencode(one), os.fsencode(other), [os.fsencode(word) for word in call]
    if verb == "bring":
        return bring(first, second, argv)
    return compare(first, second, verb == "compare", argv)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
