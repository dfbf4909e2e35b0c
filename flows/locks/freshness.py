"""Has anything changed outside that could move a lock? The cheapest question is asked first.

The observations when a lock was made are kept as small files in Refit's home, for a week: an index can let a lock move
without any change to what is locked (a dependency that was missing is published), so after that it is made again in any
case. Losing these files costs time only. An index that can't be read is `unknown`, and never taken for `same`.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from flows.catalog.model import Base
from flows.core.atomic_files import write_whole
from flows.core.database import now
from flows.core.documents import Document, bounds
from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.settings import Settings
from flows.locks import apt, debian_archive, python_lockfile, simple_index, system
from flows.locks.debian_archive import ArchiveError, Offers, Release
from flows.locks.pipfile import read_pipfile
from flows.locks.simple_index import Index, Page, Unreadable

logger = logging.getLogger("refit.locks")

KEPT = timedelta(days=7)

_MOST_NAMED = 4
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Verdict(StrEnum):
    """Whether a lock could come out otherwise now: `same` is the only one that lets work be skipped."""

    same = "same"
    changed = "changed"
    unknown = "unknown"


@dataclass(frozen=True)
class Finding:
    """A verdict, and the reason for it in words."""

    verdict: Verdict
    reason: str


class Part(Document):
    """One suite of an archive: its state, and what it offered then."""

    release: Release
    offers: Offers


class SystemRecord(Document):
    """A resolved set of system packages, and all of the archive that it depends on.

    Attributes:
        made: when the set was resolved.
        exact: the set, as `name=version`.
        names: the packages of the set, and whatever their dependencies mention.
        parts: address of each suite's `InRelease` → what it offered of those names.
    """

    made: datetime
    exact: tuple[str, ...]
    names: tuple[str, ...]
    parts: Mapping[str, Part]


class LockRecord(Document):
    """When a Python lock was made, and what all pages that it depends on said then, by their address.

    `terms` is what its release said of versions then.
    """

    made: datetime
    pages: Mapping[str, Page]
    terms: str = ""


@dataclass(frozen=True)
class SystemLook:
    """The look at the packages of a base: those of the last time, and the suites of the mirror as they are."""

    finding: Finding
    record: SystemRecord | None
    releases: Mapping[str, Release]
    parts: Mapping[str, Part]


@dataclass(frozen=True)
class LockLook:
    """The look at one lock; give it to `keep` once the lock was made anew."""

    folder: Path
    finding: Finding
    at: datetime
    pages: Mapping[str, Page]
    terms: str = ""


Record = TypeVar("Record", SystemRecord, LockRecord)
Resolve = Callable[[Base, Settings], tuple[str, ...]]


# --- System packages ------------------------------------------------------------------------------------------------


def resolve(base: Base, settings: Settings, anew: Resolve = system.resolve) -> tuple[str, ...]:
    """All packages of a base as `name=version`: those of the last time if the mirror has nothing that could move one.

    Raises:
        RefitError: as `anew`, which resolves them where there is any doubt.
    """
    if base.config.family != "deb":
        return anew(base, settings)  # which asks the mirror whether anything is new, and no more
    at, look = now(), look_at_system(base, settings)
    if look.record and look.finding.verdict is Verdict.same:
        if look.parts != look.record.parts:
            _write(_system_file(base, settings), look.record.model_copy(update={"parts": look.parts}))
        return look.record.exact
    logger.info("The packages of %s are resolved anew: %s", base.name, look.finding.reason)
    exact = anew(base, settings)
    try:
        _write(_system_file(base, settings), _survey(exact, look.releases, at, settings))
    except ArchiveError:
        _system_file(base, settings).unlink(missing_ok=True)  # the next look resolves again
    return exact


def look_at_system(base: Base, settings: Settings) -> SystemLook:
    """Whether the system packages of a base of Debian's could be resolved to something else now."""
    record, releases, parts = _record_of(base, settings), dict[str, Release](), dict[str, Part]()
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    try:
        with debian_archive.connection(settings) as client:
            releases = debian_archive.releases(
                client, apt.releases(base.config.suite, settings.debian_mirror), architecture
            )
            if record is None:
                missing = Finding(Verdict.unknown, "it isn't known what the mirror had when they were resolved")
                return SystemLook(missing, None, releases, {})
            for url, release in releases.items():
                part = record.parts.get(url)
                if part is None or part.release.digest != release.digest:
                    packages = debian_archive.packages(client, release, _lists(settings))
                    part = Part(release=release, offers=debian_archive.offers(packages, record.names))
                parts[url] = part
    except ArchiveError as error:
        return SystemLook(Finding(Verdict.unknown, " ".join(str(error).split())), record, releases, {})
    offers = debian_archive.together(part.offers for part in parts.values())
    return SystemLook(system_finding(record, offers, now()), record, releases, parts)


