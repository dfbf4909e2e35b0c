"""A session from its creation to its end: the order in which home, token, record and container come and go.

Whether a session runs, the engine says; whether it ought to, the record. Every verb can be repeated, and after a crash
`start` finishes what `create` had begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn

from sqlalchemy import Engine as Database

from flows.catalog.model import Access, Resources
from flows.core import fence
from flows.core.database import open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.lazily import lazily
from flows.core.leases import Lease, LeaseTaken
from flows.core.programs import command, process_records
from flows.core.progress import reported
from flows.core.settings import Settings
from flows.gateway import routes
from flows.sessions import engines, own_folder
from flows.sessions.access import SessionAccess
from flows.sessions.engine import Engine, Homes
from flows.sessions.homes.volumes import Wanted
from flows.sessions.model import PREFIX, Running, Session, Volume, check_name
from flows.sessions.overview import Status, statuses
from flows.sessions.packages.install import SystemPackages
from flows.sessions.store import NameTaken, Store
from flows.sessions.wishes import caller

with lazily(globals()):
    from flows.publishing.signatures import Publications

LAST_LINES = 15


class NotStarted(RefitError):
    """A session that was to start, and doesn't run or doesn't answer; it is stopped now."""

    def __init__(self, name: str, problem: RefitError, last_lines: str) -> None:
        indented = "\n".join(f"  {line}" for line in last_lines.splitlines())
        super().__init__(
            f"The session {name!r} didn't start. It is there, stopped, with its home.",
            why="\n".join(
                filter(None, (problem.what, problem.why, indented and f"The last lines that it wrote:\n{indented}"))
            ),
            hint=f"`refit session start {name}` tries again; `refit session rm {name}` removes it and keeps its home.",
        )


class Sessions(SessionAccess):
    """The sessions of this machine."""

    def __init__(self, settings: Settings, engine: Engine, homes: Homes, store: Store) -> None:
        super().__init__(settings, engine)
        self.homes, self.store = homes, store
        self.gpus = engines.gpus(settings, store.database)
        self.packages = SystemPackages(settings, store.database)
        self.machines = engines.machines(settings)

    @classmethod
    def open(cls, settings: Settings, database: Database | None = None) -> Sessions:
        """The sessions of these settings, on their engine; `database` is theirs, if it is open already."""
        store = Store(database or open_database(settings.database), settings.lease_seconds)
        return cls(settings, engines.engine(settings), engines.homes(settings), store)

    @contextmanager
    def alone(self, name: str, wait: float = 10.0) -> Iterator[Lease]:
        """Be the only one who acts on this session inside the `with` block, by its lease and in fact.

        Programs of an earlier holder that was killed may still run. It is ended before anything is looked at, so that
        nothing changes any more behind our back; and what runs inside the block is on record for the next holder. The
        record bears the lease's number: a holder that was taken for dead and wakes up has none of ours.

        Raises:
            LeaseTaken: another run still holds the session after `wait` seconds.
            LeaseLost: in the `with` block, from any effect, once another run has taken over.
        """
        with self.store.hold(name, wait) as held:
            programs = self._settings.home / "running" / f"session-{check_name(name)}.{held.fence}"
            for folder in (programs.with_suffix(""), *programs.parent.glob(f"session-{name}.*")):
                process_records.end_for_good(folder)
            try:
                with command.recorded(programs), fence.way_in(programs):
                    yield held
            finally:
                process_records.end_for_good(programs)

    def create(
        self,
        name: str,
        profile: str,
        release: str,
        image: str,
        access: Access,
        environment: Mapping[str, str] | None = None,
        volumes: Sequence[Wanted] = (),
        resources: Resources = Resources(),  # noqa: B008 - it is frozen
        owner: str = "",
    ) -> Session:
        """Make a session and start it; a home of this name that was kept is used again, and so are its volumes.

        Where an owner is named, it is theirs from its first moment, and a home that was kept has to be theirs, too.

        Raises:
            IllegalName: no session can be called so.
            NameTaken: there is one already.
            HomeTaken: the home that was kept is somebody else's.
            NotPublished: the image doesn't count.
            RefitError: the image can't be had, or the session doesn't start; its message says what is left of it.
        """
        if check_name(name) in {session.name for session in self.store.sessions()}:
            raise NameTaken(name)
        Publications(self._settings, self.store.database).require(image)
        self.engine.pull(image)
        variables = {**(environment or {}), **({PREFIX: routes.path(name)} if access.port else {})}

        def make(uid: int) -> Session:
            home, token = self.homes.home_of(name), self.tokens.token_of(name)
            session = Session(name, profile, release, image, uid, home, token, access, variables)
            return self._completed(session, mounted, resources)

        with self.alone(name):
            mounted = tuple(self.homes.mounted(name, volume) for volume in volumes)  # in no transaction: it may wait
            taken, uids = self.homes.owners().values(), self._settings.session_uids
            session = self._equipped(self.store.add(name, make, uids=uids, avoid=taken, owner=owner))
            self._start(session)
        return session

    def _completed(self, session: Session, volumes: tuple[Volume, ...], resources: Resources) -> Session:
        session = replace(session, volumes=volumes, gpus=resources.gpus)
        session = replace(session, memory=resources.memory or 0, cpus=resources.cpus or 0.0)
        return replace(session, late_home=self.binds_late(session))

    def start(self, name: str) -> Session:
        """Start a session and wait until it is ready, with the URL and the token that it had.

        Raises:
            UnknownName: there is no such session.
            RefitError: it doesn't get ready, or a move of it is not finished.
        """
        self.engine.pull(self.store.session(name).image)
        with self.alone(name):
            session = self._equipped(self.store.session(name))
            self._start(session)
        return session

    def stop(self, name: str) -> None:
        """Stop a session: its kernels over the API, then all its processes, within the grace of the settings."""
        self.store.session(name)
        with self.alone(name), reported(name, "stopping"):
            self.store.want(name, False)
            self._halt_all(self.store.session(name))
            self.gpus.keep(name, ())

    def remove(self, name: str, purge: bool = False) -> None:
        """Remove a session; its home stays, unless it is to be purged.

        Raises:
            UnknownName: there is no such session, and with `purge` no such home.
        """
        sessions = {session.name: session for session in self.store.sessions()}
        if name not in sessions and not (purge and name in self.store.homes()):
            raise UnknownName("session", name, sessions)
        with self.alone(name), reported(name, "removing"):
            for container in self.engine.containers(name):
                self.engine.stop(container.name, self._settings.stop_grace_seconds)
                self.engine.remove(container.name)
            self.ssh.forget(name)
            self.tokens.forget(name)
            if (folder := own_folder.of(self._settings, name)).exists():
                command.run(["rm", "-rf", "--", folder], root=not self._settings.in_cluster)
            self.gpus.keep(name, ())
            self.store.forget(name)
            self.gateway.forget(name)
            if purge:
                # The record goes last: as long as a file of that uid is left, nobody else may get the uid.
                self.homes.remove(name)
                (self._settings.folder("scans") / f"{check_name(name)}.json").unlink(missing_ok=True)
                self.store.forget_home(name)

    def with_gpus(self, session: Session, wait: float = 0.0) -> Session:
        """The session with GPUs that are on record as its own from now on; those that it had, if it can.

        If it has had more until now, these stay its own, too, until `settle_gpus`.

        Raises:
            NoGpu: there aren't enough after `wait` seconds.
        """
        if not session.gpus:
            return replace(session, devices=())
        devices = self.gpus.take(session.name, session.gpus, session.devices, by=caller(), wait=wait)
        return replace(session, devices=devices)

    def settle_gpus(self, name: str) -> None:
        """Let others have what a session doesn't need any more, now that it has moved or hasn't."""
        session, should_run = self.store.find(name) or (None, False)
        self.gpus.keep(name, session.devices if session and should_run else ())

    def _equipped(self, session: Session) -> Session:
        """The session as it can be started: where others have its GPUs now, with a container for those that it gets."""
        if self.running(session) is Running.running:
            return session
        equipped = self.with_gpus(session, self._settings.gpu_timeout_seconds)
        if equipped != session:
            equipped = replace(equipped, late_home=self.binds_late(equipped))  # by its GPUs, too
            self.engine.remove(session.container)
            self.store.update(equipped)
        self.gpus.keep(session.name, equipped.devices)
        return equipped

    def up(self, start: Callable[[str], object] | None = None) -> Mapping[str, str]:
        """Start every session that ought to run and doesn't, as after a reboot; `start` in the place of our own.

        Returns the problems, by name of the session: one that doesn't start keeps no other from starting.
        """
        problems = {}
        for status in self.all():
            if status.should_run and status.running is not Running.running:
                try:
                    (start or self.start)(status.session.name)
                except RefitError as error:
                    problems[status.session.name] = str(error)
        return problems

    def down(self) -> None:
        """Stop every session that runs; `up` starts the same ones again."""
        for status in self.all():
            if status.running is Running.running:
                with self.alone(status.session.name), reported(status.session.name, "stopping"):
                    self._halt_all(status.session)

    def all(self) -> tuple[Status, ...]:
        """All sessions, by name."""
        intents = self.store.intents()
        records = [(session, session.name in intents) for session in self.store.sessions()]
        return statuses(records, self.engine.containers())

    def show(self, name: str) -> Status:
        """One session.

        Raises:
            UnknownName: there is no such session.
        """
        session = self.store.session(name)
        return Status(session, self.running(session), name in self.store.intents())

    def execute(self, name: str, argv: Sequence[str], stdin: str = "") -> str:
        """Run a program inside a session, as its user; returns its standard output.

        Raises:
            UnknownName: there is no such session.
            RefitError: it doesn't run, or the program fails.
        """
        return self.engine.execute(self.that_runs(name).container, argv, stdin)

    def attach(self, name: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        """Let this process become a program inside a session, for the person who called it.

        Args:
            name: the session.
            argv: the program and its arguments.
            terminal: give it a terminal, connected with ours.

        Raises:
            UnknownName: there is no such session.
            RefitError: it doesn't run.
        """
        self.engine.attach(self.that_runs(name).container, argv, terminal)

    def logs(self, name: str, lines: int = 100) -> str:
        """The last lines that a session wrote."""
        return self.engine.logs(self.store.session(name).container, lines)

    def address(self, name: str) -> str:
        """The URL that a person opens; empty where there is no IDE.

        Where people log in, it has no token: the authorizer adds that. Elsewhere it has, so it is not for logs.
        """
        session = self.store.session(name)
        url, page = self.url(session), session.access.page
        if url and self._settings.hub_wanted:
            return f"{self._settings.public_url}{session.path}{page.partition('?')[0] if '{token}' in page else page}"
        return url and url + page.replace("{token}", self.token(session))

    def binds_late(self, session: Session, before: Session | None = None) -> bool:
        """Whether the container of a session gets its home by its slot: its image and this machine can do that.

        A home that goes to another machine can't be on both. In a cluster, one that gets other GPUs may go there.
        """
        could = session.access.late_home and not session.volumes and self.engine.binds_late()
        others = before is not None and before.devices != session.devices and not self.engine.on_this_machine
        cold = not could or (session.gpus and (others or not self.gpus.shareable))
        return not cold and session.name not in self.machines.leaving()

    def tell_gateway(self) -> None:
        """Let the gateway lead to every session that runs, as it has to when it has begun anew, and to no other.

        Sessions on which somebody acts are left to them.
        """
        sessions = self.store.sessions()
        for session in sessions:
            self.tell_gateway_of(session.name)
        self.gateway.keep({session.name for session in sessions})

    def tell_gateway_of(self, name: str) -> None:
        """Let the gateway lead to a session if it runs; one on which somebody acts is left to them.

        Raises:
            UnknownName: there is no such session.
        """
        with suppress(LeaseTaken), self.alone(name, wait=0):
            session = self.store.session(name)
            if session.access.port and self.running(session) is Running.running:
                self.gateway.route(name, self.direct_url(session).removesuffix(session.path))
            elif session.access.port:
                with self.drain(session):
                    pass  # it has ended already

    def halt(self, session: Session, settle: bool = True) -> None:
        """Stop a session's container: its kernels over the API, then its processes; still wanted if it was.

        Without `settle` this returns as soon as nothing of it has its home any more.
        """
        self.ssh.close(session)
        with self.drain(session):
            if session.access.protocol == "jupyter" and not self.engine.childless(session.container):
                with suppress(RefitError):  # a server that is ill or away has to be stopped all the more
                    self.end_kernels(session)
            self.engine.stop(session.container, self._settings.stop_grace_seconds, settle)

    def that_runs(self, name: str) -> Session:
        """The session of that name.

        Raises:
            UnknownName: there is no such session.
            RefitError: it doesn't run.
        """
        session = self.store.session(name)
        if self.running(session) is not Running.running:
            raise RefitError(f"The session {name!r} doesn't run.", hint=f"start it: `refit session start {name}`.")
        return session

    def that_run(self, name: str = "") -> list[Session]:
        """The session of that name, or all that run; raises as `that_runs` does."""
        if name:
            return [self.that_runs(name)]
        return [state.session for state in self.all() if state.running is Running.running]

    def _halt_all(self, session: Session) -> None:
        self.halt(session)
        for container in self.engine.containers(session.name):  # a move that was not finished may have left another
            self.engine.stop(container.name, self._settings.stop_grace_seconds)

    def _start(self, session: Session) -> None:
        others = {
            container.name for container in self.engine.containers(session.name) if container.running is Running.running
        }
        if others - {session.container}:
            raise RefitError(
                f"The session {session.name!r} runs in another container: {', '.join(sorted(others))}.",
                why="A move of it was not finished; two containers must never write into one home.",
                hint="finish it: `refit migrate recover`.",
            )
        with reported(session.name, "starting"):
            self.store.want(session.name, True)
            try:
                self.homes.make(session.name, session.uid)
                self.homes.make_volumes(session)
                self.tokens.make(session)
                self.ssh.prepare(session)
                if self.engine.create(session).running is Running.running:
                    self.engine.allow_ingress(session.container)  # a move that was killed may have closed it
                else:
                    self.packages.complete(session)
                self.engine.start(session.container)
                self.wait_ready(session)
            except RefitError as error:
                raise NotStarted(session.name, error, self._given_up(session)) from error

    def _given_up(self, session: Session) -> str:
        """Stop what didn't get ready, and let others have its GPUs; returns the last lines that it wrote."""
        try:
            if self.running(session) is None:
                return ""
            last_lines = self.engine.logs(session.container, LAST_LINES)
            self.engine.stop(session.container, self._settings.stop_grace_seconds)
            return last_lines
        finally:
            self.gpus.keep(session.name, ())
