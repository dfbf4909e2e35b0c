"""Rehearsals: an image starts against a copy of a home, and has to show that it can, before the session is touched.

The copy holds live credentials and programs that start by themselves. So the container has no network and no GPU, is
asked only from inside it, has bounds in CPU and memory, and knows from REFIT_REHEARSAL that it is none to work in. All
parts of a rehearsal bear a name of its own, which is locked for as long as its process lives: two of one session don't
meet, not even where one was taken for dead, and the next one removes what a killed one has left.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from flows.core import command, fence, process_records
from flows.core.command import CommandTimeout, ProgramFailed
from flows.core.errors import RefitError
from flows.core.file_locks import if_alone
from flows.core.formatting import gigabytes
from flows.core.settings import Settings
from flows.core.waiting import rest
from flows.host import containers, tools
from flows.migrations import rehearsal_checks
from flows.publishing.checks import Finding
from flows.sessions.activity import hook
from flows.sessions.containers.podman_options import PROCESSES, TOKEN_FILE, mount_option
from flows.sessions.engine import Homes
from flows.sessions.homes import copying
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.model import HOME, Session, check_name
from flows.sessions.ssh.server import START, lets_in

VARIABLE = "REFIT_REHEARSAL"
SPARE_MEMORY = 1 << 30  # bytes that others keep
STEADY_SECONDS = 1.0
QUICK = 60.0
CPU_SHARES = 64  # where cores are short: sessions have 512, and somebody waits for those that are away
_LOG = 64 << 20  # bytes: more than the log of a container may have
_TOO_SLOW = "This machine was too slow to find out whether the new image stands its rehearsal."
_WAIT = "nothing: the session is tried again later. Let fewer programs run beside it, or raise `ready_timeout_seconds`."
CELL, CELL_SAYS = "print(6 * 7)", "42"
# With a key made up for it: a rehearsal has nothing that lets people in.
_SSHD = f"""
folder=$(mktemp -d)
ssh-keygen -q -t ed25519 -N '' -f "$folder/key"
[ -x {START} ] && /usr/sbin/sshd -t -f /etc/ssh/session_config -h "$folder/key"
"""
_SCRIPT, _NOTES = Path(rehearsal_checks.__file__), "rehearsal-"


class TooSlow(RefitError):
    """This machine was too slow to find out whether an image stands its rehearsal."""


class _Late(RefitError):
    """Something took too long: for want of cores, or because it never would have come."""


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    Attributes:
        session: whose home was copied.
        image: digest of the image that was started.
        findings: one for each gate, in the order in which they were tried.
        skipped: why there was none; empty: there was.
        seconds: how long it took.
    """

    session: str
    image: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the session should better stay where it is."""
        return not all(finding.passed for finding in self.findings)


def rehearse(settings: Settings, homes: Homes, session: Session) -> Rehearsal:
    """Start a session's container, as it shall be, against a copy of its home; nothing of it stays.

    Args:
        settings: limits, and how large a copy may be.
        homes: where the home is.
        session: as it shall be, on its new image.

    Raises:
        TooSlow: this machine was too slow to find out.
        RefitError: the image can't be had.
    """
    started = time.monotonic()
    image = containers.pull(settings, f"docker://{settings.registry_host}/{settings.repository}@{session.image}")
    sweep(settings, homes)
    if why := _no_memory(settings):
        return Rehearsal(session.name, session.image, skipped=why)
    try:
        with _named(settings, session.name) as id, _prepared(settings, homes, session, id) as (copy, token):
            findings = tuple(_gates(settings, copy, _Start(image, copy.home, token, _container(id))))
    except NoRoom as error:
        return Rehearsal(session.name, session.image, skipped=str(error))
    return Rehearsal(session.name, session.image, findings, seconds=round(time.monotonic() - started, 2))


def sweep(settings: Settings, homes: Homes) -> tuple[str, ...]:
    """Remove what killed rehearsals have left; returns the names of their sessions."""
    leftovers = []
    for id in _left(settings):
        with if_alone(lock := _lock(settings, id)) as alone, fence.lifted():
            if alone:
                if _remove(settings, homes, id):
                    leftovers.append(id.partition(".")[0])
                lock.unlink(missing_ok=True)
    return tuple(leftovers)


def _left(settings: Settings) -> list[str]:
    """The names under which something of a rehearsal is there; what is under way is among them."""
    names = [path.stem if path.suffix == ".lock" else path.name for path in settings.folder("rehearsals").iterdir()]
    running = [notes.name.removeprefix(_NOTES) for notes in (settings.folder("running")).glob(f"{_NOTES}*")]
    return sorted({*names, *running})


@contextmanager
def _named(settings: Settings, session: str) -> Iterator[str]:
    """A name that nobody else has or will have, locked inside the `with` block."""
    while True:
        id = f"{check_name(session)}.{uuid4().hex[:12]}"
        with if_alone(lock := _lock(settings, id)) as alone:
            if not alone or not lock.exists():  # before it was locked, somebody has taken it for one that was left
                continue
            try:
                yield id
            finally:
                lock.unlink(missing_ok=True)
            return


@contextmanager
def _prepared(settings: Settings, homes: Homes, session: Session, id: str) -> Iterator[tuple[Session, Path]]:
    """The session with copies of its home and volumes, and a token of its own; all are gone afterwards."""
    programs = _programs(settings, id)
    try:
        with command.recorded(programs):
            folder = _folder(settings, id)
            command.run(["install", "-d", "-m", "0700", folder], root=True)
            token = folder / "token"
            private = ["-m", "0400", "-o", str(session.uid), "-g", "0"]
            command.run(["install", *private, "/dev/stdin", token], root=True, stdin=secrets.token_urlsafe(32))
            called = replace(session, name=_spare(id))
            copy = homes.spare(called, folder / "home", round(settings.rehearsal_copy * 1e9))
            yield replace(copy, name=session.name), token
    finally:
        with fence.lifted():  # nobody else's bears this name
            _remove(settings, homes, id)


def _remove(settings: Settings, homes: Homes, id: str) -> bool:
    """End what a rehearsal runs, and remove what it made; the programs first, so that nothing is made behind us.

    Returns whether there was anything.
    """
    programs, folder = _programs(settings, id), _folder(settings, id)
    if not programs.exists() and not folder.exists():
        return False
    process_records.end_recorded(programs)
    call = [*tools.podman(settings), "rm", "--force", "--ignore", "--volumes", "--time", "0", _container(id)]
    command.run(call, root=True, limit=QUICK)
    homes.forget_spare(_spare(id))
    copying.remove(folder)
    process_records.end_for_good(programs)  # last: as long as it is there, somebody knows
    return True


@dataclass(frozen=True)
class _Start:
    """The start of a container: an image by its name in Podman's storage, a copy of the home, a token."""

    image: str
    home: Path
    token: Path
    container: str


