"""Looks at images where Refit has no Podman: by programs in trials of them, as in sessions.

A trial has the rights of a session and no more, and nothing there holds that it has no network. So its programs are
told none of Refit's own secrets to search for, files that root alone may read are not searched, and an image of a
person's own isn't looked at. The finding on secrets says what was left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.formatting import printable
from flows.core.programs.command import FOREIGN_OUTPUT, ProgramFailed
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.images.registry import Registry
from flows.publishing import ask_ide, probe
from flows.publishing.checks import (
    FILES,
    MOST_SHOWN,
    MOST_TOLD,
    PIP_CHECK,
    PROBE,
    Finding,
    Report,
    imported,
    in_config,
    no_secrets,
    none_of,
    parsed,
    secret_values,
    timed,
)

STEADY_SECONDS, END_SECONDS, PAUSE_SECONDS = 5.0, 30.0, 1.0
_PIP_SECONDS, _FILES_SECONDS, _GRACE_SECONDS = 120.0, 600.0, 30.0
_PROBE_INSIDE = "/tmp/refit-probe.py"
_ASKS = Path(ask_ide.__file__)
_LEFT_OUT = (
    "Refit's own secrets: searched for in the configuration alone, as programs of an image in a Pod aren't told them"
)


@dataclass(frozen=True)
class _Answer:
    """The report of `ask_ide`."""

    seen: str
    ready: bool
    opens: bool


_ANSWER = TypeAdapter(_Answer)


class ImageTrial(Protocol):
    """A container of an image, as a session would be started, with an empty home and a token of its own."""

    def start(self) -> None:
        """Start it.

        Raises:
            RefitError: there is no room for it, or the image doesn't start.
        """

    def address(self) -> str:
        """The address at which others reach it.

        Raises:
            RefitError: it has none.
        """

    def execute(self, argv: Sequence[str], stdin: str = "", limit: float = 60.0, most: int = FOREIGN_OUTPUT) -> str:
        """Run a program in it, `limit` seconds and `most` bytes of output at most; returns its output."""

    def ended(self) -> str:
        """Why it doesn't run any more; empty: it does."""

    def last_words(self) -> str:
        """The last lines that it wrote."""


class ImageTrials(Protocol):
    """Where images can be tried."""

    def __call__(self, digest: str, access: Access, *, idle: bool) -> AbstractContextManager[ImageTrial]:
        """Prepare a trial of the image with this digest; `idle`: its own program is not started."""


class TrialLook:
    """Implements `checks.Look`."""

    way = " trial"

    def __init__(self, trials: ImageTrials, registry: Registry) -> None:
        """Nothing is started yet; `registry` has the images."""
        self._trials, self._registry = trials, registry

    def __call__(
        self, image: str, access: Access, distributions: Sequence[str], settings: Settings, vouched: bool
    ) -> Report:
        """The findings in an image.

        Raises:
            ProgramFailed: a program in it fails that is no check.
            RefitError: it can't be tried, or is of somebody's own recipe.
        """
        if not vouched:
            raise RefitError(
                "An image of a person's own recipe can't be checked in a cluster.",
                why="It is checked without a network, and not each cluster keeps the network from a Pod.",
                hint="build it with a Refit on a machine of its own, outside of the cluster.",
            )
        digest = image.rpartition("@")[2]
        with self._trials(digest, access, idle=False) as trial:
            trial.start()
            alive = _alive(trial, access, settings)
            if not alive.passed:
                return Report((alive,))
            inside = (timed("pip", lambda: _pip(trial)), timed("imports", lambda: _imports(trial, distributions)))
        return self._look_at_files(digest, access, (alive, *inside), settings)

    def _look_at_files(self, digest: str, access: Access, before: tuple[Finding, ...], settings: Settings) -> Report:
        """In one that does nothing else, because one that was used has files that aren't the image's."""
        started = time.monotonic()
        with self._trials(digest, access, idle=True) as trial:
            trial.start()
            report = parsed(_probed(trial, "files", "{}", _FILES_SECONDS), FILES)
        repository = self._registry.repository
        config = self._registry.config(repository, self._registry.manifest(repository, digest))
        seconds = round(time.monotonic() - started, 2)
        leaks = [*in_config(config, secret_values(settings)), *report.secrets]
        findings = (none_of("stale", report.stale, seconds), no_secrets(leaks, report.unread, _LEFT_OUT))
        return Report((*before, *findings), report.sizes, report.packages)


def _alive(trial: ImageTrial, access: Access, settings: Settings) -> Finding:
    if access.port:
        return timed("ide", lambda: _answers(trial, access, settings))
    return timed("steady", lambda: _stays_up(trial))


def _answers(trial: ImageTrial, access: Access, settings: Settings) -> tuple[bool, str]:
    limit = settings.ready_timeout_seconds * access.patience
    try:
        # As people reach a session: an IDE that listens on loopback alone would never be reached.
        own = f"http://{_in_url(trial.address())}:{access.port}"
        page = f"{own}{access.page.replace('{token}', '')}" if "{token}" in access.page else ""
        argv = ["python3", "-B", "-", f"{own}{access.health}", page, f"{limit:g}"]
        told = trial.execute(argv, stdin=_ASKS.read_text(encoding="utf-8"), limit=limit + _GRACE_SECONDS)
    except RefitError:
        # It is known to whoever runs containers first, and told a while later.
        if not wait_until(lambda: trial.ended() != "", seconds=END_SECONDS, pause=PAUSE_SECONDS):
            raise
        return False, _end_of(trial)
    answer = parsed(told, _ANSWER)
    seen = f"{access.health}: {printable(answer.seen)[:MOST_SHOWN]}"
    if not answer.ready:
        return False, f"{seen}, not 200 within {limit:g} s.\n{_last_words(trial)}"
    return not answer.opens, f"{access.page} opens without its token" if answer.opens else seen


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _stays_up(trial: ImageTrial) -> tuple[bool, str]:
    if wait_until(lambda: trial.ended() != "", seconds=STEADY_SECONDS, pause=PAUSE_SECONDS):
        return False, _end_of(trial)
    return True, f"still runs after {STEADY_SECONDS:g} s"


def _pip(trial: ImageTrial) -> tuple[bool, str]:
    try:
        told = trial.execute(["sh", "-c", PIP_CHECK], limit=_PIP_SECONDS, most=MOST_TOLD)
    except ProgramFailed as error:
        return False, error.tail
    return True, printable(told.strip()[:MOST_SHOWN])


def _imports(trial: ImageTrial, distributions: Sequence[str]) -> tuple[bool, str]:
    limit = probe.IMPORT_SECONDS * (len(distributions) + 1)
    return imported(_probed(trial, "modules", json.dumps(list(distributions)), limit), distributions)


def _probed(trial: ImageTrial, look: str, request: str, limit: float) -> str:
    """The report of the probe, whose input is the request."""
    trial.execute(["sh", "-c", f"cat >{_PROBE_INSIDE}"], stdin=PROBE.read_text(encoding="utf-8"))
    return trial.execute(["python3", "-B", _PROBE_INSIDE, look], stdin=request, limit=limit, most=MOST_TOLD)


def _end_of(trial: ImageTrial) -> str:
    return f"its command ended at once.\n{_last_words(trial)}"


def _last_words(trial: ImageTrial) -> str:
    return f"The last lines that it wrote:\n{printable(trial.last_words())}".strip()
