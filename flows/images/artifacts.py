"""Files that are attached to an image: pushed and fetched by the package oras, over our own connection.

The package knows what an artifact is made of, in which order it is stored, and how its parts are asked for. By itself
it would read the logins of ~/.docker, follow the registry to any address with them, read answers of any length, try
everything for two minutes, and compare no digest. So each of its requests goes through `Registry.relay`, and nothing
of it has a way to the network of its own. It lacks two things, which are here: the type of an artifact
(`artifactType`), and a manifest that is stored under its own digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests
from oras.auth.base import AuthBackend
from oras.container import Container
from oras.oci import Subject
from oras.provider import Registry as Oras

from flows.core import fence
from flows.core.outside import Answer
from flows.images.manifests import EMPTY, EMPTY_KIND, MANIFEST, Manifest, canonical, descriptor, digest_of, is_manifest
from flows.images.registry import MANIFEST_BYTES, Registry
from flows.images.registry_blobs import WHOLE_BYTES
from flows.images.registry_connection import ANSWER_BYTES

_STORED = (200, 201, 202)
_EMPTY_FILE = "empty.json"


class Artifacts(Oras):
    """Artifacts of one type in the repository of images; all failures are `RegistryError`.

    Args:
        registry: the connection, with its bounds and its login.
        kind: the media type that says what the artifacts are (`artifactType`).
    """

    def __init__(self, registry: Registry, kind: str) -> None:
        super().__init__(hostname=registry.host, insecure=not registry.secure)
        self.session.adapters.clear()  # a request that goes around `do_request` fails
        self.auth = _NoLogin()
        self._registry, self._kind, self._most = registry, kind, ANSWER_BYTES

    def attach(
        self, subject: Manifest, files: Mapping[str, tuple[str, bytes]], annotations: Mapping[str, str]
    ) -> dict[str, object]:
        """Store files as an artifact that refers to an image; returns how an index names it.

        Args:
            subject: the image.
            files: name → media type and content; a name is no path.
            annotations: of the artifact.
        """
        with TemporaryDirectory(prefix="refit-") as folder:
            inside, empty = Path(folder, "files"), Path(folder, _EMPTY_FILE)
            inside.mkdir()
            empty.write_bytes(EMPTY)
            for name, (_, content) in files.items():
                (inside / name).write_bytes(content)
            stored = self.push(
                self._container(subject.digest),
                files=[f"{inside / name}:{media_type}" for name, (media_type, _) in sorted(files.items())],
                disable_path_validation=True,
                manifest_config=f"{empty}:{EMPTY_KIND}",
                manifest_annotations=dict(annotations),
                subject=Subject(subject.media_type, subject.digest, len(subject.content)),
                quiet=True,
            )
        return descriptor(MANIFEST, stored.content, artifactType=self._kind, annotations=dict(annotations))

    def files(self, digest: str) -> Sequence[Mapping[str, Any]]:
        """Descriptors of the files of an artifact; empty if the registry has lost it."""
        try:
            document = self.get_manifest(self._container(digest), allowed_media_type=[MANIFEST])
        except _NotThere:
            return ()
        if not is_manifest(document):
            raise self._registry.garbage(f"{digest} is no manifest")
        return tuple(document.get("layers", ()))

    def fetch(self, file: Mapping[str, Any]) -> bytes:
        """The content of a file that a descriptor names.

        Raises:
            BlobLost: the registry has it no longer.
        """
        digest, self._most = str(file["digest"]), min(int(file["size"]), WHOLE_BYTES)
        response = self.get_blob(self._container(digest), digest)
        if response.status_code == 404:
            raise self._registry.lost(self._registry.repository, digest)
        self._check_200_response(response)
        return bytes(response.content)

    def _container(self, digest: str) -> Container:
        """A place in the registry, as the package has it; it would take the beginning of some names for a host."""
        container = Container(f"image@{digest}", registry=self._registry.host)
        container.namespace, container.repository = None, self._registry.repository
        return container

    # --- Methods that the package calls, with our own way in their place ------------------------------------------

    def do_request(
        self,
        url: str,
        method: str = "GET",
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        json: object = None,
        stream: bool = False,
    ) -> requests.Response:
        """Ask over our own connection; an answer that was asked for by digest has that digest."""
        if method not in ("GET", "HEAD"):
            fence.check()
        size = MANIFEST_BYTES if "/manifests/" in url else self._most
        # An upload that broke off is begun anew as a whole, by `put_upload`.
        answer = self._registry.relay(method, url, size=size, headers=headers, content=data, once=method == "PUT")
        digest = url.rpartition("/")[2]
        if method == "GET" and answer.status == 200 and (seen := digest_of(answer.content)) != digest:
            raise self._registry.garbage(f"the content of {digest} has the digest {seen}")
        return _Response(answer, self._registry)

    def put_upload(self, blob: str, container: Container, layer: Mapping[str, Any]) -> requests.Response:
        """Store a file in one piece, and again from the beginning if the connection breaks."""

        def attempt() -> Answer:
            return answer_of(Oras.put_upload(self, blob, container, layer))

        return _Response(self._registry.patiently(attempt), self._registry)

    def upload_manifest(self, manifest: dict[str, Any], container: Container) -> requests.Response:
        """Store the manifest under its own digest, with the type of the artifact."""
        content = canonical({**manifest, "artifactType": self._kind})
        self._registry.put_manifest(self._registry.repository, digest_of(content), content, MANIFEST)
        return _stored(content)

    def _get_location(self, r: requests.Response, container: Container) -> str:
        return str(self._registry.upload_location(answer_of(r)))

    def _check_200_response(self, response: requests.Response) -> None:
        if response.status_code == 404:
            raise _NotThere
        if response.status_code not in _STORED:
            self._registry.expect(answer_of(response), 200)


class _NotThere(Exception):
    """The registry has no such thing."""


class _NoLogin(AuthBackend):
    """No login of the package's own: the connection has one, and keeps to its own origin."""

    def load_configs(self, *_: object, **__: object) -> None:
        """Read no logins of other programs."""


class _Response(requests.Response):
    """An answer as the package expects it."""

    def __init__(self, answer: Answer, registry: Registry) -> None:
        super().__init__()
        self.answer, self._registry = answer, registry
        self.status_code, self._content, self.url = answer.status, answer.content, str(answer.url)
        self.headers.update(answer.headers)

    def json(self, **_: object) -> Any:
        """The content as data, which may be no JSON at all."""
        return self._registry.document(self.answer)


def answer_of(response: requests.Response) -> Answer:
    """The answer of our connection."""
    assert isinstance(response, _Response), "something went around our connection"
    return response.answer


def _stored(content: bytes) -> requests.Response:
    response = requests.Response()
    response.status_code, response._content = 201, content
    return response
