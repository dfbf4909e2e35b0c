"""A registry in memory, with the referrers API or without it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from flows.core.settings import Settings
from flows.images.manifests import MANIFEST, canonical, descriptor, digest_of
from tests.support.small_registry import HELLO, NOT_THERE, Answer

UPLOAD: Answer = (202, {"Location": "uploads/1"}, b"")
IMAGES = Settings().repository


@dataclass
class Fake:
    """A registry in memory. One that `tells` lists what refers to an image, the newest first, one on each page."""

    tells: bool
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    referring: list[bytes] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __call__(self, request: BaseHTTPRequestHandler) -> Answer:
        address = urlsplit(request.path)
        options = {name: value for name, [value] in parse_qs(address.query).items()}
        self.asked.append(f"{request.command} {address.path}")
        if address.path == "/v2/":
            return HELLO
        repository, sort, name = re.split("/(manifests|blobs|tags|referrers)/", address.path.removeprefix("/v2/"))
        if sort == "referrers":
            return self._referrers(name, address.path, int(options.get("page", "0")))
        if sort == "tags":
            return (
                200,
                {},
                canonical({"tags": [tag for at, tag in self.manifests if at == repository and ":" not in tag]}),
            )
        if request.command == "POST":
            return self._begin(repository, options["mount"], options["from"]) if options else UPLOAD
        if request.command == "PUT":
            content: bytes = request.body  # type: ignore[attr-defined]
            return self._put(repository, name, content) if sort == "manifests" else self._store(repository, content)
        content = (self.manifests if sort == "manifests" else self.blobs).get((repository, name))
        return NOT_THERE if content is None else (200, {"Content-Type": MANIFEST}, content)

    def _begin(self, repository: str, digest: str, source: str) -> Answer:
        return self._store(repository, self.blobs[source, digest]) if (source, digest) in self.blobs else UPLOAD

    def _store(self, repository: str, content: bytes) -> Answer:
        self.blobs[repository, digest_of(content)] = content
        return 201, {}, b""

    def _put(self, repository: str, name: str, content: bytes) -> Answer:
        document = json.loads(content)
        if any((repository, entry["digest"]) not in self.manifests for entry in document.get("manifests", ())):
            return 400, {}, b"MANIFEST_BLOB_UNKNOWN"  # as docker-registry does
        self.manifests[repository, name] = self.manifests[repository, digest_of(content)] = content
        if "subject" in document and content not in self.referring:
            self.referring.append(content)
        return 201, {}, b""

    def _referrers(self, subject: str, path: str, page: int) -> Answer:
        if not self.tells:
            return NOT_THERE
        referrers = [content for content in reversed(self.referring) if subject == _subject(content)]
        listed = [
            descriptor(
                MANIFEST, content, **{name: json.loads(content)[name] for name in ("artifactType", "annotations")}
            )
            for content in referrers[page : page + 1]
        ]
        following = {"Link": f'<{path}?page={page + 1}>; rel="next"'} if referrers[page + 1 :] else {}
        return 200, following, canonical({"schemaVersion": 2, "manifests": listed})

    def lose(self, digest: str) -> None:
        """Have no longer what images have under this digest, and still tell its referrers."""
        for kept in (self.manifests, self.blobs):
            for where in [at for at, content in kept.items() if at[0] == IMAGES and digest_of(content) == digest]:
                del kept[where]


def _subject(content: bytes) -> str:
    return str(json.loads(content)["subject"]["digest"])
