"""The state of a distribution's mirror: hashes of the small files that name all its lists of packages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import httpx

from flows.catalog.model import Base
from flows.core.authorities import authorities
from flows.core.errors import RefitError
from flows.core.outside import Bounds, Client, TooSlow
from flows.core.settings import Settings
from flows.core.threads import each
from flows.core.waiting import retry

_BOUNDS = Bounds(size=16 << 20, seconds=60.0)
_PAUSES = (1.0, 4.0)  # seconds before another try
_BUSY = (408, 425, 429)  # and all from 500 on: another time the answer may be different

Explain = Callable[[str], RefitError]


def state(urls: Mapping[str, str], sign: str, settings: Settings, explain: Explain) -> Mapping[str, str]:
    """The state of a mirror: name → hash of the file at its address.

    Args:
        urls: name → address of an index.
        sign: text that each such index contains, and a page that says something else doesn't.
        settings: proxy and authorities.
        explain: makes the error of why it can't be had.

    Raises:
        RefitError: the mirror doesn't answer with its indexes.
    """
    with Client(authorities(settings), proxy=settings.apt_proxy) as client:
        return each(lambda name: _hash(client, urls[name], sign, explain), urls, len(urls))


def missing(base: Base, packages: Iterable[str]) -> RefitError:
    """The error that a distribution has none of these packages, which its base names."""
    return RefitError(
        f"{base.config.suite} has no package {', '.join(map(repr, packages))}.",
        why=f"It is named in the packages of the base {base.name!r}.",
        hint=f"correct {base.folder / 'os-packages.txt'}.",
    )


def _hash(client: Client, url: str, sign: str, explain: Explain) -> str:
    def attempt() -> str:
        try:
            answer = client.fetch("GET", url, _BOUNDS)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            passing = isinstance(error, httpx.TransportError) and not isinstance(error, TooSlow)
            raise (_Again if passing else _Refused)(str(error) or type(error).__name__) from None
        if answer.status == 200 and sign in answer.text:
            return hashlib.sha256(answer.content).hexdigest()
        busy = answer.status >= 500 or answer.status in _BUSY
        raise (_Again if busy else _Refused)(f"it answers {answer.status} and {answer.said[:60]!r}")

    try:
        return retry(attempt, _Again, attempts=len(_PAUSES) + 1, pause=lambda number: _PAUSES[number - 1])
    except (_Again, _Refused) as error:
        raise explain(f"{url}: {error}") from None


class _Refused(Exception):
    """A mirror doesn't give it."""


class _Again(Exception):
    """A mirror doesn't give it now, and may in a moment."""
