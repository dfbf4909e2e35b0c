"""The machines on which sessions run: which sessions have to leave theirs, and which have lost it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Machines(Protocol):
    """The machines of one engine. Failures that a person can mend are `RefitError`."""

    def leaving(self) -> Mapping[str, str]:
        """Session → the machine that it has to leave, for that is to go down; one that is stopped counts."""

    def lost(self) -> frozenset[str]:
        """The sessions that have run, whose containers have gone with their machine and can't write any more."""

    def idle_gpus(self) -> frozenset[str]:
        """The sessions that keep GPUs from others on a machine on which nothing of them runs."""

    def vacate(self, session: str) -> None:
        """Let nothing of a session that is stopped be on a machine which it has to leave. It can be repeated."""

    def hold_back_evictions(self) -> None:
        """Let no drain end the sessions of a machine before they were moved off. It can be repeated.

        Raises:
            RefitError: the right to say so is missing.
        """


class ThisMachine:
    """Implements `Machines` where all sessions are on this machine: they go down with it, and stay on its disk."""

    def leaving(self) -> Mapping[str, str]:
        """None."""
        return {}

    def lost(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def idle_gpus(self) -> frozenset[str]:
        """None: those that sessions have are on record, and `refit gpu release` gives them back."""
        return frozenset()

    def vacate(self, session: str) -> None:
        """Nothing."""

    def hold_back_evictions(self) -> None:
        """Nothing."""
