"""Caches of package managers: a build needn't download again what one before it has, and no layer knows of it.

They are folders of this machine below the one that builds see at `/mnt`. All builds use them at once, as pip, uv and
npm allow. apt and dnf want their archives for themselves: each build gets a folder of its own, filled with links to
what is there.
They are cleared only while nothing is built (see `workspace.no_builds`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from flows.core.errors import UnknownName
from flows.core.programs import command
from flows.core.settings import Settings
from flows.images.builder.workspace import no_builds

# Cache → the variable by which its program is told of the folder; apt and dnf are told otherwise.
VARIABLES = {"apt": "", "dnf": "", "npm": "NPM_CONFIG_CACHE", "pip": "PIP_CACHE_DIR", "uv": "UV_CACHE_DIR"}
# Files that are kept of the caches that each build has for itself. Both programs check it against their lists before
# use.
_ARCHIVES = {"apt": "*.deb", "dnf": "*/packages/*.rpm"}
NO_CACHES = {"PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1"}
# uv keeps unpacked packages: one that lacks files would be installed without them. It goes as a whole.
_WHOLE = {"uv"}
_AT_ONCE = 500  # files on one command line


@dataclass(frozen=True)
class File:
    """A file of a cache: its size (bytes on the disk) and when it was last read or written."""

    path: Path
    size: int
    used: datetime


@dataclass(frozen=True)
class Cache:
    """A cache: its size and the limit that a prune brings it under (bytes), and when it was last used, if ever."""

    name: str
    folder: Path
    size: int
    limit: int
    used: datetime | None


def caches(settings: Settings) -> tuple[Cache, ...]:
    """All caches, by name."""
    return tuple(_cache(name, settings) for name in VARIABLES)


def prune(settings: Settings, names: Collection[str] = (), everything: bool = False) -> dict[str, int]:
    """Bring caches under their limit, least recently used first, or empty them; waits until nothing is built.

    Args:
        settings: where they are, and their limit.
        names: those to prune; none means all.
        everything: empty them, whatever their size is.

    Returns:
        Name → bytes that were freed.

    Raises:
        UnknownName: there is no cache of that name.
    """
    for name in names:
        if name not in VARIABLES:
            raise UnknownName("cache", name, VARIABLES)
    with no_builds(settings):
        return shrink(settings, names or VARIABLES, everything)


def shrink(settings: Settings, names: Collection[str] = tuple(VARIABLES), everything: bool = False) -> dict[str, int]:
    """`prune`, for callers that know that nothing is built meanwhile."""
    return {name: _prune(name, settings, everything) for name in names}


def surplus(files: Iterable[File], limit: int) -> tuple[File, ...]:
    """The least recently used files that have to go for the rest to take at most `limit` bytes. Pure."""
    files = sorted(files, key=lambda file: (file.used, file.path))
    size, going = sum(file.size for file in files), []
    for file in files:
        if size <= limit:
            break
        going.append(file)
        size -= file.size
    return tuple(going)


def offer(own: Path, mount: str, settings: Settings) -> tuple[Mapping[str, str], Mapping[Path, str]]:
    """Offer the caches to a build whose own folder `own` is seen at `mount`.

    Returns:
        Variables for its programs, and the folders to mount writable: folder → where.
    """
    (own / "apt").mkdir()  # also without a cache: its own archives folder would be changed in the layer
    if not settings.cache_gb:
        return NO_CACHES, {own / "apt": f"{mount}/apt"}
    (own / "dnf").mkdir()
    # pip uses no cache that belongs to somebody else.
    if folders := [folder for folder in (_folder(name, settings) for name in VARIABLES) if not _is_roots(folder)]:
        command.run(["install", "--directory", "--owner=0", "--group=0", "--mode=0755", *folders], root=True)
    for name in VARIABLES:
        (own / "cache" / name).mkdir(parents=True)
    for name, archives in _ARCHIVES.items():
        _link(_folder(name, settings), own / name, archives)
    shared = {_folder(name, settings): f"{mount}/cache/{name}" for name, variable in VARIABLES.items() if variable}
    variables = {variable: f"{mount}/cache/{name}" for name, variable in VARIABLES.items() if variable}
    return variables, {**{own / name: f"{mount}/{name}" for name in _ARCHIVES}, **shared}


def apt_options(mount: str) -> tuple[str, ...]:
    """The lines of apt's configuration that let it use what `offer` gives."""
    return f'Dir::Cache::Archives "{mount}/apt/";', 'APT::Keep-Downloaded-Packages "true";'


def dnf_options(mount: str, settings: Settings) -> Mapping[str, str]:
    """Options by which dnf uses the folders of `offer`."""
    return {"cachedir": f"{mount}/dnf", "keepcache": "True"} if settings.cache_gb else {}


def take_back(own: Path, settings: Settings) -> None:
    """Keep the archives that apt and dnf have downloaded in a build, for the next."""
    if settings.cache_gb:
        for name, archives in _ARCHIVES.items():
            _link(own / name, _folder(name, settings), archives)


def _is_roots(folder: Path) -> bool:
    return folder.is_dir() and folder.stat().st_uid == 0


def _link(source: Path, target: Path, archives: str) -> None:
    """Let both folders have the archives of the first, at the same places below them."""
    for folder, archives_there in groupby(sorted(source.glob(archives)), key=lambda file: file.parent):
        place, files = target / folder.relative_to(source), tuple(archives_there)
        command.run(["install", "--directory", "--mode=0755", place], root=True)
        for start in range(0, len(files), _AT_ONCE):
            argv = ["cp", "--link", "--no-clobber", "--target-directory", place, *files[start : start + _AT_ONCE]]
            # Of two builds that bring the same archive at once, one is told that it is there.
            command.run(argv, root=True, accepted=(0, 1))


def _cache(name: str, settings: Settings) -> Cache:
    files = _files(name, settings)
    used = max((file.used for file in files), default=None)
    return Cache(name, _folder(name, settings), sum(file.size for file in files), _limit(settings), used)


def _prune(name: str, settings: Settings, everything: bool) -> int:
    files = _files(name, settings)
    going = surplus(files, 0 if everything else _limit(settings))
    if going and (everything or name in _WHOLE):
        command.run(["rm", "-rf", "--one-file-system", _folder(name, settings)], root=True)
        return sum(file.size for file in files)
    for start in range(0, len(going), _AT_ONCE):
        argv: list[str | Path] = ["rm", "--force"]
        argv += [file.path for file in going[start : start + _AT_ONCE]]
        command.run(argv, root=True)
    return sum(file.size for file in going)


def _files(name: str, settings: Settings) -> tuple[File, ...]:
    folder = _folder(name, settings)
    if not folder.is_dir():
        return ()
    listing: list[str | Path] = ["find", folder, "-type", "f", "-printf", r"%b %A@ %T@ %p\0"]
    lines = command.run(listing, root=True, secret=True).stdout.split("\0")
    return tuple(_file(line) for line in lines if line)


def _file(line: str) -> File:
    blocks, read, written, path = line.split(" ", 3)
    used = datetime.fromtimestamp(max(float(read), float(written)), UTC)
    return File(Path(path), int(blocks) * 512, used)


def _limit(settings: Settings) -> int:
    return round(settings.cache_gb * 1e9)


def _folder(name: str, settings: Settings) -> Path:
    return settings.home / "cache" / name
