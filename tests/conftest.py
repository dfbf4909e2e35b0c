"""Fixtures that all tests share: a home of one's own, free ports, waiting without hoping."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples

from flows.core.lazily import lazily
from tests.support.distribution import group, only_distributes
from tests.support.guard import guard

with lazily(globals()):
    from flows.core.settings import Settings

# Prefect fills this folder when it is imported, and nobody's own is to be touched. It goes when this process ends.
_PREFECT_HOME = tempfile.TemporaryDirectory(prefix="refit-tests-")
os.environ["PREFECT_HOME"] = _PREFECT_HOME.name
# Flows that tests call without a server have a temporary one. Refit itself has none.
os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "true"
os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "600"  # 20 are too few for a busy machine
guard(_PREFECT_HOME.name)
# A shell lets what it starts in the background ignore Ctrl-C, and with it all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_SECONDS = 3600
# The fixture for which the catalog's first image is made: tests/support/machine.py.
FIRST_IMAGE = "registry_server"
pytest_plugins = ["tests.support.distribution", "tests.support.weight", "tests.support.garbage"]
# Plugins of processes that run tests. They import most of Refit, for which all others would wait.
FIXTURES = (
    "tests.support.kept_work",  # first: it replaces what the others import
    "tests.support.fresh_databases",
    "tests.support.machine",
    "tests.support.first_starts",
    "tests.support.cluster",
    "tests.support.own_image",
)

# Whether examples are made fast hangs on what else the machine does: one that loses its cores for a moment makes any
# example slow. Where no profile is chosen, they are others each time, and all.
examples.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.load_profile("all")
# The same examples each time, so that what fails is the change's fault.
examples.register_profile("repeatable", examples.get_profile("all"), derandomize=True, max_examples=30)
# Enough to see whether anything is badly wrong, while one works on it.
examples.register_profile("few", examples.get_profile("repeatable"), max_examples=10)


def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures where tests are collected."""
    if not only_distributes(config):
        for name in FIXTURES:
            config.pluginmanager.import_plugin(name)


@pytest.hookimpl(trylast=True)  # after those that don't run were left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test that is marked long an hour, unless it says itself how long it takes; put the files in order."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))
    groups = {path: group(path) for path in {item.path for item in items}}
    wanting = dict.fromkeys((groups[item.path] for item in items), False)
    for item in items:
        wanting[groups[item.path]] |= FIRST_IMAGE in getattr(item, "fixturenames", ())
    order = _in_order(wanting)
    items.sort(key=lambda item: order[groups[item.path]])


def _in_order(wanting: Mapping[Path, bool]) -> dict[Path, int]:
    """The place of each file, or of each folder whose files stay together, by whether its tests want the first image.

    One that wants it comes first, for its process makes that image for all. Until it is there, the other processes have
    half of the quick tests, and the slow ones without images. The other half comes last, where a file that takes
    minutes would keep all waiting for one process.
    """
    quick = [file for file in wanting if "unit" in file.parts]
    slow = [file for file in wanting if "unit" not in file.parts]
    with_image = [file for file in slow if wanting[file]]
    without_image = [file for file in slow if not wanting[file]]
    half = len(quick) // 2
    files = [*with_image[:1], *quick[:half], *without_image, *with_image[1:], *quick[half:]]
    return {file: place for place, file in enumerate(files)}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose home is empty and belongs to this test alone."""
    return Settings(home=tmp_path / "home", hub=False)
