"""All sessions at a glance: their records, their states by the engine, and their addresses; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from flows.core import sqlite_query
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.core.settings import Settings
    from flows.gateway.proxy import Gateway
    from flows.sessions import engines
    from flows.sessions.engine import Engine
    from flows.sessions.model import Container, Running, Session

_RECORDS = "SELECT spec, wanted FROM sessions ORDER BY name"


@dataclass(frozen=True)
class Status:
    """A session as a person sees it: `running` is what the engine says (none: it has no container)."""

    session: Session
    running: Running | None
    should_run: bool


def glance_at_all(settings: Settings) -> tuple[tuple[Status, ...], Mapping[str, str]] | None:
    """All sessions by name, and session → address (see `addresses`), without all that changes sessions.

    None: the database isn't one that can be glanced at.
    """
    records = sqlite_query.rows(settings.database, _RECORDS)
    if not records:
        return None if records is None else ((), {})
    engine = engines.engine(settings)
    intended = [(Session.from_json(spec), bool(should_run)) for spec, should_run in records]
    every = statuses(intended, engine.containers())
    return every, addresses((session.session for session in every), engine, Gateway(settings))


def statuses(records: Iterable[tuple[Session, bool]], containers: Iterable[Container]) -> tuple[Status, ...]:
    """Sessions, each with whether it ought to run, beside all containers. Pure."""
    # Not by name: somebody may have renamed one.
    running = {(container.session, container.generation): container.running for container in containers}
    return tuple(
        Status(session, running.get((session.name, session.generation)), should_run) for session, should_run in records
    )


def addresses(sessions: Iterable[Session], engine: Engine, gateway: Gateway) -> Mapping[str, str]:
    """Session → where people find its IDE, without the token; empty: nowhere.

    Without a gateway that runs, it is the address of its container, if that runs.
    """
    every = tuple(sessions)
    led = any(session.access.port for session in every) and gateway.runs
    return {session.name: _address(session, engine, gateway if led else None) for session in every}


def _address(session: Session, engine: Engine, gateway: Gateway | None) -> str:
    if session.access.port and gateway:
        return gateway.url(session.path)
    with suppress(RefitError):
        return direct_address(session, engine)
    return ""


def direct_address(session: Session, engine: Engine) -> str:
    """Where Refit itself reaches the IDE of a session that runs, with a gateway or without; empty: it has none.

    Raises:
        RefitError: it doesn't run.
    """
    if not session.access.port:
        return ""
    host, port = engine.address(session.container, session.access.port)
    return f"http://{host}:{port}{session.path}"
