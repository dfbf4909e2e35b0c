"""The pages: the verbs of the API as forms for people. They work without scripts, and have none."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from flows.publishing.own_build_results import BuildResults
from flows.web.hub.registration import CALLBACK
from flows.web.my_sessions import api, forms, rendering
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.device_pages import DevicePages
from flows.web.my_sessions.devices import Devices
from flows.web.my_sessions.login import HEADERS, Login, is_navigation
from flows.web.my_sessions.paths import BASE
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.verbs.access_verbs import Given
from flows.web.my_sessions.verbs.context import Verb, VerbContext
from flows.web.my_sessions.verbs.copy_verbs import Differences
from flows.web.my_sessions.verbs.create_verbs import Begun
from flows.web.my_sessions.verbs.own_verbs import Log
from flows.web.my_sessions.verbs.profile_verbs import UNDER_WAY
from flows.web.my_sessions.verbs.table import BY_NAME
from flows.web.my_sessions.verbs.update_verbs import MODES
from flows.web.people.scopes import Scope

logger = logging.getLogger("refit.my-sessions")
_AGAIN_SECONDS = 2
# The word by which a form says that it is on the page of one session.
_ONE = "one"
_GONE = (Code.unknown, Code.scope)
Work = Callable[[Request, Any], Response]


class Pages:
    """The pages of people."""

    def __init__(self, context: VerbContext, login: Login, devices: Devices) -> None:
        self._context, self._login, self._devices = context, login, DevicePages(devices, login)

    def routes(self) -> list[Route]:
        """The routes of all pages and forms."""
        return [
            Route(BASE, lambda _: RedirectResponse(f"{BASE}/", 308)),
            Route(f"{BASE}/", self._handler(self.mine)),
            Route(f"{BASE}/sessions/{{session}}", self._handler(self.one)),
            Route(f"{BASE}/all", self._handler(self.all)),
            Route(f"{BASE}/profiles", self._handler(self.profiles)),
            Route(f"{BASE}/do/{{verb}}", self._handler(self.do), methods=["POST"]),
            Route(CALLBACK, self._handler(self.welcome)),
            *self._devices.routes(self._handler),
        ]

    def mine(self, request: Request, _: Any) -> Response:
        """The first page: all sessions of a person."""
        return self._mine(self._login.caller(request))

    def one(self, request: Request, _: Any) -> Response:
        """The page of one session."""
        caller, name = self._login.caller(request), request.path_params["session"]
        since = request.query_params.get("since", "")
        try:
            compared = api.done(BY_NAME["diff"], self._context, caller, name, {"snapshot": since}) if since else None
        except Problem as problem:
            if problem.code in _GONE:
                raise
            return self._one(caller, name, problem)
        return self._one(caller, name, compared=compared)

    def all(self, request: Request, _: Any) -> Response:
        """The page of operators."""
        return self._all(self._login.caller(request))

    def profiles(self, request: Request, _: Any) -> Response:
        """The page of one's own profiles."""
        return self._profiles(self._login.caller(request), log=request.query_params.get("log", ""))

    def do(self, request: Request, sent: Any) -> Response:
        """Do what a form asks for; then its page is shown again."""
        caller = self._login.caller(request)
        self._login.check_form(caller, sent.get("form", ""))
        verb, name = BY_NAME.get(request.path_params["verb"]), sent.get("session", "")
        if verb is None or verb.method != "POST":
            raise Problem(Code.unknown, "There is no such form.")
        alone = sent.get("page") == _ONE
        if verb.scope is Scope.operate:
            return self._operated(verb, caller, sent)
        if verb.scope is Scope.profiles:
            return self._profile_done(verb, caller, sent)
        try:
            answer = api.done(verb, self._context, caller, name, forms.read(verb, sent))
        except Problem as problem:
            here = alone and problem.code not in _GONE
            return self._one(caller, name, problem) if here else self._mine(caller, problem)
        if isinstance(answer, Given) and answer.link:  # it is told this once
            return self._one(caller, name, given=answer)
        if isinstance(answer, Begun):
            return RedirectResponse(answer.page, 303, HEADERS)
        target = f"sessions/{quote(name, safe='')}" if alone else f"#{quote(name, safe='')}"
        return RedirectResponse(f"{BASE}/{target}", 303, HEADERS)

    def welcome(self, request: Request, _: Any) -> Response:
        """Somebody comes back from the Hub."""
        return self._login.welcome(request)

    def _mine(self, caller: Caller, problem: Problem | None = None) -> Response:
        sessions = api.done(BY_NAME["list"], self._context, caller, "", {})
        servers = {session.server for session in sessions if session.is_mine}
        creations = [
            creation for creation in self._asked("creations", caller, "", ()) if creation.server not in servers
        ]
        settles = any(session.settles for session in sessions) or any(not creation.ended for creation in creations)
        shown = {
            "sessions": [(session, forms.forms(session, caller)) for session in sessions if session.is_mine],
            "shared": [session for session in sessions if not session.is_mine],
            "creations": creations,
            "offers": self._asked("profiles", caller, "", ()) if Scope.sessions in caller.scopes else (),
            "limits": self._asked("limits", caller, "", None),
            "keys": self._asked("keys", caller, "", ()),
            "ssh": self._asked("ssh-config", caller, "", None),
            "may_open": Scope.access in caller.scopes,
            "again": _AGAIN_SECONDS if not problem and settles else 0,
        }
        return self._page("sessions.html", caller, problem, **shown)

    def _operated(self, verb: Verb, caller: Caller, sent: Any) -> Response:
        try:
            api.done(verb, self._context, caller, "", forms.read(verb, sent))
        except Problem as problem:
            if not caller.admin:
                raise
            return self._all(caller, problem)
        return RedirectResponse(f"{BASE}/all", 303, HEADERS)

    def _profile_done(self, verb: Verb, caller: Caller, sent: Any) -> Response:
        try:
            api.done(verb, self._context, caller, "", forms.read(verb, sent))
        except Problem as problem:
            return self._profiles(caller, problem)
        return RedirectResponse(f"{BASE}/profiles", 303, HEADERS)

    def _profiles(self, caller: Caller, problem: Problem | None = None, log: str = "") -> Response:
        own = api.done(BY_NAME["own-profiles"], self._context, caller, "", {})
        shown = {
            "own": own,
            "log": api.done(BY_NAME["build-log"], self._context, caller, "", {"name": log}) if log else None,
            "log_of": log,
            "choices": forms.choices(self._asked("profiles", caller, "", ())),
            "may_build": Scope.profiles in caller.scopes,
            "again": _AGAIN_SECONDS if log and any(profile.state in UNDER_WAY for profile in own) else 0,
        }
        page = self._page("profiles.html", caller, problem, **shown)
        if (news := [profile.news for profile in own if profile.news]) and Scope.profiles in caller.scopes:
            api.done(BY_NAME["own-profiles-seen"], self._context, caller, "", {"until": max(news)})
        return page

    def _all(self, caller: Caller, problem: Problem | None = None) -> Response:
        seen = api.done(BY_NAME["overview"], self._context, caller, "", {})
        return self._page("overview.html", caller, problem, seen=seen, again=0)

    def _one(
        self,
        caller: Caller,
        name: str,
        problem: Problem | None = None,
        given: Given | None = None,
        compared: Differences | None = None,
    ) -> Response:
        session = api.done(BY_NAME["show"], self._context, caller, name, {})
        shown = {
            "one": session,
            "forms": forms.forms(session, caller),
            "modes": MODES,
            "given": given,
            "compared": compared,
            "shares": self._asked("shares", caller, name, ()),
            "snapshots": self._asked("snapshots", caller, name, ()),
            "may": {scope.name for scope in caller.scopes},
            "history": self._asked("history", caller, name, ()) if session.is_mine else (),
            "log": self._asked("logs", caller, name, Log("")).text if session.is_mine else "",
            "offers": self._asked("profiles", caller, "", ()),
            "again": _AGAIN_SECONDS if not (problem or given or compared) and session.settles else 0,
        }
        return self._page("session.html", caller, problem, **shown)

    def _asked(self, verb: str, caller: Caller, name: str, otherwise: Any) -> Any:
        """The answer of a verb; where there is none, the rest of a page is shown without it."""
        try:
            return api.done(BY_NAME[verb], self._context, caller, name, {})
        except Problem:
            return otherwise

    def _page(self, template: str, caller: Caller, problem: Problem | None, **shown: Any) -> Response:
        status = problem.status if problem else 200
        news = BuildResults(self._context.database).unseen(caller.person)
        about = {"caller": caller, "problem": problem, "form_key": self._login.form_key(caller), "news": news}
        return rendering.page(template, status, **about, **shown)

    def _handler(self, work: Work) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                sent = await self._sent(request) if request.method == "POST" else None
                return await run_in_threadpool(work, request, sent)
            except ClientDisconnect:
                return Response(status_code=400)
            except Problem as problem:
                return self._refused(request, problem)
            except Exception:
                logger.exception("a page failed")
                return self._refused(request, Problem(Code.bug, "Refit failed.", hint="try again in a minute."))

        return handle

    async def _sent(self, request: Request) -> dict[str, str]:
        """The fields of a form, and its files in base64; only forms of verbs that take much may have these."""
        kind = request.headers.get("content-type", "")
        if not kind.startswith("multipart/form-data"):
            return await _form(request)
        verb = BY_NAME.get(request.path_params.get("verb", ""))
        if verb is None or not verb.most:
            raise Problem(Code.invalid, "This form takes no files.")
        permit = lambda: self._login.caller(request).require(verb.scope)  # noqa: E731
        return await forms.with_files(request.headers, await api.upload(request, self._context, verb, permit))

    def _refused(self, request: Request, problem: Problem) -> Response:
        """A person who isn't logged in is sent to the login; everybody else is told what is the matter."""
        path = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        if problem.code is Code.not_logged_in and request.method == "GET" and is_navigation(request):
            return self._login.to_hub(path)
        return rendering.page("problem.html", problem.status, problem=problem, caller=None, again=0)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; of one that was sent twice, the last."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise Problem(Code.invalid, "This isn't a form.")
    text = (await api.body(request)).decode("utf-8", "replace")
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=50))
