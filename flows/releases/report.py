"""The report on a build of a release, and whether it has failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flows.core.errors import RefitError
from flows.images.build import Built
from flows.publishing.published import Published
from flows.releases.plan import ELSEWHERE


@dataclass(frozen=True)
class BuildReport:
    """The report on a run.

    Attributes:
        images, stages: all that are there now.
        failures: profile → why it failed.
        left: operating system → why nothing was built for it.
        unbuildable: profile → why this machine can't build it, so that nothing of it was tried, and no builder could.
        again: profile → what had gone from the mirror, so that it was resolved anew and tried once more.
    """

    images: tuple[Published, ...]
    stages: tuple[Built, ...]
    failures: Mapping[str, str]
    left: Mapping[str, str] = field(default_factory=dict)
    unbuildable: Mapping[str, str] = field(default_factory=dict)
    again: Mapping[str, str] = field(default_factory=dict)

    @property
    def built(self) -> tuple[Built, ...]:
        """The stages that had to be made."""
        return tuple(stage for stage in self.stages if stage.log)

    @property
    def grafted(self) -> tuple[Built, ...]:
        """The stages that were put together without a build."""
        return tuple(stage for stage in self.stages if stage.grafted)


class BuildFailed(RefitError):
    """Some profiles could not be built; all others were."""

    def __init__(self, report: BuildReport) -> None:
        self.report = report
        wrong, reasons = report.failures or report.unbuildable, {**report.failures, **report.unbuildable}
        how = "failed" if report.failures else "can't be built here"
        super().__init__(
            f"{len(wrong)} of {len(reasons) + len(report.images)} profiles {how}.",
            why="\n".join(f"{profile}: {reason}" for profile, reason in reasons.items()),
            hint=ELSEWHERE if report.unbuildable else "",
        )


def has_failed(report: BuildReport, *, named: bool) -> bool:
    """Whether a run failed. A profile that can't be built here counts only where it was named, or nothing was built."""
    return bool(report.failures or (report.unbuildable and (named or not report.images)))