def system_finding(record: SystemRecord, offers: Offers, at: datetime) -> Finding:
    """Whether a set of packages could come out otherwise, given what the archive offers of its names. Pure.

    Versions needn't be ordered: apt took the highest of what was offered. As long as nothing came and that one stays,
    it is the highest still.
    """
    if _expired(record.made, at):
        return Finding(Verdict.changed, f"resolved on {record.made:%Y-%m-%d}: after a week it is done again")
    before = debian_archive.together(part.offers for part in record.parts.values())
    moved = list(_moves(before, offers, dict(package.split("=", 1) for package in record.exact)))
    if moved:
        return Finding(Verdict.changed, f"the mirror has moved {some(moved, _MOST_NAMED)}")
    return Finding(Verdict.same, "the mirror has nothing new for these packages")


def _survey(exact: tuple[str, ...], releases: Mapping[str, Release], at: datetime, settings: Settings) -> SystemRecord:
    """The observations of a set that was resolved after `releases` were seen."""
    installed = {package.partition("=")[0] for package in exact}
    with debian_archive.connection(settings) as client:
        lists = {url: debian_archive.packages(client, release, _lists(settings)) for url, release in releases.items()}
    names = installed.union(*(debian_archive.needed(packages, installed) for packages in lists.values()))
    parts = {
        url: Part(release=releases[url], offers=debian_archive.offers(packages, names))
        for url, packages in lists.items()
    }
    return SystemRecord(made=at, exact=exact, names=tuple(sorted(names)), parts=parts)


