"""How things are written in messages for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def some(things: Iterable[object], most: int = 10, between: str = ", ") -> str:
    """The first `most` of some things, and how many more there are."""
    words = [str(thing) for thing in things]
    more = len(words) - most
    return between.join(words[:most]) + (f" and {more} more" if more > 0 else "")


def short(digest: str) -> str:
    """The first twelve digits of a digest: enough for people to tell images apart, and to name one."""
    return digest.removeprefix("sha256:")[:12]
