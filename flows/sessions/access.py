"""The way into sessions: where their IDEs are, with which token, whether they answer, and who is turned away.

All of it is asked of the engine and the gateway; the records of a session are none of this module's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from urllib.parse import SplitResult, urlsplit

from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.programs import command
from flows.core.settings import Settings
from flows.gateway.proxy import Gateway
from flows.sessions import engines
from flows.sessions.engine import Engine
from flows.sessions.ide import end_kernels
from flows.sessions.ide.page_notices import Pages, Windows
from flows.sessions.model import Running, Session
from flows.sessions.overview import addresses, direct_address
from flows.sessions.ssh.session_access import Ssh

with lazily(globals()):
    from flows.sessions.ide.jupyter import Jupyter, JupyterError, check_page, wait_answer

_END_KERNELS = Path(end_kernels.__file__)
_PROGRAM = ("python3", "-I", "-c", "exec(input())")
_PREPARED_SECONDS = 10.0  # from a program's start to the stop for which it waits


class SessionAccess:
    """How people, and Refit itself, get into the sessions of an engine."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.engine = engine
        self.ssh = Ssh(settings, engine)
        self.gateway = Gateway(settings)
        self.tokens = engines.tokens(settings)
        self._settings = settings
        self._leaving: dict[str, Thread] = {}
        self._prepared: dict[str, tuple[ExitStack, Callable[[str], str]]] = {}

    def running(self, session: Session) -> Running | None:
        """The state of a session's container, by the engine; none: it has none."""
        states = {container.name: container.running for container in self.engine.containers(session.name)}
        return states.get(session.container)

    def url(self, session: Session) -> str:
        """Where a person finds the IDE of a session, without the token; empty: nowhere."""
        return self.urls([session])[session.name]

    def urls(self, sessions: Iterable[Session]) -> Mapping[str, str]:
        """Session → `url`. Without a gateway that runs, it is the address of its container, if that runs."""
        return addresses(sessions, self.engine, self.gateway)

    def direct_url(self, session: Session) -> str:
        """Where Refit itself reaches the IDE of a session that runs, with a gateway or without; empty: it has none.

        Raises:
            RefitError: it doesn't run.
        """
        return direct_address(session, self.engine)

    def token(self, session: Session) -> str:
        """The session's token; kept out of logs from now on."""
        return self.tokens.read(session)

    def jupyter(self, session: Session) -> Jupyter:
        """The session's Jupyter server."""
        return Jupyter(self.direct_url(session), self.token(session))

    def pages(self, session: Session) -> Pages | None:
        """Where the IDE of a session shows notices; none: nowhere."""
        if session.access.protocol == "jupyter":
            return self.jupyter(session)
        return Windows(self.engine, session) if session.access.notices else None

    def wait_ready(self, session: Session) -> float:
        """Wait until the IDE of a session that was started answers, and let people in; returns the seconds it took.

        Raises:
            JupyterError: it ended, or wasn't ready within the `ready_timeout_seconds` of the settings.
        """
        seconds = self.wait_answering(session)
        self.route_traffic(session)
        return seconds

    def wait_answering(self, session: Session) -> float:
        """As `wait_ready`, without letting anybody in."""

        def alive() -> bool:
            return self.running(session) is Running.running

        limit, health = self._settings.ready_timeout_seconds * session.access.patience, session.access.health
        seconds = 0.0
        try:
            url = self.direct_url(session)
        except RefitError:
            if alive():
                raise
            raise JupyterError(f"The session {session.name!r} has ended.") from None
        if session.access.protocol == "jupyter":
            seconds = Jupyter(url, self.token(session)).wait_ready(health, limit, alive)
        elif session.access.port:
            seconds = wait_answer(url + health, limit, alive)
            self._check_page(session, url)
        elif not alive():
            raise JupyterError(f"The session {session.name!r} has ended.")
        return seconds

    def _check_page(self, session: Session, url: str) -> None:
        """Open the page as its person would, if it takes a token, and as somebody else would."""
        if "{token}" in (page := session.access.page):
            check_page(url, page, self.token(session))

    def route_traffic(self, session: Session) -> None:
        """Lead those who come to a session to its container: by ssh, and through the gateway."""
        if leaving := self._leaving.pop(session.name, None):
            leaving.join()  # a container that is started again may have the same place
        self.ssh.open(session)
        if session.access.port:
            self.gateway.route(session.name, self.direct_url(session).removesuffix(session.path))

    @contextmanager
    def drain(self, session: Session) -> Iterator[None]:
        """Stop the container of a session in the `with` block: the waiting page tells those who come, or wait, why."""
        led = self.gateway.route_to_waiting_page(session.name) if session.access.port else ""
        yield
        if led:  # beside what comes next: people wait for that
            leaving = Thread(target=copy_context().run, args=(_hang_up, urlsplit(led)), name=f"hang-up-{session.name}")
            self._leaving[session.name] = leaving
            leaving.start()

    def prepare_stop(self, session: Session) -> None:
        """Start the program that `end_kernels` goes on with, before anybody is turned away from a session.

        Where no stop comes, it ends by itself once one would be over.

        Raises:
            RefitError: it can't be started.
        """
        if session.access.protocol != "jupyter" or self.engine.childless(session.container):
            return
        with ExitStack() as started:
            limit = _PREPARED_SECONDS + self._settings.stop_grace_seconds
            ask = started.enter_context(self.engine.dialogue(session.container, _PROGRAM, limit))
            ask(_script())
            self._prepared[session.container] = (started.pop_all(), ask)

    def end_kernels(self, session: Session) -> int:
        """End the kernels of a session that runs Jupyter; returns how many there were.

        Raises:
            RefitError: its server doesn't answer.
        """
        port = str(session.access.port)
        if prepared := self._prepared.pop(session.container, None):
            started, ask = prepared
            with started:
                output = ask(port)
        else:
            limit = self._settings.stop_grace_seconds
            output = self.engine.execute(session.container, _PROGRAM, stdin=f"{_script()}\n{port}\n", limit=limit)
        if not (number := re.search(r"\b[0-9]{1,9}\s*\Z", output, re.ASCII)):
            raise JupyterError(
                f"Nobody knows how many kernels of {session.name!r} were ended.", why=f"{output[:200]!r}"
            )
        return int(number[0])


def _script() -> str:
    """The line that lets `_PROGRAM` be what ends kernels."""
    return f"exec({_END_KERNELS.read_text(encoding='utf-8')!a})"


def _hang_up(place: SplitResult) -> None:
    """End the connections of this machine to a place that is gone, where nobody would ever answer that it is."""
    ended = ["ss", "--kill", "--no-header", "--numeric", "--tcp", "state", "connected"]
    with suppress(RefitError):  # then they wait until the system gives up
        command.run([*ended, "dst", str(place.hostname), "dport", "=", f":{place.port}"], root=True, limit=10)
