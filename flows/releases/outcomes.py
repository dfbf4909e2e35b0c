"""Outcomes of the jobs of a plan, and the report on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flows.core.errors import RefitError, Vanished
from flows.images.build import Built
from flows.publishing.published import Published
from flows.releases.plan import ReleasePlan
from flows.releases.report import BuildReport


@dataclass(frozen=True)
class StageJob:
    """Bring a stage into the registry."""

    stage: str


@dataclass(frozen=True)
class ImageJob:
    """Publish the image of a profile, named by the stem of its tags."""

    profile: str


Job = StageJob | ImageJob


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a plan's jobs so far; they grow while the jobs run.

    Attributes:
        stages: stage → what is in the registry, or why it isn't.
        images: stem of a profile → its image, or why there is none.
    """

    stages: dict[str, Built | BaseException] = field(default_factory=dict)
    images: dict[str, Published | BaseException] = field(default_factory=dict)

    @property
    def built(self) -> tuple[Built, ...]:
        """The stages that are there."""
        return tuple(outcome for outcome in self.stages.values() if isinstance(outcome, Built))

    @property
    def published(self) -> tuple[Published, ...]:
        """The images that are there."""
        return tuple(outcome for outcome in self.images.values() if isinstance(outcome, Published))

    def has(self, job: Job) -> bool:
        """Whether a job has come to an end, or was never needed."""
        return job.stage in self.stages if isinstance(job, StageJob) else job.profile in self.images

    def fail(self, job: Job, error: BaseException) -> None:
        """Note why a job came to nothing."""
        if isinstance(job, StageJob):
            self.stages[job.stage] = error
        else:
            self.images[job.profile] = error


@dataclass(frozen=True)
class Attempt:
    """A plan that was carried out."""

    planned: ReleasePlan
    outcomes: Outcomes

    @property
    def vanished(self) -> dict[str, str]:
        """The profiles that may come out if all is resolved anew: stem → what the mirror no longer had."""
        errors = ((stem, self.outcomes.images[stem]) for stem in self._stems)
        return {stem: f"{error.what} {error.why}".strip() for stem, error in errors if isinstance(error, Vanished)}

    @property
    def report(self) -> BuildReport:
        """The report on it."""
        planned, outcomes, images = self.planned, self.outcomes, self.outcomes.images
        unbuildable = _unbuildable(planned, outcomes)
        failed = {stem: str(images[stem]) for stem in self._stems if not isinstance(images[stem], Published)}
        return BuildReport(
            images=outcomes.published,
            stages=outcomes.built,
            failures={**planned.problems, **{stem: why for stem, why in failed.items() if stem not in unbuildable}},
            unbuildable={**planned.unbuildable, **unbuildable},
        )

    @property
    def _stems(self) -> tuple[str, ...]:
        return tuple(profile.stem for profile in self.planned.profiles)


@dataclass(frozen=True)
class ReleaseBuild:
    """All that a run did for a release.

    Attributes:
        attempts: one, or two where something had vanished from the mirror; none where nothing may be built.
        left: operating system → why nothing was built for it.
    """

    attempts: tuple[Attempt, ...]
    left: Mapping[str, str]

    @property
    def report(self) -> BuildReport:
        """The report on all attempts."""
        return merge_reports(self.attempts, self.left)


def merge_reports(attempts: Sequence[Attempt], left: Mapping[str, str]) -> BuildReport:
    """The report on all attempts of a run; a job that was tried again counts by its second attempt."""
    if not attempts:
        return BuildReport((), (), {}, left)
    first, *later = (attempt.report for attempt in attempts)
    if not later:
        return BuildReport(first.images, first.stages, first.failures, left, first.unbuildable)
    again, second, seen = attempts[0].vanished, later[0], {stage.key for stage in first.stages}
    return BuildReport(
        images=(*first.images, *second.images),
        stages=(*first.stages, *(stage for stage in second.stages if stage.key not in seen)),
        failures={**{stem: why for stem, why in first.failures.items() if stem not in again}, **second.failures},
        left=left,
        unbuildable={**first.unbuildable, **second.unbuildable},
        again=again,
    )


def _unbuildable(planned: ReleasePlan, outcomes: Outcomes) -> dict[str, str]:
    """The doubtful profiles that no builder could build either: stem → what can't be had, and what the builder says."""
    others = [outcomes.images[profile.stem] for profile in planned.profiles if profile.stem not in planned.doubtful]
    return {
        stem: f"{why}\n{error}"
        for stem, why in planned.doubtful.items()
        # An error that others have, too, has another cause; so has one of packages that left the mirror meanwhile.
        if isinstance(error := outcomes.stages[planned.graph.tops[stem]], RefitError)
        and not isinstance(error, Vanished)
        and error not in others
    }
