"""A client of image registries (OCI distribution), as thin as Refit needs it.

Digests are computed from the bytes as they came, never from parsed and written-again JSON, and compared with what the
registry says.

A registry isn't trusted. Password and tokens go to its own origin alone (see `login`), bodies and requests have limits
(see `outside`), and what is known by a digest is compared with it. Uploads and further pages of a list stay at its
origin; only what is read is followed to other addresses, as registries send for blobs to object stores, and there it
is asked for without a login.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import SEEK_END, BytesIO
from random import random
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, Generic, NoReturn, TypeVar
from urllib.parse import urlencode

import httpx
from cachetools import LRUCache

from flows.core import command, fence, outside, progress
from flows.core.outside import READS, REDIRECTS, Answer, Bounds
from flows.core.progress import State
from flows.core.settings import Settings, authorities
from flows.host import tools
from flows.images import patience
from flows.images.login import Kind, Login, UnknownRealm, kind_of
from flows.images.manifests import INDEX, MANIFEST, Manifest, canonical, digest_of
from flows.images.patience import ATTEMPTS, BUSY
from flows.images.registry_errors import BlobLost, NoAnswer, NoImage, RegistryError

logger = logging.getLogger("refit.registry")

_SMALL = 1 << 16  # bytes
_ACCEPTED = ", ".join((MANIFEST, INDEX, "application/vnd.docker.distribution.manifest.v2+json"))
AT_ONCE = 8  # questions
_CHUNK = 1 << 18  # bytes
MANIFEST_BYTES = 4 << 20  # what the specification lets every registry refuse
CONFIG_BYTES = 16 << 20
LIST_BYTES = 16 << 20  # of all pages together: the keys of some 200,000 stages
WHOLE_BYTES = 256 << 20  # of a blob that is read at once
_ANSWER_BYTES = 1 << 16  # of all other answers
_MOST_PAGES = 1000
_MOST_OBJECTS = 100_000  # objects and lists in one document: as text they are small, in memory they are not
QUESTION_SECONDS = 120.0
_SHORTLY = 2.5  # seconds for which a registry is waited for that was waited for in vain
_WORTH_TELLING = 1.0  # seconds
_LONGER = 2.5  # times as long as a question: a list with all its pages; to store a blob that the registry has got whole
# Digests are of bytes as they are: nothing is to be packed for the way.
_PLAIN = {"Accept-Encoding": "identity"}
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NEXT = re.compile(r"""<([^>]*)>\s*;[^,]*\brel="?next\b""")
# The specification's grammar of tags.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_REMEMBERED = 64 << 20  # bytes of manifests, and of configurations
Content = TypeVar("Content")


