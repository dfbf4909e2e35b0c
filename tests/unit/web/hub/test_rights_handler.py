"""A page that gives somebody a right waits until the authorizer follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from jupyterhub import orm
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from flows.web.hub.rights_handler import Changes

# Seconds.
LONG, SHORT = 60.0, 0.05


@pytest.fixture
def db() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    orm.Base.metadata.create_all(engine)
    with Session(engine) as db:
        yield db
    engine.dispose()


def add_group(db: Session, name: str) -> None:
    db.add(orm.Group(name=name))
    db.commit()


def test_changes_are_taken_once_refit_asks_for_the_next(db: Session) -> None:
    async def scenario() -> None:
        changes = Changes(db)
        add_group(db, "first")
        before = changes.version
        add_group(db, "second")
        waiting = asyncio.create_task(changes.taken(LONG))
        for seen in ("", before, "another.99", f"{changes.version}x"):
            changes.take(seen)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done(), seen
        changes.take(changes.version)
        await waiting
        await changes.taken(LONG)  # nothing has changed since

    asyncio.run(asyncio.wait_for(scenario(), LONG))


def test_nobody_waits_for_ever_for_an_authorizer_that_is_away(db: Session) -> None:
    async def scenario() -> None:
        changes = Changes(db)
        add_group(db, "first")
        await changes.taken(SHORT)

    asyncio.run(asyncio.wait_for(scenario(), LONG))
