"""Tickets: each opens Prefect's UI once, logged in, for a few minutes. The login itself is in no address and no log.

`refit` makes one, the server takes it. The file in the folder between them holds its hash.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from contextlib import suppress
from pathlib import Path

from flows.core.settings import Settings
from flows.services.embedded import TICKETS
from flows.services.prefect_services import prefect

MINUTES = 15
PAGE = "/refit/login"


def link(settings: Settings) -> str:
    """An address that opens the UI of the embedded server, logged in, once. A server elsewhere has its own login."""
    if settings.prefect_server:
        return settings.prefect_url
    # Browsers send what stands behind # to nobody.
    return f"{settings.prefect_url}{PAGE}#{make(prefect(settings).folder / TICKETS)}"


def make(folder: Path) -> str:
    """A new ticket; old ones are removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in folder.iterdir():
        if not _is_young(file):
            file.unlink(missing_ok=True)
    ticket = secrets.token_urlsafe(32)
    (folder / _name(ticket)).touch(mode=0o600, exist_ok=False)
    return ticket


def take(folder: Path, ticket: str) -> bool:
    """Whether a ticket lets somebody in; it does so once."""
    file = folder / _name(ticket)
    with suppress(FileNotFoundError):
        young = _is_young(file)
        file.unlink()  # of two who come at once, one finds it
        return young
    return False


def _is_young(file: Path) -> bool:
    with suppress(FileNotFoundError):
        return 0 <= time.time() - file.stat().st_mtime < 60 * MINUTES
    return False


def _name(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
