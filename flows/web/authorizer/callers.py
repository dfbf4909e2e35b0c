"""The senders of requests: a browser has a pass, a program a token of the Hub."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from starlette.requests import Request

from flows.web.authorizer import passes
from flows.web.authorizer.rights_watch import RightsWatch
from flows.web.people.client import HubClient, Login

_SCHEMES = frozenset({"token", "bearer"})
_LONGEST_TOKEN = 256
_MOST = 10_000
# Seconds for which it is remembered that nobody has a token.
_NOBODYS = 30.0


@dataclass(frozen=True)
class Caller:
    """Somebody who is known.

    Attributes:
        person: name at the Hub.
        login: the Hub's number of the login.
        scopes: the scopes of a program's token; none: a browser may do what the person may.
        host: the only one at which the pass of a browser counts; empty: it isn't bound to one.
        until: seconds since 1970 until which that pass counts; of a program, 0.
    """

    person: str
    login: str
    scopes: frozenset[str] | None = None
    host: str = ""
    until: float = 0.0


class Callers:
    """Knows people by what they send."""

    def __init__(self, key: str, hub: HubClient, watch: RightsWatch) -> None:
        self._key, self._hub, self._watch = key, hub, watch
        self._tokens: dict[bytes, tuple[float, Login | None]] = {}

    def of(self, request: Request) -> Caller | None:
        """The person who sends a request; none: nobody knows.

        Raises:
            HubError: they send a token that isn't known here, and the Hub doesn't answer.
        """
        return self._by_pass(request) or self._by_token(request)

    def _by_pass(self, request: Request) -> Caller | None:
        for name in passes.COOKIES:
            content = passes.opened(self._key, passes.PASS, request.cookies.get(name, ""))
            if content and self._watch.now().is_logged_in(str(content["person"]), str(content.get("login", ""))):
                host, until = str(content.get("host", "")), float(content["until"])
                return Caller(str(content["person"]), str(content["login"]), host=host, until=until)
        return None

    def _by_token(self, request: Request) -> Caller | None:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() not in _SCHEMES or not 0 < len(sent) <= _LONGEST_TOKEN:
            return None
        login = self._login(sent)
        if login is None or not self._watch.now().is_logged_in(login.person, login.login):
            return None
        return Caller(login.person, login.login, login.scopes)

    def _login(self, token: str) -> Login | None:
        key = hashlib.sha256(token.encode()).digest()
        at, login = self._tokens.get(key, (0.0, None))
        if login is None and at < time.monotonic() - _NOBODYS:
            login = self._hub.login(token)
            if login:
                self._watch.refresh()
            if len(self._tokens) >= _MOST:
                self._tokens.clear()
            self._tokens[key] = time.monotonic(), login
        return login