def _gates(settings: Settings, session: Session, begin: _Start) -> Iterator[Finding]:
    """Each gate once the one before is open."""
    inside = _Inside(settings, session, begin.container)
    tried: list[tuple[str, Callable[[], str]]] = [
        ("start", lambda: _start(settings, session, begin)),
        ("home", inside.home),
        *([("ide", inside.ide)] if session.access.port else []),
        *([("ssh", inside.ssh)] if lets_in(session.ssh) else []),
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
    except _Late as error:
        if was_starved():
            raise TooSlow(_TOO_SLOW, why=error.what, hint=_WAIT) from error
        passed, seen = False, error.what
    except ProgramFailed as error:
        passed, seen = False, error.tail or error.what
    except RefitError as error:
        passed, seen = False, error.what
    return Finding(name, passed, seen, round(time.monotonic() - started, 2))


def _start(settings: Settings, session: Session, begin: _Start) -> str:
    own = {"REFIT_SESSION": session.name, "REFIT_TOKEN_FILE": TOKEN_FILE, VARIABLE: "1"}
    variables = {**session.environment, **own}
    memory = f"{round(settings.rehearsal_memory * 1e9)}b"
    options = [
        *("--detach", "--init", "--name", begin.container, "--hostname", session.name, "--pull", "never"),
        *("--label", f"{containers.LABEL}={containers.creator()}", "--stop-signal", "SIGTERM"),
        *("--network", "none", "--memory", memory, "--memory-swap", memory),
        *("--cpus", str(settings.rehearsal_cpus), "--cpu-shares", str(CPU_SHARES)),
        *("--user", f"{session.uid}:0", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
        *([] if session.access.user_namespaces else tools.call_filter(settings)),
        *("--pids-limit", str(PROCESSES), *tools.run_limits(settings)),
        *("--log-driver", "k8s-file", "--log-opt", "max-size=16mb"),
        *("--mount", f"type=bind,src={begin.home},dst={HOME}"),
        *("--mount", f"type=bind,src={begin.token},dst={TOKEN_FILE},ro"),
        *map(mount_option, session.volumes),
        *(f"--env={name}={value}" for name, value in variables.items()),
    ]
    command.run([*tools.podman(settings), "run", *options, begin.image], root=True, cwd=settings.folder(), limit=QUICK)
    return "the container runs"


class _Inside:
    """Asks the container of a rehearsal, from inside it."""

    def __init__(self, settings: Settings, session: Session, container: str) -> None:
        self._settings, self._session = settings, session
        self._podman, self._container = tools.podman(settings), container
        self._began = time.monotonic()

    def home(self) -> str:
        return f"the home can be {self._gate('home')}"

    def ide(self) -> str:
        return str(self._gate("ide"))

    def cell(self) -> str:
        way = self._gate("kernel")
        limit = str(self._limit)
        try:
            said = self._execute([way["python"], "-c", rehearsal_checks.CELL, way["file"], limit, CELL]).strip()
        except ProgramFailed as error:
            raise _Late(error.tail) if error.exit_code_of_program == os.EX_TEMPFAIL else error from None
        if said != CELL_SAYS:
            raise RefitError(f"A kernel answered {said!r} to {CELL!r}.")
        return f"a kernel executes {CELL!r}"

    def ssh(self) -> str:
        self._execute(["sh", "-euc", _SSHD])
        return "sshd could start"

    def hook(self) -> str:
        if why := hook.disproved(lambda argv: self._execute(argv, limit=hook.LIMIT)):
            raise _Late(f"{why[0].upper()}{why[1:]}.")
        return f"~/{hook.PROOF}, if there is one, has nothing against it"

    def steady(self) -> str:
        rest(STEADY_SECONDS)
        asked = [*self._podman, "inspect", "--format", "{{.State.Running}} {{.State.OOMKilled}}", self._container]
        running, killed = command.run(asked, root=True, limit=QUICK).stdout.split()
        if running != "true":
            memory = f" It had more than {self._settings.rehearsal_memory:g} GB of memory." if killed == "true" else ""
            raise RefitError(f"It has ended.{memory}")
        return "it still runs"

    def last_words(self) -> str:
        asked = [*self._podman, "logs", "--tail", "15", self._container]
        said = command.run(asked, root=True, limit=QUICK, most=_LOG)
        return f"Its last words:\n{said.stdout}{said.stderr}".strip()

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
        asked = {"port": access.port, "prefix": prefix, "health": access.health, "limit": self._limit}
        script = _SCRIPT.read_text(encoding="utf-8")
        told = json.loads(self._execute(["python3", "-B", "-", name, json.dumps(asked)], script))
        if problem := told.get("problem"):
            raise _Late(problem) if told.get("late") else RefitError(problem)
        return told["seen"]

    def _execute(self, argv: list[str], stdin: str = "", limit: float | None = None) -> str:
        call = [*self._podman, "exec", "--interactive", self._container, *argv]
        limit = limit or self._limit + QUICK
        return command.run(call, root=True, stdin=stdin, limit=limit, most=command.FOREIGN_OUTPUT).stdout


def _no_memory(settings: Settings) -> str:
    needed, free = settings.rehearsal_memory * 1e9 + SPARE_MEMORY, psutil.virtual_memory().available
    return "" if free >= needed else f"{gigabytes(free)} of memory are free, and {gigabytes(needed)} are needed"


def _container(id: str) -> str:
    return f"refit-rehearsal-{id}"


def _spare(id: str) -> str:
    """The name of the copies of its home and volumes."""
    session, _, own = id.partition(".")
    return f"rehearsal-{own}" if own else session  # as those were that had no name of their own


def _folder(settings: Settings, id: str) -> Path:
    return settings.folder("rehearsals") / id


def _lock(settings: Settings, id: str) -> Path:
    return settings.folder("rehearsals") / f"{id}.lock"


def _programs(settings: Settings, id: str) -> Path:
    return settings.home / "running" / f"{_NOTES}{id}"
