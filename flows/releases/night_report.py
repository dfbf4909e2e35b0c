"""The report of a night, as a person reads it in a minute."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flows.core.errors import RefitError
from flows.core.formatting import exact_duration, in_markdown, megabytes, printable
from flows.images.build import Built
from flows.publishing.published import Published
from flows.releases.report import BuildReport

_MOST_LINES = 12  # of a failure; all of it is in the log of the run


@dataclass(frozen=True)
class LockNews:
    """The outcome for a lock that could have moved.

    Attributes:
        bundle, python: the bundle that it locks, and for which Python.
        why: the reason to make it again.
        change: the versions that moved, in words; empty: none.
        problem: why it couldn't be made, so that the last one stays; empty: it was.
        release: on whose branch it is; empty: on none.
    """

    bundle: str
    python: str
    why: str
    change: str = ""
    problem: str = ""
    release: str = ""

    @property
    def name(self) -> str:
        """Which lock it is, in words."""
        return f"{self.bundle} {self.python}{self.release and f' of {self.release}'}"


@dataclass(frozen=True)
class ImageNews:
    """A new image beside the one that its alias pointed at before.

    Attributes:
        image: the new one.
        growth: bytes (compressed) that it is larger; none: there was none before.
        packages: the changes in it, in words.
        problem: why it couldn't be compared with the one before; empty: it was.
    """

    image: Published
    growth: int | None = None
    packages: str = ""
    problem: str = ""


@dataclass(frozen=True)
class GraftProof:
    """A graft that was made again, to see whether a build gives the same.

    Attributes:
        stage: which.
        differences: the differences, in words; none: it is the same.
        problem: why it couldn't be made again; empty: it was.
    """

    stage: str
    differences: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class ReleaseNight:
    """The report of a night on one release.

    Attributes:
        release: its name.
        report: all images and stages; none: it came to nothing.
        news: the images that are new.
        proof: one of its grafts, held against a build; none: nothing was grafted.
        problem: why it came to nothing; empty: it didn't.
        seconds: how long it took.
        branch: the result of the commits of its branch, in a sentence; empty: there are none.
        unpushed: why the remote didn't take them; empty: it did, or wasn't asked.
        by_hand: the parts of its images whose versions no night moves: a person does.
    """

    release: str
    report: BuildReport | None
    news: tuple[ImageNews, ...] = ()
    proof: GraftProof | None = None
    problem: str = ""
    seconds: float = 0.0
    branch: str = ""
    unpushed: str = ""
    by_hand: tuple[str, ...] = ()

    @property
    def unchanged(self) -> tuple[Published, ...]:
        """The images that were there already."""
        return tuple(image for image in self.report.images if not image.new) if self.report else ()


@dataclass(frozen=True)
class Night:
    """The report of a night.

    Attributes:
        date: the UTC date of its tags.
        looked_at: how many locks were held against the indexes.
        locks: those that could have moved.
        releases: the supported ones.
        ended: releases that were left out: name → the last day on which they were supported.
        seconds: how long it took.
    """

    date: datetime.date
    looked_at: int = 0
    locks: tuple[LockNews, ...] = ()
    releases: tuple[ReleaseNight, ...] = ()
    ended: Mapping[str, datetime.date | None] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failures(self) -> dict[str, str]:
        """The failures: part → reason."""
        return {
            **{f"lock of {lock.name}": lock.problem for lock in self.locks if lock.problem},
            **{f"release {night.release}": night.problem for night in self.releases if night.problem},
            **{f"push of branch {night.release}": night.unpushed for night in self.releases if night.unpushed},
            **{
                f"{stem} of {night.release}": reason
                for night in self.releases
                if night.report
                for stem, reason in night.report.failures.items()
            },
            **{
                f"comparison of {news.image.profile} of {night.release}": news.problem
                for night in self.releases
                for news in night.news
                if news.problem
            },
            **{
                f"graft of {night.proof.stage} of {night.release}": reason
                for night in self.releases
                if night.proof and (reason := "\n".join(night.proof.differences) or night.proof.problem)
            },
        }

    @property
    def headline(self) -> str:
        """The night in one line."""
        new = sum(len(night.news) for night in self.releases)
        unchanged = sum(len(night.unchanged) for night in self.releases)
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"{new} new image{'' if new == 1 else 's'}, {unchanged} unchanged{failed}"


class NightFailed(RefitError):
    """Something failed; everything else was done."""

    def __init__(self, night: Night) -> None:
        self.night = night
        super().__init__(
            f"Night of {night.date}: {night.headline}.",
            why="\n".join(f"{what}: {_shortened(reason)}" for what, reason in night.failures.items()),
        )


def commit_message(release: str, locks: Iterable[LockNews]) -> str:
    """The message of a commit of new locks to a release's branch."""
    moved = [f"{lock.bundle} {lock.python}: {lock.change}" for lock in locks if not lock.problem]
    return "\n".join([f"Refresh the locks of {release}", "", *moved]) + "\n"


