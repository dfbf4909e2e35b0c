"""Reads what of a home can depend on the image: runs as a program of its own, and prints JSON.

The files belong to somebody who may want to be read otherwise. So root only opens the home, and becomes the owner of it
before anything inside is looked at; no link is ever followed by the kernel, nothing but plain files is opened, no other
file system is entered, and time, files and bytes are bounded. Times of access stay as they were.
"""

from __future__ import annotations

import heapq
import json
import os
import posixpath
import re
import resource
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import PurePosixPath

from flows.compatibility import elf
from flows.compatibility.facts import Distribution, Group, Home, Kind, Native, Starter

NOBODY = 65_534
MOST_LINKS = 40
MOST_PATH = 4_096  # bytes: no program could name a longer path
MOST_MISSED = 100
MOST_TEXT = 1 << 16  # bytes of a file that is read as text
MOST_MEMORY = 2 << 30
PROGRAMS = (".local/bin", "bin")
SOURCES = ("setup.py", "pyproject.toml", "Makefile")
STARTUP = (".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshrc", ".zprofile", ".zshenv")
KERNELS = "share/jupyter/kernels"
# Nothing that a container starts or imports is in them, and they may hold most of the files.
SKIPPED = frozenset({".cache", ".git", ".hg", ".svn", "node_modules", "__pycache__", "pkgs", "Trash"})

_SITE = re.compile(r"(?P<root>.*?)/?lib(?:64)?/python(?P<python>\d+\.\d+)/site-packages")
_EXTENSION = re.compile(r"\.(?P<tag>cpython-\d+t?|abi3|pypy\d+-pp\d+)(?:-[\w-]+)?\.so$")
_LIBRARY = re.compile(r"\.so(\.[\d.]+)?$")
_DISTRIBUTION = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*)-(?P<version>[\w.+!]+)\.dist-info")
_CONDA_PYTHON = re.compile(r"python-(?P<python>\d+\.\d+)\.[^-]*-[^-]*\.json")
_EDITOR = re.compile(r"(^|/)extensions$")
_MINOR = re.compile(r"\d+\.\d+")
_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Bounds:
    """How much is looked at: seconds, files and folders, bytes."""

    seconds: float = 30.0
    files: int = 500_000
    size: int = 256 << 20


BOUNDS = Bounds()


class _Entry(Enum):
    """All that is kept of an entry of a folder: there may be hundreds of thousands."""

    folder = "folder"
    file = "file"
    program = "program"
    other = "other"


@dataclass
class _Found:
    """A group while it is being looked at."""

    group: Group
    distributions: dict[str, Distribution] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    versions: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)

    def whole(self) -> Group:
        versions = {name: (".".join(map(str, number)), file) for name, (number, file) in self.versions.items()}
        packages = tuple(self.distributions[name] for name in sorted(self.distributions))
        return replace(
            self.group, distributions=packages, native=Native(self.tags, versions, dict(sorted(self.libraries.items())))
        )

    @property
    def counts(self) -> bool:
        return self.group.kind is not Kind.loose or bool(self.tags or self.versions or self.libraries)


class OutOfBounds(Exception):
    """There is more than may be looked at."""


