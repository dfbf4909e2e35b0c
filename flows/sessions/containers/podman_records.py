"""Podman's records of containers, read as Refit's own data; a session's labels. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flows.core.errors import RefitError
from flows.sessions.model import Container, Running, Session

_LABEL = "io.refit."


_STATES = {
    "configured": Running.created,
    "created": Running.created,
    "initialized": Running.created,
    "running": Running.running,
    "paused": Running.running,
    "stopping": Running.running,
}


def labels(session: Session) -> Mapping[str, str]:
    """The labels of a session's container; anybody may read it, so there is no secret in it. Pure."""
    return {
        f"{_LABEL}session": session.name,
        f"{_LABEL}generation": str(session.generation),
        f"{_LABEL}image": session.image,
        f"{_LABEL}spec": session.to_json(),
    }


def is_ours(listed: Mapping[str, Any]) -> bool:
    """Whether Refit made what an entry of `podman ps --format json` is about: somebody's own may bear a label. Pure."""
    written: Mapping[str, str] = listed["Labels"] or {}
    return {f"{_LABEL}session", f"{_LABEL}generation", f"{_LABEL}image"} <= written.keys()


def as_container(listed: Mapping[str, Any]) -> Container:
    """The container in one entry of `podman ps --format json`. Pure."""
    written: Mapping[str, str] = listed["Labels"]
    return Container(
        name=listed["Names"][0],
        session=written[f"{_LABEL}session"],
        generation=int(written[f"{_LABEL}generation"]),
        image=written[f"{_LABEL}image"],
        running=_STATES.get(listed["State"], Running.stopped),
        made_from=_made_from(written.get(f"{_LABEL}spec", "")),
        pid=listed.get("Pid", 0),
        started=_moment(listed.get("StartedAt", 0)),
        ended=_moment(listed.get("ExitedAt", 0)),
    )


def _moment(seconds: int) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None  # what never was, was in the year 1


def as_address(inspected: Mapping[str, Any], port: int) -> tuple[str, int] | None:
    """Where a port of a container is reached, by what `podman container inspect` says; none: nowhere. Pure."""
    if not inspected["State"]["Running"]:  # what is said of its ports holds for its next start
        return None
    network = inspected["NetworkSettings"]
    own = [network.get("IPAddress"), *(each.get("IPAddress") for each in (network.get("Networks") or {}).values())]
    return next(((host, port) for host in own if host), None)


def not_running(what: str, why: str) -> RefitError:
    """An error because a container has no address or network as long as it doesn't run."""
    return RefitError(
        what, why=why, hint="`refit session list` shows whether it runs; `refit session start` starts it."
    )


def _made_from(spec: str) -> Session | None:
    try:
        return Session.from_json(spec)
    except ValueError:  # written by a Refit that knew other sessions
        return None
