"""Fixtures that all tests share: a home of one's own, free ports, waiting without hoping."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterable
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
pytest_plugins = ["tests.support.distribution", "tests.support.weight", "tests.support.garbage"]
# Plugins of processes that run tests. They import most of Refit, for which all others would wait.
FIXTURES = (
    "tests.support.fresh_databases",
    "tests.support.machine",
    "tests.support.first_starts",
    "tests.support.cluster",
    "tests.support.own_image",
)

# The same examples each time, so that what fails is the change's fault; without it they are others each time, and all.
# Whether they are made fast hangs on what else the machine does.
# A machine that loses its cores for a moment makes any example slow.
examples.register_profile(
    "repeatable", deadline=None, derandomize=True, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
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
    order = _in_order(dict.fromkeys(group(item.path) for item in items))
    items.sort(key=lambda item: order[group(item.path)])


def _in_order(files: Iterable[Path]) -> dict[Path, int]:
    """The place of each file, or of each folder whose files stay together.

    The first one makes the image that most others with real programs need: half of those that don't come next, for the
    other processes. The other half comes last, where a file that takes minutes would keep all waiting for one process.
    """
    test_files = list(files)
    quick = [file for file in test_files if "unit" in file.parts]
    slow = [file for file in test_files if "unit" not in file.parts]
    half = len(quick) // 2
    return {file: place for place, file in enumerate([*slow[:1], *quick[:half], *slow[1:], *quick[half:]])}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose home is empty and belongs to this test alone."""
    return Settings(home=tmp_path / "home", hub=False)
