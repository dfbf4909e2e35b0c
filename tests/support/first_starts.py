"""Files that services make at their first start in a home are made once in a run of the tests, and copied into others.

Prefect's server migrates its database (6 s of CPU), and the gateway installs its npm packages (1 s). The first test
that wants one of them makes it as a new machine does. A home with `used=False` in tests/support/machine.py begins with
nothing.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from flows import services
from flows.core.settings import Settings
from flows.services import embedded, process
from tests.support.waiting import free_port

_DATABASE, _MEMORY = "prefect.db", "memo_store.toml"  # the latter says which types of blocks the former has
# The folder of this run, once there are tests.
_RUN: list[Path] = []


@pytest.fixture(scope="session", autouse=True)
def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All processes of a run make such things in one folder."""
    own = tmp_path_factory.getbasetemp()
    _RUN[:] = [own.parent if "PYTEST_XDIST_WORKER" in os.environ else own]


def in_a_run() -> bool:
    """Whether tests run; a benchmark has no folder to share, and measures first starts as they are."""
    return bool(_RUN)


def give_prefect_database(settings: Settings) -> None:
    """Let a home begin with the database of a Prefect server that was started once."""
    shutil.copytree(_made("prefect", _prefect_database), settings.folder("prefect"), dirs_exist_ok=True)


def give_gateway(settings: Settings) -> None:
    """Let a home begin with the packages of the gateway."""
    folder = settings.folder("services", "gateway")
    shutil.copytree(_made("gateway", _gateway), folder, symlinks=True, dirs_exist_ok=True)


def _made(name: str, make: Callable[[Path, Path], None]) -> Path:
    folder = _RUN[0] / "first-starts"
    folder.mkdir(exist_ok=True)
    made, draft = folder / name, folder / f"{name}-draft"
    with FileLock(folder / f"{name}.lock"):
        if not made.exists():
            draft.mkdir()
            make(folder / f"{name}-home", draft)
            draft.rename(made)
    return made


def _prefect_database(home: Path, draft: Path) -> None:
    settings = Settings(home=home, catalog=home, prefect_port=free_port(), gateway=False)
    try:
        services.up(settings, only=["prefect"])
    finally:
        services.down(settings)
    with closing(sqlite3.connect(home / "prefect" / _DATABASE)) as database:
        database.execute("VACUUM INTO ?", (str(draft / _DATABASE),))
    shutil.copy(home / "prefect" / _MEMORY, draft)


def _gateway(home: Path, draft: Path) -> None:
    bundle = os.environ.get("SSL_CERT_FILE")
    settings = Settings(home=home, catalog=home, ca_bundle=Path(bundle) if bundle else None)
    process.prepare(embedded.gateway(settings))
    for name in ("node_modules", "installed"):
        shutil.move(home / "services" / "gateway" / name, draft)
