"""Starting sessions: one that waits for a new image until its next start gets it then, before anybody is in it."""

from __future__ import annotations

import logging

from flows.errors import RefitError
from flows.migrations.carry import Carrier, Result
from flows.plan_migration import Planning
from flows.sessions.model import Session
from flows.settings import Settings

logger = logging.getLogger("refit.migrations")


def start_session(settings: Settings, name: str) -> tuple[Session, Result | None]:
    """Start a session and wait until it is ready; also what became of its move, if it had to move first.

    Whatever keeps it from moving, it starts: on the image that it had.

    Raises:
        UnknownName: there is no such session.
        RefitError: it doesn't get ready, or a move of it is not finished.
    """
    carrier = Carrier.open(settings)
    result = _moved(settings, carrier, name)
    return carrier.sessions.start(name), result


def _moved(settings: Settings, carrier: Carrier, name: str) -> Result | None:
    carrier.sessions.store.session(name)
    try:
        decision = Planning(settings).at_start(name)
        if decision is None:
            return None
        carrier.sessions.store.want(name, True)
        return carrier.carry_out(decision)
    except RefitError as error:
        logger.warning("%s keeps its image: %s", name, error)
        return None
