"""Blobs of an image registry: bytes that are known by their digest, and compared with it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from functools import partial
from io import SEEK_END, BytesIO
from tempfile import TemporaryFile
from typing import IO
from urllib.parse import urlencode

import httpx

from flows.core.outside import Answer, Bounds
from flows.core.threads import each
from flows.images.manifests import digest_of
from flows.images.patience import BUSY
from flows.images.registry_connection import ANSWER_BYTES, LONGER, RegistryConnection
from flows.images.registry_errors import BlobLost, RegistryError

_SMALL = 1 << 16  # bytes
_CHUNK = 1 << 18  # bytes
WHOLE_BYTES = 256 << 20  # of a blob that is read at once


class Blobs(RegistryConnection):
    """Reads, stores and mounts blobs; all failures are `RegistryError`."""

    def blob(self, repository: str, digest: str, size: int) -> bytes:
        """A blob as a whole, of this size: for configurations and evidence, not for layers.

        Raises:
            BlobLost: the repository has no such blob.
        """
        most = min(size, WHOLE_BYTES)
        answer = self._ask("GET", f"{repository}/blobs/{digest}", size=most, seconds=self._carrying(most))
        if answer.status == 404:
            raise self.lost(repository, digest)
        self.expect(answer, 200)
        if (seen := digest_of(answer.content)) != digest:
            raise self.garbage(f"the content of the blob {digest} has the digest {seen}")
        return answer.content

    def lost(self, repository: str, digest: str) -> RegistryError:
        """The error for a blob that isn't given: a build that looks for it by HEAD would never build it again."""
        if not self.has_blob(repository, digest):
            return BlobLost(self.host, repository, digest)
        again = "`refit down` and `refit up`" if self._embedded else "its owner restarts it"
        return RegistryError(
            f"The registry {self.host} says that it has {digest} of {repository}, and doesn't give it.",
            why="It answers 200 to HEAD and 404 to GET: its index and its storage differ.",
            hint=f"let it forget that ({again}), then run `refit build`: it builds again what is not whole.",
        )

    def _carrying(self, size: int) -> float:
        """Seconds that so many bytes may take on their way."""
        return self._seconds + size / self._rate

    def has_blob(self, repository: str, digest: str) -> bool:
        """Whether the repository holds this blob."""
        answer = self._ask("HEAD", f"{repository}/blobs/{digest}")
        if answer.status != 404:
            self.expect(answer, 200)
        return answer.status == 200

    def absent(self, repository: str, digests: Collection[str]) -> tuple[str, ...]:
        """Those of these blobs that the repository doesn't hold; asked at once."""
        presence = each(partial(self.has_blob, repository), digests)
        return tuple(digest for digest in digests if not presence[digest])

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

        answer = self.patiently(attempt)
        if answer.status == 404:
            raise self.lost(repository, digest)
        self.expect(answer, 200)
        if (got := f"sha256:{seen.hexdigest()}") != digest:
            raise self.garbage(f"the content of the blob {digest} has the digest {got}")
        target.seek(0)

    def see_where_uploads_go(self, repository: str) -> None:
        """Begin an upload and give it up: a library would send the password to wherever the registry says.

        Raises:
            RegistryError: that is another address.
        """
        if self._user:
            self._send("DELETE", self._begun(repository))

    def _begun(self, repository: str) -> httpx.URL:
        """Where an upload goes that was begun just now."""
        answer = self._ask("POST", f"{repository}/blobs/uploads/")
        self.expect(answer, 202)
        return self.upload_location(answer)

    def try_storing(self) -> None:
        """Let the registry store something and forget it again: buildah doesn't say why a push fails."""
        location = self._begun("refit/probe")
        kind = {"Content-Type": "application/octet-stream"}
        self.expect(self._send("PATCH", location, content=bytes(1 << 20), headers=kind), 202)
        self._send("DELETE", location)

    def mount(self, repository: str, digest: str, source: str, size: int) -> None:
        """Let `repository` have a blob, of this size, that `source` holds: by mount, else by copying it."""
        if self.has_blob(repository, digest):
            return
        answer = self._ask("POST", f"{repository}/blobs/uploads/?{urlencode({'mount': digest, 'from': source})}")
        if answer.status != 201:
            self.expect(answer, 202)
            self._send("DELETE", self.upload_location(answer))
            with TemporaryFile() as copy:
                self.get_file(source, digest, copy, size)
                self._upload(repository, digest, copy)

    def _upload(self, repository: str, digest: str, content: IO[bytes]) -> None:
        self._make_sure()
        size = content.seek(0, SEEK_END)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        begin, carry = Bounds(ANSWER_BYTES, self._seconds), LONGER * self._seconds + size / self._rate

        def attempt() -> Answer:
            # A registry keeps the part that it got before a connection broke: each attempt needs an upload of its own.
            begun = self._follow("POST", f"{self._base}{repository}/blobs/uploads/", begin)
            if begun.status in BUSY:
                return begun
            self.expect(begun, 202)
            location = self.upload_location(begun).copy_merge_params({"digest": digest})
            return self._follow("PUT", location, Bounds(ANSWER_BYTES, carry), headers=headers, content=_Whole(content))

        self.expect(self.patiently(attempt), 201)

    def upload_location(self, begun: Answer) -> httpx.URL:
        """Where an upload goes that was begun."""
        return self._own(begun, begun.headers.get("location", ""), "an upload")

    def _dropped(self, repository: str, what: str) -> RegistryError:
        """The error for what a registry has taken, and doesn't have."""
        return RegistryError(
            f"The image registry {self.host} did not keep {what} in {repository}.",
            why="It said that it has stored that. Somebody has deleted it since, or the registry loses what it gets.",
            hint="look into the registry's log and storage (the embedded one's are `logs` and `registry` in Refit's "
            "home), then run this again.",
        )


class _Whole:
    """The content of a file from its beginning, whenever it is sent, and sent again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk
