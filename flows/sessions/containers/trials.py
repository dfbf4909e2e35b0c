"""Trials on this machine: a container of Podman against a copy of a session's home, beside the session.

The copy holds live credentials and programs that start by themselves. So the container has no network and no GPU, is
asked only from inside it, has bounds in CPU and memory, and knows from REFIT_REHEARSAL that it is none to work in. All
parts of a trial bear a name of its own, which is locked for as long as its process lives: two of one session don't
meet, not even where one was taken for dead, and the next one removes what a killed one has left.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from flows.core import fence
from flows.core.file_locks import if_alone
from flows.core.formatting import gigabytes
from flows.core.programs import command, process_records
from flows.core.settings import Settings
from flows.host import containers, tools
from flows.sessions.containers.podman_options import PROCESSES, TOKEN_FILE, mount_option
from flows.sessions.engine import Homes
from flows.sessions.homes import copying
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.model import HOME, Session
from flows.sessions.packages.install import install
from flows.sessions.packages.model import Outcome
from flows.sessions.trial import MOST_OUTPUT, QUICK, REHEARSAL, NoTrial, lock, named, names

SPARE_MEMORY = 1 << 30  # bytes that others keep
CPU_SHARES = 64  # where cores are short: sessions have 512, and somebody waits for those that are away
_LOG = 64 << 20  # bytes: more than the log of a container may have
_NOTES = "rehearsal-"


class PodmanTrials:
    """Implements `trial.Trials` on this machine."""

    with_home = True

    def __init__(self, settings: Settings, homes: Homes) -> None:
        self._settings, self._homes = settings, homes

    @contextmanager
    def begin(self, session: Session) -> Iterator[PodmanTrial]:
        """A copy of a session's home, and an image that can start against it, for as long as the `with` block lasts.

        Raises:
            NoTrial: there is no room for one.
            RefitError: the image can't be had.
        """
        settings = self._settings
        reference = f"docker://{settings.registry_host}/{settings.repository}@{session.image}"
        image = containers.pull(settings, reference)
        self.sweep()
        if why := _no_memory(settings):
            raise NoTrial(why)
        with named(settings, session.name) as id, self._prepared(session, id) as (copy, token):
            yield PodmanTrial(settings, copy, image, token, _container(id))

    def sweep(self) -> tuple[str, ...]:
        """Remove what killed trials have left; returns the names of their sessions."""
        leftovers = []
        for id in _left(self._settings):
            with if_alone(own := lock(self._settings, id)) as alone, fence.lifted():
                if alone:
                    if self._remove(id):
                        leftovers.append(id.partition(".")[0])
                    own.unlink(missing_ok=True)
        return tuple(leftovers)

    @contextmanager
    def _prepared(self, session: Session, id: str) -> Iterator[tuple[Session, Path]]:
        """The session with copies of its home and volumes, and a token of its own; all are gone afterwards."""
        programs = _programs(self._settings, id)
        try:
            with command.recorded(programs):
                folder = _folder(self._settings, id)
                command.run(["install", "-d", "-m", "0700", folder], root=True)
                token = folder / "token"
                private = ["-m", "0400", "-o", str(session.uid), "-g", "0"]
                text = secrets.token_urlsafe(32)
                command.run(["install", *private, "/dev/stdin", token], root=True, stdin=text)
                yield self._copy(session, id), token
        finally:
            with fence.lifted():  # nobody else's bears this name
                self._remove(id)

    def _copy(self, session: Session, id: str) -> Session:
        called = replace(session, name=_spare(id))
        try:
            copy = self._homes.spare(called, round(self._settings.rehearsal_copy * 1e9))
        except NoRoom as error:
            raise NoTrial(str(error)) from error
        return replace(copy, name=session.name)

    def _remove(self, id: str) -> bool:
        """End what a trial runs, and remove what it made; the programs first, so that nothing is made behind us.

        Returns whether there was anything.
        """
        programs, folder = _programs(self._settings, id), _folder(self._settings, id)
        if not programs.exists() and not folder.exists():
            return False
        process_records.end_recorded(programs)
        call = [*tools.podman(self._settings), "rm", "--force", "--ignore", "--volumes", "--time", "0", _container(id)]
        command.run(call, root=True, limit=QUICK)
        self._homes.forget_spare(_spare(id))
        copying.remove(folder)
        process_records.end_for_good(programs)  # last: as long as it is there, somebody knows
        return True


class PodmanTrial:
    """Implements `trial.Trial`: an image by its name in Podman's storage, a copy of the home, a token."""

    def __init__(self, settings: Settings, session: Session, image: str, token: Path, container: str) -> None:
        self._settings, self._session = settings, session
        self._image, self._token, self._container = image, token, container
        self._podman = tools.podman(settings)
        self._made = False

    def install(self, packages: Sequence[str]) -> Outcome:
        """Install system packages in it, before it is started: that has a network, and neither home nor token."""
        self._run("create")
        self._made = True
        return install(self._settings, self._container, packages)

    def start(self) -> None:
        """Start it, without a network."""
        if self._made:
            command.run([*self._podman, "start", self._container], root=True, cwd=self._settings.folder(), limit=QUICK)
        else:
            self._run("run", "--detach")

    def _run(self, *verb: str) -> None:
        session, settings = self._session, self._settings
        own = {"REFIT_SESSION": session.name, "REFIT_TOKEN_FILE": TOKEN_FILE, REHEARSAL: "1"}
        variables = {**session.environment, **own}
        memory = f"{round(settings.rehearsal_memory * 1e9)}b"
        options = [
            *("--init", "--name", self._container, "--hostname", session.name, "--pull", "never"),
            *("--label", f"{containers.LABEL}={containers.creator()}", "--stop-signal", "SIGTERM"),
            *("--network", "none", "--memory", memory, "--memory-swap", memory),
            *("--cpus", str(settings.rehearsal_cpus), "--cpu-shares", str(CPU_SHARES)),
            *("--user", f"{session.uid}:0", "--cap-drop", "all", "--security-opt", "no-new-privileges"),
            *([] if session.access.user_namespaces else tools.call_filter(settings)),
            *("--pids-limit", str(PROCESSES), *tools.run_limits(settings)),
            *("--log-driver", "k8s-file", "--log-opt", "max-size=16mb"),
            *("--mount", f"type=bind,src={session.home},dst={HOME}"),
            *("--mount", f"type=bind,src={self._token},dst={TOKEN_FILE},ro"),
            *map(mount_option, session.volumes),
            *(f"--env={name}={value}" for name, value in variables.items()),
        ]
        command.run([*self._podman, *verb, *options, self._image], root=True, cwd=settings.folder(), limit=QUICK)

    def execute(self, argv: Sequence[str], stdin: str = "", limit: float = QUICK, most: int = MOST_OUTPUT) -> str:
        """Run a program in it, as the session's user, for so many seconds and bytes of output at most; returns that."""
        call = [*self._podman, "exec", "--interactive", self._container, *argv]
        return command.run(call, root=True, stdin=stdin, limit=limit, most=most).stdout

    def ended(self) -> str:
        """Why it doesn't run any more; empty: it does."""
        inspect = [*self._podman, "inspect", "--format", "{{.State.Running}} {{.State.OOMKilled}}", self._container]
        running, killed = command.run(inspect, root=True, limit=QUICK).stdout.split()
        if running == "true":
            return ""
        memory = f" It had more than {self._settings.rehearsal_memory:g} GB of memory." if killed == "true" else ""
        return f"It has ended.{memory}"

    def last_words(self) -> str:
        """The last lines that it wrote."""
        logs = [*self._podman, "logs", "--tail", "15", self._container]
        answer = command.run(logs, root=True, limit=QUICK, most=_LOG)
        return f"{answer.stdout}{answer.stderr}"


def _no_memory(settings: Settings) -> str:
    needed, free = settings.rehearsal_memory * 1e9 + SPARE_MEMORY, psutil.virtual_memory().available
    return "" if free >= needed else f"{gigabytes(free)} of memory are free, and {gigabytes(needed)} are needed"


def _left(settings: Settings) -> list[str]:
    """The names under which something of a trial is there, those under way among them."""
    running = [notes.name.removeprefix(_NOTES) for notes in settings.folder("running").glob(f"{_NOTES}*")]
    return sorted({*names(settings), *running})


def _container(id: str) -> str:
    return f"refit-rehearsal-{id}"


def _spare(id: str) -> str:
    """The name of the copies of its home and volumes."""
    session, _, own = id.partition(".")
    return f"rehearsal-{own}" if own else session  # as those were that had no name of their own


def _folder(settings: Settings, id: str) -> Path:
    return settings.folder("rehearsals") / id


def _programs(settings: Settings, id: str) -> Path:
    return settings.home / "running" / f"{_NOTES}{id}"
