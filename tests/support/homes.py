"""Homes without a container."""

from __future__ import annotations

from flows.catalog.model import Access
from flows.sessions.homes.home import LocalHomes
from flows.sessions.model import Session, TokenRef

UID = 234_570


def session_in(homes: LocalHomes) -> Session:
    return Session("ana", "p", "2026a", "sha256:0", UID, homes.make("ana", UID), TokenRef("/token"), Access())
