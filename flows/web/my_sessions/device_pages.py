"""The addresses at which programs on people's own machines log in, and the page on which a person lets them in."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from flows.web.my_sessions import api, rendering
from flows.web.my_sessions.devices import CODE_SECONDS, POLL_SECONDS, TOKEN_SECONDS, Devices
from flows.web.my_sessions.login import Login
from flows.web.my_sessions.paths import BASE
from flows.web.my_sessions.problems import Code, Problem
from flows.web.people.scopes import Scope

Work = Callable[[Request, Any], Response]
Handler = Callable[[Request], Awaitable[Response]]
PAGE = f"{BASE}/device"
_ERRORS = {Code.not_yours: "access_denied", Code.unknown: "expired_token", Code.too_many: "slow_down"}


class DevicePages:
    """The questions of programs, and the answers of people."""

    def __init__(self, devices: Devices, login: Login) -> None:
        self._devices, self._login = devices, login

    def routes(
        self, page: Callable[[Callable[[Request, Any], Response]], Callable[..., Awaitable[Response]]]
    ) -> list[Route]:
        """The routes; `page` makes a handler of what answers with a page."""
        return [
            Route(f"{BASE}/device_authorization", self._handler(self.begin), methods=["POST"]),
            Route(f"{BASE}/token", self._handler(self.token), methods=["POST"]),
            Route(PAGE, page(self.show), methods=["GET"]),
            Route(PAGE, page(self.answer), methods=["POST"]),
        ]

    def begin(self, sent: dict[str, str]) -> dict[str, Any]:
        """A program asks to be let in."""
        secret, device = self._devices.begin(
            sent.get("client_id", ""), operate=Scope.operate in sent.get("scope", "").split()
        )
        return {
            "device_code": secret,
            "user_code": device.code,
            "verification_uri": PAGE,
            "verification_uri_complete": f"{PAGE}?code={device.code}",
            "expires_in": CODE_SECONDS,
            "interval": POLL_SECONDS,
        }

    def token(self, sent: dict[str, str]) -> dict[str, Any]:
        """A program asks whether it was let in."""
        token, scopes = self._devices.token(sent.get("device_code", ""))
        if token:
            given = " ".join(sorted(scopes))
            return {"access_token": token, "token_type": "bearer", "expires_in": TOKEN_SECONDS, "scope": given}
        return {"error": "authorization_pending"}

    def show(self, request: Request, _: Any) -> Response:
        """The page on which somebody types a code, or sees which program shows it."""
        caller, code = self._login.caller(request), request.query_params.get("code", "")
        device = self._devices.of(code) if code else None
        key, scopes = self._login.form_key(caller), sorted(device.scopes) if device else []
        return rendering.page(
            "device.html", caller=caller, problem=None, again=0, asked=device, form_key=key, scopes=scopes
        )

    def answer(self, request: Request, sent: Any) -> Response:
        """Somebody lets a program in, or refuses it."""
        caller = self._login.caller(request)
        self._login.check_form(caller, sent.get("form", ""))
        approve = sent.get("answer") == "approve"
        device = self._devices.answer(sent.get("code", ""), caller.person, approve=approve)
        return rendering.page("answered.html", caller=caller, problem=None, again=0, asked=device, approved=approve)

    def _handler(self, work: Callable[[dict[str, str]], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                content = (await api.body(request)).decode("utf-8", "replace")
                answer = await run_in_threadpool(work, dict(parse_qsl(content, max_num_fields=20)))
            except (Problem, ValueError, ClientDisconnect) as error:
                code = error.code if isinstance(error, Problem) else Code.invalid
                answer = {"error": _ERRORS.get(code, "invalid_request")}
            return Response(json.dumps(answer), 400 if "error" in answer else 200, api.NO_STORE, "application/json")

        return handle
