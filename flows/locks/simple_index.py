"""Pages of Python package indexes: what each says of its files, asked for all at once."""

from __future__ import annotations

import hashlib
import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx
from packaging.utils import canonicalize_name
from pydantic import SecretStr

from flows.core.authorities import authorities
from flows.core.documents import Document
from flows.core.errors import RefitError
from flows.core.outside import Answer, Bounds, Client, within
from flows.core.settings import Settings
from flows.core.threads import each

AT_ONCE = 16
_BOUNDS = Bounds(size=32 << 20, seconds=60.0)  # a page of PyPI's has up to some MB
_ATTEMPTS = 3
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
# A cache on the way may answer only after asking the index whether its copy still holds.
_HEADERS = {"Accept": _ACCEPT, "Cache-Control": "max-age=0"}
_LINK = re.compile(r"<a\s([^>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""(href|data-yanked|data-requires-python)(?:\s*=\s*["']([^"']*)["'])?""", re.IGNORECASE)
ABSENT = "absent"
# Addresses that pipenv takes for PyPI, and asks the mirror of the settings for instead.
_PYPI = re.compile(r"https?://pypi(?:\.python)?\.org/simple/?")


@dataclass(frozen=True)
class Index:
    """A package index: its URL, which may hold a password, and whether its certificate is checked."""

    url: SecretStr
    verify: bool = True


class Page(Document):
    """The answer of an index for one package: a hash of its list of files, and the ETag to ask it by whether that
    holds."""

    digest: str
    etag: str = ""


@dataclass(frozen=True)
class Unreadable:
    """Why a page can't be judged."""

    reason: str


@dataclass(frozen=True)
class _Connection:
    """A way to an index, and what logs in there; wherever the index sends us, that isn't told."""

    client: Client
    login: Mapping[str, str]


# Package → sha256 of a file → when it was uploaded.
Uploads = Mapping[str, Mapping[str, datetime]]


def index(source: Mapping[str, object], settings: Settings) -> Index:
    """The index that a Pipfile's source stands for: the mirror of the settings in the place of PyPI."""
    url, mirror = SecretStr(str(source["url"])), settings.pip_index_url
    if mirror.get_secret_value() and _PYPI.fullmatch(url.get_secret_value()):
        return Index(mirror)
    return Index(url, bool(source.get("verify_ssl", True)))


def urls(index: Index, packages: Iterable[str]) -> dict[str, str]:
    """Package → address of its page, without the password."""
    scheme, place, path, _, _ = urlsplit(without_login(index.url.get_secret_value()))
    bare = urlunsplit((scheme, place, path.rstrip("/"), "", ""))
    return {name: f"{bare}/{canonicalize_name(name)}/" for name in packages}


def fetch(index: Index, pages: Mapping[str, Page | None], settings: Settings) -> dict[str, Page | Unreadable]:
    """The pages at these addresses of one index now; each is given what was known of it before, if anything."""
    with _connection(index, settings) as connection:
        return each(lambda url: _fetch(connection, url, pages[url]), pages, AT_ONCE)


def uploads(index: Index, packages: Iterable[str], settings: Settings) -> Uploads:
    """When each file of some packages was uploaded to an index.

    Raises:
        RefitError: it doesn't say so of all of them.
    """
    addresses = urls(index, packages)
    with _connection(index, settings) as connection:
        uploaded = each(lambda name: _times(connection, addresses[name]), addresses, AT_ONCE)
    if silent := sorted(name for name, times in uploaded.items() if not times):
        raise RefitError(
            f"{next(iter(addresses.values())).rpartition('/simple')[0]} doesn't say when its files were uploaded.",
            why=f"A release with a `cutoff` needs to know that of {', '.join(silent[:8])}.",
            hint="take an index that answers in JSON with `upload-time` (PEP 700), as PyPI does, or no `cutoff`.",
        )
    return uploaded


