"""Versions of the schema of Refit's database: brought up to date when it is opened (Alembic)."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.lazily import lazily

with lazily(globals()):
    import sqlalchemy
    from sqlalchemy import Connection, Engine, text

# Any number will do, as long as nothing else in the database locks the same.
_UPGRADE_KEY = 0x5EF17


NEWEST = "person_actions"


_SCHEMA = Path(__file__).parent / "schema"


_BEFORE_RELEASE = re.compile(r"00\d\d|first")  # versions of the schema that no release had


_upgrading = threading.Lock()


def revision(engine: Engine) -> str:
    """The version of the schema that a database has; empty: none."""
    with engine.connect() as connection:
        return version_of(connection)


def version_of(connection: Connection) -> str:
    """The version of the schema in a database; empty: there is none yet."""
    is_versioned = sqlalchemy.inspect(connection).has_table("alembic_version")
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "" if is_versioned else ""


def upgrade(engine: Engine) -> None:
    """Bring the schema up to date, unless it is; of several processes that open a database, one does it.

    Raises:
        RefitError: the schema is of a newer Refit, or of none.
    """
    with _one_at_a_time(engine), engine.begin() as connection:
        if (version := version_of(connection)) != NEWEST:
            _run_versions(connection, version)


def _run_versions(connection: Connection, version: str) -> None:
    """Bring the schema from a version up to date.

    Raises:
        RefitError: it is none of this Refit's.
    """
    # Alembic takes longer to import than most of what is asked of a database.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_SCHEMA))
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise _foreign(version, str(error)) from None


def _foreign(version: str, why: str) -> RefitError:
    if _BEFORE_RELEASE.fullmatch(version):
        return RefitError(
            "Refit's database was made before the first release.",
            why="This Refit can't read its journal, and so can't recover the moves in it.",
            hint="end all moves with the Refit that made it, and move the database away (its file, or another "
            "`database_url`); then `refit up` records the sessions that it finds.",
        )
    return RefitError(
        "Refit's database was written by a newer Refit.", why=why, hint="install that version, or a newer one."
    )


@contextmanager
def _one_at_a_time(engine: Engine) -> Iterator[None]:
    """Alembic keeps its state in globals, and two processes would both make the first table."""
    with _upgrading:
        if engine.dialect.name == "sqlite":
            with one_at_a_time(Path(f"{engine.url.database}.lock")):
                yield
        else:
            with engine.begin() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_KEY})
                yield
