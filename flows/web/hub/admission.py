"""Lets the owner of a session through the gateway. The gateway asks here, and remembers the answer briefly.

The token of an IDE stays between the gateway and the IDE. A program that has it already may send it in a header.
"""

from __future__ import annotations

import hmac
import logging
import math
import secrets
import time
from collections.abc import Iterable
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from flows.core import program_output
from flows.core.atomic_files import kept_secret
from flows.core.settings import Settings
from flows.gateway import routes
from flows.sessions.model import Session
from flows.web.hub import passes
from flows.web.hub.client import OAUTH_CLIENT, HubClient, HubError
from flows.web.hub.servers import Servers

logger = logging.getLogger("refit.authorizer")

CALLBACK = f"{routes.ENTRY}/callback"
# Seconds for which it is believed that somebody has an account who has just logged in: the list may be older.
_NEW_SECONDS = 15.0
_NO_STORE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_AGAIN = f' <a href="{routes.HUB}/home">Try again</a></p>'
_REFUSED = (
    "<!doctype html><title>Not your session</title><h1>This session is not yours</h1>"
    f'<p>Its owner alone may open it. <a href="{routes.HUB}/home">Your own sessions</a></p>'
)


def back_to(url: str) -> str:
    """Where somebody goes after the login who has asked for this: a path of the gateway, without a token. Pure."""
    path, _, query = url.partition("?")
    if not path.startswith(routes.BELOW):  # as in //elsewhere.example/session/ada, which is another place for a browser
        return f"{routes.HUB}/home"
    kept = "&".join(part for part in query.split("&") if part and not part.startswith("token="))
    return f"{path}?{kept}" if kept else path


class Admission:
    """Decides who comes in."""

    def __init__(self, settings: Settings, servers: Servers, hub: HubClient) -> None:
        self._servers, self._hub = servers, hub
        self._key = kept_secret(settings.folder("services", "authorizer") / "key")
        self._people: frozenset[str] | None = None
        self._welcomed: dict[str, float] = {}
        program_output.protect(self._key)

    def admit(self, request: Request) -> Response:
        """The answer to the gateway about a request for a session.

        200: it lets it through, and adds the query of the answer where a page is asked for. Any other answer goes to
        whoever asked.
        """
        name = request.headers["x-refit-session"]
        session, _ = self._servers.sessions.store.find(name) or (None, False)
        person = self._person(request)
        if session and (self._is_owner(person, name) or self._has_token(request, session)):
            return JSONResponse(self._let_in(session))
        if person:
            return HTMLResponse(_REFUSED, 403, headers=_NO_STORE)
        if request.headers.get("x-refit-kind") == "page":
            return self._to_hub(request.headers["x-refit-url"])
        told = {"message": "Log in first: open the session in a browser.", "refit": "authorizer"}
        return JSONResponse(told, 403, headers=_NO_STORE)

    def welcome(self, request: Request) -> Response:
        """Somebody comes back from the Hub: from now on it is known who they are, if this browser went there."""
        state = passes.opened(self._key, passes.STATE, request.query_params.get("state", ""))
        nonce = request.cookies.get(passes.STATE, "")
        if state is None or not hmac.compare_digest(str(state["nonce"]).encode(), nonce.encode()):
            return HTMLResponse(
                f"<p>This login has expired, or began in another browser.{_AGAIN}", 400, headers=_NO_STORE
            )
        try:
            person = self._hub.person(request.query_params.get("code", ""), CALLBACK)
        except HubError as error:
            logger.warning("%s", error)
            return HTMLResponse(f"<p>The login failed.{_AGAIN}", 502, headers=_NO_STORE)
        self._welcomed[person] = time.monotonic()
        answer = RedirectResponse(str(state["to"]), 302, headers=_NO_STORE)
        kept = passes.seal(self._key, passes.PASS, passes.PASS_SECONDS, person=person)
        secure = request.headers.get("x-forwarded-proto", "").partition(",")[0] == "https"
        seconds = passes.PASS_SECONDS
        answer.set_cookie(passes.PASS, kept, seconds, path=routes.BELOW, secure=secure, httponly=True, samesite="lax")
        answer.delete_cookie(passes.STATE, path=CALLBACK)
        return answer

    def _to_hub(self, url: str) -> Response:
        """Let the Hub say who somebody is; then they come back to where they wanted to go."""
        nonce = secrets.token_urlsafe(16)
        state = passes.seal(self._key, passes.STATE, passes.STATE_SECONDS, to=back_to(url), nonce=nonce)
        asked = {"client_id": OAUTH_CLIENT, "redirect_uri": CALLBACK, "response_type": "code", "state": state}
        answer = RedirectResponse(f"{routes.HUB}/api/oauth2/authorize?{urlencode(asked)}", 302, headers=_NO_STORE)
        answer.set_cookie(passes.STATE, nonce, passes.STATE_SECONDS, path=CALLBACK, httponly=True, samesite="lax")
        return answer

    def _person(self, request: Request) -> str:
        """The person whose browser it is; empty: nobody knows."""
        told = passes.opened(self._key, passes.PASS, request.cookies.get(passes.PASS, ""))
        return str(told["person"]) if told and self._has_account(str(told["person"])) else ""

    def know(self, people: Iterable[str]) -> None:
        """From now on these are the people who have an account; while the Hub is away, that is whom it had last."""
        self._people = frozenset(people)

    def _has_account(self, person: str) -> bool:
        """Whether the Hub has somebody of that name. Nobody who comes in waits for the Hub."""
        welcomed = time.monotonic() - self._welcomed.get(person, -math.inf) < _NEW_SECONDS
        return welcomed or self._people is None or person in self._people

    def _is_owner(self, person: str, session: str) -> bool:
        return bool(person) and self._servers.sessions.store.owners().get(session) == person

    def _has_token(self, request: Request, session: Session) -> bool:
        _, _, sent = request.headers.get("authorization", "").partition(" ")
        return bool(sent) and hmac.compare_digest(sent.encode(), self._servers.sessions.token(session).encode())

    def _let_in(self, session: Session) -> dict[str, str]:
        """Headers that the gateway adds to a request for the IDE's page: its path, and the query with the token."""
        page = urlsplit(session.access.page)
        if "{token}" not in page.query:
            return {"page": "", "query": ""}
        query = page.query.replace("{token}", self._servers.sessions.token(session))
        every = session.access.protocol == "jupyter"  # whose pages all take it
        return {"page": "" if every else f"{session.path}{page.path}", "query": query}