def _times(connection: _Connection, url: str) -> dict[str, datetime]:
    """sha256 → when that file was uploaded; empty: not known of all of them."""
    try:
        answer = _ask(connection, url, {"Accept": _JSON})
        files = json.loads(answer.content)["files"] if answer.status == 200 else ()
        return {file["hashes"]["sha256"]: datetime.fromisoformat(file["upload-time"]) for file in files}
    except (httpx.RequestError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def digest(body: str, is_json: bool) -> str:
    """A hash of what a page says of its files: names, hashes, Python versions, withdrawals; not where they lie. Pure.

    Both forms of a page give the same hash: an index behind caches may answer now in one, now in the other.

    Raises:
        ValueError: it is no page of an index, or has no files.
    """
    files = sorted(json.dumps(entry) for entry in (_from_json(body) if is_json else _from_html(body)))
    if not files:
        raise ValueError("it names no files")
    return hashlib.sha256("\n".join(files).encode()).hexdigest()


def _from_json(body: str) -> Iterator[list[str | None]]:
    try:
        for file in json.loads(body)["files"]:
            hashes, yanked = file["hashes"], file.get("yanked", False)
            some = {"sha256": hashes["sha256"]} if "sha256" in hashes else hashes  # the only one that HTML names
            fragment = "&".join(f"{name}={value}" for name, value in sorted(some.items()))
            reason = yanked if isinstance(yanked, str) else "" if yanked else None
            yield [file["filename"], fragment, file.get("requires-python") or "", reason]
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no page of an index: {error!r}") from None


def _from_html(body: str) -> Iterator[list[str | None]]:
    for link in _LINK.findall(body):
        attributes = {name.lower(): html.unescape(value) for name, value in _ATTRIBUTE.findall(link)}
        where = urlsplit(attributes.get("href", ""))
        requires, yanked = attributes.get("data-requires-python", ""), attributes.get("data-yanked")
        yield [where.path.rpartition("/")[2], where.fragment, requires, yanked]


def _fetch(connection: _Connection, url: str, page: Page | None) -> Page | Unreadable:
    try:
        answer = _ask(connection, url, {"If-None-Match": page.etag} if page and page.etag else {})
    except (httpx.RequestError, httpx.InvalidURL) as error:
        return Unreadable(f"{url} doesn't answer: {str(error) or type(error).__name__}")
    if answer.status == 304 and page:
        return page
    if answer.status == 404:
        return Page(digest=ABSENT)
    if answer.status != 200:
        return Unreadable(f"{url} answers {answer.status}")
    try:
        is_json = "json" in answer.headers.get("Content-Type", "")
        return Page(digest=digest(answer.text, is_json), etag=answer.headers.get("ETag", ""))
    except ValueError as error:
        return Unreadable(f"{url} can't be read: {error}")


def _ask(connection: _Connection, url: str, headers: Mapping[str, str]) -> Answer:
    sent_headers = {**_HEADERS, **headers}
    with within(_BOUNDS.seconds):
        for _ in range(_ATTEMPTS - 1):
            with suppress(httpx.TransportError):
                return connection.client.fetch("GET", url, _BOUNDS, headers=sent_headers, private=connection.login)
        return connection.client.fetch("GET", url, _BOUNDS, headers=sent_headers, private=connection.login)


@contextmanager
def _connection(index: Index, settings: Settings) -> Iterator[_Connection]:
    with Client(index.verify and authorities(settings), at_once=AT_ONCE) as client:
        yield _Connection(client, login(index.url.get_secret_value()))


def without_login(url: str) -> str:
    """An address without the user and the password in it."""
    scheme, place, path, query, _ = urlsplit(url)
    return urlunsplit((scheme, place.rpartition("@")[2], path, query, ""))


def login(url: str) -> dict[str, str]:
    """The header with which the user in an address logs in; none where no user is in it."""
    parts = urlsplit(url)
    if not parts.username and not parts.password:
        return {}
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
