"""A connection to an image registry: the login, patience with one that is busy, errors that say what to do."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from random import random
from typing import Any, NoReturn, Self

import httpx

from flows.core import outside, progress
from flows.core.authorities import authorities
from flows.core.outside import READS, REDIRECTS, Answer, Bounds
from flows.core.programs import command
from flows.core.progress import State
from flows.core.settings import Settings
from flows.core.waiting import rest, retry
from flows.host import sockets
from flows.images import patience
from flows.images.manifests import INDEX, MANIFEST
from flows.images.patience import ATTEMPTS, BUSY
from flows.images.registry_errors import NoAnswer, RegistryError
from flows.images.registry_login import Kind, Login, UnknownRealm, kind_of

logger = logging.getLogger("refit.registry")

_ACCEPTED = ", ".join((MANIFEST, INDEX, "application/vnd.docker.distribution.manifest.v2+json"))
ANSWER_BYTES = 1 << 16  # of an answer that has no size of its own
_MOST_OBJECTS = 100_000  # objects and lists in one document: as text they are small, in memory they are not
QUESTION_SECONDS = 120.0
_SHORTLY = 2.5  # seconds for which a registry is waited for that was waited for in vain
_WORTH_TELLING = 1.0  # seconds
# Times as long as a question: a list with all its pages; to store a blob that the registry has got whole.
LONGER = 2.5
# Digests are of bytes as they are: nothing is to be packed for the way.
_PLAIN = {"Accept-Encoding": "identity"}
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE")


class RegistryConnection:
    """Asks the registry of the settings; all failures are `RegistryError`.

    Args:
        settings: where it is, and who we are there.
        seconds: the most that a request may take as a whole; one that carries a blob may take longer.
    """

    def __init__(self, settings: Settings, *, seconds: float = QUESTION_SECONDS) -> None:
        self._seconds = seconds
        self.host = settings.registry_host
        self.secure = settings.registry_is_secure
        self._embedded = not settings.registry
        self._wait, self._rate = settings.registry_wait_seconds, settings.registry_rate * 1e6
        self._user, self._password = settings.registry_login
        self._base = f"{'https' if self.secure else 'http'}://{self.host}/v2/"
        self._origin = outside.origin(httpx.URL(self._base))
        self._login = Login(self._user, self._password, self._origin, settings.registry_realms)
        # A proxy for the outside world has no way to a registry on this machine's loopback.
        self._client = outside.Client(authorities(settings) if self.secure else False, trust_env=self.secure)
        self._is_registry = self._gave_up = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__()

    def ping(self) -> None:
        """Make sure that a registry answers at the address of the settings and lets us in."""
        answer = self._send("GET", "")
        self.expect(answer, 200)
        if "docker-distribution-api-version" not in answer.headers and self.document(answer) != {}:
            raise self.garbage(f"its answer to /v2/ is {answer.said[:80]!r}")
        self._is_registry = True

    def _ask(self, method: str, path: str | httpx.URL, **options: Any) -> Answer:
        self._make_sure()
        return self._send(method, path, **options)

    def _make_sure(self) -> None:
        """Any web server answers "404"; only of a registry it means that an image isn't there."""
        if not self._is_registry:
            self.ping()

    def _send(
        self,
        method: str,
        path: str | httpx.URL,
        *,
        size: int = ANSWER_BYTES,
        seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        url = self._base + path if isinstance(path, str) else path
        accepted = {"Accept": _ACCEPTED if "/manifests/" in str(path) else "*/*", **(headers or {})}
        bounds = Bounds(size, self._seconds if seconds is None else seconds)
        return self.patiently(lambda: self._follow(method, url, bounds, headers=accepted, content=content))

    def relay(
        self,
        method: str,
        address: str,
        *,
        size: int,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        once: bool = False,
    ) -> Answer:
        """Send what a library has composed, in the bounds and with the login of all else that is asked.

        Args:
            method: GET, HEAD, POST, …
            address: the whole address, at the registry's own origin.
            size: bytes that the answer may have.
            headers: of the request.
            content: the body of the request.
            once: not patiently: the caller begins anew where a connection breaks (see `patiently`).

        Raises:
            httpx.RequestError: with `once`, the connection fails.
        """
        self._make_sure()
        url = httpx.URL(address)
        if outside.origin(url) != self._origin:
            raise self.garbage(f"{shown(address)} was to be asked, which is another address")
        bounds = Bounds(size, LONGER * self._seconds + max(size, len(content or b"")) / self._rate)

        def attempt() -> Answer:
            return self._follow(method, url, bounds, headers=headers, content=content)

        return attempt() if once else self.patiently(attempt)

    def _follow(self, method: str, address: str | httpx.URL, bounds: Bounds, **options: Any) -> Answer:
        """Ask the registry; reads follow to wherever it sends us, without a login if that isn't itself."""
        url = address if isinstance(address, httpx.URL) else httpx.URL(address)
        with outside.within(bounds.seconds):
            answer = self._exchange(method, url, bounds, **options)
            if answer.status not in REDIRECTS or method not in READS:
                return answer
            for _ in range(outside.HOPS):
                url = outside.following(answer)
                ask = self._exchange if outside.origin(url) == self._origin else self._client.exchange
                answer = ask(method, url, bounds, **options)
                if answer.status not in REDIRECTS:
                    return answer
        raise outside.Astray(f"it sends us on more than {outside.HOPS} times")

    def _exchange(
        self, method: str, url: httpx.URL, bounds: Bounds, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Answer:
        """Ask the registry's own origin, logged in."""
        kind = kind_of(method, url.path)

        def ask() -> Answer:
            mine = {**_PLAIN, **(headers or {}), **self._login.headers(kind)}
            return self._client.exchange(method, url, bounds, headers=mine, **options)

        answer = ask()
        challenge = answer.headers.get("www-authenticate", "")
        if answer.status != 401 or not challenge or not self._heeded(challenge, kind):
            return answer
        return ask()

    def _heeded(self, challenge: str, kind: Kind) -> bool:
        if self._embedded and sockets.is_anothers("127.0.0.1", self._origin[2] or 0):
            raise RegistryError(
                f"Another user's program answers at {self.host}, in the place of the embedded image registry.",
                why="It asks for the registry's password, which it isn't told.",
                hint="`sudo ss -ltnp` names it. End it and run `refit up`, or choose another `registry_port`.",
            )

        def ask(realm: httpx.URL, headers: Mapping[str, str]) -> bytes:
            answer = self._client.exchange("GET", realm, Bounds(ANSWER_BYTES, self._seconds), headers=headers)
            return answer.content if answer.status == 200 else b""

        try:
            return self._login.heed(challenge, kind, ask)
        except UnknownRealm as error:
            realm = shown(str(error))
            raise RegistryError(
                f"The image registry {self.host} sends us to {realm} to log in.",
                why="Your password goes to nobody but the registry itself and the token services that you name.",
                hint=f"if this is the token service of your registry, set `registry_realms: ['{realm}']` in "
                "settings.yaml; it has to speak https if the registry does. Else don't use this registry.",
            ) from None

    def patiently(self, attempt: Callable[[], Answer]) -> Answer:
        """Try until the registry has answered and isn't busy. An attempt must do no harm when it fails halfway."""
        so_far = _SoFar()
        answer = retry(lambda: self._attempted(attempt, so_far), _Again, pause=lambda _: so_far.pause)
        if so_far.busy:
            progress.report(self._thing, State.done)
        self._gave_up = False
        return answer

    def _attempted(self, attempt: Callable[[], Answer], so_far: _SoFar) -> Answer:
        """Attempt once.

        Raises:
            _Again: it failed, or the registry is busy; another attempt has a point.
        """
        try:
            answer = attempt()
        except outside.TooSlow as error:
            raise self._silent(f"{error}, as a whole") from None
        except httpx.TransportError as error:
            if so_far.failed + 1 >= ATTEMPTS:
                self._give_up(error)
            self._distrust(error)
            raise so_far.failure() from None
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self.garbage(str(error)) from None
        if answer.status in BUSY:
            waited = so_far.busy_for()
            self._wait_for(answer, so_far.busy, waited)
            raise _Again
        if so_far.failed + 1 < ATTEMPTS and _may_be_unfinished(answer):
            raise so_far.failure()
        return answer

    @property
    def _thing(self) -> str:
        return f"registry {self.host}"

    def _wait_for(self, answer: Answer, number: int, waited: float) -> None:
        """Let a busy registry alone for as long as it wants, if that isn't too long; one that was waited for, shortly.

        Raises:
            NoAnswer: it is.
        """
        seconds_asked_for = patience.asked_for(answer.headers, datetime.now(UTC))
        seconds = patience.wait(seconds_asked_for, number, random())
        patient = min(self._wait, _SHORTLY) if self._gave_up else self._wait
        if waited + seconds > patient or command.is_over():
            self._gave_up = True
            progress.report(self._thing, State.failed, f"it answers {answer.status}")
            more = f" It asks to be left alone for {seconds_asked_for:.0f} s." if seconds_asked_for else ""
            raise NoAnswer(
                f"The image registry {self.host} is busy.",
                why=f"It answers {answer.status}, {number} times in {waited:.0f} s.{more} {answer.said}".rstrip(),
                hint="wait, then run this again; `registry_wait_seconds` in settings.yaml says how long Refit waits.",
            )
        if seconds >= _WORTH_TELLING:
            logger.warning("%s answers %d: asking again in %.0f s", self._thing, answer.status, seconds)
            progress.report(self._thing, State.waiting, f"it answers {answer.status}; asking again in {seconds:.0f} s")
        rest(seconds, command.is_over)

    def _distrust(self, error: httpx.TransportError) -> None:
        if _UNTRUSTED.search(str(error)):
            raise self._untrusted(str(error)) from None

    def _give_up(self, error: httpx.TransportError) -> NoReturn:
        self._distrust(error)
        problem = str(error) or type(error).__name__
        if isinstance(error, httpx.RemoteProtocolError) and not self._is_registry:
            raise self.garbage(problem) from None
        raise self._silent(f"Asked {ATTEMPTS} times: {problem}") from None

    def _own(self, answer: Answer, address: str, what: str) -> httpx.URL:
        """An address that the registry names and that has to be its own: requests there have the login with them."""
        try:
            url = outside.joined(answer.url, address)
        except outside.Astray as error:
            raise self.garbage(str(error)) from None
        if outside.origin(url) != self._origin:
            place = f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"
            raise RegistryError(
                f"The image registry {self.host} sends {what} to another address.",
                why=f"It says {shown(place)}, where Refit speaks to {self._base.removesuffix('/v2/')}.",
                hint="let the registry name its own address (docker-registry: `http.host` in its configuration; a "
                "proxy in front has to hand on Host and X-Forwarded-Proto), or let `registry` and `registry_tls` in "
                "settings.yaml be what it says, if you trust that.",
            )
        return url

    def expect(self, answer: Answer, status: int) -> None:
        """Raise the error for an answer that has another status than this."""
        if answer.status == status:
            return
        message, request = answer.said, f"{answer.method} {shown(answer.url.path)}"
        if answer.status in (401, 403):
            raise RegistryError(
                f"The image registry {self.host} refuses {request}.",
                why=f"It answers {answer.status}. {message}".strip(),
                hint="set `registry_user` and `registry_password` (REFIT_REGISTRY_PASSWORD) of an account that may; "
                "for the embedded one, run `refit up`, which makes them up.",
            )
        if answer.status >= 500:
            raise self.broken(f"It answers {answer.status} to {request}: {message}")
        raise self.garbage(f"it answers {answer.status} to {request}, where {status} was expected. {message}")

    def document(self, answer: Answer) -> Any:
        """The JSON of an answer, as data."""
        try:
            return parsed(answer.content)
        except (ValueError, RecursionError):
            path = shown(answer.url.path)
            raise self.garbage(f"its answer to {path} is no JSON that can be read: {answer.said[:80]!r}") from None

    def _silent(self, why: str) -> NoAnswer:
        return NoAnswer(
            f"The image registry {self.host} doesn't answer.",
            why=f"{why[:1].upper()}{why[1:]}.",
            hint="start the embedded one with `refit up`, or correct `registry` or `registry_port` in settings.yaml."
            if self._embedded
            else "ask its owner whether it works, and look whether this machine reaches it; or correct `registry` in "
            "settings.yaml.",
        )

    def broken(self, problem: str) -> RegistryError:
        """The error for a registry that says it can't store or read; `said` are its words."""
        full = re.search(r'no space|disk quota|answers 507|"Err":\s*(28|122)\b|[Ii]nsufficient [Ss]torage', problem)
        return RegistryError(
            f"The image registry {self.host} is {'full' if full else 'broken'}.",
            why=problem,
            hint="make space on the disk where the registry stores its images (the embedded one: `registry` in Refit's "
            "home), then run this again."
            if full
            else "look into the registry's log (the embedded one's is in `logs` in Refit's home).",
        )

    def _untrusted(self, problem: str) -> RegistryError:
        """The error for a connection that TLS refused."""
        return RegistryError(
            f"There is no secure connection to the image registry {self.host}.",
            why=problem,
            hint="set `ca_bundle` to the certificates of the authority that signed the registry's, and `registry` to a "
            "name that stands in it; or set `registry_tls: false` if it speaks plain http.",
        )

    def garbage(self, what: str) -> RegistryError:
        """The error for what no registry answers; `what` was seen."""
        return RegistryError(
            f"{self.host} doesn't answer as an image registry does.",
            why=f"The client saw: {what}.",
            hint="check `registry`, `registry_port` and `registry_tls` in settings.yaml: maybe something else listens "
            "there.",
        )


class _Again(Exception):
    """The registry is asked once more."""


@dataclass
class _SoFar:
    """The attempts so far: how many failed, how many found the registry busy, and since when."""

    failed: int = 0
    busy: int = 0
    since: float = 0.0
    pause: float = 0.0

    def failure(self) -> _Again:
        """Note that one has failed: the next comes after a pause (seconds)."""
        self.failed += 1
        self.pause = patience.pause(self.failed)
        return _Again()

    def busy_for(self) -> float:
        """Note that the registry is busy; returns for how long it has been (seconds)."""
        self.busy, self.since, self.pause = self.busy + 1, self.since or time.monotonic(), 0.0
        return time.monotonic() - self.since


def _may_be_unfinished(answer: Answer) -> bool:
    """Whether it may say no more than that somebody is writing just then what we wanted to read.

    docker-registry writes the files in place in which it notes what a tag points at, and what a repository has.
    """
    return answer.status == 500 and answer.method in READS


def parsed(content: bytes) -> Any:
    """JSON as data.

    Raises:
        ValueError: it is none, or has more in it than any registry says.
        RecursionError: its lists are in lists that are in lists.
    """
    if content.count(b"[") + content.count(b"{") > _MOST_OBJECTS:
        raise ValueError("too many objects")
    return json.loads(content)


def shown(text: str) -> str:
    """The text of a registry, for a message: the beginning, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:200])
