"""How we log in to a registry, and whom that is told: its own origin, and token services that a person named.

A registry says itself where its users get their tokens. One that lies, or whose answers somebody forges, says another
place: nothing is told there.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import httpx

from flows.core.outside import Origin, origin

Kind = tuple[str, bool]  # repository, whether it is only read: what a token is good for
Ask = Callable[[httpx.URL, Mapping[str, str]], bytes]
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_TOKEN = re.compile(r"[\x21-\x7e]{1,16000}")
_PLACES = re.compile(r"/(?:manifests|blobs|tags|referrers)/")


class UnknownRealm(Exception):
    """A registry sends its users for tokens to where nobody sends a password; the realm is its text."""


def kind_of(method: str, path: str) -> Kind:
    """The kind of login that a request needs."""
    return _PLACES.split(path)[0], method in ("GET", "HEAD")


class Login:
    """Answers what one registry asks for: basic, or a bearer token from the place that it names.

    Args:
        user: empty: nobody.
        password: of the user.
        home: the registry's own origin.
        realms: origins of token services elsewhere that may be told the password.
    """

    def __init__(self, user: str, password: str, home: Origin, realms: Collection[str]) -> None:
        self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self._home, self._trusted = home, {home, *(origin(httpx.URL(realm)) for realm in realms)}
        self._known: dict[Kind, str] = {}
        self._always = ""

    def headers(self, kind: Kind) -> dict[str, str]:
        """The headers of a request to the registry itself, as far as it has asked for a login before."""
        authorization = self._known.get(kind, self._always)
        return {"Authorization": authorization} if authorization else {}

    def heed(self, challenge: str, kind: Kind, ask: Ask) -> bool:
        """Have ready what the registry itself asks for; returns whether asking again has a point.

        Args:
            challenge: its header `WWW-Authenticate`.
            kind: the kind of access.
            ask: gets the content of an address, with these headers; empty if it isn't to be had.

        Raises:
            UnknownRealm: the password would go to somebody else.
        """
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            self._always = self._login  # good for everything
        elif scheme.lower() == "bearer" and (token := self._token(dict(_PARAMETER.findall(rest)), ask)):
            self._known[kind] = f"Bearer {token}"
        else:
            return False
        return bool(self.headers(kind))

    def _token(self, challenge: Mapping[str, str], ask: Ask) -> str:
        query = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        try:
            realm = httpx.URL(challenge.get("realm", ""))
            place = realm.copy_with(userinfo=b"").copy_merge_params(query)
        except (httpx.InvalidURL, ValueError):
            raise UnknownRealm(challenge.get("realm", "")[:200]) from None
        if place.scheme not in ("http", "https") or (self._login and not self._may_know(place)):
            raise UnknownRealm(f"{place.scheme}://{place.netloc.decode('ascii', 'replace')}"[:200])
        return token_in(ask(place, {"Authorization": self._login} if self._login else {}))

    def _may_know(self, place: httpx.URL) -> bool:
        """Whether a password may go there: never by plain http because a secure registry said so."""
        return origin(place) in self._trusted and (place.scheme == "https" or self._home[0] == "http")


def token_in(content: bytes) -> str:
    """The token that the answer of a token service holds; empty if there is none. Pure."""
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    token = document.get("token") or document.get("access_token") or ""
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else ""
