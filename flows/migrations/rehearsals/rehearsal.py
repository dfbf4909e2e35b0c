"""Rehearsals: an image starts beside a session, and has to show that it can, before the session is touched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.core.errors import RefitError
from flows.core.formatting import on_a_line
from flows.core.programs.command import CommandTimeout, ProgramFailed
from flows.core.settings import Settings
from flows.core.waiting import rest
from flows.migrations.rehearsals import checks
from flows.publishing.checks import Finding
from flows.sessions import own_folder
from flows.sessions.activity import hook
from flows.sessions.containers.sshd import START
from flows.sessions.engine import Homes
from flows.sessions.engines import trials
from flows.sessions.model import Session
from flows.sessions.packages.model import NoIndex, Outcome
from flows.sessions.ssh.session_access import lets_in
from flows.sessions.trial import QUICK, NoTrial, Trial

STEADY_SECONDS = 1.0
_TOO_SLOW = "This machine was too slow to find out whether the new image stands its rehearsal."
_WAIT = "nothing: the session is tried again later. Let fewer programs run beside it, or raise `ready_timeout_seconds`."
CELL, CELL_SAYS = "print(6 * 7)", "42"
# With a key made up for it: a rehearsal has nothing that lets people in.
_SSHD = f"""
folder=$(mktemp -d)
ssh-keygen -q -t ed25519 -N '' -f "$folder/key"
[ -x {START} ] && /usr/sbin/sshd -t -f /etc/ssh/session_config -h "$folder/key"
"""
_SCRIPT = Path(checks.__file__)


class TooSlow(RefitError):
    """This machine was too slow to find out whether an image stands its rehearsal."""


class _Late(RefitError):
    """Something took too long: for want of cores, or because it never would have come."""


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    Attributes:
        session: beside which it was.
        image: digest of the image that was started.
        findings: one for each gate, in the order in which they were tried.
        skipped: why there was none; empty: there was.
        seconds: how long it took.
        with_home: whether it had a copy of the home.
        missing: system packages of the session that the image can't have, each with the reason.
    """

    session: str
    image: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    seconds: float = 0.0
    with_home: bool = True
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether the session should better stay where it is."""
        return not all(finding.passed for finding in self.findings)


def rehearse(settings: Settings, homes: Homes, session: Session, packages: Sequence[str] = ()) -> Rehearsal:
    """Start a session's container, as it shall be, beside the session; nothing of it stays.

    Args:
        settings: limits, and how large a copy may be.
        homes: where the home is.
        session: as it shall be, on its new image.
        packages: names of system packages that it is to have besides.

    Raises:
        NoIndex: no index of system packages answers.
        TooSlow: this machine was too slow to find out.
        RefitError: the image can't be had.
    """
    started, where = time.monotonic(), trials(settings, homes)
    try:
        with where.begin(session) as trial:
            outcome = installed(trial.install, packages)
            findings = tuple(_gates(settings, session, trial))
    except NoTrial as error:
        return Rehearsal(session.name, session.image, skipped=str(error), with_home=where.with_home)
    seconds = round(time.monotonic() - started, 2)
    return Rehearsal(session.name, session.image, findings, "", seconds, where.with_home, outcome.missing)


def installed(install: Callable[[Sequence[str]], Outcome], packages: Sequence[str]) -> Outcome:
    """The outcome of an installation; where packages can't be installed together, all of them are missing.

    Raises:
        NoIndex: no index answers.
    """
    if not packages:
        return Outcome()
    try:
        return install(packages)
    except NoIndex:
        raise
    except RefitError as error:
        return Outcome(missing=dict.fromkeys(packages, on_a_line(error.why or error.what)))


def sweep(settings: Settings, homes: Homes) -> tuple[str, ...]:
    """Remove what killed rehearsals have left; returns the names of their sessions."""
    return trials(settings, homes).sweep()


def _gates(settings: Settings, session: Session, trial: Trial) -> Iterator[Finding]:
    """Each gate once the one before is open."""
    inside = _Inside(settings, session, trial)
    tried: list[tuple[str, Callable[[], str]]] = [
        ("start", inside.start),
        ("home", inside.home),
        *([("ide", inside.ide)] if session.access.port else []),
        *([("ssh", inside.ssh)] if lets_in(own_folder.ssh(settings, session.name)) else []),
        *([("cell", inside.cell)] if session.access.protocol == "jupyter" else []),
        ("hook", inside.hook),
        ("steady", inside.steady),
    ]
    for name, attempt in tried:
        finding = _tried(name, attempt, inside.was_starved)
        if not finding.passed and name != "start":
            finding = Finding(name, False, f"{finding.seen}\n{inside.last_words()}".strip(), finding.seconds)
        yield finding
        if not finding.passed:
            return


def _tried(name: str, attempt: Callable[[], str], was_starved: Callable[[], bool]) -> Finding:
    started = time.monotonic()
    try:
        passed, seen = True, attempt()
    except CommandTimeout as error:  # Podman itself
        if name == "start":
            raise TooSlow(_TOO_SLOW, why=error.what, hint=_WAIT) from error
        raise
    except NoTrial:
        raise
    except _Late as error:
        if was_starved():
            raise TooSlow(_TOO_SLOW, why=error.what, hint=_WAIT) from error
        passed, seen = False, error.what
    except ProgramFailed as error:
        passed, seen = False, error.tail or error.what
    except RefitError as error:
        passed, seen = False, error.what
    return Finding(name, passed, seen, round(time.monotonic() - started, 2))


class _Inside:
    """Asks the container of a rehearsal, from inside it."""

    def __init__(self, settings: Settings, session: Session, trial: Trial) -> None:
        self._settings, self._session, self._trial = settings, session, trial
        self._began = time.monotonic()

    def start(self) -> str:
        self._trial.start()
        return "the container runs"

    def home(self) -> str:
        return f"the home can be {self._gate('home')}"

    def ide(self) -> str:
        return str(self._gate("ide"))

    def cell(self) -> str:
        way = self._gate("kernel")
        limit = str(self._limit)
        try:
            output = self._execute([way["python"], "-c", checks.CELL, way["file"], limit, CELL]).strip()
        except ProgramFailed as error:
            raise _Late(error.tail) if error.exit_code_of_program == os.EX_TEMPFAIL else error from None
        if output != CELL_SAYS:
            raise RefitError(f"A kernel answered {output!r} to {CELL!r}.")
        return f"a kernel executes {CELL!r}"

    def ssh(self) -> str:
        self._execute(["sh", "-euc", _SSHD])
        return "sshd could start"

    def hook(self) -> str:
        if why := hook.disproved(lambda argv: self._execute(argv, limit=hook.LIMIT)):
            raise _Late(f"{why[0].upper()}{why[1:]}.")
        return f"~/{hook.PROOF}, if there is one, does not object"

    def steady(self) -> str:
        rest(STEADY_SECONDS)
        if why := self._trial.ended():
            raise RefitError(why)
        return "it still runs"

    def last_words(self) -> str:
        return f"The last lines that it wrote:\n{self._trial.last_words()}".strip()

    @property
    def _limit(self) -> float:
        """Seconds in which the IDE has to answer."""
        return self._settings.ready_timeout_seconds * self._session.access.patience

    def was_starved(self) -> bool:
        """Whether its programs waited for cores for a quarter of the time, and longer than they worked.

        A rehearsal that gets at least half of its share isn't starved, however much more it would take.
        """
        seconds = time.monotonic() - self._began
        worked, waited = self._gate("cores")
        return bool(waited > max(worked, seconds / 4) and worked < self._settings.rehearsal_cpus * seconds / 2)

    def _gate(self, name: str) -> Any:
        access, prefix = self._session.access, self._session.path
        request = {"port": access.port, "prefix": prefix, "health": access.health, "limit": self._limit}
        script = _SCRIPT.read_text(encoding="utf-8")
        answer = json.loads(self._execute(["python3", "-B", "-", name, json.dumps(request)], script))
        if problem := answer.get("problem"):
            raise _Late(problem) if answer.get("late") else RefitError(problem)
        return answer["seen"]

    def _execute(self, argv: list[str], stdin: str = "", limit: float | None = None) -> str:
        return self._trial.execute(argv, stdin, limit or self._limit + QUICK)
