"""The frame of a run that builds images: opened once, and closed when the run ends."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.registry import Registry


@dataclass(frozen=True)
class Run:
    """The objects that all parts of a run share.

    Attributes:
        settings: those of the run, which may differ from those of the file.
        registry: where images come from and go to; all questions of the run share its connections.
        database: the ledger, leases and publications.
        date: the date of the tags that it gives.
        graft: whether layers may be carried over to another parent instead of being built.
    """

    settings: Settings
    registry: Registry
    database: Engine
    date: datetime.date
    graft: bool = True


@contextmanager
def opened(settings: Settings, date: datetime.date, *, graft: bool = True) -> Iterator[Run]:
    """Open the registry and the database for a run.

    Raises:
        RefitError: the settings name a database or authorities that can't be used.
    """
    with Registry(settings) as registry:
        yield Run(settings, registry, open_database(settings.database), date, graft)