class Reader:
    """Reads one home, whose folder is open as the file `top`; inside a container it is `seen_as`."""

    def __init__(self, top: int, seen_as: str, bounds: Bounds) -> None:
        self._top, self._seen_as, self._bounds = top, seen_as, bounds
        self._device, self._until = os.fstat(top).st_dev, time.monotonic() + bounds.seconds
        self._files = self._bytes = 0
        self._groups: dict[str, _Found] = {}
        self._kernels: list[Starter] = []
        self._scripts: list[Starter] = []
        self._programs: dict[str, str] = {}
        self._libraries: set[str] = set()
        self._missed: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        self._waiting: list[tuple[int, int, str, str]] = []

    def read(self) -> Home:
        """Everything that was found, though it may not be all: then `missed` says why."""
        first: tuple[str, ...] = ()
        try:
            first = tuple(dict.fromkeys(self._first()))
            for folder in dict.fromkeys((*first, *PROGRAMS)):
                self._read_programs(folder)
            self._visit_later("", "")
            while self._waiting:
                _, _, path, group = heapq.heappop(self._waiting)
                self._visit(path, group)
        except OutOfBounds as error:
            self._missed[""] = str(error)
        return Home(
            groups=tuple(self._whole(collected) for _, collected in sorted(self._groups.items()) if collected.counts),
            kernels=tuple(self._kernels),
            scripts=tuple(self._scripts),
            programs=self._programs,
            first=first,
            libraries=tuple(sorted(self._libraries)),
            files=self._files,
            missed=tuple(f"{path}: {why}" if path else why for path, why in self._missed.items()),
        )

    # Looking around.

    def _visit_later(self, path: str, group: str) -> None:
        if len(os.fsencode(path)) > MOST_PATH:
            self._miss("folders inside of others", "their paths are too long")
            return
        # Folders that depend most on the image come first: the bounds may be reached in somebody's data.
        rank = 0 if group or path.startswith((".local", ".conda", ".jupyter", ".ipython")) else 1
        heapq.heappush(self._waiting, (rank, path.count("/"), path, group))

    def _visit(self, path: str, group: str) -> None:
        try:
            with self._opened(path, os.O_DIRECTORY) as folder:
                if os.fstat(folder).st_dev != self._device:
                    self._miss(path, "it is another file system")
                    return
                names = dict(self._listed(folder))
        except OSError as error:
            self._miss(path, os.strerror(error.errno or 0))
            return
        group = self._group(path, group, names)
        if made_by := next((name for name in SOURCES if name in names), ""):
            self._sources[path or "."] = posixpath.join(path, made_by)
        for name in sorted(names):
            inside, entry = posixpath.join(path, name), names[name]
            if entry is _Entry.folder and name not in SKIPPED:
                self._visit_later(inside, self._editor(path, inside) or group)
            elif entry in (_Entry.file, _Entry.program):
                self._look_at(inside, entry, group)
            elif _LIBRARY.search(name):
                self._libraries.add(name)  # a link: sonames usually are

    def _miss(self, path: str, why: str) -> None:
        if len(self._missed) < MOST_MISSED:
            self._missed[path] = why
        elif path not in self._missed:
            self._missed["others"] = "folders that can't be read"

    def _listed(self, folder: int) -> Iterator[tuple[str, _Entry]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                self._count()
                with suppress(FileNotFoundError):
                    yield entry.name, _entry(entry.stat(follow_symlinks=False))

    def _count(self, size: int = 0) -> None:
        self._files += not size
        self._bytes += size
        if self._files > self._bounds.files:
            raise OutOfBounds(f"there are more than {self._bounds.files} files")
        if self._bytes > self._bounds.size:
            raise OutOfBounds(f"more than {self._bounds.size >> 20} MiB had to be read")
        if time.monotonic() > self._until:
            raise OutOfBounds(f"it takes more than {self._bounds.seconds:g} s")

    def _whole(self, group: _Found) -> Group:
        folders = (
            str(folder) for folder in (PurePosixPath(group.group.path), *PurePosixPath(group.group.path).parents)
        )
        source = next((self._sources[folder] for folder in folders if folder in self._sources), "")
        return replace(group.whole(), source=source if group.group.kind is Kind.loose else "")

    # Finding groups.

    def _group(self, path: str, group: str, names: Mapping[str, _Entry]) -> str:
        """The group to which what is in this folder belongs; finds out whether it begins a new one."""
        if "pyvenv.cfg" in names:
            group = self._begin(Group(path, Kind.venv, self._venv_python(path), self._python(path)))
        elif "conda-meta" in names:
            group = self._begin(Group(path, Kind.conda, self._conda_python(path), self._python(path)))
        elif site := _SITE.fullmatch(path):
            if not group:
                group = self._begin(Group(path, Kind.user if site["root"] == ".local" else Kind.loose, site["python"]))
            self._read_distributions(path, names, self._groups[group])
        return group

    def _begin(self, group: Group) -> str:
        self._groups.setdefault(group.path, _Found(group))
        return group.path

    def _editor(self, path: str, inside: str) -> str:
        return self._begin(Group(inside, Kind.editor)) if _EDITOR.search(path) and path.startswith(".") else ""

    def _python(self, path: str) -> str:
        return self._leads_to(posixpath.join(self._seen_as, path, "bin/python"))

    def _venv_python(self, path: str) -> str:
        pairs = (line.partition("=") for line in self._text(f"{path}/pyvenv.cfg").splitlines())
        fields = {key.strip().lower(): value.strip() for key, _, value in pairs}
        minor = _MINOR.match(fields.get("version") or fields.get("version_info", ""))
        return minor[0] if minor else ""

    def _conda_python(self, path: str) -> str:
        with suppress(OSError), self._opened(f"{path}/conda-meta", os.O_DIRECTORY) as folder:
            for name, _ in self._listed(folder):
                if match := _CONDA_PYTHON.fullmatch(name):
                    return match["python"]
        return ""

    def _read_distributions(self, path: str, names: Mapping[str, _Entry], group: _Found) -> None:
        for name in names:
            if about := _DISTRIBUTION.fullmatch(name):
                elsewhere = bool(self._text(f"{path}/{name}/direct_url.json"))
                group.distributions[about["name"]] = Distribution(about["name"], about["version"], elsewhere)

    # Single files.

    def _look_at(self, path: str, entry: _Entry, group: str) -> None:
        name = posixpath.basename(path)
        library = bool(_LIBRARY.search(name))
        if library:
            self._libraries.add(name)
        if name == "kernel.json" and KERNELS in path:
            self._read_kernel(path)
        elif library or entry is _Entry.program:
            self._read_native(path, group or posixpath.dirname(path))

    def _read_native(self, path: str, group: str) -> None:
        needs = elf.Needs()
        with suppress(OSError, elf.NotReadable), self._opened(path) as file:
            needs = elf.needs(lambda at, size: self._pread(file, at, size))
        if not needs.libraries and not needs.versions:
            return
        loose = self._groups[self._begin(Group(group, Kind.loose))]
        if tagged := _EXTENSION.search(path):
            loose.tags.setdefault(tagged["tag"], path)
        for library in needs.libraries:
            loose.libraries.setdefault(library, path)
        for interface, version in needs.versions.items():
            loose.versions[interface] = max(loose.versions.get(interface, ((), "")), (version, path))

    def _read_kernel(self, path: str) -> None:
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            program = str(json.loads(self._text(path))["argv"][0])
            if len(program.encode()) > MOST_PATH:
                return
            name = PurePosixPath(path).parent.name
            self._kernels.append(Starter(path, name, program, self._leads_to(program)))

    def _read_programs(self, folder: str) -> None:
        try:
            with self._opened(folder, os.O_DIRECTORY) as opened:
                names = [name for name, entry in self._listed(opened) if entry is not _Entry.folder]
        except OSError:
            return
        for name in sorted(names):
            path = f"{folder}/{name}"
            self._programs.setdefault(name, path)
            line = self._text(path, 256).partition("\n")[0]
            if line.startswith("#!") and (words := line[2:].split()) and not self._inside(words[0]):
                self._scripts.append(Starter(path, name, words[0], self._leads_to(words[0])))

    def _first(self) -> Iterator[str]:
        """Folders of the home that lines of startup files put into PATH; of these files nothing else is told."""
        home = re.escape(self._seen_as)
        named = re.compile(rf"(?:\$HOME|\$\{{HOME\}}|~|{home})/([\w./+-]+)")
        for file in STARTUP:
            for line in self._text(file).splitlines():
                if re.match(r"\s*(export\s+)?PATH=", line):
                    yield from (posixpath.normpath(path) for path in named.findall(line) if ".." not in path)

    # The ways to the disk.

    def _text(self, path: str, most: int = MOST_TEXT) -> str:
        """The beginning of a plain file; empty if there is none that can be read."""
        with suppress(OSError), self._opened(path) as file:
            return self._pread(file, 0, most).decode(errors="replace")
        return ""

    def _pread(self, file: int, at: int, size: int) -> bytes:
        content = os.pread(file, size, at)
        self._count(len(content) or 1)
        return content

    @contextmanager
    def _opened(self, path: str, kind: int = 0) -> Iterator[int]:
        """Open a folder or a plain file of the home, link by link none."""
        opened = os.dup(self._top)
        try:
            parts = PurePosixPath(path).parts
            for number, name in enumerate(parts, start=1):
                last = number == len(parts)
                following = _open(name, opened, kind if last else os.O_DIRECTORY)
                os.close(opened)
                opened = following
            if not kind and not stat.S_ISREG(os.fstat(opened).st_mode):
                raise OSError(0, "no plain file")
            yield opened
        finally:
            os.close(opened)

    def _inside(self, path: str) -> bool:
        return PurePosixPath(path).is_relative_to(self._seen_as)

    def _leads_to(self, path: str) -> str:
        """Where a path leads as a program in the container sees it, as far as that is decided in the home."""
        if "/" not in path:
            return ""
        path = posixpath.join(self._seen_as, path)
        for _ in range(MOST_LINKS):
            path = posixpath.normpath(path)
            if not self._inside(path):
                return path
            parts = PurePosixPath(path).relative_to(self._seen_as).parts
            try:
                following = self._next_link(parts)
            except OSError:
                return ""
            if following is None:
                return "/".join(parts)
            path = following
        return ""

    def _next_link(self, parts: Sequence[str]) -> str | None:
        """The path with its first link replaced; none if there is no link in it."""
        for number, name in enumerate(parts):
            with self._opened("/".join(parts[:number]), os.O_DIRECTORY) as folder:
                if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
                    link = os.readlink(name, dir_fd=folder)
                    return posixpath.join(self._seen_as, *parts[:number], link, *parts[number + 1 :])
        return None


def _entry(status: os.stat_result) -> _Entry:
    if stat.S_ISDIR(status.st_mode):
        return _Entry.folder
    if not stat.S_ISREG(status.st_mode):
        return _Entry.other
    return _Entry.program if status.st_mode & 0o111 and status.st_size >= 64 else _Entry.file


def _open(name: str, folder: int, kind: int) -> int:
    try:
        return os.open(name, _PLAIN | os.O_NOATIME | kind, dir_fd=folder)
    except PermissionError:  # only the owner of a file may leave its time of access as it is
        return os.open(name, _PLAIN | kind, dir_fd=folder)


def become(uid: int) -> None:
    """Give up root for the owner of what is read, for good."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(uid, uid, uid)


def tell(report: object) -> None:
    """Print a report. Names that are no text, of which JSON knows none, get question marks."""
    sys.stdout.buffer.write(json.dumps(report, ensure_ascii=False).encode(errors="replace"))


def main(asked: str) -> None:
    """Read the home that `asked` (JSON) names, and print what was found."""
    request = json.loads(asked)
    top = os.open(request["home"], _PLAIN | os.O_DIRECTORY)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.nice(10)
    become(request["uid"])
    home = Reader(top, request["seen_as"], Bounds(**request["bounds"])).read()
    tell(asdict(home))


if __name__ == "__main__":
    main(sys.argv[1])