def _moves(before: Offers, after: Offers, chosen: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        old, new = set(before.get(name, ())), set(after.get(name, ()))
        stays = any(file.split(" ")[0] == chosen.get(name) for file in new & old)
        if old == new or (new < old and stays):
            continue
        was, now_there = chosen.get(name) or _versions(old - new), _versions(new - old)
        yield f"{name} {was or '(not there)'} → {now_there or '(gone)'}"


def _versions(files: Iterable[str]) -> str:
    return " or ".join(sorted({file.split(" ")[0] for file in files}))


def _record_of(base: Base, settings: Settings) -> SystemRecord | None:
    return _read(_system_file(base, settings), SystemRecord)


def _system_file(base: Base, settings: Settings) -> Path:
    key = (platform.machine(), base.config.suite, settings.debian_mirror, *sorted(base.packages))
    return _folder(settings) / f"system-{base.name}-{_hash(' '.join(key).encode())}.json"


# --- Python packages ------------------------------------------------------------------------------------------------


def look_at_locks(folders: Mapping[Path, str], settings: Settings) -> dict[Path, LockLook]:
    """Whether the Python lock in each folder could come out otherwise now; each page is asked for once.

    A lock that is missing, or wasn't made of the Pipfile beside it, is `unknown` here; locking it says what is wrong.

    Args:
        folders: folder → what its release says of versions.
        settings: where the indexes are.
    """
    at = now()
    indexes: dict[Path, dict[str, Index]] = {}
    looks: dict[Path, LockLook] = {}
    for folder, terms in folders.items():
        try:
            indexes[folder] = _pages_of(folder, settings)
        except RefitError as error:
            looks[folder] = LockLook(folder, Finding(Verdict.unknown, " ".join(str(error).split())), at, {}, terms)
    records = {folder: _read(_lock_file(folder, settings), LockRecord) for folder in indexes}
    pages = _fetch(indexes.values(), [record for record in records.values() if record], settings)
    wheels = {str(path): Page(digest=_files_in(path)) for path in settings.wheel_folders}
    for folder, addresses in indexes.items():
        seen = {**{url: pages[url] for url in addresses}, **wheels}
        readable = {url: page for url, page in seen.items() if isinstance(page, Page)}
        finding = lock_finding(records[folder], seen, at, folders[folder])
        looks[folder] = LockLook(folder, finding, at, readable, folders[folder])
    return looks


def keep(look: LockLook, settings: Settings) -> None:
    """Remember what was seen just before the lock of that folder was made anew.

    Packages that only the new lock has weren't looked at; the next look will find them unknown, and the one after not.
    """
    _write(_lock_file(look.folder, settings), LockRecord(made=look.at, pages=look.pages, terms=look.terms))


def due(folders: Iterable[Path], settings: Settings) -> tuple[Path, ...]:
    """Of folders with Python locks, those that the next look makes anew whatever the indexes say; asks nobody."""
    records = {folder: _read(_lock_file(folder, settings), LockRecord) for folder in dict.fromkeys(folders)}
    return tuple(folder for folder, record in records.items() if record is None or _expired(record.made, now()))


def lock_finding(
    record: LockRecord | None, seen: Mapping[str, Page | Unreadable], at: datetime, terms: str = ""
) -> Finding:
    """Whether a lock could come out otherwise, given what the pages say that it depends on. Pure."""
    if unreadable := [page.reason for page in seen.values() if isinstance(page, Unreadable)]:
        return Finding(Verdict.unknown, some(unreadable, _MOST_NAMED))
    if record is None:
        return Finding(Verdict.unknown, "it isn't known what the index had when this lock was made")
    if why := _made_again(record, at, terms):
        return Finding(Verdict.changed, why)
    if new := [_last(url) for url in seen if url not in record.pages]:
        return Finding(Verdict.unknown, f"never looked at before: {some(new, _MOST_NAMED)}")
    digests = {url: page.digest for url, page in seen.items() if isinstance(page, Page)}
    if moved := [_last(url) for url, digest in digests.items() if digest != record.pages[url].digest]:
        return Finding(Verdict.changed, f"the index says something else of {some(moved, _MOST_NAMED)}")
    return Finding(Verdict.same, "the index says the same of all its packages")


def _made_again(record: LockRecord, at: datetime, terms: str) -> str:
    """Why a lock is made anew whatever the indexes say; empty: it isn't."""
    if _expired(record.made, at):
        return f"locked on {record.made:%Y-%m-%d}: after a week it is done again"
    return "its release says something else of versions now" if terms != record.terms else ""


def _pages_of(folder: Path, settings: Settings) -> dict[str, Index]:
    """The address of each page that the lock in `folder` depends on, and the index that it belongs to."""
    python_lockfile.verify(folder)
    pipfile = read_pipfile(folder / "Pipfile")
    indexes = {source["name"]: simple_index.index(source, settings) for source in pipfile.sources}
    packages = dict[Index, set[str]]()
    for category in pipfile.categories:
        for name in python_lockfile.versions(python_lockfile.read(folder, [category])):
            packages.setdefault(indexes[pipfile.index_of(category, name)], set()).add(name)
    return {url: index for index, names in packages.items() for url in simple_index.urls(index, sorted(names)).values()}


def _fetch(
    asked: Iterable[Mapping[str, Index]], records: Iterable[LockRecord], settings: Settings
) -> dict[str, Page | Unreadable]:
    before = {url: page for record in records for url, page in record.pages.items()}
    marks: dict[Index, dict[str, Page | None]] = {}
    for url, index in {url: index for addresses in asked for url, index in addresses.items()}.items():
        marks.setdefault(index, {})[url] = before.get(url)
    pages: dict[str, Page | Unreadable] = {}
    for index, addresses in marks.items():
        pages |= simple_index.fetch(index, addresses, settings)
    return pages


def _files_in(folder: Path) -> str:
    files = [(file.name, file.stat()) for file in sorted(folder.glob("*.whl"))]
    return _hash(repr([(name, status.st_size, status.st_mtime_ns) for name, status in files]).encode())


def _lock_file(folder: Path, settings: Settings) -> Path:
    """By the lock's content: wherever the catalog is checked out, and never for a lock that was made elsewhere."""
    return _folder(settings) / f"python-{_hash(bounds.read_bytes(folder / 'Pipfile.lock', bounds.JSON))}.json"


# --- What was seen --------------------------------------------------------------------------------------------------


def _expired(made: datetime, at: datetime) -> bool:
    # A clock that was set back must not make a record last.
    return not timedelta(0) <= at - made <= KEPT


def _folder(settings: Settings) -> Path:
    return settings.folder("cache", "freshness")


def _lists(settings: Settings) -> Path:
    return settings.folder("cache", "debian")


def _read(file: Path, model: type[Record]) -> Record | None:
    try:
        return model.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(file: Path, record: SystemRecord | LockRecord) -> None:
    write_whole(file, record.model_dump_json())
    for old in file.parent.iterdir():
        with suppress(FileNotFoundError):  # another run tidies, too
            if time.time() - old.stat().st_mtime > KEPT.total_seconds():
                old.unlink()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _last(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]
