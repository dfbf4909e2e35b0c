"""Obstacles to moves in homes: scans, kept for a while, for homes change slowly and plans are many."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from flows.compatibility.failed_scans import FailedScans
from flows.compatibility.judge import Verdict
from flows.compatibility.read_home import BOUNDS, Bounds
from flows.compatibility.scan import Scan, UnreadableImage, is_kept, of_image, scan
from flows.compatibility.scan_inside import GRACE_SECONDS
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
PLAN_SECONDS = 90.0  # of all the scans of a plan
_PATIENT_SECONDS = 900.0  # of the scan of one home, for which a person waits
_HOME_FAILED, _IMAGE_FAILED = timedelta(minutes=45), timedelta(hours=1)
# A node, a registry or an API server may be back soon.
_IMAGE_NOT_HAD = timedelta(minutes=15)
_IMAGE_SECONDS = 30.0  # with fewer left, no image is begun with
_FOLDER_SECONDS, _FOLDERS_SECONDS = 10.0, 40.0  # with fewer left for a folder, or for all, no home is begun with
_NOT_REACHED = "not reached in time"
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
    settings: Settings,
    engine: Engine,
    moving: Mapping[str, tuple[Session, str]],
    at_once: int = AT_ONCE,
    *,
    seconds: float = PLAN_SECONDS,
    spared: Mapping[str, str] = MappingProxyType({}),
) -> Scans:
    """Obstacles to moves in homes.

    A home that can't be scanned keeps nobody: the rehearsal still sees whether the image goes together with it.
    Results are kept for some hours, failures for less. The next plan reads those that this one doesn't reach in time.

    Args:
        settings: those in force.
        engine: where the sessions run.
        moving: name → session, and the digest of the image that it is to have.
        at_once: so many homes are read at the same time.
        seconds: for all of them; 0: nothing is read, and what is kept counts alone.
        spared: session → why its home isn't read now, in words.
    """
    until = monotonic() + seconds
    results = {name: kept for name, move in moving.items() if (kept := _kept(settings, *move))}
    told = {name: (_obstacle(kept), "") for name, kept in results.items()}
    told |= {name: ("", why) for name, why in spared.items() if name in moving and name not in told}
    failures = FailedScans(settings)
    for name in moving.keys() - told.keys():
        if why := failures.reason(name, _failing(*moving[name])):
            told[name] = "", why
    left = {name: moving[name] for name in moving if name not in told}
    # Each once, before all sessions that have it ask for it at the same time.
    images = each(lambda digest: _trouble(settings, digest, until), _images(left), AT_ONCE)
    told |= each(lambda name: _scanned(settings, engine, *left[name], images, until), left, at_once)
    blocked = {name: why for name in moving if (why := told[name][0])}
    return Scans(blocked, {name: unread for name in moving if (unread := told[name][1])})


def obstacle(settings: Settings, engine: Engine, session: Session, image: str) -> str:
    """The obstacle in one home for which a person waits, so that it is read even if it could not be a while ago.

    It takes some minutes at most. Empty: there is none, or the home can't be scanned.
    """
    until = monotonic() + _PATIENT_SECONDS
    images = {digest: _read_image(settings, digest, until) for digest in dict.fromkeys((session.image, image))}
    return _scanned(settings, engine, session, image, images, until)[0]


def _images(moving: Mapping[str, tuple[Session, str]]) -> list[str]:
    return sorted({digest for session, new in moving.values() for digest in (session.image, new)})


def _failing(session: Session, image: str) -> str:
    """All that a failure to read the home of a session depends on."""
    return f"{session.generation} {session.image} {image}"


def _trouble(settings: Settings, digest: str, until: float) -> str:
    """Why an image can't be read by a moment of the monotonic clock; empty: it was."""
    if not is_kept(settings, digest):
        if why := FailedScans(settings).reason(digest, digest):
            return why
        if until - monotonic() < _IMAGE_SECONDS:
            return _NOT_REACHED
    return _read_image(settings, digest, until)


def _read_image(settings: Settings, digest: str, until: float) -> str:
    try:
        of_image(settings, digest, max(1.0, until - monotonic()))
    except RefitError as error:
        why = clipped(error.brief, _SHOWN)
        readable = not isinstance(error, UnreadableImage)
        if settings.in_cluster or not readable:  # this machine may have it in a moment, and needs no Pod to try
            FailedScans(settings).remember(digest, digest, why, _IMAGE_NOT_HAD if readable else _IMAGE_FAILED)
        return why
    return ""


def _scanned(
    settings: Settings, engine: Engine, session: Session, image: str, images: Mapping[str, str], until: float
) -> tuple[str, str]:
    """The obstacle in a home, and why it was not scanned."""
    if trouble := images[session.image] or images[image]:
        return "", trouble
    if (bounds := _bounds(engine, session, until)) is None:
        return "", _NOT_REACHED
    try:
        return _obstacle(recent(settings, engine, session, image, bounds)), ""
    except RefitError as error:
        why = clipped(error.brief, _SHOWN)
        logger.warning("the home of %s was not scanned: %s", session.name, why)
        FailedScans(settings).remember(session.name, _failing(session, image), why, _HOME_FAILED)
        return "", why


def _bounds(engine: Engine, session: Session, until: float) -> Bounds | None:
    """The bounds with which a home can be read by a moment of the monotonic clock; none: there is too little time."""
    folders = 1 + sum(not volume.shared for volume in session.volumes)
    grace = 0.0 if engine.on_this_machine else GRACE_SECONDS
    seconds = (until - monotonic() - grace) / folders
    if seconds < min(_FOLDER_SECONDS, _FOLDERS_SECONDS / folders):
        return None
    return replace(BOUNDS, seconds=min(BOUNDS.seconds, seconds))


def _obstacle(result: Scan) -> str:
    """The obstacle that a scan has found, in words; empty: none."""
    blocking = [finding for finding in result.findings if finding.verdict is Verdict.blocked]
    if not blocking:
        return ""
    more = f" and {len(blocking) - 1} more" if len(blocking) > 1 else ""
    what = clipped(f"{blocking[0].path}: {blocking[0].what}", _SHOWN)
    return f"{what}{more}; `refit session scan {result.session}`"


def recent(settings: Settings, engine: Engine, session: Session, image: str, bounds: Bounds = BOUNDS) -> Scan:
    """The scan of a session's home against an image; one that is not older than `KEPT` is not made again.

    Raises:
        RefitError: home or image can't be read.
    """
    if kept := _kept(settings, session, image):
        return kept
    findings = scan(settings, engine, session, image, bounds)
    write_whole(_file(settings, session), _KEPT.dump_json((now(), findings)))
    return findings


def _kept(settings: Settings, session: Session, image: str) -> Scan | None:
    file = _file(settings, session)
    try:
        at, kept = _KEPT.validate_json(file.read_bytes() if file.stat().st_size <= MOST_KEPT else b"")
    except (FileNotFoundError, ValidationError):  # there is none, or another version of Refit made it
        return None
    return kept if (kept.old, kept.new) == (session.image, image) and now() - KEPT < at <= now() else None


def _file(settings: Settings, session: Session) -> Path:
    return settings.folder("scans") / f"{check_name(session.name)}.json"
