"""The part of the Hub's API that tells Refit who may reach what, as soon as it changes.

The Hub's own API spreads that over several answers for each person and server.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from jupyterhub import orm, roles
from jupyterhub.apihandlers.base import APIHandler
from jupyterhub.scopes import expand_scopes
from tornado import web  # type: ignore[attr-defined]

PATH, ADMINS = "/api/refit/rights", "/api/refit/admins"
SERVICE = "refit"
# Seconds.
_LONGEST_WAIT = 30.0
_REACHING = "access:servers"
# Changes of these make no difference to anybody's rights, and come with each request.
_IDLE = frozenset({"last_activity", "state", "started", "cookie_id", "encrypted_auth_state", "spawners", "api_tokens"})
_TELLING = (orm.User, orm.Group, orm.Role, orm.Share, orm.ShareCode, orm.APIToken)


class Changes:
    """Counts the changes of rights in a database of the Hub, and wakes those who wait for the next one."""

    def __init__(self, db: Any) -> None:
        self._begun, self._count, self._changed = secrets.token_hex(4), 0, asyncio.Event()
        self._taken, self._took = 0, asyncio.Event()
        sa.event.listen(db, "after_flush", self._after_flush)
        sa.event.listen(db, "after_bulk_delete", self._after_bulk)
        sa.event.listen(db, "after_bulk_update", self._after_bulk)

    @property
    def version(self) -> str:
        """Of the rights as they are now; another one after each change, and after the Hub was started again."""
        return f"{self._begun}.{self._count}"

    async def wait(self, seen: str, seconds: float) -> None:
        """Return as soon as the version isn't the one that was seen, or after so many seconds."""
        if seen == self.version:
            try:
                await asyncio.wait_for(self._changed.wait(), seconds)
            except TimeoutError:
                return

    def take(self, seen: str) -> None:
        """Refit follows the rights of that version: it asks for the next only afterwards."""
        begun, _, count = seen.partition(".")
        if begun == self._begun and count.isdecimal():
            self._taken = max(self._taken, int(count))
            self._took.set()
            self._took = asyncio.Event()

    async def taken(self, seconds: float) -> None:
        """Return as soon as Refit follows all changes up to now, or after so many seconds."""
        count = self._count
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._taken < count:
                    await self._took.wait()

    def _after_flush(self, session: Any, _: Any) -> None:
        touched = [*session.new, *session.deleted, *(row for row in session.dirty if _is_other(row))]
        if any(isinstance(row, _TELLING) for row in touched):
            self._count_one()

    def _after_bulk(self, _: Any) -> None:
        self._count_one()

    def _count_one(self) -> None:
        self._count += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _is_other(changed: Any) -> bool:
    return any(attr.history.has_changes() for attr in sa.inspect(changed).attrs if attr.key not in _IDLE)


_changes: dict[int, Changes] = {}


def changes(db: Any) -> Changes:
    """Those of a database, counted from now on."""
    if id(db) not in _changes:
        _changes[id(db)] = Changes(db)
    return _changes[id(db)]


def rights(db: Any) -> dict[str, Any]:
    """Accounts with their groups, roles and logins, and all shares, as plain data."""
    groups, logins = _groups(db), _logins(db)
    reaching = _reaching_scopes(db, groups)
    accounts = [
        {"name": name, "groups": sorted(groups[number]), "scopes": reaching[number], "logins": logins[number]}
        for number, name in db.query(orm.User.id, orm.User.name)
    ]
    return {"accounts": accounts, "shares": [*_shares(db), *_codes(db)]}


def _groups(db: Any) -> Mapping[int, list[str]]:
    groups_of = defaultdict[int, list[str]](list)
    for user, group in db.query(orm.user_group_map.c.user_id, orm.Group.name).join(orm.Group):
        groups_of[user].append(group)
    return groups_of


def _logins(db: Any) -> Mapping[int, dict[str, str | None]]:
    logins_of = defaultdict[int, dict[str, str | None]](dict)
    holds = sa.or_(orm.APIToken.expires_at.is_(None), orm.APIToken.expires_at > orm.APIToken.now())
    tokens = db.query(orm.APIToken.id, orm.APIToken.user_id, orm.APIToken.expires_at).filter(holds)
    for number, user, until in tokens.filter(orm.APIToken.user_id.is_not(None)):
        logins_of[user][f"a{number}"] = _moment(until)
    return logins_of


def _moment(at: datetime | None) -> str | None:
    """The Hub's times are UTC, and don't say so."""
    return at.replace(tzinfo=at.tzinfo or UTC).isoformat() if at else None


def _reaching_scopes(db: Any, groups: Mapping[int, Iterable[str]]) -> Mapping[int, list[str]]:
    """Number of a user → the scopes by which roles, their own or a group's, let them reach servers of others."""
    scopes_of = defaultdict[int, list[str]](list)
    of_groups = {group.name: frozenset(group.roles) for group in db.query(orm.Group) if group.roles}
    for user in db.query(orm.User).options(sa.orm.selectinload(orm.User.roles)):
        own = frozenset(user.roles).union(*(of_groups.get(group, frozenset()) for group in groups[user.id]))
        scopes = {scope for role in own for scope in role.scopes if not scope.startswith("self")}
        scopes_of[user.id] = sorted(
            scope for scope in expand_scopes(scopes, owner=user) if scope.partition("!")[0] == _REACHING
        )
    return scopes_of


def _shares(db: Any) -> list[list[str]]:
    return [
        [*_server(share), "group" if share.group else "person", (share.group or share.user).name]
        for share in db.query(orm.Share)
        if (share.group or share.user) and share.spawner and _reaches(share)
    ]


def _codes(db: Any) -> list[list[str]]:
    held = (code for code in db.query(orm.ShareCode) if code.spawner and not code.expired and _reaches(code))
    return [[*_server(code), "code", f"sc_{code.id}"] for code in held]


def _server(share: Any) -> tuple[str, str]:
    return share.owner.name, share.spawner.name


def _reaches(share: Any) -> bool:
    return any(scope.partition("!")[0] == _REACHING for scope in share.scopes)


class OwnHandler(APIHandler):
    """Answers Refit's own service, and nobody else."""

    async def prepare(self) -> None:
        """Refuse everybody else."""
        await super().prepare()
        if not (isinstance(self.current_user, orm.Service) and self.current_user.name == SERVICE):
            raise web.HTTPError(403)


class AdminsHandler(OwnHandler):
    """Lets somebody administer the Hub, or not any more: by its own API a service can't say so."""

    async def post(self) -> None:
        """Take `name` and `admin`."""
        body = self.get_json_body() or {}
        if (user := self.find_user(str(body.get("name", "")))) is None:
            raise web.HTTPError(404)
        user.admin = bool(body.get("admin"))
        roles.assign_default_roles(self.db, entity=user.orm_user)
        self.db.commit()
        self.set_status(204)


class RightsHandler(OwnHandler):
    """Tells who may reach what."""

    async def get(self) -> None:
        """Answer as soon as the rights aren't those that were `seen`, or after `wait` seconds with 304."""
        counted, seen = changes(self.db), self.get_argument("seen", "")
        counted.take(seen)
        await counted.wait(seen, min(float(self.get_argument("wait", "0")), _LONGEST_WAIT))
        if seen == counted.version:
            self.set_status(304)
            return
        self.finish(json.dumps({"version": counted.version, **rights(self.db)}))
