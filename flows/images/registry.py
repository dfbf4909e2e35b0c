"""A client of image registries (OCI distribution), as thin as Refit needs it.

Digests are computed from the bytes as they came, never from parsed and written-again JSON, and compared with what the
registry says.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryFile
from typing import IO, Any
from urllib.parse import urlsplit

import httpx

from flows.errors import RefitError
from flows.settings import Settings

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
_ACCEPTED = ", ".join((MANIFEST, INDEX, "application/vnd.docker.distribution.manifest.v2+json"))
ATTEMPTS = 4
_PAUSE_SECONDS = 0.2
_BUSY = (429, 502, 503, 504)


class RegistryError(RefitError):
    """The registry can't be reached, refuses, is full, or doesn't answer as a registry does."""


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
        layers = self.document.get("layers", ())
        return sum(int(part["size"]) for part in (self.document.get("config", {"size": 0}), *layers))


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
            verify=ssl.create_default_context(cafile=settings.ca_bundle) if self.secure else False,
            timeout=httpx.Timeout(300.0, connect=5.0),
            follow_redirects=True,
            # A proxy for the outside world has no way to a registry on this machine's loopback.
            trust_env=self.secure,
        )
        self._is_registry = False

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
        return answer.headers.get("docker-content-digest") or self.manifest(repository, reference).digest

    def find(self, repository: str, reference: str) -> Manifest | None:
        """The manifest that a tag or digest names; none if the registry has it not."""
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
        if not isinstance(self._json(answer), dict):
            raise self._garbage(f"{repository}@{reference} is no manifest")
        return manifest

    def manifest(self, repository: str, reference: str) -> Manifest:
        """As `find`, where it has to be there."""
        manifest = self.find(repository, reference)
        if manifest is None:
            raise RegistryError(
                f"The registry {self.host} has no {repository}:{reference}.",
                why="It was never pushed, or was deleted there.",
                fix="build it with `refit build`.",
            )
        return manifest

    def config(self, repository: str, manifest: Manifest) -> dict[str, Any]:
        """The configuration of an image."""
        return dict(json.loads(self.blob(repository, str(manifest.document["config"]["digest"]))))

    def blob(self, repository: str, digest: str) -> bytes:
        """A blob as a whole: for configurations and evidence, not for layers."""
        answer = self._ask("GET", f"{repository}/blobs/{digest}")
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
        """Store a blob unless it is there; returns its digest."""
        digest = digest_of(content)
        if not self.has_blob(repository, digest):
            answer = self._ask("POST", f"{repository}/blobs/uploads/")
            self._expect(answer, 202)
            self._upload(answer, digest, content)
        return digest

    def put_manifest(self, repository: str, reference: str, content: bytes, media_type: str) -> str:
        """Store a manifest under a tag or its own digest; returns its digest."""
        path = f"{repository}/manifests/{reference}"
        answer = self._ask("PUT", path, content=content, headers={"Content-Type": media_type})
        self._expect(answer, 201)
        digest = digest_of(content)
        if answer.headers.get("docker-content-digest", digest) != digest:
            raise self._garbage(f"it stored {digest} as {answer.headers['docker-content-digest']}")
        return digest

    def try_storing(self) -> None:
        """Let the registry store something and forget it again: whoever pushes through buildah isn't told why not."""
        begun = self._ask("POST", "refit/probe/blobs/uploads/")
        self._expect(begun, 202)
        location = str(begun.url.join(begun.headers.get("location", "")))
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
            with TemporaryFile() as copy:
                self._download(source, digest, copy)
                self._upload(answer, digest, copy)

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository; none if it doesn't exist."""
        found: list[str] = []
        page: str | None = f"{repository}/tags/list?n=1000"
        while page:
            answer = self._ask("GET", page)
            if answer.status_code == 404:
                break
            self._expect(answer, 200)
            found += self._json(answer).get("tags") or ()
            following = answer.links.get("next", {}).get("url")
            page = str(answer.url.join(following)) if following else None
        return tuple(found)

    def referrers(self, repository: str, digest: str) -> list[dict[str, Any]] | None:
        """Descriptors of what refers to a manifest; none if this registry can't tell."""
        answer = self._ask("GET", f"{repository}/referrers/{digest}")
        if answer.status_code in (400, 404, 405):
            return None
        self._expect(answer, 200)
        return list(self._json(answer).get("manifests") or ())

    def credentials(self) -> bytes:
        """The content of an auth file for buildah, skopeo and podman."""
        word = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        return canonical({"auths": {self.host: {"auth": word}} if self._user else {}})

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        if not self._is_registry:
            # Any web server answers "404"; only of a registry it means that an image isn't there.
            self.ping()
        return self._send(method, path, **options)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Accept": _ACCEPTED if "/manifests/" in path else "*/*", **options.pop("headers", {})}
        problem, speaks_http = "", True
        for attempt in range(ATTEMPTS):
            time.sleep(_PAUSE_SECONDS * (2**attempt - 1))
            try:
                answer = self._client.request(method, path, headers=headers, **options)
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
                speaks_http = not isinstance(error, httpx.RemoteProtocolError)
                continue
            if answer.status_code not in _BUSY:
                return answer
            problem, speaks_http = f"it answers {answer.status_code}", True
        if not speaks_http:
            raise self._garbage(problem)
        raise RegistryError(
            f"The image registry {self.host} doesn't answer.",
            why=f"Asked {ATTEMPTS} times: {problem}.",
            fix="start the embedded one with `refit up`, or correct `registry` or `registry_port` in settings.yaml.",
        )

    def _download(self, repository: str, digest: str, target: IO[bytes]) -> None:
        seen = hashlib.sha256()
        with self._client.stream("GET", f"{repository}/blobs/{digest}") as answer:
            if answer.status_code != 200:
                answer.read()
            self._expect(answer, 200)
            for chunk in answer.iter_bytes():
                seen.update(chunk)
                target.write(chunk)
        if f"sha256:{seen.hexdigest()}" != digest:
            raise self._garbage(f"the blob {digest} has the digest sha256:{seen.hexdigest()}")
        target.seek(0)

    def _upload(self, begun: httpx.Response, digest: str, content: bytes | IO[bytes]) -> None:
        location = begun.url.join(begun.headers.get("location", ""))
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(content, bytes):
            headers["Content-Length"] = str(len(content))
        else:
            headers["Content-Length"] = str(content.seek(0, 2))
            content.seek(0)
        answer = self._send(
            "PUT", str(location.copy_merge_params({"digest": digest})), content=content, headers=headers
        )
        self._expect(answer, 201)

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
            token = _token(token_answer)
            if not token:
                return
            self._known[kind] = f"Bearer {token}"
        else:
            return
        request.headers["Authorization"] = self._known[kind]
        yield request

    def _token_request(self, challenge: Mapping[str, str]) -> httpx.Request:
        realm = challenge.get("realm", "")
        asked = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        request = httpx.Request("GET", httpx.URL(realm).copy_merge_params(asked))
        # A password never leaves by plain http because a secure registry said so.
        if self._login and (urlsplit(realm).scheme == "https" or not self._secure):
            request.headers["Authorization"] = self._login
        return request


def _repository(path: str) -> str:
    return re.split(r"/(?:manifests|blobs|tags|referrers)/", path)[0]


def _token(answer: httpx.Response) -> str:
    try:
        said = answer.json() if answer.status_code == 200 else {}
    except ValueError:
        return ""
    return str(said.get("token") or said.get("access_token") or "")
