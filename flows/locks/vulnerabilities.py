"""Known vulnerabilities of locked packages, from the OSV database (https://osv.dev): from its service, or from a file.

OSV publishes one archive for each ecosystem; the one for PyPI is `PyPI/all.zip` in its bucket `osv-vulnerabilities`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ValidationError

from flows.core import outside
from flows.core.authorities import authorities
from flows.core.documents import Mistake, Mistakes
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.locks.policy import Bounds

_BOUNDS = outside.Bounds(size=64 << 20, seconds=60.0)
_MOST_PAGES = 100  # beyond the questions themselves
_A_BATCH = 1000  # what the service takes at once
_FIX = "take PyPI/all.zip as OSV publishes it, or a JSON file with a list of its records"


class _Event(BaseModel):
    introduced: str = ""
    fixed: str = ""
    last_affected: str = ""


class _Range(BaseModel):
    type: str = ""
    events: tuple[_Event, ...] = ()


class _Package(BaseModel):
    ecosystem: str = ""
    name: str = ""


class _Affected(BaseModel):
    package: _Package = _Package()
    ranges: tuple[_Range, ...] = ()
    versions: tuple[str, ...] = ()


class Record(BaseModel):
    """The fields that Refit reads of a record of OSV."""

    id: str
    aliases: tuple[str, ...] = ()
    withdrawn: str | None = None
    affected: tuple[_Affected, ...] = ()


class Unasked(RefitError):
    """A service that doesn't say what it knows."""


@dataclass(frozen=True)
class Vulnerability:
    """A known vulnerability of a locked package: its names, and the later versions that mend it."""

    package: str
    version: str
    names: tuple[str, ...]
    mended: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.package} {self.version}: {', '.join(self.names)}, mended in {' and '.join(self.mended)}"


def read(path: Path, packages: Collection[str]) -> tuple[Record, ...]:
    """The records of a file of OSV that speak of one of these packages.

    Raises:
        Mistakes: it is missing, or holds something else.
    """
    try:
        records = tuple(record for text in _texts(path) for record in _records(text) if _names(record) & set(packages))
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        what = str(error).splitlines()[0]
        if isinstance(error, ValidationError):
            what = f"{what}: {error.errors()[0]['msg']}"
        raise Mistakes([Mistake(path, 0, f"no records of OSV can be read from this: {what}", _FIX)]) from None
    return records


def ask(packages: Collection[tuple[str, str]], settings: Settings) -> tuple[Record, ...]:
    """The records of OSV's service that speak of one of these packages in this version (name, version).

    Raises:
        Unasked: it doesn't answer as it should.
    """
    try:
        with outside.Client(authorities(settings)) as client:
            service = partial(_asked, client, settings.osv_service)
            names = sorted(set(_known_by(service, sorted(packages))))
            answers = at_once(lambda name: service("GET", f"/v1/vulns/{quote(name, safe='')}"), names)
            return tuple(map(Record.model_validate_json, answers))
    except (httpx.RequestError, httpx.InvalidURL, ValueError, LookupError, TypeError, RecursionError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Unasked(
            f"{settings.osv_service} doesn't say which packages have known vulnerabilities.",
            why=why,
            hint="let `osv_file` in settings.yaml name the archive of PyPI that OSV publishes.",
        ) from None


def _asked(client: outside.Client, service: str, method: str, path: str, question: object = None) -> bytes:
    content = None if question is None else json.dumps(question).encode()
    headers = {"Content-Type": "application/json"} if content else {}
    answer = client.exchange(method, service + path, _BOUNDS, headers=headers, content=content)
    if answer.status != 200:
        raise ValueError(f"It answers {answer.status} to {path}.")
    return answer.content


def _known_by(service: Callable[..., bytes], packages: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The names of all records that concern these packages; an answer that is too long goes on at its mark."""
    every = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages]
    for _ in range(len(every) // _A_BATCH + _MOST_PAGES):
        if not every:
            return
        batch, every = every[:_A_BATCH], every[_A_BATCH:]
        results = json.loads(service("POST", "/v1/querybatch", {"queries": batch}))["results"]
        for query, result in zip(batch, results, strict=True):
            yield from (str(entry["id"]) for entry in result.get("vulns", ()))
            if mark := result.get("next_page_token"):
                every.append({**query, "page_token": mark})
    raise ValueError("Its answer has no end.")


def affecting(records: Iterable[Record], packages: Mapping[str, str]) -> list[Vulnerability]:
    """The known vulnerabilities of these packages (name → version)."""
    return sorted(
        (
            Vulnerability(name, packages[name], (record.id, *record.aliases), _mended(affected, packages[name]))
            for record in records
            if not record.withdrawn
            for affected in record.affected
            if affected.package.ecosystem == "PyPI"
            and (name := canonicalize_name(affected.package.name)) in packages
            and _affects(affected, packages[name])
        ),
        key=lambda vulnerability: (vulnerability.package, vulnerability.names),
    )


def unmended(vulnerabilities: Iterable[Vulnerability], bounds: Bounds) -> list[Vulnerability]:
    """Those that only a version would mend to which the package may not move."""
    return [
        vulnerability
        for vulnerability in vulnerabilities
        if vulnerability.mended and not any(_within(vulnerability, version, bounds) for version in vulnerability.mended)
    ]


def _within(vulnerability: Vulnerability, version: str, bounds: Bounds) -> bool:
    return SpecifierSet(bounds.range(vulnerability.package)).contains(version, prereleases=True)


def _texts(path: Path) -> Iterator[str]:
    if not zipfile.is_zipfile(path):
        yield path.read_text(encoding="utf-8")
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield archive.read(name).decode("utf-8")


def _records(text: str) -> Iterator[Record]:
    data = json.loads(text)
    for record in data if isinstance(data, list) else [data]:
        yield Record.model_validate(record)


def _names(record: Record) -> set[str]:
    return {canonicalize_name(affected.package.name) for affected in record.affected}


def _affects(affected: _Affected, version: str) -> bool:
    return version in affected.versions or any(
        _inside(span, Version(version)) for span in affected.ranges if span.type == "ECOSYSTEM"
    )


def _inside(span: _Range, version: Version) -> bool:
    """OSV's own rule: events in the order of versions, each of which begins or ends what is affected."""
    affected = False
    for at, event in sorted(_dated(span.events), key=lambda pair: pair[0]):
        if event.introduced and version >= at:
            affected = True
        elif (event.fixed and version >= at) or (event.last_affected and version > at):
            affected = False
    return affected


def _dated(events: Iterable[_Event]) -> Iterator[tuple[Version, _Event]]:
    for event in events:
        if version := _version(event.introduced or event.fixed or event.last_affected):
            yield version, event


def _mended(affected: _Affected, version: str) -> tuple[str, ...]:
    """The versions in which it is mended, after the one that is locked."""
    events = [event.fixed for span in affected.ranges if span.type == "ECOSYSTEM" for event in span.events]
    later = {fixed for text in events if (fixed := _version(text)) and fixed > Version(version)}
    return tuple(str(fixed) for fixed in sorted(later))


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
