"""Login for the pages: by the Hub's OAuth. The browser keeps a token of the Hub, which ends with the login there.

A page of this service is for people who look at it. A script of an IDE, which has the same origin, can't read or send
it where the browser says what a request is for (Fetch Metadata), and no other page may frame it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from flows.core.atomic_files import kept_secret
from flows.core.programs import program_output
from flows.core.settings import Settings
from flows.gateway import routes
from flows.web.authorizer import passes
from flows.web.hub.registration import CALLBACK, CLIENT
from flows.web.my_sessions.callers import Caller, Callers, nobody
from flows.web.my_sessions.paths import BASE
from flows.web.my_sessions.problems import Code, Problem

TOKEN, STATE = "refit-my-sessions", "refit-my-sessions-state"
TOKEN_SECONDS = 8 * 3600
_PURPOSE = "my-sessions-login"


def back_to(asked: str) -> str:
    """Where somebody goes after the login who has asked for this: a page of this service, or its first one. Pure."""
    path = asked.partition("?")[0].partition("#")[0]
    inside = path == f"{BASE}/" or (path.startswith(f"{BASE}/") and path not in (CALLBACK, f"{BASE}/token"))
    plain = asked.isascii() and asked.isprintable() and "\\" not in asked and "//" not in path and ".." not in path
    return asked if inside and plain and len(asked) < 1000 else f"{BASE}/"


def is_navigation(request: Request) -> bool:
    """Whether a browser asks for a page, or sends a form of one, because a person wants that. Pure.

    Browsers say so in headers that no script can set; one that doesn't is believed.
    """
    fetch = {name: request.headers.get(f"sec-fetch-{name}", "") for name in ("mode", "dest", "site")}
    sites = ("", "same-origin") if request.method == "POST" else ("", "same-origin", "same-site", "cross-site", "none")
    return fetch["mode"] in ("", "navigate") and fetch["dest"] in ("", "document") and fetch["site"] in sites


class Login:
    """Knows whose browser it is."""

    def __init__(self, settings: Settings, callers: Callers) -> None:
        self._callers = callers
        self._key = kept_secret(settings.folder("services", "my-sessions") / "key")
        program_output.protect(self._key)

    def caller(self, request: Request) -> Caller:
        """The person who looks at a page, or sends a form of one.

        Raises:
            Problem: nobody is logged in, or it is no page that a person looks at.
        """
        if not is_navigation(request):
            raise Problem(Code.not_logged_in, "This is a page for people.", hint="programs use the API, with a token.")
        if not (token := request.cookies.get(TOKEN, "")):
            raise nobody()
        return self._callers.of(token)

    def form_key(self, caller: Caller) -> str:
        """The key that a form of this login sends along; nobody else can make it."""
        return hmac.new(self._key.encode(), f"form {caller.key}".encode(), hashlib.sha256).hexdigest()

    def check_form(self, caller: Caller, sent: str) -> None:
        """Let no form go on that another page has sent.

        Raises:
            Problem: it isn't from a page of this login.
        """
        if not hmac.compare_digest(self.form_key(caller).encode(), sent.encode()):
            raise Problem(
                Code.invalid, "This form is from another login.", hint="load the page anew, and send it again."
            )

    def to_hub(self, path: str) -> Response:
        """Let the Hub say who somebody is; then they come back to the page that they have asked for."""
        nonce = secrets.token_urlsafe(16)
        state = passes.seal(self._key, _PURPOSE, passes.STATE_SECONDS, to=back_to(path), nonce=nonce)
        query = {"client_id": CLIENT, "redirect_uri": CALLBACK, "response_type": "code", "state": state}
        answer = RedirectResponse(f"{routes.HUB}/api/oauth2/authorize?{urlencode(query)}", 302, HEADERS)
        answer.set_cookie(STATE, nonce, passes.STATE_SECONDS, path=CALLBACK, httponly=True, samesite="lax")
        return answer

    def welcome(self, request: Request) -> Response:
        """Somebody comes back from the Hub: their browser keeps the token, if it went there from here.

        Raises:
            Problem: the login has expired, began in another browser, or the Hub doesn't know the code.
        """
        state = passes.opened(self._key, _PURPOSE, request.query_params.get("state", ""))
        nonce = request.cookies.get(STATE, "")
        if state is None or not hmac.compare_digest(str(state["nonce"]).encode(), nonce.encode()):
            raise Problem(Code.invalid, "This login has expired, or began in another browser.", hint="try again.")
        token = self._callers.exchanged(request.query_params.get("code", ""), CALLBACK)
        answer = RedirectResponse(str(state["to"]), 302, HEADERS)
        secure = request.headers.get("x-forwarded-proto", "").partition(",")[0] == "https"
        answer.set_cookie(TOKEN, token, TOKEN_SECONDS, path=BASE, secure=secure, httponly=True, samesite="lax")
        answer.delete_cookie(STATE, path=CALLBACK)
        return answer


HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
