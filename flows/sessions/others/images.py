"""The images of sessions that others own: which of them are Refit's, and of which profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from flows.catalog.model import Access
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.publishing.publish import access_of
from flows.sessions.kubernetes.manifests import ClusterOptions
from flows.sessions.model import HomeRef, Session, TokenRef

# As they stand in records of moves from the time when they were paths.
_NO_HOME, _NO_TOKEN = HomeRef("."), TokenRef(".")


@dataclass(frozen=True)
class OwnImage:
    """One of Refit's images.

    Attributes:
        digest: of it.
        profile: that it was built for.
        release: the one of its profile.
        access: how the IDE in it is reached.
    """

    digest: str
    profile: str
    release: str
    access: Access


def session_on(image: OwnImage | None, *, name: str, environment: Mapping[str, str], owned_by: str) -> Session:
    """A session of somebody else's as Refit writes it: on one of its images, or on another. Its home is its owner's."""
    return Session(
        name=name,
        profile=image.profile if image else "",
        release=image.release if image else "",
        image=image.digest if image else "",
        uid=0,
        home=_NO_HOME,
        token_ref=_NO_TOKEN,
        access=image.access if image else Access(),
        environment=dict(environment),
        owned_by=owned_by,
    )


class OwnImages:
    """Refit's images, by the names under which others pull them."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is asked of the registry yet."""
        self._registry, self._repository = Registry(settings), settings.repository
        self._options = ClusterOptions.of(settings)
        hosts = {settings.registry_host, self._options.registry}
        self._names = tuple(f"{host}/{settings.repository}" for host in hosts)
        self._read = cache(self._read_image)

    def reference(self, digest: str) -> str:
        """The name under which others pull the image with this digest."""
        return self._options.reference(digest)

    def of(self, reference: str, running: str = "") -> OwnImage | None:
        """The image of this name; none: it isn't one of Refit's, or there is none.

        Args:
            reference: as people write it, with a tag or a digest.
            running: digest of the image that really runs by this name; empty: none does.

        Raises:
            RefitError: the registry doesn't answer.
        """
        name = next(
            (repository for repository in self._names if reference.startswith((f"{repository}@", f"{repository}:"))),
            None,
        )
        if name is None:
            return None
        mark, rest = reference[len(name)], reference[len(name) + 1 :]
        digest = rest if mark == "@" else rest.partition("@")[2] or running
        digest = digest or self._registry.digest(self._repository, rest) or ""
        return self._read(digest) if digest else None

    def _read_image(self, digest: str) -> OwnImage | None:
        if (manifest := self._registry.find(self._repository, digest)) is None:
            return None
        labels = self._registry.config(self._repository, manifest).get("config", {}).get("Labels") or {}
        profile, release = str(labels.get("io.refit.profile", "")), str(labels.get("io.refit.release", ""))
        access = access_of(digest, self._registry)
        return OwnImage(digest, profile, release, access) if profile and release and access else None
