"""Which path of the gateway leads where. Pure.

A session has the path `/session/NAME` for as long as it lives; only the target changes. While it is away that is the
waiting page, which tells people what happens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

BELOW = "/session/"
# A socket in the folder of that service, seen from the gateway's: the path of a home may be too long for a socket.
WAITING_PAGE = "http+unix://..%2Fwaiting-page%2Fsocket"
# Where people log in, and the addresses that JupyterHub gives to their servers.
HUB, USERS, ENTRY = "/hub", "/user", "/authorizer"
# The authorizer has its socket there, too: it leads from these addresses to sessions, and says who may come in.
AUTHORIZER = "http+unix://..%2Fauthorizer%2Fsocket"
# The page and the API of people's own sessions, among the paths that JupyterHub gives to services.
MY_SESSIONS = "/services/sessions"
MY_SESSIONS_SERVICE = "http+unix://..%2Fmy-sessions%2Fsocket"
# Only the waiting page makes this route, after all others: without it the gateway has begun anew and knows nobody.
COMPLETE = "/complete"

Table = Mapping[str, str]
"""Path → target."""


def path(session: str) -> str:
    """Where a session is."""
    return f"{BELOW}{session}"


def page(session: str) -> str:
    """The page on which the owner of a session says when it moves, and starts or stops it; where there is a Hub."""
    return f"{MY_SESSIONS}/sessions/{session}"


def session(path: str) -> str:
    """The session that a path belongs to; empty: none."""
    return path.removeprefix(BELOW).partition("/")[0] if path.startswith(BELOW) else ""


def changes(table: Table, name: str, target: str) -> Table:
    """The routes to be set so that a session's path leads to a target, and nobody else's does.

    An address is given to another container when its own is gone. A route that still led there would meet somebody
    else.
    """
    outlived = {other: WAITING_PAGE for other, address in table.items() if address == target and other != path(name)}
    return outlived if table.get(path(name)) == target else {**outlived, path(name): target}


def fixed(hub: str) -> Table:
    """The routes that are there whoever has a session.

    Args:
        hub: where the Hub answers; empty: there is none.
    """
    people = {HUB: hub, USERS: AUTHORIZER, ENTRY: AUTHORIZER, MY_SESSIONS: MY_SESSIONS_SERVICE}
    return people if hub else {}


def is_of_people(path: str) -> bool:
    """Whether a path leads to the Hub or to something beside it, where people log in."""
    return any(f"{path.rstrip('/')}/".startswith(f"{place}/") for place in (HUB, USERS, ENTRY, "/services"))


def is_free(path: str) -> bool:
    """Whether the Hub may lead a path of the gateway somewhere, as it does for its services; the others are Refit's."""
    taken = (BELOW.rstrip("/"), HUB, USERS, ENTRY, MY_SESSIONS, COMPLETE)
    return path.startswith("/") and path != "/" and not any(f"{path.rstrip('/')}/".startswith(f"{t}/") for t in taken)


def superfluous(table: Table, names: Collection[str]) -> tuple[str, ...]:
    """The paths of sessions that are gone."""
    return tuple(route for route in table if route.startswith(BELOW) and session(route) not in names)
