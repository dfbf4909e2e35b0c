"""Obstacles to moves in homes: scans, kept for a while, for homes change slowly and plans are many."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import TypeAdapter, ValidationError

from flows.compatibility.judge import Verdict
from flows.compatibility.scan import Scan, of_image, scan
from flows.core.atomic_files import write_whole
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.formatting import clipped
from flows.core.settings import Settings
from flows.core.threads import each
from flows.sessions.engine import Engine
from flows.sessions.model import Session, check_name

logger = logging.getLogger("refit.compatibility")

KEPT = timedelta(hours=6)
AT_ONCE = 4
MOST_KEPT = 8 << 20  # bytes of a file; `together` bounds what is written
_SHOWN = 500  # characters: names of files are as long as their owners like
_KEPT: TypeAdapter[tuple[datetime, Scan]] = TypeAdapter(tuple[datetime, Scan])


@dataclass(frozen=True)
class Scans:
    """Results of scans of several homes.

    Attributes:
        blocked: session → obstacle in its home without its owner's consent to a move.
        unread: session → why its home was not scanned.
    """

    blocked: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


def obstacles(
    settings: Settings, engine: Engine, moving: Mapping[str, tuple[Session, str]], at_once: int = AT_ONCE
) -> Scans:
    """Obstacles to moves in homes.

    A home that can't be scanned keeps nobody: the rehearsal still sees whether the image goes together with it.

    Args:
        settings: those in force.
        engine: where the sessions run.
        moving: name → session, and the digest of the image that it is to have.
        at_once: so many homes are read at the same time.
    """
    # Each once, before all sessions that have it ask for it at the same time.
    images = each(lambda digest: _trouble(settings, digest), _images(moving), AT_ONCE)
    scans = each(lambda name: _scanned(settings, engine, *moving[name], images), moving, at_once)
    blocked = {name: why for name, (why, _) in scans.items() if why}
    return Scans(blocked, {name: unread for name, (_, unread) in scans.items() if unread})


def _images(moving: Mapping[str, tuple[Session, str]]) -> list[str]:
    return sorted({digest for session, new in moving.values() for digest in (session.image, new)})


def _trouble(settings: Settings, digest: str) -> str:
    """Why an image can't be read; empty: it was."""
    try:
        of_image(settings, digest)
    except RefitError as error:
        return clipped(error.brief, _SHOWN)
    return ""


def _scanned(
    settings: Settings, engine: Engine, session: Session, image: str, images: Mapping[str, str]
) -> tuple[str, str]:
    """The obstacle in a home, and why it was not scanned."""
    try:
        if trouble := images[session.image] or images[image]:
            raise RefitError(trouble)
        findings = recent(settings, engine, session, image).findings
    except RefitError as error:
        why = clipped(error.brief, _SHOWN)
        logger.warning("the home of %s was not scanned: %s", session.name, why)
        return "", why
    blocking = [finding for finding in findings if finding.verdict is Verdict.blocked]
    if not blocking:
        return "", ""
    more = f" and {len(blocking) - 1} more" if len(blocking) > 1 else ""
    what = clipped(f"{blocking[0].path}: {blocking[0].what}", _SHOWN)
    return f"{what}{more}; `refit session scan {session.name}`", ""


def recent(settings: Settings, engine: Engine, session: Session, image: str) -> Scan:
    """The scan of a session's home against an image; one that is not older than `KEPT` is not made again.

    Raises:
        RefitError: home or image can't be read.
    """
    file = settings.folder("scans") / f"{check_name(session.name)}.json"
    try:
        at, kept = _KEPT.validate_json(file.read_bytes() if file.stat().st_size <= MOST_KEPT else b"")
    except (FileNotFoundError, ValidationError):  # there is none, or another version of Refit made it
        pass
    else:
        if (kept.old, kept.new) == (session.image, image) and now() - KEPT < at <= now():
            return kept
    findings = scan(settings, engine, session, image)
    write_whole(file, _KEPT.dump_json((now(), findings)))
    return findings
