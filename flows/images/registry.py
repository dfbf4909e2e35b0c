"""A client of image registries (OCI distribution), as thin as Refit needs it.

Digests are computed from the bytes as they came, never from parsed and written-again JSON, and compared with what the
registry says.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from io import SEEK_END, BytesIO
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx
from cachetools import LRUCache

from flows.errors import RefitError
from flows.settings import Settings, authorities

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
_SMALL = 1 << 16  # bytes
EMPTY_KIND, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"  # the configuration of what is no image
_ACCEPTED = ", ".join((MANIFEST, INDEX, "application/vnd.docker.distribution.manifest.v2+json"))
ATTEMPTS = 4
_PAUSE_SECONDS = 0.2
_BUSY = (429, 502, 503, 504)
AT_ONCE = 8  # questions
_CHUNK = 1 << 18  # bytes
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REMEMBERED = 256  # manifests, and configurations
Content = TypeVar("Content")


class RegistryError(RefitError):
    """The registry can't be reached, refuses, is full, or doesn't answer as a registry does."""


class NoAnswer(RegistryError):
    """The registry doesn't answer, or says that it is busy: later it may be there again."""


class NoImage(RegistryError):
    """The registry has no such image, or no longer."""


class BlobLost(RegistryError):
    """The registry has a manifest, but no longer all that it names."""

    def __init__(self, host: str, repository: str, digest: str) -> None:
        super().__init__(
            f"The registry {host} has lost {digest} of {repository}.",
            why="A manifest there names it. It was deleted, or the registry's storage was damaged.",
            fix="run `refit build`: it builds again what is not whole.",
        )


@dataclass(frozen=True)
class Manifest:
    """A manifest, byte by byte as the registry holds it."""

    digest: str
    media_type: str
    content: bytes

    @cached_property
    def document(self) -> Mapping[str, Any]:
        """The manifest as data."""
        return dict(json.loads(self.content))

    @property
    def size(self) -> int:
        """Bytes (compressed) that somebody downloads who has nothing of this image yet."""
        return sum(int(part["size"]) for part in self.parts)

    @property
    def parts(self) -> tuple[Mapping[str, Any], ...]:
        """Descriptors of what the image is made of: its configuration, then its layers from the lowest up."""
        return tuple(part for part in (self.document.get("config"), *self.document.get("layers", ())) if part)

    @property
    def part_digests(self) -> tuple[str, ...]:
        """The digests of its parts."""
        return tuple(str(part["digest"]) for part in self.parts)


def digest_of(content: bytes) -> str:
    """`sha256:…` of these bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(media_type: str, content: bytes, **more: object) -> dict[str, object]:
    """How a manifest names some content: media type, digest, size (bytes)."""
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **more}


def canonical(document: object) -> bytes:
    """JSON that is the same for the same data."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


