"""The Hub's last word on people, in a file: others than the authorizer know it, and so while the Hub is away."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from flows.core.atomic_files import write_whole
from flows.core.database import now
from flows.core.settings import Settings
from flows.sessions.people.entitlements import Account, Entitlements, Kind, Rights, Share
from flows.sessions.people.share_records import Grants
from flows.sessions.store import Store

_FILE = "rights.json"


@dataclass(frozen=True)
class Heard:
    """The Hub's word on people, and when it was heard.

    Attributes:
        rights: accounts, shares and groups.
        servers: session → name of its owner's server.
    """

    rights: Rights
    servers: dict[str, str] = field(default_factory=dict)


def file(settings: Settings) -> Path:
    """Where it is; only the authorizer writes it."""
    return settings.home / "services" / "authorizer" / _FILE


def keep(settings: Settings, heard: Heard) -> None:
    """Write down what the Hub says.

    Raises:
        OSError: the file can't be written.
    """
    write_whole(file(settings), json.dumps(as_json(heard)), private=True)


def last(settings: Settings) -> Heard:
    """The Hub's last word on people. Without a Hub each name is somebody's; before its first answer none is."""
    if not settings.hub_wanted:
        return Heard(Rights())
    try:
        return from_json(json.loads(file(settings).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return Heard(Rights(accounts={}))


def unowned(settings: Settings, database: Engine) -> tuple[str, ...]:
    """The sessions of owners without an account, into which people don't get; none where nobody logs in."""
    if (accounts := last(settings).rights.accounts) is None:
        return ()
    store = Store(database)
    owners = store.owners()
    return tuple(session.name for session in store.sessions() if owners.get(session.name, "") not in accounts)


def entitlements(settings: Settings, database: Engine, heard: Heard | None = None) -> Entitlements:
    """The rights to sessions now.

    Args:
        settings: of this Refit.
        database: Refit's.
        heard: the Hub's answer; none: its last one.
    """
    heard = heard or last(settings)
    owners, grants = Store(database).owners(), Grants(database).open()
    return Entitlements(heard.rights, owners, grants, now(), heard.servers)


def as_json(heard: Heard) -> dict[str, Any]:
    """As plain data. Pure."""
    accounts = heard.rights.accounts or {}
    return {
        "accounts": [
            {
                "name": account.name,
                "groups": sorted(account.groups),
                "scopes": sorted(account.scopes),
                "logins": {login: until.isoformat() if until else None for login, until in account.logins.items()},
            }
            for account in accounts.values()
        ],
        "shares": sorted(
            [share.session, share.owner, share.kind.value, share.subject] for share in heard.rights.shares
        ),
        "servers": heard.servers,
    }


def from_json(document: dict[str, Any]) -> Heard:
    """From plain data; the reverse of `as_json`. Pure.

    Raises:
        KeyError, TypeError, ValueError: it isn't such data.
    """
    accounts = accounts_from(document["accounts"])
    shares = frozenset(
        Share(session, owner, Kind(kind), subject) for session, owner, kind, subject in document["shares"]
    )
    return Heard(Rights(accounts, shares, members(accounts)), dict(document["servers"]))


def members(accounts: Mapping[str, Account]) -> dict[str, frozenset[str]]:
    """Group → the people in it. Pure."""
    groups = {group for account in accounts.values() for group in account.groups}
    return {
        group: frozenset(account.name for account in accounts.values() if group in account.groups) for group in groups
    }


def accounts_from(documents: Iterable[Mapping[str, Any]]) -> dict[str, Account]:
    """Name → account, from plain data. Pure.

    Raises:
        KeyError, TypeError, ValueError: it isn't such data.
    """
    return {account["name"]: _account(account) for account in documents}


def _account(document: Mapping[str, Any]) -> Account:
    logins = {login: datetime.fromisoformat(until) if until else None for login, until in document["logins"].items()}
    return Account(document["name"], frozenset(document["groups"]), frozenset(document["scopes"]), logins)
