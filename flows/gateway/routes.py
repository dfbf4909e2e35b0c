"""Which path of the gateway leads where. Pure.

A session has the path `/session/NAME` for as long as it lives; what changes is the target. While it is away that is the
waiting page, which tells people what happens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

BELOW = "/session/"
# A socket in the folder of that service, seen from the gateway's: the path of a home may be too long for a socket.
WAITING_PAGE = "http+unix://..%2Fwaiting-page%2Fsocket"
# Only the waiting page makes this route, after all others: without it the gateway has begun anew and knows nobody.
COMPLETE = "/complete"

Table = Mapping[str, str]
"""Path → target."""


def path(session: str) -> str:
    """Where a session is."""
    return f"{BELOW}{session}"


def session(path: str) -> str:
    """The session that a path belongs to; empty: none."""
    return path.removeprefix(BELOW).partition("/")[0] if path.startswith(BELOW) else ""


def leading(table: Table, name: str, target: str) -> Table:
    """The routes to be set so that a session's path leads to a target, and nobody else's does.

    An address is given to another container when its own is gone. Who still led there would meet somebody else.
    """
    outlived = {other: WAITING_PAGE for other, known in table.items() if known == target and other != path(name)}
    return outlived if table.get(path(name)) == target else {**outlived, path(name): target}


def superfluous(table: Table, names: Collection[str]) -> tuple[str, ...]:
    """The paths of sessions that are gone."""
    return tuple(known for known in table if known.startswith(BELOW) and session(known) not in names)
