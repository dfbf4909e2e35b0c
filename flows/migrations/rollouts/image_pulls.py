"""Pulls of images that sessions are to be moved to, made before anybody has to wait for them."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress

from cachetools import TTLCache

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.host import tools
from flows.migrations.planning.rollout import Decision
from flows.sessions.containers.pulls import to_pull
from flows.sessions.engine import Engine

# How many times as large a layer is when it is unpacked, and bytes that pulls leave to everybody else.
_UNPACKED, _SPARE = 3, 1 << 30


class ImagePulls:
    """Images that this machine still has to pull; a size that was looked up is remembered for a look's time."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings, self._engine = settings, engine
        self._sizes: TTLCache[str, int] = TTLCache(1000, settings.migration.poll_minutes * 60)

    def sizes(self, images: Collection[str]) -> dict[str, int]:
        """Image → bytes that have to be pulled before anybody can move to it, as far as the registry tells.

        Where sessions run elsewhere, nobody knows: a move pulls its image before anybody waits.
        """
        if not self._engine.on_this_machine:
            return {}
        if unknown := images - self._sizes.keys():
            with suppress(RefitError):
                self._sizes.update(dict.fromkeys(unknown, 0) | to_pull(self._settings, unknown))
        return {image: size for image in images if (size := self._sizes.get(image, 0))}

    def fetch(self, decisions: Iterable[Decision]) -> tuple[str, ...]:
        """Pull what has to be pulled before sessions can be moved that have a time; returns these images.

        Each move to an image that can't be pulled finds out by itself why.
        """
        missing = {line.new for line in decisions if line.at and self._sizes.get(line.new)}
        for image in sorted(missing):
            with suppress(RefitError):
                self._engine.pull(image)
            self._sizes[image] = 0
        return tuple(sorted(missing))


def room_for_images(settings: Settings) -> int:
    """Compressed bytes of images for which this machine has room."""
    storage = tools.containers(settings)
    disk = storage if storage.is_dir() else settings.folder()
    return (shutil.disk_usage(disk).free - _SPARE) // _UNPACKED
