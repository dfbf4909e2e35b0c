"""The Hub as Refit itself asks it: who there is, which servers they have, and what is to change there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx

from flows.core import outside
from flows.core.atomic_files import kept_secret
from flows.core.errors import RefitError
from flows.core.programs import program_output
from flows.core.settings import Settings
from flows.gateway import routes

_SECONDS = 60.0
_PAGE = 200


# The Hub's word for the receiver of a share.
_FIELDS = {"person": "user", "group": "group"}
# Of the Hub's API: its part that is Refit's own.
_RIGHTS = "/refit/rights"
# Name of the authorizer where the Hub says who somebody is.
OAUTH_CLIENT = "service-refit"


class HubError(RefitError):
    """The Hub doesn't answer, or doesn't do what it was asked."""


@dataclass(frozen=True)
class Person:
    """Somebody with an account: name of the server → whether the Hub has it running or about to."""

    name: str
    admin: bool
    last_seen: str
    servers: Mapping[str, bool]


@dataclass(frozen=True)
class Login:
    """Somebody whom the Hub knows by a token.

    Attributes:
        person: the owner of the token.
        login: the Hub's number of the token.
        scopes: the scopes of the token.
    """

    person: str
    login: str
    scopes: frozenset[str] = frozenset()


def token(settings: Settings) -> str:
    """With which Refit asks the Hub; only the owner of the home can read it."""
    secret = kept_secret(settings.folder("services", "hub") / "token")
    program_output.protect(secret)
    return secret


class HubClient:
    """A client of the Hub's API."""

    def __init__(self, settings: Settings) -> None:
        self._token = token(settings)
        headers = {"Authorization": f"token {self._token}"}
        base = f"{settings.hub_url}{routes.HUB}/api"
        self._client = httpx.Client(
            base_url=base, headers=headers, trust_env=False, timeout=_SECONDS, verify=outside.trusted_by_default(base)
        )

    def people(self) -> tuple[Person, ...]:
        """All who have an account.

        Raises:
            HubError: the Hub doesn't answer.
        """
        people: list[Person] = []
        while True:
            offset = {"offset": len(people), "limit": _PAGE, "include_stopped_servers": "1"}
            page = self._ask("GET", "/users", params=offset).json()
            people += map(_person, page)
            if len(page) < _PAGE:
                return tuple(people)

    def person(self, code: str, redirect: str) -> Login:
        """The login of the person who came back from the Hub with this code; it works once.

        Raises:
            HubError: the Hub doesn't answer, or doesn't know the code.
        """
        fields = {"client_id": OAUTH_CLIENT, "client_secret": self._token, "grant_type": "authorization_code"}
        way = "/oauth2/token"
        given = self._ask("POST", way, data={**fields, "code": code, "redirect_uri": redirect}).json()["access_token"]
        if (login := self.login(given)) is None:
            raise HubError("The Hub doesn't know the token that it has just given.")
        return login

    def login(self, token: str) -> Login | None:
        """The login that a token belongs to; none: to that of no person.

        Raises:
            HubError: the Hub doesn't answer.
        """
        answer = self._ask("GET", "/user", (401, 403), headers={"Authorization": f"token {token}"})
        answer_json = answer.json() if answer.is_success else {}
        if answer_json.get("kind") != "user" or not answer_json.get("token_id"):
            return None
        return Login(str(answer_json["name"]), str(answer_json["token_id"]), frozenset(answer_json.get("scopes") or ()))

    def rights(self, seen: str = "", wait: float = 0.0) -> Mapping[str, Any] | None:
        """The rights of all people, as soon as it isn't what was seen; none: so it was after `wait` seconds.

        Raises:
            HubError: the Hub doesn't answer.
        """
        query = {"seen": seen, "wait": str(wait)}
        answer = self._ask("GET", _RIGHTS, (httpx.codes.NOT_MODIFIED,), params=query)
        return answer.json() if answer.is_success else None

    def add(self, person: str, *, admin: bool) -> None:
        """Make an account; one that is there is left as it is, but for whether it administers the Hub.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        self._ask("POST", f"/users/{quote(person, safe='')}", (409,), json={})
        self._ask("POST", "/refit/admins", json={"name": person, "admin": admin})

    def note(self, person: str, server: str, options: Mapping[str, object] | None) -> None:
        """Let the Hub know of a server: one that runs is started there with these options, another is only listed.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        way = f"/users/{quote(person, safe='')}/servers/{quote(server, safe='')}"
        if options is None:
            self._ask("PUT", way, json={}, accepted=(409, 400))
        else:
            self._ask("POST", way, json={"user_options": dict(options)}, accepted=(400,))

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such a person or group.

        Raises:
            HubError: the Hub doesn't answer.
        """
        way = {"person": "users", "group": "groups"}[kind]
        return self._ask("GET", f"/{way}/{quote(name, safe='')}", accepted=(404,)).is_success

    def share(self, owner: str, server: str, kind: str, subject: str) -> None:
        """Share a server with a person or a group.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        self._ask("POST", _way("shares", owner, server), json={_FIELDS[kind]: subject})

    def unshare(self, owner: str, server: str, kind: str, subject: str) -> None:
        """End a share of a server, or a code; one that isn't there has ended.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        if kind == "code":
            self._ask("DELETE", _way("share-codes", owner, server), (404,), params={"id": subject})
        else:
            self._ask("PATCH", _way("shares", owner, server), (404,), json={_FIELDS[kind]: subject})

    def share_code(self, owner: str, server: str, lasting: timedelta) -> tuple[str, str]:
        """Make a code by which a server is shared with whoever accepts it; its number, and the path of its page.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        seconds = int(lasting.total_seconds())
        code = self._ask("POST", _way("share-codes", owner, server), json={"expires_in": seconds}).json()
        program_output.protect(code["code"])
        return str(code["id"]), str(code["accept_url"])

    def stop(self, person: str, server: str) -> bool:
        """Stop a server; whether it has stopped already.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        way = f"/users/{quote(person, safe='')}/servers/{quote(server, safe='')}"
        return self._ask("DELETE", way, accepted=(404,)).status_code != httpx.codes.ACCEPTED

    def remove(self, person: str) -> bool:
        """Remove somebody's account; whether there was one.

        Raises:
            HubError: the Hub doesn't answer, or refuses.
        """
        return self._ask("DELETE", f"/users/{quote(person, safe='')}", accepted=(404,)).is_success

    def _ask(self, method: str, path: str, accepted: tuple[int, ...] = (), **more: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **more)
        except httpx.HTTPError as error:
            raise HubError(
                "The Hub doesn't answer.", why=str(error), hint="`refit status` shows it; `refit up` starts it."
            ) from None
        if not answer.is_success and answer.status_code not in accepted:
            raise HubError(f"The Hub refuses {method} {path}.", why=f"It answers {answer.status_code}: {_said(answer)}")
        return answer


def _way(of: str, person: str, server: str) -> str:
    return f"/{of}/{quote(person, safe='')}/{quote(server, safe='')}"


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("message", ""))
    except (ValueError, AttributeError):
        return answer.text[:200]


def _person(user: Mapping[str, Any]) -> Person:
    servers = {
        name: bool(server.get("ready") or server.get("pending")) for name, server in (user.get("servers") or {}).items()
    }
    return Person(str(user["name"]), bool(user.get("admin")), str(user.get("last_activity") or ""), servers)
