"""The result of publishing one image: plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """The image of a profile in the registry.

    Attributes:
        profile: stem of its tags.
        tag: the date tag that names it.
        digest: the image's, with the labels of the release.
        content_digest: that of the unlabelled stage; the same in every release that ships the same content.
        size: bytes (compressed) of all its layers.
        new: the alias of its profile and release moved to it now.
        seconds: how long its checks took when they were made.
    """

    profile: str
    tag: str
    digest: str
    content_digest: str
    size: int
    new: bool
    seconds: float = 0.0
