"""JupyterHub's spawner over Refit's sessions."""

from __future__ import annotations

import asyncio
import contextvars
import html
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from jupyterhub.spawner import Spawner, SpawnException
from traitlets import default

from flows.core import progress
from flows.core.errors import RefitError
from flows.core.progress import Report
from flows.core.settings import Settings, load
from flows.sessions.model import Session
from flows.web.hub import removed_accounts
from flows.web.people import doing, offers, own_offers
from flows.web.people.servers import RUNS, Servers, choice_of

Result = TypeVar("Result")

_lines: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("lines", default=None)
_POLL_SECONDS = 0.2


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process."""
    return load()


@lru_cache(maxsize=1)
def servers() -> Servers:
    """The servers of this process, with one connection to Refit's database."""
    progress.listening(_keep).__enter__()  # for as long as this process lives
    every = Servers(settings())
    every.creations.end_interrupted()
    return every


def _keep(report: Report) -> None:
    """Keep what a thread reports for whoever waits for it; other threads have nobody."""
    if (lines := _lines.get()) is not None:
        lines.append(f"{report.thing}: {report.note or report.state}")


def _offered(person: str, groups: frozenset[str]) -> str:
    """The form for somebody."""
    allowance = servers().allowance
    account = allowance.account(person, groups)
    every = (*offers.offers(settings()), *own_offers.offers_to(settings(), person, groups))
    mine = [session.name for session in servers().all().get(person, {}).values()]
    return offers.form(allowance.offered(account, every), str(account), mine)


class RefitSpawner(Spawner):
    """A server of the Hub is a session of Refit: this one starts, finds, stops and removes it.

    The Hub reaches every server at the gateway, which knows where its session is now. So a move changes nothing that
    the Hub knows, and needs nothing of it.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._told: list[str] = []
        if self.authenticator:
            removed_accounts.note(self.authenticator, settings())

    async def _in_thread(self, work: Callable[..., Result], *given: Any) -> Result:
        """Do what may take long beside the Hub's loop; the waiting page shows reports meanwhile."""
        token = _lines.set(self._told)
        try:
            return await asyncio.to_thread(work, *given)
        finally:
            _lines.reset(token)

    async def start(self) -> str:
        """Start or make the session, or note that it runs; returns the address of the gateway."""
        self._told = []
        options = dict(self.user_options or {})
        if options.pop(RUNS, False):
            # The authorizer has seen it run. It was stopped since, or it runs still; it isn't started for that.
            self.orm_spawner.user_options = options
            if not await self.is_up():
                raise SpawnException("This session was stopped meanwhile.", reason="stopped")
            return settings().gateway_url
        try:
            await self._in_thread(servers().start, self.user.name, self.name, choice_of(options), self._groups)
        except RefitError as error:
            advice = doing.hint(error)
            message = " ".join(filter(None, (doing.words(error), advice and f"You can {advice}")))
            raise SpawnException(message, reason="refit", log_message=str(error)) from error
        return settings().gateway_url

    async def get_url(self) -> str:
        """Where the Hub reaches the server: at the gateway, whatever was so when the Hub began."""
        return f"{settings().gateway_url}{self.server.base_url}"

    async def is_up(self) -> bool:
        """Whether there is a session of this server, and it runs, moves or starts."""
        session = await self._session()
        return bool(session and await self._in_thread(servers().is_up, session.name))

    async def poll(self) -> int | None:
        """None while the session runs, moves or starts; else 0."""
        return None if await self.is_up() else 0

    async def stop(self, now: bool = False) -> None:
        """Stop the session, if a person wants that. The Hub also calls this when it can't reach the gateway."""
        if self._waiting_for_response:
            self.log.warning("%s can't be reached through the gateway; its session is left as it is.", self._log_name)
        elif session := await self._session():
            await self._in_thread(servers().stop, session.name)

    async def _session(self) -> Session | None:
        return await self._in_thread(servers().session, self.user.name, self.name)

    async def delete_forever(self) -> None:
        """Remove the session; its home stays. Of a person who is removed, the sessions stay as well, stopped."""
        session = await self._session()
        if session and self.user.name not in removed_accounts.people:
            await self._in_thread(servers().remove, session.name)

    async def progress(self) -> AsyncIterator[dict[str, object]]:
        """The lines that `refit session create` shows, as they come."""
        shown = 0
        while self.pending == "spawn":
            for line in self._told[shown:]:
                shown += 1
                yield {"progress": min(10 * shown, 90), "message": line, "html_message": html.escape(line)}
            await asyncio.sleep(_POLL_SECONDS)

    async def _offered(self, _: Spawner) -> str:
        """The form for a server that has no session yet; one that has starts without a question."""
        if await self._session():
            return ""
        try:
            return await self._in_thread(_offered, self.user.name, self._groups)
        except RefitError as error:
            message = html.escape(" ".join(filter(None, (error.what, error.why))))
            self.log.error("%s", error)
            return f'<p class="alert alert-danger">The profiles can\'t be listed. {message}</p>'

    @property
    def _groups(self) -> frozenset[str]:
        """The groups that the person is in; read in the loop alone, whose connection to the database this uses."""
        return frozenset(group.name for group in self.user.groups)

    @default("apply_user_options")
    def _applied(self) -> Callable[[Spawner, Mapping[str, object]], None]:
        return lambda spawner, options: None  # `start` reads them

    @default("options_form")
    def _form(self) -> Callable[[Spawner], Any]:
        return self._offered

    @default("options_from_form")
    def _reader(self) -> Callable[[Mapping[str, Sequence[str]]], dict[str, str]]:
        return self._chosen

    def _chosen(self, sent: Mapping[str, Sequence[str]]) -> dict[str, str]:
        try:
            return offers.read(sent)
        except RefitError as error:
            raise ValueError(str(error)) from None
