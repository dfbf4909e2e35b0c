"""A client of image registries (OCI distribution), as thin as Refit needs it.

Digests are computed from the bytes as they came, never from parsed and written-again JSON, and compared with what the
registry says.

A registry isn't trusted. Password and tokens go to its own origin alone (see `registry_login`), bodies and requests
have limits (see `outside`), and what is known by a digest is compared with it. Uploads and further pages of a list stay
at its origin; only what is read is followed to other addresses, as registries send for blobs to object stores, and
there it is asked for without a login.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

import httpx
from cachetools import LRUCache

from flows.core import fence, outside
from flows.core.outside import Answer
from flows.core.settings import Settings
from flows.core.threads import each
from flows.core.waiting import wait_until
from flows.images import patience
from flows.images.manifests import (
    DIGEST,
    EMPTY,
    EMPTY_KIND,
    Manifest,
    canonical,
    descriptor,
    digest_of,
    is_descriptor,
    is_manifest,
)
from flows.images.patience import ATTEMPTS
from flows.images.registry_blobs import Blobs
from flows.images.registry_connection import LONGER, QUESTION_SECONDS, parsed, shown
from flows.images.registry_errors import NoImage, RegistryError

MANIFEST_BYTES = 4 << 20  # what the specification lets every registry refuse
CONFIG_BYTES = 16 << 20
LIST_BYTES = 16 << 20  # of all pages together: the keys of some 200,000 stages
_MOST_PAGES = 1000
_NEXT = re.compile(r"""<([^>]*)>\s*;[^,]*\brel="?next\b""")
# The specification's grammar of tags.
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_REMEMBERED = 64 << 20  # bytes of manifests, and of configurations
Content = TypeVar("Content")


