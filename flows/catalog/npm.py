"""Locks of npm packages: what `package-lock.json` names, and whether all of it is locked. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.documents import Mistake

LOCK = "npm/package-lock.json"  # in an IDE's folder, and in the build context
RELOCK = "run `npm install --package-lock-only` beside it"


def mistakes(path: Path, text: str) -> Iterator[Mistake]:
    """Why a lock can't be installed from: each package has to have its version and the hash of its content."""
    try:
        packages = _packages(text)
    except ValueError as error:
        yield Mistake(path, getattr(error, "lineno", 1), f"not a lock of npm: {error}", RELOCK)
        return
    for place, entry in packages.items():
        if place and not entry.get("link") and not (entry.get("version") and entry.get("integrity")):
            line = next((n for n, row in enumerate(text.splitlines(), 1) if f'"{place}"' in row), 1)
            yield Mistake(path, line, f"{place} has no exact version with its hash", RELOCK)


def versions(text: str) -> dict[str, str]:
    """Name → version of the packages that a lock without mistakes installs."""
    return {
        place.rpartition("node_modules/")[2]: str(entry["version"])
        for place, entry in _packages(text).items()
        if "node_modules/" in place and not entry.get("dev") and "version" in entry
    }


def _packages(text: str) -> Mapping[str, Mapping[str, Any]]:
    """The entries of a lock: where each package lies → what is known of it; the empty place is the project itself."""
    document = json.loads(text)
    packages = document.get("packages") if isinstance(document, dict) else None
    if not isinstance(packages, dict) or not all(isinstance(entry, dict) for entry in packages.values()):
        raise ValueError("it has no packages")
    return packages
