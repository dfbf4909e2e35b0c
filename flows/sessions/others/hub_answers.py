"""Answers of a JupyterHub and its servers, read as Refit's own data. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any

from flows.core.errors import RefitError
from flows.sessions.activity.evidence import Kernel, Look

# The scopes of a token that sees servers, stops and starts them, and makes the tokens with which each server is asked.
NEEDED = ("list:users", "read:servers", "start:servers", "delete:servers", "tokens")
_TAIL = 300


@dataclass(frozen=True)
class HubServer:
    """A server of a person.

    Attributes:
        name: empty: their default one.
        image: by the option that names it; empty: it has none.
        ready: it runs.
        pending: the Hub's action on it just now, `spawn` or `stop`; empty: none.
        url: the path at which the Hub's proxy leads to it.
        options: with which it was started.
    """

    user: str
    name: str
    image: str = ""
    ready: bool = False
    pending: str = ""
    url: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_there(self) -> bool:
        """Whether it runs, or is about to."""
        return self.ready or bool(self.pending)


def servers_of(user: Mapping[str, Any], option: str) -> Iterator[HubServer]:
    """The servers of a person, as the Hub tells of them; `option` names the image."""
    for name, server in (user.get("servers") or {}).items():
        options = server.get("user_options") or {}
        yield HubServer(
            user=user["name"],
            name=name,
            image=str(options.get(option) or ""),
            ready=bool(server.get("ready")),
            pending=str(server.get("pending") or ""),
            url=str(server.get("url") or ""),
            options=options,
        )


def lacking(scopes: Collection[str]) -> tuple[str, ...]:
    """The scopes that a token lacks; one that holds for a group or a person alone counts as there."""
    granted = {scope.partition("!")[0] for scope in scopes}
    return tuple(scope for scope in NEEDED if scope not in granted)


def entrance(of: HubServer, seconds: int) -> dict[str, object]:
    """The request for a token of a person that opens one of their servers, and nothing else, for some seconds."""
    return {
        "expires_in": seconds,
        "note": "Refit looks whether anybody works there",
        "scopes": [f"access:servers!server={of.user}/{of.name}"],
    }


def role(scopes: Sequence[str]) -> str:
    """The lines that give Refit a token with these scopes, in the Hub's configuration."""
    return (
        'c.JupyterHub.services = [{"name": "refit", "api_token": "…"}]\n'
        f'c.JupyterHub.load_roles = [{{"name": "refit", "services": ["refit"], "scopes": {[*scopes]!r}}}]'
    )


def refused(api: str, call: str, status: int, text: str) -> RefitError:
    """The error for an answer of the Hub that is a refusal."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return RefitError(
            f"The Hub at {api} refuses its token.",
            why=f"{call} answers {status}: {text[:_TAIL]}",
            hint=f"it has expired, is wrong, or lacks rights. A service of the Hub has one that doesn't expire:\n"
            f"{role(NEEDED)}",
        )
    return RefitError(f"The Hub at {api} refuses.", why=f"{call} answers {status}: {text[:_TAIL]}")


def look_of(at: float, answers: Mapping[str, Any]) -> Look:
    """A look at a server, from its answers to /api/status, /api/kernels and /api/terminals.

    Programs aren't seen: where a terminal is open, nobody knows what runs in it.
    """
    status, terminals = answers["status"], answers["terminals"]
    kernels = tuple(
        Kernel(kernel["id"], kernel["name"], kernel["execution_state"], datetime.fromisoformat(kernel["last_activity"]))
        for kernel in answers["kernels"]
    )
    used = status["last_activity"] if status["last_activity"] != status["started"] else ""
    return Look(
        at=at,
        connections=int(status["connections"]),
        kernels=kernels,
        heartbeat=datetime.fromisoformat(used).timestamp() if used else None,
        problems=(f"what runs in its terminals ({len(terminals)}) can't be seen",) if terminals else (),
    )
