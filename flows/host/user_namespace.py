"""A namespace of users: where Refit isn't root, a program of its own gets a user of its own there.

In such a namespace, Refit's own user is root, and others are those that /etc/subuid gives to Refit's user. Nobody else
of this machine is known there: the programs of the system belong to nobody.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache

from flows.core.errors import RefitError
from flows.core.programs import command

# `nobody`, and what is no uid for old programs.
_NOBODIES = (65_534, 65_535)
ENTER = ("unshare", "--user", "--map-root-user", "--map-auto", "--")
_HINT = (
    "install uidmap (shadow-utils) and util-linux 2.38 or newer, and give this user a range of others, like: "
    "usermod --add-subuids 500000-565535 --add-subgids 500000-565535 NAME."
)


class NoNamespace(RefitError):
    """The machine gives this user no further users."""

    def __init__(self, why: str) -> None:
        super().__init__("There is no namespace of users for a program of Refit's.", why=why, hint=_HINT)


@dataclass(frozen=True)
class Uid:
    """The uid of the program, and the same number as its group: inside of the namespace, and outside."""

    inner: int
    outer: int


@cache
def uid() -> Uid:
    """The uid that the program gets.

    It is the last one of the range: all rootless containers and builds of this user are in the same range, and use
    the first ones.

    Raises:
        NoNamespace: this user gets none.
    """
    if not shutil.which("newuidmap"):
        raise NoNamespace("newuidmap isn't installed.")
    try:
        uids, gids = (
            command.run([*ENTER, "cat", f"/proc/self/{kind}_map"], limit=10).stdout for kind in ("uid", "gid")
        )
    except RefitError as error:
        raise NoNamespace(str(error)) from error
    if (chosen := last(uids, gids)) is None:
        raise NoNamespace("This user has no range in /etc/subuid and /etc/subgid.")
    return chosen


def last(uids: str, gids: str) -> Uid | None:
    """The last uid of a namespace that is a group as well, by the texts of its `uid_map` and `gid_map`. Pure."""
    end = min(max((inner + count - 1 for inner, _, count in _ranges(table)), default=0) for table in (uids, gids))
    for inner in range(end, max(end - 1 - len(_NOBODIES), 0), -1):
        outer = outside(uids, inner)
        if inner not in _NOBODIES and outer is not None and outside(gids, inner) is not None:
            return Uid(inner, outer)
    return None


def outside(table: str, inner: int) -> int | None:
    """The uid outside of a namespace of one inside, by the text of its `uid_map`; none: it isn't mapped. Pure."""
    for first, outer, count in _ranges(table):
        if first <= inner < first + count:
            return outer + inner - first
    return None


def _ranges(table: str) -> list[tuple[int, int, int]]:
    """First uid inside, first uid outside, and how many; of each line of a `uid_map`."""
    return [(int(inner), int(outer), int(count)) for inner, outer, count in map(str.split, table.splitlines())]
