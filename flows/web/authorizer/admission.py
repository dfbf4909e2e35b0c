"""Lets people through the gateway to the sessions that they may use. The gateway asks, and remembers a yes briefly.

The token of an IDE stays between the gateway and the IDE. Programs come with a token of the Hub.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from urllib.parse import urlencode, urlsplit

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from flows.core.atomic_files import kept_secret
from flows.core.programs import program_output
from flows.core.settings import Settings
from flows.gateway import routes
from flows.sessions.model import Session
from flows.sessions.people.entitlements import NO_ACCESS, Access, Role
from flows.sessions.people.share_records import Grants
from flows.web.authorizer import origins, pages, passes
from flows.web.authorizer.callers import Caller, Callers
from flows.web.authorizer.rights_watch import RightsWatch
from flows.web.people.client import OAUTH_CLIENT, HubClient, HubError
from flows.web.people.servers import Servers

logger = logging.getLogger("refit.authorizer")

CALLBACK, GUEST, ARRIVAL = (f"{routes.ENTRY}/{name}" for name in ("callback", "guest", "arrival"))
# Seconds. That somebody is in a session is written down so often.
_VISIT_SECONDS = 60.0
# The gateway may keep the answer about an owner so long.
_KEEP_SECONDS = 600.0
_MOST_TICKETS = 100_000
_LOGIN = "/login"  # of Jupyter's server
_NO_STORE = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'",
}


def back_to(url: str) -> str:
    """Where somebody goes after the login who has asked for this: a path of the gateway, without a token. Pure."""
    path, _, query = url.partition("?")
    if not path.startswith(routes.BELOW):  # as in //elsewhere.example/session/ada, which is another place for a browser
        return f"{routes.HUB}/home"
    kept = "&".join(part for part in query.split("&") if part and not part.startswith("token="))
    return f"{path}?{kept}" if kept else path


def queries(session: Session, token: str) -> dict[str, str]:
    """Path → query with the IDE's token, of the pages to which the gateway adds it. Pure.

    These are the page with which somebody begins, and the login of Jupyter's server, in front of which all IDEs of the
    catalog are. That server sends whoever has no cookie of its own to its login, from whichever page, and from there
    back with such a cookie. Other pages may be programs of people at their own ports, who would read the token.
    """
    page = urlsplit(session.access.page)
    parts = [part for part in page.query.split("&") if "{token}" in part]
    if not parts:
        return {}
    whole, login = (text.replace("{token}", token) for text in (page.query, "&".join(parts)))
    return {f"{session.path}{_LOGIN}": login, f"{session.path}{page.path}": whole}


def is_https(request: Request) -> bool:
    """Whether the browser speaks TLS with whatever stands in front of the gateway."""
    return request.headers.get("x-forwarded-proto", "").partition(",")[0] == "https"


class Admission:
    """Decides who comes in."""

    def __init__(
        self, settings: Settings, servers: Servers, hub: HubClient, watch: RightsWatch, grants: Grants
    ) -> None:
        self._servers, self._hub, self._watch, self._grants = servers, hub, watch, grants
        self._key = kept_secret(settings.folder("services", "authorizer") / "key")
        self._callers = Callers(self._key, hub, watch)
        self._visited: dict[tuple[str, str], float] = {}
        self._settings, self._used = settings, TTLCache[str, bool](_MOST_TICKETS, passes.TICKET_SECONDS)
        program_output.protect(self._key)

    def admit(self, request: Request) -> Response:
        """The answer to the gateway about a request for a session.

        200: it lets it through, and does to it what the answer says. Any other answer goes to whoever asked.
        """
        name, kind = request.headers["x-refit-session"], request.headers.get("x-refit-kind")
        try:
            caller = self._callers.of(request)
        except HubError:
            problem = {"message": "The Hub is away, and nobody else knows this token.", "refit": "authorizer"}
            return JSONResponse(problem, 503, headers={**_NO_STORE, "Retry-After": "5"})
        if caller is None or not self._is_at_home(caller, name, self._host(request, "x-refit-host")):
            return self._ask_who(request, kind == "page")
        session, _ = self._servers.sessions.store.find(name) or (None, False)
        access = self._access(caller, name)
        if session is None or not access:
            return HTMLResponse(pages.refused(caller.person, name), 403, headers=_NO_STORE)
        if access.role is not Role.owner:
            if kind == "page" and not self._grants.was_told(name, caller.person):
                return self._to_be_told(request, caller, name)
            self._note_visit(caller, name, access)
        return JSONResponse(self._let_in(session, caller, access))

    def welcome(self, request: Request) -> Response:
        """Somebody comes back from the Hub: from now on it is known who they are, if this browser went there."""
        state = passes.opened(self._key, passes.STATE, request.query_params.get("state", ""))
        nonce = request.cookies.get(passes.STATE, "")
        if state is None or not hmac.compare_digest(str(state["nonce"]).encode(), nonce.encode()):
            page = pages.expired("This login has expired, or began in another browser")
            return HTMLResponse(page, 400, headers=_NO_STORE)
        try:
            login = self._hub.person(request.query_params.get("code", ""), CALLBACK)
            self._watch.refresh()
        except HubError as error:
            logger.warning("%s", error)
            return HTMLResponse(pages.expired("The login failed"), 502, headers=_NO_STORE)
        caller, to = Caller(login.person, login.login), str(state["to"])
        parted = origins.is_parted(self._settings, self._host(request))
        answer = self._send_home(caller, to) if parted else self._welcomed(request, caller, to)
        answer.delete_cookie(passes.STATE, path=CALLBACK)
        return answer

    def arrive(self, request: Request) -> Response:
        """Somebody who has logged in comes to the host of a session's owner: their pass counts there alone."""
        sealed = request.query_params.get("ticket", "")
        ticket = passes.opened(self._key, passes.TICKET, sealed)
        if ticket is None or ticket["host"] != self._host(request) or self._used.get(sealed):
            return HTMLResponse(pages.expired("This login has expired"), 400, headers=_NO_STORE)
        self._used[sealed] = True
        caller = Caller(str(ticket["person"]), str(ticket["login"]), host=str(ticket["host"]))
        return self._welcomed(request, caller, str(ticket["to"]))

    def _welcomed(self, request: Request, caller: Caller, to: str) -> Response:
        answer = RedirectResponse(to, 302, headers=_NO_STORE)
        content = {"person": caller.person, "login": caller.login, "host": caller.host}
        kept = passes.seal(self._key, passes.PASS, passes.PASS_SECONDS, **content)
        name, path = passes.cookie(secure=is_https(request))
        answer.set_cookie(
            name, kept, passes.PASS_SECONDS, path=path, secure=is_https(request), httponly=True, samesite="lax"
        )
        return answer

    def _send_home(self, caller: Caller, to: str) -> Response:
        """Send somebody to the host of the session's owner, if they may use that session."""
        session, entitlements = routes.session(to), self._watch.now(fresh=True)
        if not session:
            return RedirectResponse(to, 302, headers=_NO_STORE)
        if not entitlements.may_use(caller.person, session):
            return HTMLResponse(pages.refused(caller.person, session), 403, headers=_NO_STORE)
        host = origins.host_of(self._settings, entitlements.owners[session])
        content = {"person": caller.person, "login": caller.login, "host": host, "to": to}
        sealed = passes.seal(self._key, passes.TICKET, passes.TICKET_SECONDS, **content)
        to_host = f"{origins.url_of(self._settings, host)}{ARRIVAL}?{urlencode({'ticket': sealed})}"
        return RedirectResponse(to_host, 302, headers=_NO_STORE)

    def _host(self, request: Request, header: str = "host") -> str:
        return origins.plain(self._settings, request.headers.get(header, ""))

    def _is_at_home(self, caller: Caller, session: str, host: str) -> bool:
        """Whether a pass counts where its browser has come to; a token counts everywhere, for no page sends it."""
        if caller.scopes is not None:
            return True
        if not origins.is_parted(self._settings, host):
            return not caller.host
        owner = self._watch.now().owners.get(session, "")
        return bool(owner) and caller.host == host == origins.host_of(self._settings, owner)

    def tell_guest(self, request: Request) -> Response:
        """Tell somebody once that the session which they open is another person's, and what that means."""
        sealed = request.query_params.get("to", "")
        guest = passes.opened(self._key, passes.GUEST, sealed)
        if guest is None:
            return HTMLResponse(pages.expired("This page has expired"), 400, headers=_NO_STORE)
        session, person = str(guest["session"]), str(guest["person"])
        access = self._watch.now(fresh=True).may_use(person, session)
        if not access:
            return HTMLResponse(pages.refused(person, session), 403, headers=_NO_STORE)
        if request.method == "POST":
            self._grants.told(session, person)
            return RedirectResponse(str(guest["to"]), 303, headers=_NO_STORE)
        owner = self._watch.now().owners[session]
        return HTMLResponse(pages.guest(session, owner, access), headers=_NO_STORE)

    def _ask_who(self, request: Request, is_page: bool) -> Response:
        """Let the Hub say who somebody is; then they come back to where they wanted to go."""
        if not is_page:
            problem = {
                "message": "Log in first: open the session in a browser, or send a token of the Hub.",
                "refit": "authorizer",
            }
            return JSONResponse(problem, 403, headers=_NO_STORE)
        to = back_to(request.headers["x-refit-url"])
        if not origins.is_main(self._settings, self._host(request, "x-refit-host")):
            return RedirectResponse(f"{self._settings.public_url}{to}", 302, headers=_NO_STORE)
        nonce = secrets.token_urlsafe(16)
        state = passes.seal(self._key, passes.STATE, passes.STATE_SECONDS, to=to, nonce=nonce)
        query = {"client_id": OAUTH_CLIENT, "redirect_uri": CALLBACK, "response_type": "code", "state": state}
        answer = RedirectResponse(f"{routes.HUB}/api/oauth2/authorize?{urlencode(query)}", 302, headers=_NO_STORE)
        answer.set_cookie(
            *(passes.STATE, nonce, passes.STATE_SECONDS),
            path=CALLBACK,
            secure=is_https(request),
            httponly=True,
            samesite="lax",
        )
        return answer

    def _to_be_told(self, request: Request, caller: Caller, session: str) -> Response:
        to = back_to(request.headers["x-refit-url"])
        content = {"to": to, "session": session, "person": caller.person}
        sealed = passes.seal(self._key, passes.GUEST, passes.STATE_SECONDS, **content)
        return RedirectResponse(f"{GUEST}?{urlencode({'to': sealed})}", 302, headers=_NO_STORE)

    def _access(self, caller: Caller, session: str) -> Access:
        """As what somebody comes in; a refusal is looked at anew, for the right may just have been given."""
        for fresh in (False, True):
            entitlements = self._watch.now(fresh=fresh)
            access = entitlements.may_use(caller.person, session)
            if access and (caller.scopes is None or entitlements.is_reached(session, caller.scopes)):
                return access
        return NO_ACCESS

    def _note_visit(self, caller: Caller, session: str, access: Access) -> None:
        key = (session, caller.person)
        if time.monotonic() > self._visited.get(key, -_VISIT_SECONDS) + _VISIT_SECONDS:
            self._grants.visited(session, caller.person, access)
            self._visited[key] = time.monotonic()

    def _let_in(self, session: Session, caller: Caller, access: Access) -> dict[str, object]:
        """Orders for the gateway: it notes whose connection it is, and adds the IDE's token to pages of the IDE's own.

        It may keep the answer about an owner's browser for minutes, as long as `RightsWatch` goes on looking. Visits
        of others are written down as they go on, and what a token reaches may change. A token of the Hub is not for
        the IDE: in its place the IDE gets its own.
        """
        token = self._servers.sessions.token(session)
        orders: dict[str, object] = {"visit": [session.name, caller.person, caller.login]}
        if access.role is Role.owner and caller.scopes is None:
            orders["keep"] = max(0.0, min(_KEEP_SECONDS, caller.until - time.time()))
        orders["queries"] = queries(session, token)
        orders["token"] = token
        if caller.scopes is not None:
            orders["authorization"] = f"token {token}" if session.access.protocol == "jupyter" else ""
        return orders
