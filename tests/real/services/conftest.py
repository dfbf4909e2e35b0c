"""One registry, one Prefect server and one worker for all files of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows import services
from flows.core.settings import Settings
from flows.services import prefect_services
from tests.support.first_starts import give_prefect_database
from tests.support.services import make_settings
from tests.support.systems import write_catalog
from tests.support.trial_worker import with_the_trial


@pytest.fixture(scope="package", autouse=True)
def worker_of_the_trial() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prefect_services, "worker", with_the_trial)
        yield


@pytest.fixture(scope="package")
def started(tmp_path_factory: pytest.TempPathFactory, worker_of_the_trial: None) -> Iterator[Settings]:
    """The settings of the services, whose catalog has two operating systems."""
    folder = tmp_path_factory.mktemp("services")
    made = make_settings(folder / "a home with 100% of what is odd in 'names'", write_catalog(folder / "catalog"))
    give_prefect_database(made)
    try:
        services.up(made)
        yield made
    finally:
        services.down(made)


@pytest.fixture(scope="module")
def settings(started: Settings) -> Settings:
    """These settings; all services run as they say, whatever the file before has done to them."""
    services.up(started)
    return started
