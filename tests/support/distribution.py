"""Which tests of a run go to one process: those of a file, or of a folder of tests with real programs.

The files of such a folder share what its conftest.py starts once, with the scope `package`. xdist's own groups
(`--dist loadgroup`) aren't used: xdist 3.8 writes them into a private name that pytest 9.2 no longer reads, and without
a word gives each test to any process, where all that is shared is started once more.
"""

from __future__ import annotations

from pathlib import PurePath

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

SHARING = {("tests", folder) for folder in ("real", "faults", "kube")}


def group(file: PurePath) -> PurePath:
    """The file or the folder whose tests go to one process, with the tests of `file`."""
    return file.parent if file.parent.parent.parts[-2:] in SHARING else file


def only_distributes(config: pytest.Config) -> bool:
    """Whether this process collects and runs no test, for it has others that do."""
    distributes = config.getoption("dist") != "no" and not config.getoption("collectonly")
    return distributes and not hasattr(config, "workerinput")


class Grouped(LoadScopeScheduling):
    """Gives each group to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return str(group(PurePath(nodeid.partition("::")[0])))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Grouped:
    """Distribute by groups, whatever `--dist` says."""
    return Grouped(config, log)
