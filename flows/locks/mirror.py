"""The state of a distribution's mirror: hashes of the small files that name all its lists of packages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import httpx

from flows.catalog.model import Base
from flows.errors import RefitError
from flows.settings import Settings, authorities

_SECONDS = 30.0
_PAUSES = (0.0, 1.0, 4.0)  # seconds before each try
_BUSY = (408, 425, 429)  # and all from 500 on: another time the answer may be different

Explain = Callable[[str], RefitError]


def state(urls: Mapping[str, str], sign: str, settings: Settings, explain: Explain) -> Mapping[str, str]:
    """What a mirror has now: name → hash of what is at its address.

    Args:
        urls: name → address of an index.
        sign: what such an index has in it, and what a page that says something else hasn't.
        settings: proxy and authorities.
        explain: makes the error of why it can't be had.

    Raises:
        RefitError: the mirror doesn't answer with its indexes.
    """
    proxy = settings.apt_proxy or None
    with (
        httpx.Client(timeout=_SECONDS, follow_redirects=True, verify=authorities(settings), proxy=proxy) as client,
        ThreadPoolExecutor(len(urls)) as pool,
    ):
        found = pool.map(lambda url: _hash(client, url, sign, explain), urls.values())
        return dict(zip(urls, found, strict=True))


def missing(base: Base, packages: Iterable[str]) -> RefitError:
    """The error that a distribution has none of these packages, which its base names."""
    return RefitError(
        f"{base.config.suite} has no package {', '.join(map(repr, packages))}.",
        why=f"It is named in the packages of the base {base.name!r}.",
        fix=f"correct {base.folder / 'os-packages.txt'}.",
    )


def _hash(client: httpx.Client, url: str, sign: str, explain: Explain) -> str:
    problem = ""
    for pause in _PAUSES:
        sleep(pause)
        try:
            answer = client.get(url)
        except httpx.TransportError as error:
            problem = str(error) or type(error).__name__
            continue
        if answer.status_code == 200 and sign in answer.text:
            return hashlib.sha256(answer.content).hexdigest()
        problem = f"it answers {answer.status_code} and {answer.text[:60]!r}"
        if answer.status_code < 500 and answer.status_code not in _BUSY:
            break
    raise explain(f"{url}: {problem}")