class Registry:
    """The registry of the settings. All failures are `RegistryError`.

    `repository` is the one that all images sit in, `stages` the one of the stages that they are made of.
    """

    def __init__(self, settings: Settings) -> None:
        self.host = settings.registry_host
        self.secure = settings.registry_is_secure
        self.repository, self.stages = settings.repository, f"{settings.repository}/stages"
        self._user, self._password = settings.registry_user, settings.registry_password.get_secret_value()
        self._client = httpx.Client(
            base_url=f"{'https' if self.secure else 'http'}://{self.host}/v2/",
            auth=_Challenge(self._user, self._password, self.secure),
            verify=authorities(settings) if self.secure else False,
            timeout=httpx.Timeout(300.0, connect=5.0),
            follow_redirects=True,
            # A proxy for the outside world has no way to a registry on this machine's loopback.
            trust_env=self.secure,
        )
        self._is_registry = False
        self._manifests, self._configs = _Memory[Manifest](), _Memory[Mapping[str, Any]]()

    def ping(self) -> None:
        """Make sure that a registry answers at the address of the settings and lets us in."""
        answer = self._send("GET", "")
        self._expect(answer, 200)
        if "docker-distribution-api-version" not in answer.headers and self._json(answer) != {}:
            raise self._garbage(f"its answer to /v2/ is {answer.text[:80]!r}")
        self._is_registry = True

    def digest(self, repository: str, reference: str) -> str | None:
        """The digest of the manifest that a tag or digest names; none if the registry has it not."""
        answer = self._ask("HEAD", f"{repository}/manifests/{reference}")
        if answer.status_code == 404:
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
        answer = self._ask("GET", f"{repository}/manifests/{reference}")
        if answer.status_code == 404:
            return None
        self._expect(answer, 200)
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        manifest = Manifest(digest_of(answer.content), media_type, answer.content)
        said = answer.headers.get("docker-content-digest", manifest.digest)
        wanted = reference if reference.startswith("sha256:") else said
        if not manifest.digest == said == wanted:
            raise self._garbage(f"the content of {repository}@{wanted} has the digest {manifest.digest}")
        if not _is_manifest(self._json(answer)):
            raise self._garbage(f"{repository}@{reference} is no manifest")
        self._manifests.put(repository, manifest.digest, manifest)
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
        digest = str(manifest.document.get("config", {}).get("digest"))
        if (known := self._configs.get(repository, digest)) is not None:
            return known
        try:
            found = json.loads(self.blob(repository, digest))
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("config"), dict):
            raise self._garbage(f"{digest} of {repository} is no configuration of an image")
        self._configs.put(repository, digest, found)
        return found

    def put_config(self, repository: str, content: bytes) -> None:
        """Store the configuration of an image, which nobody has to ask for then."""
        self._configs.put(repository, self.put_blob(repository, content), json.loads(content))

    def missing(self, repository: str, manifest: Manifest) -> tuple[str, ...]:
        """The digests of the configuration and the layers that a manifest names and the repository has lost."""
        return self.absent(repository, tuple(dict.fromkeys(manifest.part_digests)))

    def absent(self, repository: str, digests: Collection[str]) -> tuple[str, ...]:
        """Those of these blobs that the repository doesn't hold; asked at once."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = pool.map(lambda digest: self.has_blob(repository, digest), digests)
            return tuple(digest for digest, is_there in zip(digests, there, strict=True) if not is_there)

    def blob(self, repository: str, digest: str) -> bytes:
        """A blob as a whole: for configurations and evidence, not for layers.

        Raises:
            BlobLost: the repository has no such blob.
        """
        answer = self._ask("GET", f"{repository}/blobs/{digest}")
        if answer.status_code == 404:
            raise BlobLost(self.host, repository, digest)
        self._expect(answer, 200)
        if digest_of(answer.content) != digest:
            raise self._garbage(f"the blob {digest} has the digest {digest_of(answer.content)}")
        return answer.content

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether the repository holds this blob."""
        answer = self._ask("HEAD", f"{repository}/blobs/{digest}")
        if answer.status_code != 404:
            self._expect(answer, 200)
        return answer.status_code == 200

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

    def get_file(self, repository: str, digest: str, target: IO[bytes]) -> None:
        """Write a blob of any size into an empty file; it stands at its beginning afterwards.

        Raises:
            BlobLost: the repository has no such blob.
        """
        self._make_sure()

        def attempt() -> httpx.Response:
            target.seek(0)
            target.truncate()
            with self._client.stream("GET", f"{repository}/blobs/{digest}") as answer:
                if answer.status_code != 200:
                    answer.read()
                for chunk in answer.iter_bytes() if answer.status_code == 200 else ():
                    target.write(chunk)
            return answer

        answer = self._patiently(attempt)
        if answer.status_code == 404:
            raise BlobLost(self.host, repository, digest)
        self._expect(answer, 200)
        target.seek(0)
        if (seen := f"sha256:{hashlib.file_digest(target, 'sha256').hexdigest()}") != digest:  # type: ignore[arg-type]
            raise self._garbage(f"the blob {digest} has the digest {seen}")
        target.seek(0)

    def put_manifest(self, repository: str, reference: str, content: bytes, media_type: str) -> str:
        """Store a manifest under a tag or its own digest; returns its digest."""
        path = f"{repository}/manifests/{reference}"
        for number in range(ATTEMPTS):
            time.sleep(_PAUSE_SECONDS * (2**number - 1))
            answer = self._ask("PUT", path, content=content, headers={"Content-Type": media_type})
            # docker-registry doesn't know a blob for the moment in which somebody else stores it, too.
            if answer.status_code != 400 or "BLOB_UNKNOWN" not in answer.text:
                break
        self._expect(answer, 201)
        digest = digest_of(content)
        if answer.headers.get("docker-content-digest", digest) != digest:
            raise self._garbage(f"it stored {digest} as {answer.headers['docker-content-digest']}")
        self._manifests.put(repository, digest, Manifest(digest, media_type, content))
        return digest

    def delete(self, repository: str, digest: str) -> bool:
        """Delete a manifest and every tag that points at it; returns whether it was there. Its blobs stay."""
        answer = self._ask("DELETE", f"{repository}/manifests/{digest}")
        if answer.status_code == 405:
            raise RegistryError(
                f"The image registry {self.host} doesn't let anything be deleted.",
                why="It answers 405.",
                fix="switch deleting on in its configuration (docker-registry: `storage.delete.enabled: true`).",
            )
        if answer.status_code != 404:
            self._expect(answer, 202)
        return answer.status_code == 202

    def try_storing(self) -> None:
        """Let the registry store something and forget it again: whoever pushes through buildah isn't told why not."""
        begun = self._ask("POST", "refit/probe/blobs/uploads/")
        self._expect(begun, 202)
        location = str(self._location(begun))
        kind = {"Content-Type": "application/octet-stream"}
        self._expect(self._send("PATCH", location, content=bytes(1 << 20), headers=kind), 202)
        self._send("DELETE", location)

    def mount(self, repository: str, digest: str, source: str) -> None:
        """Let `repository` have a blob that `source` holds: by mount, else by copying it."""
        if self.has_blob(repository, digest):
            return
        answer = self._ask("POST", f"{repository}/blobs/uploads/", params={"mount": digest, "from": source})
        if answer.status_code != 201:
            self._expect(answer, 202)
            self._send("DELETE", str(self._location(answer)))
            with TemporaryFile() as copy:
                self.get_file(source, digest, copy)
                self._upload(repository, digest, copy)

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository; none if it doesn't exist."""
        return tuple(self._pages(f"{repository}/tags/list?n=1000", "tags", lambda tag: isinstance(tag, str)) or ())

    def referrers(self, repository: str, digest: str) -> list[dict[str, Any]] | None:
        """Descriptors of what refers to a manifest, in no order; none if this registry can't tell."""
        return self._pages(f"{repository}/referrers/{digest}", "manifests", _is_descriptor, (400, 404, 405))

    def _pages(
        self, first: str, name: str, belongs: Callable[[object], bool], no_list: Collection[int] = (404,)
    ) -> list[Any] | None:
        """A list with all its pages; none if the registry answers that there is no such list."""
        found: list[Any] = []
        page: str | None = first
        while page:
            answer = self._ask("GET", page)
            if answer.status_code in no_list:
                return None
            self._expect(answer, 200)
            some = self._listed(answer, name, belongs)
            following = answer.links.get("next", {}).get("url")
            if following and all(item in found for item in some):
                raise self._garbage(f"its list of {name} at {first} has no end")
            found += some
            page = str(self._join(answer, following)) if following else None
        return found

    def credentials(self) -> bytes:
        """The content of an auth file for buildah, skopeo and podman."""
        word = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        return canonical({"auths": {self.host: {"auth": word}} if self._user else {}})

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        self._make_sure()
        return self._send(method, path, **options)

    def _make_sure(self) -> None:
        """Any web server answers "404"; only of a registry it means that an image isn't there."""
        if not self._is_registry:
            self.ping()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Accept": _ACCEPTED if "/manifests/" in path else "*/*", **options.pop("headers", {})}
        return self._patiently(lambda: self._client.request(method, path, headers=headers, **options))

    def _patiently(self, attempt: Callable[[], httpx.Response]) -> httpx.Response:
        """Try until the registry has answered and isn't busy. What an attempt did before it failed must do no harm."""
        problem, speaks_http = "", True
        for number in range(ATTEMPTS):
            time.sleep(_PAUSE_SECONDS * (2**number - 1))
            try:
                answer = attempt()
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
                speaks_http = self._is_registry or not isinstance(error, httpx.RemoteProtocolError)
                if _UNTRUSTED.search(problem):
                    raise self._untrusted(problem) from None
            except (httpx.RequestError, httpx.InvalidURL) as error:
                raise self._garbage(str(error)) from None
            else:
                last = number == ATTEMPTS - 1
                if answer.status_code not in _BUSY and (last or not _may_be_unfinished(answer)):
                    return answer
                problem, speaks_http = f"it answers {answer.status_code}", True
        if not speaks_http:
            raise self._garbage(problem)
        raise NoAnswer(
            f"The image registry {self.host} doesn't answer.",
            why=f"Asked {ATTEMPTS} times: {problem}.",
            fix="start the embedded one with `refit up`, or correct `registry` or `registry_port` in settings.yaml.",
        )

    def _upload(self, repository: str, digest: str, content: IO[bytes]) -> None:
        self._make_sure()
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(content.seek(0, SEEK_END))}

        def attempt() -> httpx.Response:
            # A registry keeps the part that it got before a connection broke: each attempt needs an upload of its own.
            begun = self._client.post(f"{repository}/blobs/uploads/")
            if begun.status_code in _BUSY:
                return begun
            self._expect(begun, 202)
            location = self._location(begun).copy_merge_params({"digest": digest})
            return self._client.put(location, content=_Whole(content), headers=headers)

        self._expect(self._patiently(attempt), 201)

    def _location(self, begun: httpx.Response) -> httpx.URL:
        """Where an upload goes that was begun."""
        return self._join(begun, begun.headers.get("location", ""))

    def _join(self, answer: httpx.Response, address: str) -> httpx.URL:
        try:
            return answer.url.join(address)
        except httpx.InvalidURL as error:
            raise self._garbage(f"it sends us to {address!r}: {error}") from None

    def _expect(self, answer: httpx.Response, status: int) -> None:
        if answer.status_code == status:
            return
        said = answer.text[:400] if answer.is_stream_consumed or answer.is_closed else ""
        request = f"{answer.request.method} {answer.request.url.path}"
        if answer.status_code in (401, 403):
            raise RegistryError(
                f"The image registry {self.host} refuses {request}.",
                why=f"It answers {answer.status_code}. {said}".strip(),
                fix="set `registry_user` and `registry_password` (REFIT_REGISTRY_PASSWORD) of an account that may.",
            )
        if answer.status_code >= 500:
            raise self.broken(f"It answers {answer.status_code} to {request}: {said}")
        raise self._garbage(f"it answers {answer.status_code} to {request}, where {status} was expected. {said}")

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

    def _json(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except ValueError:
            raise self._garbage(f"its answer to {answer.request.url.path} is no JSON: {answer.text[:80]!r}") from None

    def _listed(self, answer: httpx.Response, name: str, belongs: Callable[[object], bool]) -> list[Any]:
        """A list in an object; registries write null for one that is empty."""
        document = self._json(answer)
        if isinstance(document, dict):
            found = [] if document.get(name) is None else document[name]
            if isinstance(found, list) and all(map(belongs, found)):
                return found
        raise self._garbage(f"its answer to {answer.request.url.path} has no list of {name}")


class _Memory(Generic[Content]):
    """What blobs and manifests say, of those that were asked for or stored last: no digest ever says anything else."""

    def __init__(self) -> None:
        self._known = LRUCache[tuple[str, str], Content](_REMEMBERED)
        self._lock = Lock()

    def get(self, repository: str, digest: str) -> Content | None:
        with self._lock:
            return self._known.get((repository, digest))

    def put(self, repository: str, digest: str, content: Content) -> None:
        with self._lock:
            self._known[repository, digest] = content


class _Whole:
    """The content of a file from its beginning, whenever it is sent, and sent again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk


class _Challenge(httpx.Auth):
    """Answers what a registry asks for: basic, or a bearer token from the place that it names."""

    def __init__(self, user: str, password: str, secure: bool) -> None:
        self._login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
        self._secure = secure
        self._known: dict[tuple[str, bool], str] = {}

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        kind = _repository(request.url.path), request.method in ("GET", "HEAD")
        if kind in self._known:
            request.headers["Authorization"] = self._known[kind]
        answer = yield request
        challenge = answer.headers.get("www-authenticate", "")
        if answer.status_code != 401 or not challenge:
            return
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._login:
            self._known[kind] = self._login
        elif scheme.lower() == "bearer":
            token_answer = yield self._token_request(dict(re.findall(r'(\w+)="([^"]*)"', rest)))
            token_answer.read()
            if token := _token(token_answer):
                self._known[kind] = f"Bearer {token}"
        else:
            return
        request.headers["Authorization"] = self._known.get(kind, "")
        # Without a token as well: what answers last is taken for the registry.
        yield request

    def _token_request(self, challenge: Mapping[str, str]) -> httpx.Request:
        realm = challenge.get("realm", "")
        asked = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        request = httpx.Request("GET", httpx.URL(realm).copy_merge_params(asked))
        # A password never leaves by plain http because a secure registry said so.
        if self._login and (urlsplit(realm).scheme == "https" or not self._secure):
            request.headers["Authorization"] = self._login
        return request


def _may_be_unfinished(answer: httpx.Response) -> bool:
    """Whether it may say no more than that somebody is writing just then what we wanted to read.

    docker-registry writes the files in place in which it notes what a tag points at, and what a repository has.
    """
    return answer.status_code == 500 and answer.request.method in ("GET", "HEAD")


def _repository(path: str) -> str:
    return re.split(r"/(?:manifests|blobs|tags|referrers)/", path)[0]


def _token(answer: httpx.Response) -> str:
    try:
        said = answer.json() if answer.status_code == 200 else {}
    except ValueError:
        return ""
    if not isinstance(said, dict):
        return ""
    return str(said.get("token") or said.get("access_token") or "")


def _is_manifest(document: object) -> bool:
    """Whether these are data of an image's manifest, or of an index of manifests."""
    if not isinstance(document, dict):
        return False
    if "manifests" in document:
        return _are_descriptors(document["manifests"])
    return _is_descriptor(document.get("config")) and _are_descriptors(document.get("layers"))


def _are_descriptors(parts: object) -> bool:
    return isinstance(parts, list) and all(map(_is_descriptor, parts))


def _is_descriptor(part: object) -> bool:
    return (
        isinstance(part, dict)
        and isinstance(part.get("digest"), str)
        and _DIGEST.fullmatch(part["digest"]) is not None
        and isinstance(part.get("size"), int)
        and isinstance(part.get("annotations", {}), dict)
    )