def markdown(night: Night) -> str:
    """The report of a night: what failed first, then what changed, then what was done, and what wasn't."""
    return "\n\n".join(_paragraphs(night)) + "\n"


def _paragraphs(night: Night) -> Iterator[str]:
    yield f"# Night of {night.date}: {night.headline}"
    yield f"It took {exact_duration(night.seconds)}."
    if night.failures:
        yield "## Failed"
        for what, reason in night.failures.items():
            yield f"**{what}**"
            yield f"```\n{_shortened(reason)}\n```"
    yield "## Locks"
    yield from _locks(night)
    for release in night.releases:
        yield f"## Release {release.release}, in {exact_duration(release.seconds)}"
        yield from _release(release)
    for name, last in night.ended.items():
        yield f"Release {name} was left out: it was supported until {last}."


def _locks(night: Night) -> Iterator[str]:
    if same := night.looked_at - len(night.locks):
        yield f"{same} of {night.looked_at}: the indexes say the same of all packages."
    if night.locks:
        rows = ((x.name, "the last one stays" if x.problem else x.change, in_markdown(x.why)) for x in night.locks)
        yield _table(("lock", "change", "made again because"), rows)


def _release(night: ReleaseNight) -> Iterator[str]:
    if night.news:
        yield _table(("new image", "size", "checked in", "what changed"), map(_image, night.news))
    if night.report:
        yield from _stages(night.report)
        left, unbuildable, again = map(_rows, (night.report.left, night.report.unbuildable, night.report.again))
        yield from (f"Nothing was done for {system}: {why}." for system, why in left)
        yield from (f"`{stem}` can't be built here: {why}" for stem, why in unbuildable)
        yield from (f"`{stem}` was resolved anew, and tried again: {why}" for stem, why in again)
    if night.proof and not night.proof.differences and not night.proof.problem:
        yield f"The graft of `{night.proof.stage}` was made again, and came out the same."
    if night.unchanged:
        names = ", ".join(f"`{image.tag}`" for image in night.unchanged)
        yield f"Left as they are, because nothing that goes into them has changed: {names}."
    if night.branch:
        yield night.branch
    if night.by_hand:
        yield f"Not looked at, because only a person moves it: {', '.join(f'`{what}`' for what in night.by_hand)}."


def _image(news: ImageNews) -> tuple[str, ...]:
    size = megabytes(news.image.size, 1)
    grown = "" if news.growth is None else f" ({news.growth / 1e6:+.1f})"
    if news.problem:
        return f"`{news.image.tag}`", size, exact_duration(news.image.seconds), "it wasn't compared with the one before"
    changed = in_markdown(news.packages) or ("the first one" if news.growth is None else "no package")
    return f"`{news.image.tag}`", size + grown, exact_duration(news.image.seconds), changed


def _stages(report: BuildReport) -> Iterator[str]:
    reused = [stage for stage in report.stages if stage.reused]
    done: Sequence[Built] = (*report.built, *report.grafted)
    yield f"Stages: {len(report.built)} built, {len(report.grafted)} grafted, {len(reused)} reused."
    if done:
        rows = (
            (f"`{stage.stage}`", stage.how, exact_duration(stage.seconds), in_markdown(stage.reason)) for stage in done
        )
        yield _table(("stage", "", "took", "why"), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _rows(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, in_markdown(why)) for name, why in reasons.items()]


def _cell(text: str) -> str:
    return " ".join(text.split())


def _shortened(text: str) -> str:
    lines = text.strip().splitlines()
    more = [f"… and {len(lines) - _MOST_LINES} lines more"] if len(lines) > _MOST_LINES else []
    return printable("\n".join([*lines[:_MOST_LINES], *more])).replace("```", "'''")
