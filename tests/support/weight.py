"""Says at the end of a run which files of tests took the most CPU, their programs included.

`--durations` shows how long a test took by the clock, which is long for one that only waits. Programs that outlive
their parent, as a container does, aren't counted. A shared server counts for the test at whose end it is ended.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator

import pytest

SHOWN = 25


def cpu_seconds() -> float:
    """The CPU time of this process and its ended children until now."""
    spent = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


class Weights:
    """Measures each phase of each test where it runs; the process that shows the results adds them up by file."""

    def __init__(self) -> None:
        self._last = 0.0
        self._by_file: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        """Begin to measure: imports and the collection of the tests are nobody's."""
        self._last = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write into the report what was spent since the one before."""
        report = yield
        now = cpu_seconds()
        # xdist carries a report's own attributes to the process that shows them.
        report.cpu_seconds = now - self._last  # type: ignore[attr-defined]
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add it to the file's."""
        self._by_file[report.nodeid.partition("::")[0]] += getattr(report, "cpu_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the heaviest files, and the sum of all."""
        if not self._by_file:
            return
        terminalreporter.section(f"{self._by_file.total():.0f} s of CPU, of which these files took the most")
        for file, seconds in self._by_file.most_common(SHOWN):
            terminalreporter.write_line(f"{seconds:8.1f} s {file}")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in every run."""
    config.pluginmanager.register(Weights(), "weights")
