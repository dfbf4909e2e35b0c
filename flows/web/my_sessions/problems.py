"""Problems as RFC 9457 has them: a typed code for programs, what happened, why and what to do for people."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Any

from flows.core.documents import Mistakes
from flows.core.errors import RefitError, UnknownName
from flows.core.leases import LeaseTaken
from flows.publishing.own_profiles import LimitReached
from flows.sessions.people.person_limits import OverLimit


class Code(StrEnum):
    """Why something isn't done; programs decide by it."""

    not_logged_in = "not-logged-in"
    scope = "scope-missing"
    not_yours = "not-yours"
    unknown = "unknown"
    invalid = "invalid"
    busy = "busy"
    refused = "refused"
    unconfirmed = "unconfirmed"
    limit = "limit"
    hub_away = "hub-away"
    too_large = "too-large"
    too_many = "too-many"
    bug = "internal"


_STATUS = {
    Code.not_logged_in: HTTPStatus.UNAUTHORIZED,
    Code.scope: HTTPStatus.FORBIDDEN,
    Code.not_yours: HTTPStatus.FORBIDDEN,
    Code.unknown: HTTPStatus.NOT_FOUND,
    Code.invalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    Code.busy: HTTPStatus.CONFLICT,
    Code.refused: HTTPStatus.CONFLICT,
    Code.unconfirmed: HTTPStatus.CONFLICT,
    Code.limit: HTTPStatus.CONFLICT,
    Code.hub_away: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.too_large: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Code.too_many: HTTPStatus.TOO_MANY_REQUESTS,
    Code.bug: HTTPStatus.INTERNAL_SERVER_ERROR,
}
MEDIA_TYPE = "application/problem+json"


class Problem(RefitError):
    """Something that isn't done for whoever asked."""

    def __init__(self, code: Code, what: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(what, why=why, hint=hint)
        self.code = code

    @property
    def status(self) -> int:
        """Of the answer."""
        return int(_STATUS[self.code])


def unknown_session(name: str) -> Problem:
    """Somebody asks for a session that isn't there, or of which they are to know nothing: both look the same."""
    return Problem(Code.unknown, f"You have no session {name!r}.", hint="`GET sessions` lists those that you may use.")


def of(error: RefitError) -> Problem:
    """A problem from any error that a person can mend. The advice of other errors is for operators: it isn't told."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, LeaseTaken):
        return Problem(Code.busy, "Somebody acts on this session just now.", hint="try again in a minute.")
    if isinstance(error, OverLimit):
        return Problem(Code.limit, error.what, why=error.why, hint=error.hint)
    if isinstance(error, Mistakes):
        return Problem(Code.invalid, error.what, why=error.why)
    if isinstance(error, LimitReached):
        return Problem(Code.limit, error.what, why=error.why)
    # The other names are other people's: `why` of these lists all.
    why = "" if isinstance(error, UnknownName) else error.why
    return Problem(Code.refused, error.what, why=why)


def as_json(problem: Problem) -> dict[str, Any]:
    """The problem as RFC 9457 has it; `code` and `hint` are Refit's."""
    document = {"title": problem.what, "status": problem.status, "code": problem.code.value}
    return {
        **document,
        **({"detail": problem.why} if problem.why else {}),
        **({"hint": problem.hint} if problem.hint else {}),
    }