class Registry(Blobs):
    """The registry of the settings. All failures are `RegistryError`.

    `repository` is the one that all images sit in, `stages` the one of the stages that they are made of.

    Args:
        settings: where it is, and who we are there.
        seconds: the most that a request may take as a whole; one that carries a blob may take longer.
        repository: the one of a person's own images; empty: that of the settings. The stages are those of all.
    """

    def __init__(self, settings: Settings, *, seconds: float = QUESTION_SECONDS, repository: str = "") -> None:
        super().__init__(settings, seconds=seconds)
        self.repository, self.stages = repository or settings.repository, f"{settings.repository}/stages"
        self._manifests, self._configs = _Memory[Manifest](), _Memory[Mapping[str, Any]]()
        self._tags, self._with_empty = dict[str, frozenset[str]](), set[str]()

    def digest(self, repository: str, reference: str) -> str | None:
        """The digest of the manifest that a tag or digest names; none if the registry has it not."""
        answer = self._ask("HEAD", f"{repository}/manifests/{reference}")
        if answer.status == 404:
            return None
        self.expect(answer, 200)
        header = str(answer.headers.get("docker-content-digest", ""))
        return header if DIGEST.fullmatch(header) else self.manifest(repository, reference).digest

    def digests(self, repository: str, references: Collection[str]) -> dict[str, str]:
        """Tag or digest → digest, of those manifests that the registry has; asked at once."""
        digests = each(partial(self.digest, repository), references)
        return {reference: digest for reference, digest in digests.items() if digest}

    def find(self, repository: str, reference: str, *, recall: bool = False) -> Manifest | None:
        """The manifest that a tag or digest names; none if the registry has it not.

        With `recall` it isn't asked for one that it had before, and may have lost since: its content is the same.
        """
        if recall and (kept := self._manifests.get(repository, reference)):
            return kept
        answer = self._ask("GET", f"{repository}/manifests/{reference}", size=MANIFEST_BYTES)
        if answer.status == 404:
            return None
        self.expect(answer, 200)
        media_type = answer.headers.get("content-type", "").partition(";")[0]
        manifest = Manifest(digest_of(answer.content), media_type, answer.content)
        header = answer.headers.get("docker-content-digest", manifest.digest)
        digest = reference if reference.startswith("sha256:") else header
        if manifest.digest != digest:
            raise self.garbage(f"the content of {repository}@{shown(digest)} has the digest {manifest.digest}")
        if header != digest:
            raise self.garbage(f"it calls {repository}@{digest} {shown(header)!r}")
        if not is_manifest(self.document(answer)):
            raise self.garbage(f"{repository}@{reference} is no manifest")
        self._manifests.put(repository, manifest.digest, manifest, len(manifest.content))
        return manifest

    def manifest(self, repository: str, reference: str, *, recall: bool = False) -> Manifest:
        """As `find`, where it has to be there."""
        manifest = self.find(repository, reference, recall=recall)
        if manifest is None:
            raise NoImage(
                f"The registry {self.host} has no {repository}:{reference}.",
                why="It was never pushed, or was deleted there.",
                hint="build it with `refit build`.",
            )
        return manifest

    def config(self, repository: str, manifest: Manifest) -> Mapping[str, Any]:
        """The configuration of an image, not to be changed; its `config` is an object. Asked for once."""
        named = manifest.document.get("config", {})
        digest = str(named.get("digest"))
        if (kept := self._configs.get(repository, digest)) is not None:
            return kept
        content = self.blob(repository, digest, min(int(named.get("size", 0)), CONFIG_BYTES))
        try:
            config = parsed(content)
        except (ValueError, RecursionError):
            config = None
        if not isinstance(config, dict) or not isinstance(config.get("config"), dict):
            raise self.garbage(f"{digest} of {repository} is no configuration of an image")
        self._configs.put(repository, digest, config, len(content))
        return config

    def put_config(self, repository: str, content: bytes) -> None:
        """Store the configuration of an image, which nobody has to ask for then."""
        self._configs.put(repository, self.put_blob(repository, content), json.loads(content), len(content))

    def missing(self, repository: str, manifest: Manifest) -> tuple[str, ...]:
        """The digests of the configuration and the layers that a manifest names and the repository has lost."""
        return self.absent(repository, tuple(dict.fromkeys(manifest.part_digests)))

    def put_manifest(self, repository: str, reference: str, content: bytes, media_type: str) -> str:
        """Store a manifest under a tag or its own digest; returns its digest."""
        path = f"{repository}/manifests/{reference}"

        def put() -> Answer:
            fence.check()
            return self._ask("PUT", path, content=content, headers={"Content-Type": media_type})

        def knows_all(answer: Answer) -> bool:
            return answer.status != 400 or "BLOB_UNKNOWN" not in answer.text

        # docker-registry doesn't know a blob for the moment in which somebody else stores it, too.
        answer = wait_until(put, enough=knows_all, attempts=ATTEMPTS, pause=patience.pause)
        if not knows_all(answer):
            raise self._dropped(repository, f"what {digest_of(content)} names")
        self.expect(answer, 201)
        digest = digest_of(content)
        if (header := answer.headers.get("docker-content-digest", digest)) != digest:
            raise self.garbage(f"it stored {digest} as {shown(header)!r}")
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
                hint="switch deleting on in its configuration (docker-registry: `storage.delete.enabled: true`).",
            )
        if answer.status != 404:
            self.expect(answer, 202)
        return answer.status == 202

    def tags(self, repository: str) -> tuple[str, ...]:
        """All tags of a repository; none if it doesn't exist."""
        tags = tuple(self._pages(f"{repository}/tags/list?n=1000", "tags", _is_tag) or ())
        self._tags[repository] = frozenset(tags)
        return tags

    def may_have(self, repository: str, tag: str) -> bool:
        """Whether a repository may have a tag by the last list of its tags: nobody asked for one, or it was there."""
        return (listed := self._tags.get(repository)) is None or tag in listed

    def put_empty(self, repository: str) -> dict[str, object]:
        """How a manifest names the configuration of what is no image; it is there. Stored once a run."""
        if repository not in self._with_empty:
            self.put_blob(repository, EMPTY)
            self._with_empty.add(repository)
        return descriptor(EMPTY_KIND, EMPTY)

    def referrers(self, repository: str, digest: str) -> list[dict[str, Any]] | None:
        """Descriptors of what refers to a manifest, in no order; none if this registry can't tell."""
        return self._pages(f"{repository}/referrers/{digest}", "manifests", is_descriptor, (400, 404, 405))

    def _pages(
        self, first: str, name: str, belongs: Callable[[object], bool], no_list: Collection[int] = (404,)
    ) -> list[Any] | None:
        """A list with all its pages; none if the registry answers that there is no such list."""
        entries: list[Any] = []
        page, seen, remaining = httpx.URL(self._base + first), set[httpx.URL](), LIST_BYTES
        with outside.within(LONGER * self._seconds):
            while len(seen) < _MOST_PAGES:
                seen.add(page)
                answer = self._ask("GET", page, size=remaining)
                if answer.status in no_list:
                    return None
                self.expect(answer, 200)
                remaining -= len(answer.content)
                some = self._listed(answer, name, belongs)
                following = _NEXT.search(answer.headers.get("link", ""))
                if following is None:
                    return [*entries, *some]
                page = self._own(answer, following[1], "the next page")
                if page in seen or all(item in entries for item in some):
                    break
                entries += some
        raise self.garbage(f"its list of {name} at {first} has no end")

    def credentials(self) -> bytes:
        """The content of an auth file for buildah, skopeo and podman."""
        word = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        return canonical({"auths": {self.host: {"auth": word}} if self._user else {}})

    def _listed(self, answer: Answer, name: str, belongs: Callable[[object], bool]) -> list[Any]:
        """A list in an object; registries write null for one that is empty."""
        document = self.document(answer)
        if isinstance(document, dict):
            entries = [] if document.get(name) is None else document[name]
            if isinstance(entries, list) and all(map(belongs, entries)):
                return entries
        raise self.garbage(f"its answer to {shown(answer.url.path)} has no list of {name}")


class _Memory(Generic[Content]):
    """A cache of the blobs and manifests that were asked for or stored last: the content of a digest never changes."""

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


def _is_tag(name: object) -> bool:
    return isinstance(name, str) and _TAG.fullmatch(name) is not None
