"""Locks that come out the same on any later day: of nothing but what an index had before a date."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from typing import Any

from packaging.utils import canonicalize_name

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.locks import simple_index
from flows.locks.pipfile import LOCK_KEYS, Pipfile
from flows.locks.simple_index import Uploads


def environment(cutoff: date | None) -> Mapping[str, str]:
    """The variables with which pip leaves out what was uploaded on that day (UTC) or later."""
    return {"PIP_UPLOADED_PRIOR_TO": _moment(cutoff).isoformat()} if cutoff else {}


def settle(lock: Mapping[str, Any], pipfile: Pipfile, cutoff: date | None, settings: Settings) -> Mapping[str, Any]:
    """A lock without the hashes of files that were uploaded on that day (UTC) or later.

    pip says nothing where an index doesn't tell when a file was uploaded, and pipenv notes the hashes of all files of a
    version, those too that came later. So each index is asked again.

    Raises:
        RefitError: an index doesn't say when its files were uploaded.
    """
    return before(lock, _uploads(lock, pipfile, settings), cutoff) if cutoff else lock


def before(lock: Mapping[str, Any], uploads: Uploads, cutoff: date) -> dict[str, Any]:
    """The same, given when each file was uploaded: package → sha256 → moment. Pure.

    Raises:
        RefitError: nothing is left of a package.
    """
    end = _moment(cutoff)

    def kept(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        times = uploads.get(canonicalize_name(name), {})
        late = {f"sha256:{digest}" for digest, uploaded in times.items() if uploaded >= end}
        if hashes := [digest for digest in entry["hashes"] if digest not in late]:
            return {**entry, "hashes": hashes}
        raise RefitError(
            f"No file of {name} {entry['version'][2:]} was uploaded before {cutoff}.",
            hint="choose a later `cutoff` in the release, or an older version in the Pipfile.",
        )

    return {
        key: value if key == "_meta" else {name: kept(name, entry) for name, entry in value.items()}
        for key, value in lock.items()
    }


def _uploads(lock: Mapping[str, Any], pipfile: Pipfile, settings: Settings) -> Uploads:
    indexes = {source["name"]: simple_index.index(source, settings) for source in pipfile.sources}
    packages: dict[simple_index.Index, set[str]] = {}
    for category in pipfile.categories:
        for name in lock.get(LOCK_KEYS.get(category, category), {}):
            packages.setdefault(indexes[pipfile.index_of(category, name)], set()).add(canonicalize_name(name))
    times: dict[str, Mapping[str, datetime]] = {}
    for index, names in packages.items():
        times |= simple_index.uploads(index, names, settings)
    return times


def _moment(cutoff: date) -> datetime:
    return datetime.combine(cutoff, time(), UTC)
