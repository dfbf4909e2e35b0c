"""Reports on homes and images as data of others: bounded, and nothing in them is a command.

Programs of a session can speak for the reader of its home, and an image is what its maker made it. A report of some
megabytes may hold millions of tiny values, of which Python makes gigabytes. So values are counted before they are made.
"""

from __future__ import annotations

import re
from threading import Lock
from typing import Annotated

from pydantic import ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from flows.compatibility.facts import Home, Image
from flows.compatibility.read_home import MOST_PATH

MOST_OF_HOMES, MOST_OF_IMAGE = 2 << 20, 8 << 20  # bytes of a report
MOST_VALUES = 100_000  # an image has some 15,000
MOST_HOMES = 100  # a home and the own volumes of one session
MOST_FILES = 1_000_000  # more than any reader may look at
_LONGEST = MOST_PATH + 256  # characters of a text: a path, and why it was left out
_BOUNDED = ConfigDict(str_max_length=_LONGEST)
_HOMES = TypeAdapter(Annotated[tuple[Home, ...], Field(max_length=MOST_HOMES), FailFast()], config=_BOUNDED)
_IMAGES = TypeAdapter(tuple[Image], config=_BOUNDED)  # one: a class alone takes no bounds from here
_ONE_AT_A_TIME = Lock()
# Names and versions become words of commands that people run: none is an option, or more than one word.
_PACKAGE = re.compile(r"[^\W_][\w.+-]*")
_VERSION = re.compile(r"[\w.+!-]+")
_MINOR = re.compile(r"(\d{1,3}\.\d{1,5})?", re.ASCII)


class NoReport(ValueError):
    """A text is no report."""


def homes(told: str) -> tuple[Home, ...]:
    """The homes that a JSON text tells of, a list.

    Raises:
        NoReport: it is something else, or larger than a report is.
    """
    _check_size(told, MOST_OF_HOMES)
    with _ONE_AT_A_TIME:
        try:
            read = _HOMES.validate_json(told)
        except ValidationError:
            raise NoReport from None
    for home in read:
        _check_home(home)
    return read


def home(told: str) -> Home:
    """The home that a JSON text tells of.

    Raises:
        NoReport: it is something else, or larger than a report is.
    """
    read = homes(f"[{told}]")
    if len(read) != 1:
        raise NoReport
    return read[0]


def image(told: str) -> Image:
    """The image that a JSON text tells of.

    Raises:
        NoReport: it is something else, or larger than a report is.
    """
    _check_size(told, MOST_OF_IMAGE)
    with _ONE_AT_A_TIME:
        try:
            (read,) = _IMAGES.validate_json(f"[{told}]")
        except ValidationError:
            raise NoReport from None
    packages = [*read.distributions.items(), *read.system.items()]
    # The names of Python packages are as their makers like. Those of options begin with a dash.
    if not all(name[:1].isalnum() and name.isprintable() and version.isprintable() for name, version in packages):
        raise NoReport
    if not _MINOR.fullmatch(read.python):
        raise NoReport
    return read


def as_bytes(facts: Image) -> bytes:
    """An image as JSON, as `image` reads it."""
    return _IMAGES.dump_json((facts,))[1:-1]


def _check_size(told: str, size: int) -> None:
    """Refuse a text before anything is made of it: each value but the first of a list or an object has a comma."""
    if len(told) > size or told.count(",") > MOST_VALUES:
        raise NoReport


def _check_home(home: Home) -> None:
    packages = (package for group in home.groups for package in group.distributions)
    named = all(_PACKAGE.fullmatch(package.name) and _VERSION.fullmatch(package.version) for package in packages)
    pythons = all(_MINOR.fullmatch(group.python) for group in home.groups)
    if not (named and pythons and 0 <= home.files <= MOST_FILES):
        raise NoReport
