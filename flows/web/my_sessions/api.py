"""The API: a route for each verb. A token of the Hub says for whom, its scopes say what; cookies don't count here."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from flows.core.errors import RefitError
from flows.web.my_sessions import problems
from flows.web.my_sessions.callers import Caller, Callers
from flows.web.my_sessions.openapi import description
from flows.web.my_sessions.paths import API, BASE
from flows.web.my_sessions.problems import Code, Problem
from flows.web.my_sessions.verbs.context import Verb, VerbContext
from flows.web.my_sessions.verbs.table import VERBS

logger = logging.getLogger("refit.my-sessions")

MOST_BYTES = 1 << 14
BODY_SECONDS = 60.0
# An answer before the end of a request breaks the connection of the gateway, which then can't pass the answer on.
_READ_BYTES = 1 << 20
NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
Handler = Callable[[Request], Awaitable[Response]]
Identify = Callable[[Request], tuple[Caller, str]]


def routes(context: VerbContext, callers: Callers) -> list[Route]:
    """The routes of all verbs, of the description, and of whatever else is asked for below the API."""

    async def describe(_: Request) -> Response:
        return Response(json.dumps(description()), media_type="application/json", headers=NO_STORE)

    def nothing(_: Request) -> Response:
        return refused(Problem(Code.unknown, "There is nothing here.", hint=f"{BASE}/openapi.json describes the API."))

    def identify(request: Request) -> tuple[Caller, str]:
        return callers.of(bearer(request)), request.path_params.get("session", "")

    routes = [Route(f"{API}{verb.path}", handler(verb, context, identify), methods=[verb.method]) for verb in VERBS]
    every = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return [*routes, Route(f"{BASE}/openapi.json", describe), Route(f"{API}/{{rest:path}}", nothing, methods=every)]


def refused(problem: Problem) -> Response:
    """The answer where something isn't done."""
    more = {Code.not_logged_in: {"WWW-Authenticate": "Bearer"}, Code.hub_away: {"Retry-After": "5"}}
    headers = {**NO_STORE, **more.get(problem.code, {})}
    return Response(json.dumps(problems.as_json(problem)), problem.status, headers, problems.MEDIA_TYPE)


def bearer(request: Request) -> str:
    """The token in the header of a request; empty: there is none."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() in ("bearer", "token") else ""


def done(verb: Verb, context: VerbContext, caller: Caller, name: str, given: Any) -> Any:
    """Do what a verb does, for a caller whose token permits it.

    Args:
        verb: which.
        context: shared by all verbs.
        caller: the person or program that asks.
        name: of the session; empty: none.
        given: the parameters, as they came.

    Raises:
        Problem: it isn't done.
    """
    caller.require(verb.scope)
    try:
        return verb.does(context, caller, name, verb.takes.model_validate(given))
    except ValidationError as error:
        raise _invalid(error) from None
    except RefitError as error:
        raise problems.of(error) from error


async def body(request: Request, most: int = 0) -> bytes:
    """The body of a request, if it isn't too long, and comes in time.

    Args:
        request: the request.
        most: bytes that it may have; 0: as many as most may.

    Raises:
        Problem: it has more, or takes too long.
    """
    limit, received, size = most or MOST_BYTES, bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size <= limit:
                    received += piece
                elif size > limit + _READ_BYTES:
                    break
    except TimeoutError:
        raise Problem(Code.invalid, f"The request was not complete within {BODY_SECONDS:g} s.") from None
    if size > limit:
        raise Problem(Code.too_large, f"A request has at most {limit} bytes.")
    return bytes(received)


async def upload(request: Request, context: VerbContext, verb: Verb, permit: Callable[[], object]) -> bytes:
    """The body of a large request of somebody who may send it; only a few are read at once.

    Raises:
        Problem: they may not, too many send something, or it is too long.
    """
    try:
        await run_in_threadpool(permit)
        with context.one_of(context.uploads):
            return await body(request, verb.most)
    except Problem:
        with suppress(Problem, RuntimeError):  # what was read already isn't there again
            await _passed_over(request, verb.most)
        raise


async def _passed_over(request: Request, most: int) -> None:
    """Read a body without keeping any of it, so that its sender hears the answer."""
    remaining = most + _READ_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                remaining -= len(piece)
                if remaining < 0:
                    return


def handler(verb: Verb, context: VerbContext, identify: Identify) -> Handler:
    """Answers requests for a verb.

    Args:
        verb: which.
        context: shared by all verbs.
        identify: says in a thread who asks, and for which session (empty: none), or raises `Problem`.
    """
    writes = TypeAdapter(verb.gives).dump_json

    def work(request: Request, given: Any) -> Any:
        caller, name = identify(request)
        return done(verb, context, caller, name, given)

    async def sent(request: Request) -> Any:
        if verb.method != "POST":
            return dict(request.query_params)
        if verb.most:
            permit = lambda: identify(request)[0].require(verb.scope)  # noqa: E731
            return _read(await upload(request, context, verb, permit))
        return _read(await body(request))

    async def handle(request: Request) -> Response:
        try:
            given = await sent(request)
            answer = await run_in_threadpool(work, request, given)
        except (Problem, ClientDisconnect) as error:
            return refused(error if isinstance(error, Problem) else Problem(Code.invalid, "The request broke off."))
        except Exception:
            logger.exception("%s failed", verb.name)
            return refused(Problem(Code.bug, "Refit failed.", hint="the operator can find out why in its log."))
        return Response(writes(answer), 202 if verb.later else 200, NO_STORE, "application/json")

    return handle


def _read(content: bytes) -> Any:
    if not content:
        return {}
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Problem(Code.invalid, "The body isn't JSON.", hint="send an object with the parameters.") from None


def _invalid(error: ValidationError) -> Problem:
    mistakes = "; ".join(
        f"{'.'.join(map(str, detail['loc'])) or 'body'}: {detail['msg']}" for detail in error.errors()[:5]
    )
    return Problem(Code.invalid, "The parameters are not valid.", why=mistakes[:1000])
