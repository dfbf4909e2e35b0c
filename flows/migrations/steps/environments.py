"""Environments of a home that a move onto another Python leaves without their packages: they are made anew after it."""

from __future__ import annotations

import re

from flows.compatibility import environments
from flows.core.errors import RefitError
from flows.migrations.move import Move
from flows.migrations.steps.move_context import MoveContext

_PYTHON = re.compile(r".*-(py\d+)", re.ASCII)


def remake(context: MoveContext, move: Move) -> str:
    """Make them anew; returns what the session's person is told of it, empty: nothing.

    The session is proven and open by then: a failure here undoes nothing.
    """
    remakes = context.settings.migration.remake_environments and not move.back_to
    if not remakes or not changes_python(move.before.profile, move.after.profile):
        return ""
    try:
        return environments.summary(environments.remake(context.sessions.engine, move.after))
    except RefitError as error:
        return f"The environments of the home weren't made anew for another Python: {error.what}"


def changes_python(old: str, new: str) -> bool:
    """Whether two profiles have different Pythons, by their stems. Pure."""
    one, other = _PYTHON.fullmatch(old), _PYTHON.fullmatch(new)
    return bool(one and other and one[1] != other[1])