class Registry:
    """The registry of the settings. All failures are `RegistryError`.

    `repository` is the one that all images sit in, `stages` the one of the stages that they are made of.

    Args:
        settings: where it is, and who we are there.
        seconds: what a question may take as a whole; what carries a blob may take longer.
    """

    def __init__(self, settings: Settings, *, seconds: float = QUESTION_SECONDS) -> None:
        self._seconds = seconds
        self.host = settings.registry_host
        self.secure = settings.registry_is_secure
        self.repository, self.stages = settings.repository, f"{settings.repository}/stages"
        self._embedded = not settings.registry
        self._wait, self._rate = settings.registry_wait, settings.registry_rate * 1e6
        self._user, self._password = settings.registry_login
        self._base = f"{'https' if self.secure else 'http'}://{self.host}/v2/"
        self._origin = outside.origin(httpx.URL(self._base))
        self._login = Login(self._user, self._password, self._origin, settings.registry_realms)
        # A proxy for the outside world has no way to a registry on this machine's loopback.
        self._client = outside.Client(authorities(settings) if self.secure else False, trust_env=self.secure)
        self._is_registry = self._gave_up = False
        self._manifests, self._configs = _Memory[Manifest](), _Memory[Mapping[str, Any]]()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__()

    def ping(self) -> None:
        """Make sure that a registry answers at the address of the settings and lets us in."""
        answer = self._send("GET", "")
        self._expect(answer, 200)
        if "docker-distribution-api-version" not in answer.headers and self._json(answer) != {}:
            raise self._garbage(f"its answer to /v2/ is {answer.said[:80]!r}")
        self._is_registry = True

    def digest(self, repository: str, reference: str) -> str | None:
        """The digest of the manifest that a tag or digest names; none if the registry has it not."""
        answer = self._ask("HEAD", f"{repository}/manifests/{reference}")
        if answer.status == 404:
            return None
        self._expect(answer, 200)
        said = str(answer.headers.get("docker-content-digest", ""))
        return said if _DIGEST.fullmatch(said) else self.manifest(repository, reference).digest

    def digests(self, repository: str, references: Collection[str]) -> dict[str, str]:
        """Tag or digest → digest, of those manifests that the registry has; asked at once."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda reference: self.digest(repository, reference), references)
            return {reference: digest for reference, digest in zip(references, found, strict=True) if digest}

    def find(self, repository: str, reference: str, *, recall: bool = False) -> Manifest | None:
        """The manifest that a tag or digest names; none if the registry has it not.

        With `recall` it isn't asked for one that it had before, and may have lost since: what it says is the same.
        """
        if recall and (known := self._manifests.get(repository, reference)):
            return known
        answer = self._ask("GET", f"{repository}/manifests/{reference}", size=MANIFEST_BYTES)
        if answer.status == 404:
            return None
        self._expect(answer, 200)
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        manifest = Manifest(digest_of(answer.content), media_type, answer.content)
        said = answer.headers.get("docker-content-digest", manifest.digest)
        wanted = reference if reference.startswith("sha256:") else said
        if manifest.digest != wanted:
            raise self._garbage(f"the content of {repository}@{_shown(wanted)} has the digest {manifest.digest}")
        if said != wanted:
            raise self._garbage(f"it calls {repository}@{wanted} {_shown(said)!r}")
        if not _is_manifest(self._json(answer)):
            raise self._garbage(f"{repository}@{reference} is no manifest")
        self._manifests.put(repository, manifest.digest, manifest, len(manifest.content))
        return manifest

    def manifest(self, repository: str, reference: str, *, recall: bool = False) -> Manifest:
        """As `find`, where it has to be there."""
        manifest = self.find(repository, reference, recall=recall)
        if manifest is None:
            raise NoImage(
                f"The registry {self.host} has no {repository}:{reference}.",
                why="It was never pushed, or was deleted there.",
                fix="build it with `refit build`.",
            )
        return manifest

    def config(self, repository: str, manifest: Manifest) -> Mapping[str, Any]:
        """The configuration of an image, not to be changed; its `config` is an object. Asked for once."""
        named = manifest.document.get("config", {})
        digest = str(named.get("digest"))
        if (known := self._configs.get(repository, digest)) is not None:
            return known
        content = self.blob(repository, digest, min(int(named.get("size", 0)), CONFIG_BYTES))
        try:
            found = _parsed(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
            raise self._garbage(f"{digest} of {repository} is no configuration of an image")
        self._configs.put(repository, digest, found, len(content))
        return found

    def put_config(self, repository: str, content: bytes) -> None:
        """Store the configuration of an image, which nobody has to ask for then."""
        self._configs.put(repository, self.put_blob(repository, content), json.loads(content), len(content))

    def missing(self, repository: str, manifest: Manifest) -> tuple[str, ...]:
        """The digests of the configuration and the layers that a manifest names and the repository has lost."""
        return self.absent(repository, tuple(dict.fromkeys(manifest.part_digests)))

    def absent(self, repository: str, digests: Collection[str]) -> tuple[str, ...]:
        """Those of these blobs that the repository doesn't hold; asked at once."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = pool.map(lambda digest: self.has_blob(repository, digest), digests)
            return tuple(digest for digest, is_there in zip(digests, there, strict=True) if not is_there)

    def blob(self, repository: str, digest: str, size: int) -> bytes:
        """A blob as a whole, of this size: for configurations and evidence, not for layers.

        Raises:
            BlobLost: the repository has no such blob.
        """
        most = min(size, WHOLE_BYTES)
        answer = self._ask("GET", f"{repository}/blobs/{digest}", size=most, seconds=self._carrying(most))
        if answer.status == 404:
            raise self._lost(repository, digest)
        self._expect(answer, 200)
        if (seen := digest_of(answer.content)) != digest:
            raise self._garbage(f"the content of the blob {digest} has the digest {seen}")
        return answer.content

    def _lost(self, repository: str, digest: str) -> RegistryError:
        """The error for a blob that isn't given: what a build looks for by HEAD it would never build again."""
        if not self.has_blob(repository, digest):
            return BlobLost(self.host, repository, digest)
        again = "`refit down` and `refit up`" if self._embedded else "its owner restarts it"
        return RegistryError(
            f"The registry {self.host} says that it has {digest} of {repository}, and doesn't give it.",
            why="It answers 200 to HEAD and 404 to GET: what it remembers isn't what its storage has.",
            fix=f"let it forget that ({again}), then run `refit build`: it builds again what is not whole.",
        )

    def _carrying(self, size: int) -> float:
        """Seconds that so many bytes may take on their way."""
        return self._seconds + size / self._rate

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether the repository holds this blob."""
        answer = self._ask("HEAD", f"{repository}/blobs/{digest}")
        if answer.status != 404:
            self._expect(answer, 200)
        return answer.status == 200

    def put_blob(self, repository: str, content: bytes) -> str:
        """Store a blob unless it is there, which of a small one takes as long to ask; returns its digest."""
        digest = digest_of(content)
        if len(content) <= _SMALL:
            self._upload(repository, digest, BytesIO(content))
        else:
            self.put_file(repository, digest, BytesIO(content))
        return digest

    def put_file(self, repository: str, digest: str, content: IO[bytes]) -> None:
        """Store a blob of any size, whose digest this is, unless it is there."""
        if not self.has_blob(repository, digest):
            self._upload(repository, digest, content)

    def get_file(self, repository: str, digest: str, target: IO[bytes], size: int) -> None:
        """Write a blob, of this size, into an empty file; it stands at its beginning afterwards.

        Raises:
            BlobLost: the repository has no such blob.
        """
        self._make_sure()
        address, bounds = f"{self._base}{repository}/blobs/{digest}", Bounds(size, self._carrying(size))
        seen = hashlib.sha256()

        def keep(piece: bytes) -> None:
            seen.update(piece)
            target.write(piece)

        def attempt() -> Answer:
            nonlocal seen
            seen = hashlib.sha256()
            target.seek(0)
            target.truncate()
            return self._follow("GET", address, bounds, sink=keep)

        answer = self._patiently(attempt)
        if answer.status == 404:
            raise self._lost(repository, digest)
        self._expect(answer, 200)
        if (found := f"sha256:{seen.hexdigest()}") != digest:
            raise self._garbage(f"the content of the blob {digest} has the digest {found}")
        target.seek(0)

    def put_manifest(self, repository: str, reference: str, content: bytes, media_type: str) -> str:
        """Store a manifest under a tag or its own digest; returns its digest."""
        path = f"{repository}/manifests/{reference}"
        for number in range(ATTEMPTS):
            time.sleep(patience.pause(number))
            fence.check()
            answer = self._ask("PUT", path, content=content, headers={"Content-Type": media_type})
            # docker-registry doesn't know a blob for the moment in which somebody else stores it, too.
            if answer.status != 400 or "BLOB_UNKNOWN" not in answer.text:
                break
        if answer.status == 400 and "BLOB_UNKNOWN" in answer.text:
            raise self._dropped(repository, f"what {digest_of(content)} names")
        self._expect(answer, 201)
        digest = digest_of(content)
        if (said := answer.headers.get("docker-content-digest", digest)) != digest:
            raise self._garbage(f"it stored {digest} as {_shown(said)!r}")
        self._manifests.put(repository, digest, Manifest(digest, media_type, content), len(content))
        return digest

    def keep_manifest(self, repository: str, manifest: Manifest) -> None:
        """Store an image's manifest under its digest, and see that it and its configuration are there to be read.

        That takes two questions more: it is for what others are going to stand on.

        Raises:
            RegistryError: the registry has taken it and hasn't got it.
        """
        self.put_manifest(repository, manifest.digest, manifest.content, manifest.media_type)
        config = str(manifest.document["config"]["digest"])
        if self.find(repository, manifest.digest) is None:
            raise self._dropped(repository, manifest.digest)
        if not self.has_blob(repository, config):
            raise self._dropped(repository, config)

    def delete(self, repository: str, digest: str) -> bool:
        """Delete a manifest and every tag that points at it; returns whether it was there. Its blobs stay."""
        fence.check()
        answer = self._ask("DELETE", f"{repository}/manifests/{digest}")
        if answer.status == 405:
            raise RegistryError(
                f"The image registry {self.host} doesn't let anything be deleted.",
                why="It answers 405.",
                fix="switch deleting on in its configuration (docker-registry: `storage.delete.enabled: true`).",
            )
        if answer.status != 404:
            self._expect(answer, 202)
        return answer.status == 202

    def see_where_uploads_go(self, repository: str) -> None:
        """Begin an upload and give it up: what pushes by itself sends the password to wherever the registry says.

        Raises:
            RegistryError: that is another address.
        """
        if self._user:
            self._send("DELETE", self._begun(repository))

    def _begun(self, repository: str) -> httpx.URL:
        """Where an upload goes that was begun just now."""
        answer = self._ask("POST", f"{repository}/blobs/uploads/")
        self._expect(answer, 202)
        return self._location(answer)

    def try_storing(self) -> None:
        """Let the registry store something and forget it again: whoever pushes through buildah isn't told why not."""
        location = self._begun("refit/probe")
        kind = {"Content-Type": "application/octet-stream"}
        self._expect(self._send("PATCH", location, content=bytes(1 << 20), headers=kind), 202)
        self._send("DELETE", location)

    def mount(self, repository: str, digest: str, source: str, size: int) -> None:
        """Let `repository` have a blob, of this size, that `source` holds: by mount, else by copying it."""
        if self.has_blob(repository, digest):
            return
        answer = self._ask("POST", f"{repository}/blobs/uploads/?{urlencode({'mount': digest, 'from': source})}")
        if answer.status != 201:
            self._expect(answer, 202)
            self._send("DELETE", self._location(answer))
            with TemporaryFile() as copy:
                self.get_file(source, digest, copy, size)
                self._upload(repository, digest, copy)

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository; none if it doesn't exist."""
        return tuple(self._pages(f"{repository}/tags/list?n=1000", "tags", _is_tag) or ())

    def referrers(self, repository: str, digest: str) -> list[dict[str, Any]] | None:
        """Descriptors of what refers to a manifest, in no order; none if this registry can't tell."""
        return self._pages(f"{repository}/referrers/{digest}", "manifests", _is_descriptor, (400, 404, 405))

    def _pages(
        self, first: str, name: str, belongs: Callable[[object], bool], no_list: Collection[int] = (404,)
    ) -> list[Any] | None:
        """A list with all its pages; none if the registry answers that there is no such list."""
        found: list[Any] = []
        page, seen, left = httpx.URL(self._base + first), set[httpx.URL](), LIST_BYTES
        with outside.within(_LONGER * self._seconds):
            while len(seen) < _MOST_PAGES:
                seen.add(page)
                answer = self._ask("GET", page, size=left)
                if answer.status in no_list:
                    return None
                self._expect(answer, 200)
                left -= len(answer.content)
                some = self._listed(answer, name, belongs)
                following = _NEXT.search(answer.headers.get("link", ""))
                if following is None:
                    return [*found, *some]
                page = self._own(answer, following[1], "the next page")
                if page in seen or all(item in found for item in some):
                    break
                found += some
        raise self._garbage(f"its list of {name} at {first} has no end")

    def credentials(self) -> bytes:
        """The content of an auth file for buildah, skopeo and podman."""
        word = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        return canonical({"auths": {self.host: {"auth": word}} if self._user else {}})

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
        size: int = _ANSWER_BYTES,
        seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Answer:
        url = self._base + path if isinstance(path, str) else path
        accepted = {"Accept": _ACCEPTED if "/manifests/" in str(path) else "*/*", **(headers or {})}
        bounds = Bounds(size, self._seconds if seconds is None else seconds)
        return self._patiently(lambda: self._follow(method, url, bounds, headers=accepted, content=content))

    def _follow(self, method: str, address: str | httpx.URL, bounds: Bounds, **options: Any) -> Answer:
        """Ask the registry; what is read is followed to wherever it sends us, without a login if that isn't itself."""
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
        if self._embedded and tools.is_anothers("127.0.0.1", self._origin[2] or 0):
            raise RegistryError(
                f"Another user's program answers at {self.host}, in the place of the embedded image registry.",
                why="It asks for the registry's password, which it isn't told.",
                fix="`sudo ss -ltnp` names it. End it and run `refit up`, or choose another `registry_port`.",
            )

        def ask(realm: httpx.URL, headers: Mapping[str, str]) -> bytes:
            answer = self._client.exchange("GET", realm, Bounds(_ANSWER_BYTES, self._seconds), headers=headers)
            return answer.content if answer.status == 200 else b""

        try:
            return self._login.heed(challenge, kind, ask)
        except UnknownRealm as error:
            realm = _shown(str(error))
            raise RegistryError(
                f"The image registry {self.host} sends us to {realm} to log in.",
                why="Your password goes to nobody but the registry itself and the token services that you name.",
                fix=f"if this is the token service of your registry, set `registry_realms: ['{realm}']` in "
                "settings.yaml; it has to speak https if the registry does. Else don't use this registry.",
            ) from None

    def _patiently(self, attempt: Callable[[], Answer]) -> Answer:
        """Try until the registry has answered and isn't busy. What an attempt did before it failed must do no harm."""
        failed, busy, since = 0, 0, 0.0
        while True:
            try:
                answer = attempt()
            except outside.TooSlow as error:
                raise self._silent(f"{error}, as a whole") from None
            except httpx.TransportError as error:
                failed += 1
                if failed >= ATTEMPTS:
                    self._give_up(error)
                self._distrust(error)
                time.sleep(patience.pause(failed))
            except (httpx.RequestError, httpx.InvalidURL) as error:
                raise self._garbage(str(error)) from None
            else:
                if answer.status in BUSY:
                    busy, since = busy + 1, since or time.monotonic()
                    self._wait_for(answer, busy, time.monotonic() - since)
                elif failed + 1 < ATTEMPTS and _may_be_unfinished(answer):
                    failed += 1
                    time.sleep(patience.pause(failed))
                else:
                    if busy:
                        progress.report(self._thing, State.done)
                    self._gave_up = False
                    return answer

    @property
    def _thing(self) -> str:
        return f"registry {self.host}"

    def _wait_for(self, answer: Answer, number: int, waited: float) -> None:
        """Let a busy registry alone for as long as it wants, if that isn't too long; one that was waited for, shortly.

        Raises:
            NoAnswer: it is.
        """
        asked = patience.asked_for(answer.headers, datetime.now(UTC))
        seconds = patience.wait(asked, number, random())
        patient = min(self._wait, _SHORTLY) if self._gave_up else self._wait
        if waited + seconds > patient or command.is_over():
            self._gave_up = True
            progress.report(self._thing, State.failed, f"it answers {answer.status}")
            more = f" It asks to be left alone for {asked:.0f} s." if asked else ""
            raise NoAnswer(
                f"The image registry {self.host} is busy.",
                why=f"It answers {answer.status}, {number} times in {waited:.0f} s.{more} {answer.said}".rstrip(),
                fix="wait, then run this again; `registry_wait` in settings.yaml says how long Refit waits for it.",
            )
        if seconds >= _WORTH_TELLING:
            logger.warning("%s answers %d: asking again in %.0f s", self._thing, answer.status, seconds)
            progress.report(self._thing, State.waiting, f"it answers {answer.status}; asking again in {seconds:.0f} s")
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not command.is_over():
            time.sleep(min(left, 1.0))

    def _distrust(self, error: httpx.TransportError) -> None:
        if _UNTRUSTED.search(str(error)):
            raise self._untrusted(str(error)) from None

    def _give_up(self, error: httpx.TransportError) -> NoReturn:
        self._distrust(error)
        problem = str(error) or type(error).__name__
        if isinstance(error, httpx.RemoteProtocolError) and not self._is_registry:
            raise self._garbage(problem) from None
        raise self._silent(f"Asked {ATTEMPTS} times: {problem}") from None

    def _silent(self, why: str) -> NoAnswer:
        return NoAnswer(
            f"The image registry {self.host} doesn't answer.",
            why=f"{why[:1].upper()}{why[1:]}.",
            fix="start the embedded one with `refit up`, or correct `registry` or `registry_port` in settings.yaml."
            if self._embedded
            else "ask its owner whether it works, and look whether this machine reaches it; or correct `registry` in "
            "settings.yaml.",
        )

    def _upload(self, repository: str, digest: str, content: IO[bytes]) -> None:
        self._make_sure()
        size = content.seek(0, SEEK_END)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        begin, carry = Bounds(_ANSWER_BYTES, self._seconds), _LONGER * self._seconds + size / self._rate

        def attempt() -> Answer:
            # A registry keeps the part that it got before a connection broke: each attempt needs an upload of its own.
            begun = self._follow("POST", f"{self._base}{repository}/blobs/uploads/", begin)
            if begun.status in BUSY:
                return begun
            self._expect(begun, 202)
            location = self._location(begun).copy_merge_params({"digest": digest})
            return self._follow("PUT", location, Bounds(_ANSWER_BYTES, carry), headers=headers, content=_Whole(content))

        self._expect(self._patiently(attempt), 201)

    def _location(self, begun: Answer) -> httpx.URL:
        """Where an upload goes that was begun."""
        return self._own(begun, begun.headers.get("location", ""), "an upload")

    def _own(self, answer: Answer, address: str, what: str) -> httpx.URL:
        """An address that the registry names and that has to be its own: what goes there has the login with it."""
        try:
            url = outside.joined(answer.url, address)
        except outside.Astray as error:
            raise self._garbage(str(error)) from None
        if outside.origin(url) != self._origin:
            place = f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"
            raise RegistryError(
                f"The image registry {self.host} sends {what} to another address.",
                why=f"It says {_shown(place)}, where Refit speaks to {self._base.removesuffix('/v2/')}.",
                fix="let the registry name its own address (docker-registry: `http.host` in its configuration; a proxy "
                "in front has to hand on Host and X-Forwarded-Proto), or let `registry` and `registry_tls` in "
                "settings.yaml be what it says, if you trust that.",
            )
        return url

    def _expect(self, answer: Answer, status: int) -> None:
        if answer.status == status:
            return
        said, request = answer.said, f"{answer.method} {_shown(answer.url.path)}"
        if answer.status in (401, 403):
            raise RegistryError(
                f"The image registry {self.host} refuses {request}.",
                why=f"It answers {answer.status}. {said}".strip(),
                fix="set `registry_user` and `registry_password` (REFIT_REGISTRY_PASSWORD) of an account that may; for "
                "the embedded one, run `refit up`, which makes them up.",
            )
        if answer.status >= 500:
            raise self.broken(f"It answers {answer.status} to {request}: {said}")
        raise self._garbage(f"it answers {answer.status} to {request}, where {status} was expected. {said}")

    def _dropped(self, repository: str, what: str) -> RegistryError:
        """The error for what a registry has taken, and doesn't have."""
        return RegistryError(
            f"The image registry {self.host} did not keep {what} in {repository}.",
            why="It said that it has stored that. Somebody has deleted it since, or the registry loses what it gets.",
            fix="look into the registry's log and storage (the embedded one's are `logs` and `registry` in Refit's "
            "home), then run this again.",
        )

    def broken(self, said: str) -> RegistryError:
        """The error for a registry that says it can't store or read; `said` are its words."""
        full = re.search(r'no space|disk quota|answers 507|"Err":\s*(28|122)\b|[Ii]nsufficient [Ss]torage', said)
        return RegistryError(
            f"The image registry {self.host} is {'full' if full else 'broken'}.",
            why=said,
            fix="make space on the disk where the registry stores its images (the embedded one: `registry` in Refit's "
            "home), then run this again."
            if full
            else "look into the registry's log (the embedded one's is in `logs` in Refit's home).",
        )

    def _untrusted(self, said: str) -> RegistryError:
        """The error for a connection that TLS refused."""
        return RegistryError(
            f"There is no secure connection to the image registry {self.host}.",
            why=said,
            fix="set `ca_bundle` to the certificates of the authority that signed the registry's, and `registry` to a "
            "name that stands in it; or set `registry_tls: false` if it speaks plain http.",
        )

    def _garbage(self, what: str) -> RegistryError:
        return RegistryError(
            f"{self.host} doesn't answer as an image registry does.",
            why=f"What was seen: {what}.",
            fix="check `registry`, `registry_port` and `registry_tls` in settings.yaml: maybe something else listens "
            "there.",
        )

    def _json(self, answer: Answer) -> Any:
        try:
            return _parsed(answer.content)
        except (ValueError, RecursionError):
            path = _shown(answer.url.path)
            raise self._garbage(f"its answer to {path} is no JSON that can be read: {answer.said[:80]!r}") from None

    def _listed(self, answer: Answer, name: str, belongs: Callable[[object], bool]) -> list[Any]:
        """A list in an object; registries write null for one that is empty."""
        document = self._json(answer)
        if isinstance(document, dict):
            found = [] if document.get(name) is None else document[name]
            if isinstance(found, list) and all(map(belongs, found)):
                return found
        raise self._garbage(f"its answer to {_shown(answer.url.path)} has no list of {name}")


