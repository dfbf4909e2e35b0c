"""The Prefect server: `python -m flows.orchestration.server ADDRESS PORT NAME…`, for `prefect server start`.

It is Prefect's own application, with all its services and its UI, behind three things that Prefect lacks. Requests for
another host than this one are refused: a page of somebody else's could otherwise come here by a name of its own that
leads to loopback. A ticket opens the UI logged in. And the UI talks to this server alone: by itself, it would tell its
makers what is done in it, whatever the server's settings say.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import uvicorn
from prefect.settings import get_current_settings
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.core.lazily import lazily
from flows.services import tickets
from flows.services.embedded import LOOPBACK, TICKETS

with lazily(globals()):  # 2 s of CPU, for which each test process would pay
    from prefect.server.api.server import create_app

_PAGE = Path(__file__).with_name("login.html").read_text(encoding="utf-8")
_SCRIPT = Path(__file__).with_name("login.js").read_text(encoding="utf-8")
_LONGEST = 100  # bytes of a ticket
# Prefect's UI loads from its own server and no other, and stands in no frame of others.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'none'; base-uri 'self'"


def hosts(address: str, names: Iterable[str]) -> tuple[str, ...]:
    """By which hosts this server may be called: loopback, where it listens, and the names that the settings give."""
    everywhere = address in ("0.0.0.0", "::")
    addresses = _addresses() if everywhere else [address]
    return tuple(dict.fromkeys(_in_url(name) for name in (*LOOPBACK, *addresses, *names)))


def _addresses() -> list[str]:
    inet = (socket.AF_INET, socket.AF_INET6)
    interfaces = [each for interface in psutil.net_if_addrs().values() for each in interface if each.family in inet]
    return [each.address.partition("%")[0] for each in interfaces]


def _in_url(name: str) -> str:
    return f"[{name}]" if ":" in name else name


class LogsIn:
    """Answers for the page that a ticket opens; everything else goes on to the application, whose pages stay here."""

    def __init__(self, app: ASGIApp, folder: Path, login: str) -> None:
        self._app, self._folder, self._login = app, folder, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI wants it."""
        if scope["type"] != "http" or scope["path"] != tickets.PAGE:
            await self._app(scope, receive, _kept_here(send))
            return
        answer = await self._answer(Request(scope, receive))
        answer.headers.update(_headers())
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "GET":
            return HTMLResponse(_PAGE.replace("{script}", _SCRIPT).replace("{minutes}", str(tickets.MINUTES)))
        if request.method != "POST":
            return PlainTextResponse("GET or POST", status_code=405)
        if tickets.take(self._folder, await _ticket(request)):
            # As the UI keeps it, and sends it with each request.
            return PlainTextResponse(base64.b64encode(self._login.encode()).decode())
        return PlainTextResponse("This link was used already, or is too old.", status_code=403)


def _kept_here(send: Send) -> Send:
    async def with_policy(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("Content-Security-Policy", _POLICY)
            headers.setdefault("Referrer-Policy", "same-origin")
        await send(message)

    return with_policy


async def _ticket(request: Request) -> str:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST:
            return ""
    with suppress(UnicodeDecodeError):
        return body.decode()
    return ""


def _headers() -> dict[str, str]:
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    return {
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "Content-Security-Policy": (
            f"default-src 'none'; connect-src 'self'; script-src 'sha256-{digest}'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
    }


def application(address: str, names: Iterable[str], folder: Path) -> ASGIApp:
    """Prefect's application, as its variables have it, behind both."""
    login = get_current_settings().server.api.auth_string
    if login is None:
        raise SystemExit("Refit's Prefect server doesn't start without a login.")
    inner = LogsIn(create_app(final=True), folder, login.get_secret_value())
    return TrustedHostMiddleware(inner, hosts(address, names), www_redirect=False)


def main(arguments: Sequence[str]) -> None:
    """Serve until this process is told to end."""
    address, port, *names = arguments
    api, level = get_current_settings().server.api, get_current_settings().server.logging_level
    uvicorn.run(
        application(address, names, Path(TICKETS).absolute()),
        host=address,
        port=int(port),
        timeout_keep_alive=api.keepalive_timeout,
        ws_ping_interval=api.websocket_ping_interval,
        ws_ping_timeout=api.websocket_ping_timeout,
        log_level=level.lower(),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
