"""The makers of images: the people from whose own recipes they were made, by the label that the publisher writes.

The labels of an image never change, so they are read once. The registry is given a few seconds in all, and is
left alone for a while about an image of which it said nothing: pages and moves wait for the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property, partial
from threading import Lock
from time import monotonic

from cachetools import LRUCache, TTLCache
from sqlalchemy import Engine

from flows.core import outside
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.core.threads import each
from flows.images.registry import Registry
from flows.images.registry_errors import BlobLost, NoImage
from flows.publishing.own_profiles import OwnProfiles, repository

logger = logging.getLogger("refit.registry")

SECONDS = 5.0  # for all questions of one call
_AGAIN_SECONDS = 20.0
_MOST_KNOWN = 10_000
_MOST_PEOPLE = 5  # in whose repositories an image is looked for


class Makers:
    """Finds out who made images; may be asked by several threads."""

    def __init__(self, settings: Settings, database: Engine, seconds: float = SECONDS) -> None:
        self._settings, self._seconds, self._profiles = settings, seconds, OwnProfiles(database)
        self._known: LRUCache[str, str] = LRUCache(_MOST_KNOWN)
        self._failed: TTLCache[str, None] = TTLCache(_MOST_KNOWN, _AGAIN_SECONDS)
        self._lock = Lock()

    def of(self, images: Mapping[str, str]) -> dict[str, str | None]:
        """Digest → the person from whose own recipe an image was made; empty: it is of the catalog; none: unknown.

        Where the registry doesn't say, an image of a name that no person ever had is of the catalog.

        Args:
            images: digest → stem of the profile whose image it is.
        """
        with self._lock:
            makers: dict[str, str | None] = {image: self._known[image] for image in images if image in self._known}
            pending = [image for image in images if image not in makers and image not in self._failed]
        until = monotonic() + self._seconds
        labels = each(partial(self._label, images, until), pending)
        with self._lock:
            self._known.update({image: maker for image, maker in labels.items() if maker is not None})
            self._failed.update({image: None for image, maker in labels.items() if maker is None})
        makers |= labels
        silent = [image for image in images if makers.get(image) is None]
        taken = self._profiles.had_by({images[image] for image in silent})
        return {**makers, **{image: None if taken[images[image]] else "" for image in silent}}

    @cached_property
    def _registry(self) -> Registry:
        impatient = self._settings.model_copy(update={"registry_wait_seconds": 0.0})
        return Registry(impatient, seconds=self._seconds)

    def _label(self, stems: Mapping[str, str], until: float, image: str) -> str | None:
        try:
            with outside.within(max(0.0, until - monotonic())):
                return self._read(image, stems[image])
        except RefitError as error:
            logger.info("nobody can tell who made the image %s: %s", image, error.what)
            return None

    def _read(self, image: str, stem: str) -> str | None:
        """The label of an image; empty: it has none; none: no repository has it.

        A registry may collect an image that no tag names: in the repository of all those of people have none.
        """
        people = self._profiles.had_by([stem])[stem][:_MOST_PEOPLE]
        for place in (self._settings.repository, *(repository(self._settings.repository, owner) for owner in people)):
            try:
                manifest = self._registry.manifest(place, image, recall=True)
                labels = self._registry.config(place, manifest)["config"].get("Labels")
            except (NoImage, BlobLost):
                continue
            return str(labels.get(OWNER_LABEL, "")) if isinstance(labels, dict) else ""
        return None
