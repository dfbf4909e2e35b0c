"""The Hub's page of a code by which somebody gets a share of a session. A code works once, and says so afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyterhub import orm
from jupyterhub.handlers import BaseHandler
from tornado import web  # type: ignore[attr-defined]

from flows.sessions.people.entitlements import Kind, Share
from flows.sessions.people.share_records import Grants
from flows.web.hub import rights_handler
from flows.web.hub.spawner import servers

PATH = "/accept-share"
# Of this and the other pages that Refit adds to the Hub.
TEMPLATES = Path(__file__).parent / "templates"
# Longest wait until the authorizer knows of a share; one that is away hears of it later.
_KNOWN_SECONDS = 5.0
_FORM = "accept-share.html"
_GONE = "This link was used already, has expired, or was taken back. Ask the owner of the session for another one."


class AcceptHandler(BaseHandler):
    """Shows what somebody is invited to, and makes the share when they accept."""

    @web.authenticated
    async def get(self) -> None:
        """Show the form; looking at it uses nothing up."""
        code = self._code()
        session = await self._session(code)
        grant = next((grant for grant in await asyncio.to_thread(_open_grants) if grant.share == session), None)
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")
        until = f"{grant.until:%Y-%m-%d %H:%M} UTC" if grant and grant.until else ""
        variables = {"owner": code.owner.name, "session": session.session, "until": until}
        self.finish(await self.render_template(_FORM, code=self.get_argument("code"), **variables))

    @web.authenticated
    async def post(self) -> None:
        """Make the share of the person who accepts; of two who come at once, one gets it."""
        code = self._code()
        number = code.id
        share, person = await self._session(code), self.current_user
        # Refit's record comes first: a share without one would never end.
        if not await asyncio.to_thread(_redeem, share, person.name):
            raise web.HTTPError(410, _GONE)
        if self.db.get(orm.ShareCode, number) is None:
            raise web.HTTPError(410, _GONE)
        code.exchange(person.orm_user)
        self.db.delete(code)
        self.db.commit()
        await rights_handler.changes(self.db).taken(_KNOWN_SECONDS)  # else the session would refuse whom it lets in
        self.redirect(servers().sessions.store.session(share.session).path)

    def _code(self) -> Any:
        code = orm.ShareCode.find(self.db, code=self.get_argument("code", ""))
        if code is None or code.spawner is None:
            raise web.HTTPError(410, _GONE)
        if code.owner == self.current_user.orm_user:
            raise web.HTTPError(403, "This session is yours: give the link to somebody else.")
        return code

    async def _session(self, code: Any) -> Share:
        """The code as Refit knows it, by the session that it is for."""
        session = await asyncio.to_thread(servers().session, code.owner.name, code.spawner.name)
        if session is None:
            raise web.HTTPError(410, "The session of this link was removed.")
        return Share(session.name, code.owner.name, Kind.code, f"sc_{code.id}")


def _grants() -> Grants:
    return Grants(servers().sessions.store.database)


def _open_grants() -> Any:
    return _grants().open()


def _redeem(code: Share, person: str) -> bool:
    """Whether a code may be exchanged: one of Refit's holds, or it was made at the Hub itself."""
    grants = _grants()
    if not any(grant.share == code for grant in grants.of(code.session)):
        return True
    return grants.redeem(code, person)
