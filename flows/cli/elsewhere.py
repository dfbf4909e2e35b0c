"""A word to people whose sessions are at a Refit elsewhere, and who asked this machine for them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import laptop
    from flows.core.programs import command

# The groups of commands that act on sessions of this machine.
_HERE = frozenset({"session", "migrate", "home", "volume", "profile", "ssh-config", "ssh-key", "user"})
_SUDO_SECONDS = 10.0


def after_failure(words: Sequence[str]) -> str:
    """The text after a command that failed; empty: it was meant for this machine, as far as anybody can tell.

    Args:
        words: of the command, without `refit`.
    """
    if not _HERE & {*words[:1]}:
        return ""
    if url := laptop.logged_in_at():
        return f"For your sessions at {url}: `refit mine`."
    if os.geteuid() == 0 or _may_be_root():
        return ""
    return (
        "Sessions of this machine need root, which this account has neither by itself nor by sudo without a password. "
        "For your sessions at a Refit elsewhere: `refit login URL`, then `refit mine list`."
    )


def _may_be_root() -> bool:
    try:
        command.run(["true"], root=True, limit=_SUDO_SECONDS)
    except RefitError:
        return False
    return True
