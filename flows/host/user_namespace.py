"""A namespace of users: where Refit isn't root, a program of its own gets a user of its own there.

In such a namespace, Refit's own user is root, and others are those that /etc/subuid gives to Refit's user. Nobody else
of this machine is known there: the programs of the system belong to nobody.
"""

from __future__ import annotations

import shutil
from functools import cache

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.programs.command import CommandTimeout

# Of the program in there.
UID = 1
ENTER = ("unshare", "--user", "--map-root-user", "--map-auto", "--")
_HINT = (
    "install uidmap (shadow-utils) and util-linux 2.38 or newer, and give this user a range of others, like: "
    "usermod --add-subuids 500000-565535 --add-subgids 500000-565535 NAME."
)


class NoNamespace(RefitError):
    """The machine gives this user no further users."""

    def __init__(self, why: str) -> None:
        super().__init__("There is no namespace of users for a program of Refit's.", why=why, hint=_HINT)


@cache
def outer_uid() -> int:
    """The uid that the program has outside of the namespace.

    Raises:
        NoNamespace: this user gets none.
    """
    if not shutil.which("newuidmap"):
        raise NoNamespace("newuidmap isn't installed.")
    try:
        table = command.run([*ENTER, "cat", "/proc/self/uid_map"], limit=10).stdout
    except RefitError as error:
        raise NoNamespace(str(error)) from error
    if (uid := outside(table, UID)) is None:
        raise NoNamespace("This user has no range in /etc/subuid.")
    return uid


def is_possible() -> bool:
    """Whether this user gets such a namespace. A machine that is too busy to say so in time is believed to give one."""
    try:
        return outer_uid() > 0
    except NoNamespace as error:
        return isinstance(error.__cause__, CommandTimeout)


def outside(table: str, uid: int) -> int | None:
    """The uid outside of a namespace of one inside, by the text of its `uid_map`; none: it isn't mapped. Pure."""
    for line in table.splitlines():
        inner, outer, count = map(int, line.split())
        if inner <= uid < inner + count:
            return outer + uid - inner
    return None
