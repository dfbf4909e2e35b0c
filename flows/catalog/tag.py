"""The tags of profile images: `{cuda-}{ide}-{bundle}-{os}-{python}_{release}_{date}[.N]`.

The only module that touches their text. Names have neither hyphen nor underscore, so a tag reads in exactly one way.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from flows.core.errors import RefitError

LONGEST = 128  # what a registry takes
EXAMPLE = "jupyter-minimal-deb12-py311_2026a_20261120"

_NAME = re.compile(r"[a-z0-9]+")
_NAME_LENGTH = 30  # of a recipe: three of these and the rest are no more than LONGEST
_RELEASE = re.compile(r"20[0-9]{2}[a-z]")
_TAG = re.compile(r"(?P<stem>[^_]*)_(?P<release>[^_]*)_(?P<date>[0-9]{8})(\.(?P<number>[1-9][0-9]*))?")


class IllegalTag(RefitError):
    """Text that is no tag, or names that can't make one."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(
            f"{text!r} can't be the tag of a profile's image.", why=reason, hint=f"a tag looks like {EXAMPLE}."
        )


def stem(*, cuda: bool, ide: str, bundle: str, os: str, python: str) -> str:
    """The part of a tag that is the same in all releases, e.g. `jupyter-minimal-deb12-py311`."""
    return "-".join((*(("cuda",) if cuda else ()), ide, bundle, os, python))


def is_name(text: str) -> bool:
    """Whether an operating system, bundle or IDE may be called so."""
    return _NAME.fullmatch(text) is not None and len(text) <= _NAME_LENGTH


def is_release(text: str) -> bool:
    """Whether a release may be called so: a year of this century and a letter."""
    return _RELEASE.fullmatch(text) is not None


@dataclass(frozen=True)
class Tag:
    """A tag, taken apart. `number` tells different builds of one day apart; 0 is the first and is not written.

    Raises:
        IllegalTag: when made from parts that don't make a tag.
    """

    cuda: bool
    ide: str
    bundle: str
    os: str
    python: str
    release: str
    date: datetime.date
    number: int = 0

    def __post_init__(self) -> None:
        for kind in ("ide", "bundle", "os", "python"):
            name = getattr(self, kind)
            if not _NAME.fullmatch(name):
                raise IllegalTag(str(self), f"The {kind} {name!r} has something other than a-z and 0-9.")
        if not is_release(self.release):
            raise IllegalTag(str(self), f"The release {self.release!r} is not a year and a letter, like 2026a.")
        if self.number < 0:
            raise IllegalTag(str(self), f"The number {self.number} is negative.")
        if len(str(self)) > LONGEST:
            raise IllegalTag(str(self), f"It has {len(str(self))} characters; a registry takes {LONGEST}.")

    def __str__(self) -> str:
        number = f".{self.number}" if self.number else ""
        return f"{self.alias}_{self.date.isoformat().replace('-', '')}{number}"

    @property
    def stem(self) -> str:
        """The profile: the part before the first underscore."""
        return stem(cuda=self.cuda, ide=self.ide, bundle=self.bundle, os=self.os, python=self.python)

    @property
    def alias(self) -> str:
        """The tag that moves along with the newest tested build: `{stem}_{release}`."""
        return f"{self.stem}_{self.release}"

    def free(self, existing: Iterable[str]) -> Tag:
        """This tag with the lowest number above those that its day has among `existing`; other tags don't count."""
        first = replace(self, number=0)
        numbers = [tag.number for tag in tags_among(existing) if replace(tag, number=0) == first]
        return replace(self, number=max(numbers) + 1) if numbers else first


def parse(text: str) -> Tag:
    """Take a tag apart.

    Raises:
        IllegalTag: it is none; the reason is in the error.
    """
    match = _TAG.fullmatch(text)
    if match is None:
        raise IllegalTag(text, "It is not made of names, a release and a date, with underscores between them.")
    names = match["stem"].split("-")
    cuda = len(names) == 5 and names[0] == "cuda"
    if len(names) - cuda != 4:
        raise IllegalTag(
            text, f"{match['stem']!r} is not IDE, bundle, operating system and Python, with hyphens between them."
        )
    try:
        date = datetime.date.fromisoformat(match["date"])
    except ValueError:
        raise IllegalTag(text, f"{match['date']} is not a day of the calendar.") from None
    ide, bundle, os, python = names[cuda:]
    return Tag(cuda, ide, bundle, os, python, match["release"], date, int(match["number"] or 0))


def tags_among(texts: Iterable[str]) -> Iterable[Tag]:
    """Those that are tags; a repository has aliases and others besides."""
    for text in texts:
        with suppress(IllegalTag):
            yield parse(text)


_FOREIGN = re.compile(
    r"(?P<cuda>cuda-)?(?P<rest>.+)-(?P<os>[a-z0-9]+)-(?P<python>py3[0-9]+)_(?P<release>20[0-9]{2}[a-z])_([0-9]{8}|latest)"
)


@dataclass(frozen=True)
class ForeignTag:
    """The parts of a tag of workbench-images, in which names may have hyphens. Refit reads them, and makes none."""

    cuda: bool
    ide: str
    bundle: str
    os: str
    python: str
    release: str


def parse_foreign(text: str, ides: Collection[str], bundles: Collection[str]) -> ForeignTag | None:
    """Take a tag of workbench-images apart; none: it isn't one of a profile, but of a base, say, or written otherwise.

    Args:
        text: the tag, with a date or `latest`.
        ides: names of IDEs there, which tell where one name ends and the next begins.
        bundles: the same of bundles.
    """
    match = _FOREIGN.fullmatch(text)
    if match is None:
        return None
    for ide in sorted(ides, key=len, reverse=True):
        bundle = match["rest"].removeprefix(f"{ide}-")
        if bundle != match["rest"] and bundle in bundles:
            return ForeignTag(bool(match["cuda"]), ide, bundle, match["os"], match["python"], match["release"])
    return None
