"""One query of Refit's database without SQLAlchemy, whose import takes longer than what commands that only look ask."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from flows.core.schema_versions import NEWEST

_SQLITE = "sqlite:///"


def rows(url: str, query: str) -> tuple[tuple[Any, ...], ...] | None:
    """The rows of a SELECT; none: ask by `database.open_database`, for this is another database, or of another schema.

    Args:
        url: of the database, as SQLAlchemy has it.
        query: reads tables as the newest version of the schema has them.
    """
    place = url.removeprefix(_SQLITE)
    if place == url or "?" in place or not Path(place).is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{Path(place).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            version = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            return tuple(connection.execute(query)) if version == (NEWEST,) else None
    except sqlite3.Error:  # what is wrong says whoever opens it
        return None
