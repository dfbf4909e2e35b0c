"""Which session is which server of whom. Pure.

People have names of any kind, sessions have at most 40 characters of a-z, 0-9 and hyphens. JupyterHub's own slugs never
have two hyphens in a row, so that two of them, joined by two hyphens, belong to one pair of names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from jupyterhub.slugs import safe_slug

from flows.sessions.model import LONGEST_NAME, Session

# JupyterHub's names of these variables in every server.
PERSON, SERVER = "JUPYTERHUB_USER", "JUPYTERHUB_SERVER_NAME"
_JOINT = "--"
_LONGEST_PERSON = 18
_LONGEST_SERVER = LONGEST_NAME - _LONGEST_PERSON - len(_JOINT)


@lru_cache(maxsize=10_000)
def candidates(person: str, server: str) -> tuple[str, str]:
    """The name of a new server's session, and the one to take if that is somebody else's.

    Args:
        person: name of the Hub's user, not empty.
        server: name of the server; empty: the default one.
    """
    # No server and no person has a slash in their names, so this slug is never another's own name.
    other = safe_slug(f"{person}/{server}", max_length=LONGEST_NAME)
    if not server:
        return safe_slug(person, max_length=LONGEST_NAME), other
    slugs = safe_slug(person, max_length=_LONGEST_PERSON), safe_slug(server, max_length=_LONGEST_SERVER)
    return _JOINT.join(slugs), other


def environment(person: str, server: str) -> dict[str, str]:
    """The variables of a session that is made as a server."""
    return {PERSON: person, SERVER: server}


def servers(person: str, sessions: Iterable[Session]) -> dict[str, Session]:
    """Name of the server → session, for the sessions of one person; empty: the default server.

    Those that were made elsewhere are servers as well. The one that is called like the person's default server is that.
    """
    by_name, elsewhere = dict[str, Session](), list[Session]()
    for session in sorted(sessions, key=lambda session: session.name):
        name = session.environment.get(SERVER)
        if name is None or session.environment.get(PERSON) != person or name in by_name:
            elsewhere.append(session)
        else:
            by_name[name] = session
    for session in elsewhere:
        by_name[_server_name(person, session, by_name)] = session
    return by_name


def _server_name(person: str, session: Session, taken: Mapping[str, Session]) -> str:
    if session.name == candidates(person, "")[0] and "" not in taken:
        return ""
    name: str = safe_slug(session.name)
    return name if name not in taken else str(safe_slug(f"{session.name}/"))
