"""Data on this machine that can be had again or isn't wanted any more: copies of stages and images, old logs."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.stages import local_name

_REFUSED = (0, 1, 2)  # an image that a container uses, or that another one stands on


def places(settings: Settings) -> dict[str, Path]:
    """Folders in which a prune frees space: name → folder."""
    own = {} if settings.registry else {"registry": settings.home / "registry"}
    stores = {"builds": tools.builds(settings), "images": tools.containers(settings)}
    return {**own, **stores, "caches": settings.home / "cache", "logs": settings.home / "logs"}


def sizes(settings: Settings) -> dict[str, int]:
    """Bytes on the disk that each of `places` takes, without mounts in it."""
    existing = {name: path for name, path in places(settings).items() if path.exists()}
    return {name: _size(path) for name, path in existing.items()}


def _size(path: Path) -> int:
    # Programs make and remove files while it counts: then it says so by its exit code, and has counted all others.
    counted = command.run(
        ["du", "--summarize", "--one-file-system", "--block-size=1", path], root=True, accepted=(0, 1)
    )
    return int(counted.stdout.split()[0])


def clear_builds(settings: Settings, stages: Collection[str]) -> None:
    """Remove from buildah's storage all but the stages with these digests; nothing may be built meanwhile."""
    if not tools.builds(settings).is_dir():
        return
    names = {local_name(digest) for digest in stages}
    listed = command.run([*tools.buildah(settings), "images", "--all", "--json"], root=True).stdout
    unwanted = [image["id"] for image in json.loads(listed or "[]") or [] if not names & set(image["names"] or ())]
    if unwanted:
        command.run([*tools.buildah(settings), "rmi", "--force", *unwanted], root=True, accepted=_REFUSED)


def clear_images(settings: Settings, images: Collection[str]) -> None:
    """Remove from Podman's storage what no container uses, all but the images with these digests."""
    if not tools.containers(settings).is_dir():
        return
    listed = command.run([*tools.podman(settings), "images", "--format", "json"], root=True).stdout
    for image in json.loads(listed or "[]"):
        digests = {image.get("Digest"), *(name.partition("@")[2] for name in image.get("RepoDigests") or ())}
        if not digests & set(images) and not image.get("Containers"):
            command.run([*tools.podman(settings), "rmi", image["Id"]], root=True, accepted=_REFUSED)


def clear_logs(settings: Settings, now: datetime) -> None:
    """Remove logs of stages, locks and moves that are older than the settings allow; those of services stay."""
    oldest = (now - timedelta(days=settings.keep_logs)).timestamp()
    for log in (settings.home / "logs").glob("*/*"):
        if log.is_file() and log.stat().st_mtime < oldest:
            log.unlink(missing_ok=True)
