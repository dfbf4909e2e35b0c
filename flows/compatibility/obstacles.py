"""Obstacles to moves in homes: scans, kept for a while, for homes change slowly and plans are many."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from pydantic import TypeAdapter, ValidationError

from flows.compatibility.judge import Verdict
from flows.compatibility.scan import Scan, scan
from flows.core.atomic_files import write_whole
from flows.core.database import now
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.threads import each
from flows.sessions.model import Session, check_name

logger = logging.getLogger("refit.compatibility")

KEPT = timedelta(hours=6)
AT_ONCE = 4
_KEPT: TypeAdapter[tuple[datetime, Scan]] = TypeAdapter(tuple[datetime, Scan])


def obstacles(settings: Settings, moving: Mapping[str, tuple[Session, str]]) -> dict[str, str]:
    """Session → obstacle in its home without its owner's consent to a move; sessions without any are left out.

    A home that can't be scanned keeps nobody: the rehearsal still sees whether the image goes together with it.

    Args:
        settings: those in force.
        moving: name → session, and the digest of the image that it is to have.
    """
    results = each(lambda name: _blocked(settings, *moving[name]), moving, AT_ONCE)
    return {name: why for name, why in results.items() if why}


def _blocked(settings: Settings, session: Session, image: str) -> str:
    try:
        findings = recent(settings, session, image).findings
    except RefitError as error:
        logger.warning("the home of %s was not scanned: %s", session.name, error.what)
        return ""
    blocking = [finding for finding in findings if finding.verdict is Verdict.blocked]
    more = f" and {len(blocking) - 1} more" if len(blocking) > 1 else ""
    return f"{blocking[0].path}: {blocking[0].what}{more}; `refit session scan {session.name}`" if blocking else ""


def recent(settings: Settings, session: Session, image: str) -> Scan:
    """The scan of a session's home against an image; one that is not older than `KEPT` is not made again.

    Raises:
        RefitError: home or image can't be read.
    """
    file = settings.folder("scans") / f"{check_name(session.name)}.json"
    try:
        at, kept = _KEPT.validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):  # there is none, or another version of Refit made it
        pass
    else:
        if (kept.old, kept.new) == (session.image, image) and now() - KEPT < at <= now():
            return kept
    findings = scan(settings, session, image)
    write_whole(file, _KEPT.dump_json((now(), findings)))
    return findings
