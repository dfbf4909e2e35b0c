"""Copies, compares and brings back folders: runs as a program of its own in a Pod, as the user whose homes they are.

Only the standard library of whatever Python the image has is used. Links are copied as links and never followed. The
folders that are read are mounted so that nobody can write to them there.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence

# A file with several names → the first of them that was copied.
Names = dict[tuple[int, int], str]
MISSING, LINK, THERE, UNREADABLE, FAILED = 3, 4, 5, 6, 7
MOST, CHUNK = 1000, 1 << 20
# Calls of functions in each other. A path has 4096 bytes at most, so there are 2048 folders in each other at most.
DEEPEST = 5000
# ext4 makes this in each volume; it is root's.
_OF_DISKS = {"lost+found"}


class Refused(Exception):
    """It can't be done for this path; `code` says why."""

    def __init__(self, code: int, path: str) -> None:
        super().__init__(path)
        self.code, self.path = code, path


def below(top: str, folder: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """All that is below a folder, as paths from `top` with what they are, each folder before what is in it."""
    try:
        names = sorted(os.listdir(os.path.join(top, folder)))
    except FileNotFoundError:
        return
    except PermissionError:
        raise Refused(UNREADABLE, folder) from None
    for name in names:
        path = os.path.join(folder, name)
        try:
            status = os.lstat(os.path.join(top, path))
        except FileNotFoundError:
            continue
        if (not folder and name in _OF_DISKS) or stat.S_ISSOCK(status.st_mode):
            continue
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from below(top, path)


def differs(source: str, target: str, path: str, status: os.stat_result) -> str:
    """Whether a thing in the target is another one than in the source, by all but content."""
    try:
        there = os.lstat(os.path.join(target, path))
    except (FileNotFoundError, NotADirectoryError):
        return "new"
    if there.st_mode != status.st_mode:
        return "changed"
    if stat.S_ISDIR(status.st_mode):
        return ""
    if stat.S_ISLNK(status.st_mode):
        same = os.readlink(os.path.join(source, path)) == os.readlink(os.path.join(target, path))
    else:
        same = (there.st_size, there.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    return "" if same and attributes(source, path) == attributes(target, path) else "changed"


def attributes(top: str, path: str) -> dict[str, bytes]:
    """The attributes of a file that are its user's own."""
    whole = os.path.join(top, path)
    try:
        names = [name for name in os.listxattr(whole, follow_symlinks=False) if name.startswith("user.")]
        return {name: os.getxattr(whole, name, follow_symlinks=False) for name in names}
    except OSError:
        return {}


def mirror(source: str, target: str) -> None:
    """Make the target equal to the source; a second time it does what is left."""
    open_folder(target)
    kept: set[str] = set()
    folders: list[tuple[str, os.stat_result]] = []
    first: Names = {}
    for path, status in below(source):
        kept.add(path)
        carry(source, target, path, status, first)
        if stat.S_ISDIR(status.st_mode):
            folders.append((path, status))
    clear(target, kept)
    for path, status in reversed(folders):
        finish(source, target, path, status)


def carry(source: str, target: str, path: str, status: os.stat_result, first: Names) -> None:
    """Let one thing be in the target as it is in the source; a folder is open until `finish`."""
    whole = os.path.join(target, path)
    if stat.S_ISDIR(status.st_mode):
        if os.path.islink(whole) or not os.path.isdir(whole):
            remove(whole)
        open_folder(whole)
        return
    number = (status.st_dev, status.st_ino)
    if status.st_nlink > 1 and number in first:
        other = os.path.join(target, first[number])
        if not (os.path.lexists(whole) and os.path.samestat(os.lstat(whole), os.lstat(other))):
            replace(whole, lambda draft: os.link(other, draft, follow_symlinks=False))
        return
    first[number] = path
    shared = os.path.lexists(whole) and os.lstat(whole).st_nlink > status.st_nlink
    if differs(source, target, path, status) or shared:
        replace(whole, lambda draft: copy(source, path, status, draft))


def open_folder(whole: str) -> None:
    """Make a folder in which its user can write."""
    if not os.path.isdir(whole):
        os.makedirs(whole, 0o700)
    elif os.lstat(whole).st_mode & 0o700 != 0o700:
        os.chmod(whole, 0o700)


def finish(source: str, target: str, path: str, status: os.stat_result) -> None:
    """Give a folder its mode and time."""
    whole = os.path.join(target, path)
    for name, value in attributes(source, path).items():
        os.setxattr(whole, name, value)
    os.utime(whole, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.chmod(whole, stat.S_IMODE(status.st_mode))


def replace(whole: str, make: Callable[[str], object]) -> None:
    """Let `make` make something under another name, which then takes its place."""
    folder, name = os.path.split(whole)
    draft = os.path.join(folder, ".refit-" + name[:200] + ".new")
    remove(draft)
    make(draft)
    if os.path.isdir(whole) and not os.path.islink(whole):
        remove(whole)
    if os.path.lexists(draft):  # what has vanished meanwhile was not copied
        os.rename(draft, whole)


def copy(source: str, path: str, status: os.stat_result, draft: str) -> None:
    """Copy a file, a link or a pipe."""
    whole = os.path.join(source, path)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(whole), draft)
        os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        return
    if stat.S_ISFIFO(status.st_mode):
        os.mkfifo(draft)
    else:
        try:
            content(whole, draft)
        except FileNotFoundError:
            return
        except PermissionError:
            raise Refused(UNREADABLE, path) from None
    for name, value in attributes(source, path).items():
        os.setxattr(draft, name, value)
    os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.chmod(draft, stat.S_IMODE(status.st_mode))


def content(whole: str, draft: str) -> None:
    """Copy the content of a file, without its holes."""
    reading = os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    writing = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        size, at = os.fstat(reading).st_size, 0
        os.ftruncate(writing, size)
        while at < size and (at := sought(reading, at, os.SEEK_DATA, size, at)) < size:
            until = sought(reading, at, os.SEEK_HOLE, size, size)
            while at < until:
                chunk = os.pread(reading, min(CHUNK, until - at), at)
                if not chunk:
                    return
                at += os.pwrite(writing, chunk, at)
    finally:
        os.close(reading)
        os.close(writing)


def sought(file: int, at: int, what: int, size: int, unknown: int) -> int:
    """Where data or a hole begins in a file, which may not know."""
    try:
        return os.lseek(file, at, what)
    except OSError as error:
        return size if error.errno == 6 else unknown  # ENXIO: there is none behind it


def clear(target: str, kept: set[str], folder: str = "") -> None:
    """Remove what is in the target and not in the source."""
    for name in os.listdir(os.path.join(target, folder)):
        path = os.path.join(folder, name)
        if path not in kept:
            if folder or name not in _OF_DISKS:
                remove(os.path.join(target, path))
        elif os.path.isdir(os.path.join(target, path)) and not os.path.islink(os.path.join(target, path)):
            clear(target, kept, path)


def remove(whole: str) -> None:
    """Remove something with all that is in it."""
    if os.path.isdir(whole) and not os.path.islink(whole):
        os.chmod(whole, 0o700)
        for name in os.listdir(whole):
            remove(os.path.join(whole, name))
        os.rmdir(whole)
    elif os.path.lexists(whole):
        os.unlink(whole)


def differences(one: str, other: str, contents: bool, patterns: Sequence[str]) -> None:
    """Print what of `one` isn't as in `other`, a line each; folders that only hold an exception are left out."""
    excepted = [pattern_of(each) for each in patterns]
    parts = [each.strip("/").split("/") for each in patterns]
    holders = {"/".join(words[:number]) for words in parts for number in range(1, len(words))}
    for told, line in enumerate(each_difference(one, other, contents, excepted, holders)):
        if told == MOST:
            print("and others")
            return
        print(line)


def each_difference(
    one: str,
    other: str,
    contents: bool,
    excepted: Sequence[tuple[re.Pattern[str], bool]],
    holders: set[str],
) -> Iterator[str]:
    """The differences, each in words."""
    seen: set[str] = set()
    for path, status in below(one):
        folder = stat.S_ISDIR(status.st_mode)
        if is_excepted(path, folder, excepted):
            continue
        seen.add(path)
        how = differs(one, other, path, status)
        if not how and contents and stat.S_ISREG(status.st_mode) and not same_content(one, other, path):
            how = "changed"
        if how and not (how == "new" and folder and path in holders):
            yield told_of(how, path, folder)
    for path, status in below(other):
        folder = stat.S_ISDIR(status.st_mode)
        if path not in seen and not is_excepted(path, folder, excepted):
            yield told_of("gone", path, folder)


def told_of(how: str, path: str, folder: bool) -> str:
    """A difference in one line of plain characters."""
    name = path + ("/" if folder else "")
    return f"{how}: {plain(name)}"


def plain(name: str) -> str:
    """A path in characters that can be printed."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in name)


def is_excepted(path: str, folder: bool, excepted: Sequence[tuple[re.Pattern[str], bool]]) -> bool:
    """Whether a path, or a folder on the way to it, is one that may differ."""
    for pattern, folders_alone in excepted:
        match = pattern.match(path)
        if match and (folder or match.end() < len(path) or not folders_alone):
            return True
    return False


def pattern_of(text: str) -> tuple[re.Pattern[str], bool]:
    """A pattern of rsync from the top, as one of Python, and whether it means folders alone."""
    parts = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    words = re.split(r"(\*\*|\*|\?)", text.strip("/"))
    return re.compile("".join(parts.get(word, re.escape(word)) for word in words) + "(?=/|$)"), text.endswith("/")


def same_content(one: str, other: str, path: str) -> bool:
    """Whether two files have the same bytes; holes in both aren't read."""
    opened: list[int] = []
    try:
        opened += [
            os.open(os.path.join(top, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) for top in (one, other)
        ]
        return same_bytes(*opened)
    except PermissionError:
        raise Refused(UNREADABLE, path) from None
    except OSError:
        return False
    finally:
        for file in opened:
            os.close(file)


def same_bytes(one: int, other: int) -> bool:
    """Whether two open files have the same bytes."""
    size, at = os.fstat(one).st_size, 0
    if os.fstat(other).st_size != size:
        return False
    while at < size:
        at = min(sought(file, at, os.SEEK_DATA, size, at) for file in (one, other))
        chunk = min(CHUNK, size - at)
        if os.pread(one, chunk, at) != os.pread(other, chunk, at):
            return False
        at += chunk
    return True


def look(source: str, paths: Sequence[str]) -> None:
    """Refuse a path that isn't in the source, or to which a link leads."""
    for path in paths:
        at = source
        *above, last = path.split("/")
        for name in above:
            at = os.path.join(at, name)
            if os.path.islink(at):
                raise Refused(LINK, path)
        if not os.path.lexists(os.path.join(at, last)):
            raise Refused(MISSING, path)


def bring(source: str, target: str, suffix: str, paths: Sequence[str]) -> None:
    """Let these paths be in the target what they are in the source; files that were made in folders since stay."""
    look(source, paths)
    folders: dict[str, os.stat_result] = {}
    first: Names = {}
    for path in paths:
        words = path.split("/")
        for number in range(1, len(words)):
            above = "/".join(words[:number])
            if not os.path.isdir(os.path.join(target, above)) or os.path.islink(os.path.join(target, above)):
                folders[above] = os.lstat(os.path.join(source, above))
                carry(source, target, above, folders[above], first)
        status = os.lstat(os.path.join(source, path))
        for each, seen in [(path, status), *(below(source, path) if stat.S_ISDIR(status.st_mode) else ())]:
            put(source, target, suffix, each, seen, first)
            if stat.S_ISDIR(seen.st_mode):
                folders[each] = seen
    for path in sorted(folders, reverse=True):
        finish(source, target, path, folders[path])


def put(source: str, target: str, suffix: str, path: str, status: os.stat_result, first: Names) -> None:
    """Bring one thing; a file that it overwrites stays under another name, if there is a suffix."""
    whole = os.path.join(target, path)
    overwrites = os.path.lexists(whole) and not os.path.isdir(whole)
    if suffix and overwrites and differs(source, target, path, status):
        os.rename(whole, whole + suffix)
    carry(source, target, path, status, first)


def beside(target: str, name: str) -> None:
    """Make a new folder."""
    try:
        os.mkdir(os.path.join(target, name), 0o700)
    except OSError:
        raise Refused(THERE, name) from None


def size(top: str) -> None:
    """Print the bytes that a folder takes, and the number of files and folders in it."""
    taken, files = 0, 0
    seen: set[tuple[int, int]] = set()
    for _, status in below(top):
        if stat.S_ISDIR(status.st_mode) or (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            taken, files = taken + status.st_blocks * 512, files + 1
    print(taken, files)


def main(verb: str, *words: str) -> int:
    """Do it; the exit code says what was refused, and the errors name the path."""
    verbs: dict[str, Callable[..., None]] = {
        "mirror": mirror,
        "differences": lambda one, other, contents, *patterns: differences(one, other, contents == "1", patterns),
        "look": lambda source, *paths: look(source, paths),
        "bring": lambda source, target, suffix, *paths: bring(source, target, suffix, paths),
        "beside": beside,
        "size": size,
    }
    try:
        verbs[verb](*words)
    except Refused as error:
        print(plain(error.path), file=sys.stderr)
        return error.code
    except OSError as error:
        print(plain(f"{error.strerror}: {error.filename or ''}"), file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.setrecursionlimit(DEEPEST)
    sys.exit(main(*sys.argv[1:]))