class _Memory(Generic[Content]):
    """What blobs and manifests say, of those that were asked for or stored last: no digest ever says anything else."""

    def __init__(self) -> None:
        self._known = LRUCache[tuple[str, str], tuple[Content, int]](_REMEMBERED, getsizeof=lambda kept: kept[1])
        self._lock = Lock()

    def get(self, repository: str, digest: str) -> Content | None:
        with self._lock:
            kept = self._known.get((repository, digest))
        return kept[0] if kept else None

    def put(self, repository: str, digest: str, content: Content, size: int) -> None:
        with self._lock:
            self._known[repository, digest] = content, size


class _Whole:
    """The content of a file from its beginning, whenever it is sent, and sent again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk


def _may_be_unfinished(answer: Answer) -> bool:
    """Whether it may say no more than that somebody is writing just then what we wanted to read.

    docker-registry writes the files in place in which it notes what a tag points at, and what a repository has.
    """
    return answer.status == 500 and answer.method in READS


def _parsed(content: bytes) -> Any:
    """JSON as data.

    Raises:
        ValueError: it is none, or has more in it than any registry says.
        RecursionError: its lists are in lists that are in lists.
    """
    if content.count(b"[") + content.count(b"{") > _MOST_OBJECTS:
        raise ValueError("too many objects")
    return json.loads(content)


def _shown(text: str) -> str:
    """What a registry says, for a message: the beginning, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def _is_tag(name: object) -> bool:
    return isinstance(name, str) and _TAG.fullmatch(name) is not None


def _is_manifest(document: object) -> bool:
    """Whether these are data of an image's manifest, or of an index of manifests."""
    if not isinstance(document, dict):
        return False
    if "manifests" in document:  # what is both is an image for one program, and an index for another
        return "layers" not in document and _are_descriptors(document["manifests"])
    return _is_descriptor(document.get("config")) and _are_descriptors(document.get("layers"))


def _are_descriptors(parts: object) -> bool:
    return isinstance(parts, list) and all(map(_is_descriptor, parts))


def _is_descriptor(part: object) -> bool:
    return (
        isinstance(part, dict)
        and isinstance(part.get("digest"), str)
        and _DIGEST.fullmatch(part["digest"]) is not None
        and type(part.get("size")) is int
        and part["size"] >= 0
        and isinstance(part.get("mediaType"), str)
        and isinstance(part.get("annotations", {}), dict)
    )
