"""Says at the end of a run which files of tests took the most CPU, their programs included.

`--durations` shows how long a test took by the clock, which is long for one that only waits. Programs that outlive
their parent, as a container does, aren't counted. A program counts, with all that it waited for, for the test at work
when it is waited for: a shared server for the one at whose end it is ended. The first image counts for the file that
wants it first. So the CPU of the process that tests is shown beside the sum.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator

import pytest

SHOWN = 25


def cpu_seconds() -> tuple[float, float]:
    """The CPU time of this process until now, and that of its ended children."""
    own, children = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


class Weights:
    """Measures each phase of each test where it runs; the process that shows the results adds them up by file."""

    def __init__(self) -> None:
        self._last = 0.0, 0.0
        self._by_file: Counter[str] = Counter()
        self._own: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        """Begin to measure: imports and the collection of the tests are nobody's."""
        self._last = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write into the report what was spent since the one before."""
        report = yield
        now = cpu_seconds()
        # xdist carries a report's own attributes to the process that shows them.
        report.cpu_seconds = [after - before for before, after in zip(self._last, now, strict=True)]  # type: ignore[attr-defined]
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add it to the file's."""
        file, (own, children) = report.nodeid.partition("::")[0], getattr(report, "cpu_seconds", (0.0, 0.0))
        self._by_file[file] += own + children
        self._own[file] += own

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the heaviest files, and the sum of all."""
        if not self._by_file:
            return
        spent = f"{self._by_file.total():.0f} s of CPU, {self._own.total():.0f} of them without programs"
        terminalreporter.section(f"{spent}; these files took the most")
        for file, seconds in self._by_file.most_common(SHOWN):
            terminalreporter.write_line(f"{seconds:8.1f} s ({self._own[file]:.1f}) {file}")


def pytest_configure(config: pytest.Config) -> None:
    """Measure in every run."""
    config.pluginmanager.register(Weights(), "weights")
