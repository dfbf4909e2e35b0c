"""Failures of scans, which are remembered as their results are: else each plan would wait for the same ones again."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flows.core.atomic_files import write_whole
from flows.core.database import now
from flows.core.settings import Settings


@dataclass(frozen=True)
class _Failure:
    """A failure: what was read, the moments between which it counts, and the reason in words."""

    of: str
    at: datetime
    until: datetime
    why: str


_FAILURE = TypeAdapter(_Failure)
_LONGEST_SECONDS = 86_400.0


class FailedScans:
    """Remembers for a while why homes and images could not be read; one file for each of them."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.folder("scans", "failed")

    def reason(self, name: str, of: str) -> str:
        """Why something could not be read a while ago; empty: it could, or nobody has tried.

        Args:
            name: of the session or image.
            of: all that the failure depends on: with another generation or image, it is tried again.
        """
        try:
            failure = _FAILURE.validate_json(self._file(name).read_bytes())
        except (FileNotFoundError, ValidationError):  # there is none, or another version of Refit made it
            return ""
        return failure.why if failure.of == of and failure.at <= now() < failure.until else ""

    def remember(self, name: str, of: str, why: str, lasts: timedelta) -> None:
        """Let a failure count for so long, a day at most; arguments as of `reason`."""
        self._drop_old()
        failure = _Failure(of, now(), now() + lasts, why)
        write_whole(self._file(name), _FAILURE.dump_json(failure), private=True)

    def _drop_old(self) -> None:
        """Remove failures that count no more: each night has images of its own."""
        for file in self._folder.glob("*.json"):
            with suppress(FileNotFoundError):  # another run has
                if time.time() - file.stat().st_mtime > _LONGEST_SECONDS:
                    file.unlink()

    def _file(self, name: str) -> Path:
        return self._folder / f"{sha256(name.encode()).hexdigest()[:32]}.json"
