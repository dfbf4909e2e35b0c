"""Callers: the person whose token of the Hub it is, and the rights of that token. The Hub alone knows.

A Hub that is slow, or starts just now, is asked again for some seconds before anybody is told that it is away.
Each token is asked about again after some seconds, so that one that was revoked, or whose person was removed, ends
soon. While the Hub is away nobody can revoke anything there: people who were in stay in for some minutes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from urllib.parse import quote

import httpx
from cachetools import TTLCache

from flows.core import outside
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.gateway import routes
from flows.web.hub.registration import CLIENT, secret
from flows.web.my_sessions.problems import Code, Problem
from flows.web.people.scopes import Scope

# Seconds for which an answer of the Hub counts, and for which it still does while the Hub doesn't answer.
FRESH_SECONDS, AWAY_SECONDS = 3.0, 600.0
# Seconds for which the Hub is waited for: in all, where nobody knows the token yet, and between two questions.
# A person who is known waits as long as one question may take.
_HUB_SECONDS, _PATIENCE, _PAUSE = 10.0, 30.0, 0.5
# A Hub that nobody listens for isn't slow but away; so long it may take to start again.
_START_SECONDS = 5.0
_MOST_KNOWN = 4096
_LONGEST_TOKEN = 512
_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True)
class Caller:
    """Somebody who asks.

    Attributes:
        person: name of the Hub's user.
        scopes: the scopes of their token.
        admin: they administer the Hub.
        session: the session out of which they ask with its own token; empty: they ask with one of the Hub.
        key: an identifier of this token among the person's, which doesn't give the token away.
    """

    person: str
    scopes: frozenset[Scope]
    admin: bool = False
    session: str = ""
    key: str = field(default="", repr=False)

    def require(self, scope: Scope) -> None:
        """Let nobody go on whose token doesn't permit this.

        Raises:
            Problem: it doesn't.
        """
        if scope not in self.scopes:
            raise Problem(
                Code.scope,
                f"This token doesn't permit that: {scope.text}",
                why=f"It lacks the scope {scope.value}.",
                hint="ask with a token that has this scope; the Hub's page Token makes them.",
            )
        if scope is Scope.operate and not self.admin:
            raise Problem(
                Code.not_yours, "That is for those who administer the Hub.", hint="ask somebody who administers it."
            )


def nobody() -> Problem:
    """There is no token, or one that the Hub doesn't know, or doesn't know any more."""
    return Problem(
        Code.not_logged_in,
        "You aren't logged in.",
        why="There is no token, or it has expired, was revoked, or never was one.",
        hint="log in anew, or send `Authorization: Bearer TOKEN` with a token from the Hub's page Token.",
    )


def hub_away() -> Problem:
    """Nobody can say whose token it is."""
    return Problem(Code.hub_away, "Nobody can log in just now: the Hub doesn't answer.", hint="try again in a minute.")


class Callers:
    """Asks the Hub who somebody is."""

    def __init__(self, settings: Settings, seconds: float = FRESH_SECONDS) -> None:
        self._secret = secret(settings)
        base, limits = f"{settings.hub_url}{routes.HUB}/api", httpx.Limits(max_connections=20)
        trust = outside.trusted_by_default(base)
        self._client = httpx.Client(base_url=base, trust_env=False, timeout=_HUB_SECONDS, limits=limits, verify=trust)
        self._fresh: TTLCache[str, tuple[Caller | None]] = TTLCache(_MOST_KNOWN, seconds)
        self._kept: TTLCache[str, Caller] = TTLCache(_MOST_KNOWN, AWAY_SECONDS)
        self._lock = Lock()
        self._asking: dict[str, Future[Caller | None]] = {}

    def of(self, token: str) -> Caller:
        """The caller with this token.

        Raises:
            Problem: nobody's, or the Hub doesn't answer.
        """
        if not token or len(token) > _LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            raise nobody()
        key = hashlib.sha256(token.encode()).hexdigest()
        if (caller := self._asked_once(token, key)) is None:
            raise nobody()
        return caller

    def forget(self, token: str) -> None:
        """Ask anew about a token, as after its end."""
        key = hashlib.sha256(token.encode()).hexdigest()
        with self._lock:
            self._fresh.pop(key, None)
            self._kept.pop(key, None)

    def exchanged(self, code: str, redirect: str) -> str:
        """The token of somebody who comes back from the Hub with this code, which works once.

        Raises:
            Problem: the Hub doesn't know the code, or doesn't answer.
        """
        fields = {"client_id": CLIENT, "client_secret": self._secret, "grant_type": "authorization_code"}
        answer = self._ask("POST", "/oauth2/token", "", data={**fields, "code": code, "redirect_uri": redirect})
        if answer is None:
            raise nobody()
        return str(answer["access_token"])

    def new_token(self, person: str, scopes: frozenset[Scope], seconds: int, note: str) -> str:
        """A token of this person that the Hub has just made.

        Raises:
            Problem: the Hub refuses, or doesn't answer.
        """
        request = {"scopes": sorted(scopes), "expires_in": seconds, "note": note}
        answer = self._ask("POST", f"/users/{quote(person, safe='')}/tokens", self._secret, json=request)
        if answer is None:
            raise Problem(Code.refused, "The Hub makes no token for you.")
        return str(answer["token"])

    def revoke(self, token: str) -> None:
        """End a token before its time; one that has ended already is no mistake.

        Raises:
            Problem: the Hub doesn't answer.
        """
        self.forget(token)
        if (user := self._ask("GET", "/user", token)) and user.get("token_id"):
            way = f"/users/{quote(str(user['name']), safe='')}/tokens/{quote(str(user['token_id']), safe='')}"
            self._ask("DELETE", way, self._secret)

    def _asked_once(self, token: str, key: str) -> Caller | None:
        """The Hub's answer; of those who ask about a token at the same time, one asks and the others wait."""
        with self._lock:
            if fresh := self._fresh.get(key):  # one look: it may expire between two
                return fresh[0]
            waiting = self._asking.get(key)
            mine = self._asking[key] = waiting or Future()
        if waiting:
            return waiting.result()
        try:
            mine.set_result(self._asked(token, key))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._lock:
                del self._asking[key]
        return mine.result()

    def _asked(self, token: str, key: str) -> Caller | None:
        with self._lock:
            kept = self._kept.get(key)
        try:
            caller = self._patiently(token, key, 0.0 if kept else _PATIENCE)
        except Problem:
            if not kept:
                raise
            with self._lock:
                self._fresh[key] = (kept,)  # the Hub is given seconds, too, until it is asked again
            return kept
        with self._lock:
            self._fresh[key] = (caller,)
            self._kept.pop(key, None)
            if caller:
                self._kept[key] = caller
        return caller

    def _patiently(self, token: str, key: str, seconds: float) -> Caller | None:
        """Ask for so long until the Hub answers, and once at least."""
        begun = time.monotonic()

        def is_last(outcome: Caller | Problem | None) -> bool:
            refused = isinstance(outcome, Problem) and isinstance(outcome.__context__, httpx.ConnectError)
            limit = min(seconds, _START_SECONDS) if refused else seconds
            return not isinstance(outcome, Problem) or time.monotonic() - begun + _PAUSE > limit

        outcome = wait_until(lambda: self._attempt(token, key), enough=is_last, pause=_PAUSE)
        if isinstance(outcome, Problem):
            raise outcome
        return outcome

    def _attempt(self, token: str, key: str) -> Caller | Problem | None:
        try:
            user = self._ask("GET", "/user", token)
            return None if user is None or user.get("kind") != "user" else self._caller(user, key)
        except Problem as problem:
            return problem

    def _caller(self, user: Mapping[str, Any], key: str) -> Caller:
        name, scopes = str(user["name"]), frozenset(user.get("scopes", ()))
        more = self._ask("GET", f"/users/{quote(name, safe='')}", self._secret) or {}
        return Caller(name, frozenset(scope for scope in Scope if scope in scopes), bool(more.get("admin")), key=key)

    def _ask(self, method: str, path: str, token: str, **more: Any) -> Mapping[str, Any] | None:
        """The answer of the Hub; none: it refuses."""
        headers = {"Authorization": f"token {token}"} if token else {}
        try:
            answer = self._client.request(method, path, headers=headers, **more)
            if answer.is_server_error or len(answer.content) > _ANSWER_BYTES:
                raise hub_away()
            return (answer.json() if answer.content else {}) if answer.is_success else None
        except (httpx.HTTPError, ValueError):
            raise hub_away() from None
