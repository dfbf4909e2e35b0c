"""Locks of npm packages: the packages that `package-lock.json` names, and whether all are locked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.core.documents import Mistake, Mistakes, parse_plain_json

LOCK = "npm/package-lock.json"  # in an IDE's folder, and in the build context
RELOCK = "run `npm install --package-lock-only` beside it"


def mistakes(path: Path, text: str) -> Iterator[Mistake]:
    """Why a lock can't be installed from: each package has to have its version and the hash of its content."""
    try:
        packages = _packages(text, path)
    except Mistakes as found:
        yield from found.mistakes
        return
    for place, entry in packages.items():
        if place and not entry.get("link") and not (entry.get("version") and entry.get("integrity")):
            line = next((n for n, row in enumerate(text.splitlines(), 1) if f'"{place}"' in row), 1)
            yield Mistake(path, line, f"{place} has no exact version with its hash", RELOCK)


def versions(text: str) -> dict[str, str]:
    """Name → version of the packages that a lock without mistakes installs."""
    return {
        place.rpartition("node_modules/")[2]: str(entry["version"])
        for place, entry in _packages(text, Path(LOCK)).items()
        if "node_modules/" in place and not entry.get("dev") and "version" in entry
    }


def _packages(text: str, path: Path) -> Mapping[str, Mapping[str, Any]]:
    """The entries of a lock: where each package lies → what is known of it; the empty place is the project itself."""
    document = parse_plain_json(text, path, RELOCK)
    packages = document.get("packages") if isinstance(document, dict) else None
    if not isinstance(packages, dict) or not all(isinstance(entry, dict) for entry in packages.values()):
        raise Mistakes([Mistake(path, 1, "not a lock of npm: it has no packages", RELOCK)])
    return packages
