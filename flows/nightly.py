"""The night: locks are held against the indexes, then every supported release is built, checked and published."""

import datetime
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging.loggers import flow_run_logger

from flows import lock_requirements
from flows.catalog import load, npm
from flows.catalog.model import Catalog, Profile, Release
from flows.core import operator_alerts, progress
from flows.core.database import now
from flows.core.documents import Mistakes
from flows.core.errors import RefitError, UnknownName
from flows.core.leases import lease
from flows.core.programs import command
from flows.core.settings import load as load_settings
from flows.images.build import Builder, Built
from flows.images.builder.build_lock import building
from flows.images.builder.workspace import recover
from flows.images.grafting.configuration import has_layer
from flows.images.recipe import CUDA_RECIPE, NODE
from flows.images.registry import Registry
from flows.images.run import Run, opened
from flows.images.stages import Difference, Stage
from flows.lock_requirements import Lock
from flows.locks import freshness
from flows.locks.freshness import Verdict
from flows.locks.make_python_lock import LOCK_SECONDS
from flows.orchestration.admission import Request, admit
from flows.orchestration.builders import clear_away
from flows.orchestration.release_build import THREADS, build_release, due_date
from flows.publishing import evidence, image_comparison
from flows.publishing.own_profiles import OwnProfiles
from flows.publishing.published import Published
from flows.rebuild_own_profiles import rebuild_own_profiles
from flows.releases import branches
from flows.releases.branches import ReleaseBranch
from flows.releases.night_report import (
    GraftProof,
    ImageNews,
    LockNews,
    Night,
    NightFailed,
    ReleaseNight,
    commit_message,
    markdown,
)
from flows.releases.outcomes import Attempt, ReleaseBuild
from flows.sessions.engines import is_pod

# How many locks were looked at, what became of those that could have moved, and the releases.
Part = tuple[int, tuple[LockNews, ...], tuple[ReleaseNight, ...]]


def tell(flow: Any, flow_run: Any, state: Any) -> None:
    """Send what went wrong to those whom the settings name.

    Prefect calls it, by these names of parameters: in the run that failed, or in the worker whose run was killed.
    """
    settings = load_settings()
    address = f"{settings.prefect_url}/flow-runs/flow-run/{flow_run.id}"
    text = f"{state.message or state.name}\n\n{address}"
    for failure in operator_alerts.send(f"Refit: {flow_run.name} {state.name.lower()}", text, settings):
        flow_run_logger(flow_run, flow).warning(failure)


def _name() -> str:
    chosen = runtime.flow_run.parameters.get("releases")
    return f"nightly {', '.join(chosen)}" if chosen else "nightly"


@flow(
    name="nightly",
    flow_run_name=_name,
    on_failure=[tell],
    on_crashed=[clear_away, tell],
    on_cancellation=[clear_away],
    task_runner=THREADS,
)
def nightly(
    releases: list[str] | None = None,
    date: datetime.date | None = None,
    catalog: Path | None = None,
    graft: bool = True,
) -> Night:
    """Bring the images of all supported releases up to date. A failure stops nothing else.

    Args:
        releases: Names of releases, e.g. 2026a. Empty means all that are supported.
        date: Date of the tags. Empty means the UTC date on which this run was due.
        catalog: Folder of the catalog. Empty means the one of the settings.
        graft: Carry layers over to a new base where that gives what a build would give, instead of building them.
    """
    settings = load_settings()
    recover(settings)
    day = date or due_date()
    with opened(settings, day, graft=graft) as run, building(run.database), command.terminating_children():
        night = spend(releases or (), catalog or settings.catalog, run)
    if OwnProfiles(run.database).all():  # those come last, and a failure of one is its owner's alone
        rebuild_own_profiles()
    create_markdown_artifact(markdown(night), key="-".join(("nightly", *(releases or ()))), description=night.headline)
    if night.failures:
        raise NightFailed(night)
    return night


def spend(names: Sequence[str], catalog: Path, run: Run) -> Night:
    """The night of the releases with these names, or of all: of those without a branch first.

    Raises:
        UnknownName: there is no such release.
    """
    started = monotonic()
    branched = {branch.release: branch for branch in branches.releases(catalog)}
    if unknown := [name for name in names if name not in branched]:
        raise UnknownName("release", unknown[0], branched, where=str(catalog / "releases"))
    chosen = [branched[name] for name in names or sorted(branched)]
    supported = [release for release in chosen if release.is_supported(run.date)]
    alone = [release.release for release in supported if not release.branch]
    parts = [_night_of_unbranched(alone, catalog, run)] if alone else []
    parts += [_night_of_branch(branch, catalog, run) for branch in supported if branch.branch]
    return Night(
        run.date,
        sum(looked_at for looked_at, _, _ in parts),
        tuple(lock for _, locks, _ in parts for lock in locks),
        tuple(night for _, _, nights in parts for night in nights),
        {branch.release: branch.file.supported_until for branch in chosen if branch.file and branch not in supported},
        monotonic() - started,
    )


def _night_of_unbranched(releases: Sequence[str], catalog: Path, run: Run) -> Part:
    """The night of releases that have no branch: a mistake anywhere in the catalog is one of all of them."""
    started = monotonic()
    try:
        recipes = load.load_catalog(catalog)
        chosen = [load.release(recipes, name) for name in releases]
        looked_at, locks = refresh_locks(chosen, recipes, run)
    except Exception as error:  # a bug, too: releases with branches are to have their night
        get_run_logger().exception("The night failed for the releases of %s", catalog)
        seconds = monotonic() - started
        return 0, (), tuple(ReleaseNight(name, None, problem=str(error), seconds=seconds) for name in releases)
    return looked_at, locks, tuple(_release_night(release, recipes, run) for release in chosen)


def _night_of_branch(branch: ReleaseBranch, catalog: Path, run: Run) -> Part:
    """The night of a release that has a branch.

    Recipes come from the branch, in a worktree of its own. Locks are committed to it, and pushed once images that were
    made of them have passed their checks.
    """
    started, name = monotonic(), branch.release
    try:
        # Another night would give up what lies uncommitted in the worktree.
        with lease(run.database, f"branch {name}", wait=LOCK_SECONDS):
            checkout = branches.check_out(catalog, name, run.settings.folder("worktrees") / name)
            recipes = load.load_catalog(checkout)
            release = load.release(recipes, name)
            looked_at, locks = refresh_locks([release], recipes, run)
            locks = tuple(replace(lock, release=name) for lock in locks)
            branches.commit(checkout, commit_message(name, locks))
            night = _release_night(release, recipes, run)
            return looked_at, locks, (_pushed(checkout, night),)
    except Exception as error:  # a bug, too: the other releases are to have their night
        get_run_logger().exception("The night failed for the branch %s", name)
        return 0, (), (ReleaseNight(name, None, problem=str(error), seconds=monotonic() - started),)


def _pushed(catalog: Path, night: ReleaseNight) -> ReleaseNight:
    """Push what a branch has that its remote hasn't, if all images passed; the night, and what became of that."""
    try:
        if not branches.ahead(catalog, night.release):
            return night
        if night.problem or night.report is None or night.report.failures or night.report.left:
            return replace(
                night, branch="Its commits were not pushed, because not all of its images were built and passed."
            )
        branches.push(catalog, night.release)
    except RefitError as error:
        return replace(night, unpushed=str(error))
    return replace(night, branch="Its commits were pushed.")


def refresh_locks(releases: Iterable[Release], recipes: Catalog, run: Run) -> tuple[int, tuple[LockNews, ...]]:
    """Make the locks anew that could come out otherwise now; how many were looked at, and what became of those.

    A Refit that is a Pod looks at none: a lock takes a container, and its catalog is a part of its image.
    """
    if is_pod(run.settings):
        return 0, ()
    overdue = [(release, _overdue(release, recipes.root)) for release in releases]
    try:
        targets = lock_requirements.targets(release for release, why in overdue if not why)
    except RefitError as error:  # two releases hold the same lock
        return 0, (LockNews("every", "bundle", "", problem=str(error)),)
    # Another night waits here, and then sees that there is nothing left to be done.
    with (
        lease(run.database, f"locks {recipes.root}", wait=LOCK_SECONDS),
        progress.reported("locks", "looking at indexes"),
    ):
        looks = freshness.look_at_locks({target.folder: target.terms for target in targets}, run.settings)
        moved = [target for target in targets if looks[target.folder].finding.verdict is not Verdict.same]
        outcomes = lock_requirements.carry_out(moved, looks, recipes, run.settings)
        for release, _ in overdue:
            lock_requirements.write_down(release, moved, outcomes, recipes.root)
    news = [
        _lock_news(target.bundle.name, target.python, looks[target.folder].finding.reason, outcome)
        for target, outcome in zip(moved, outcomes, strict=True)
    ]
    for release, why in overdue:
        if why:
            news += [LockNews(t.bundle.name, t.python, "", problem=why) for t in lock_requirements.targets([release])]
    return len(targets), tuple(news)


def _overdue(release: Release, root: Path) -> str:
    """Why a release's locks aren't touched: an exception of it has expired; empty: they are."""
    try:
        lock_requirements.refuse_expired(release, root, now().date())
    except Mistakes as mistakes:
        return str(mistakes)
    return ""


def _lock_news(bundle: str, python: str, why: str, outcome: Lock | BaseException) -> LockNews:
    if isinstance(outcome, Lock):
        return LockNews(bundle, python, why, change=str(outcome.change))
    return LockNews(bundle, python, why, problem=str(outcome))


def _release_night(release: Release, recipes: Catalog, run: Run) -> ReleaseNight:
    """Plan, build, check and publish the images of a release."""
    started, registry = monotonic(), run.registry
    try:
        before = registry.digests(registry.repository, [f"{p.stem}_{release.name}" for p in release.profiles])
        build = _build(release.name, recipes, run)
    except Exception as error:  # a bug, too: the other releases are to have their night
        get_run_logger().exception("The night failed for release %s", release.name)
        return ReleaseNight(release.name, None, problem=str(error), seconds=monotonic() - started)
    # All that could be published is: errors from here on must not lose the report of it.
    report, proof = build.report, _prove(build.attempts[0], run) if build.attempts else None
    new = [image for image in report.images if image.new]
    news = tuple(_image_news(image, before.get(f"{image.profile}_{release.name}"), registry) for image in new)
    by_hand = tuple(sorted({what for profile in release.profiles for what in moved_by_hand(profile, recipes)}))
    return ReleaseNight(release.name, report, news, proof, seconds=monotonic() - started, by_hand=by_hand)


def moved_by_hand(profile: Profile, recipes: Catalog) -> Iterator[str]:
    """Exact versions in the recipes of a profile: no night looks whether there are newer ones."""
    ide, system, cuda = profile.ide, profile.base.config, recipes.cuda
    if system.image:
        yield system.image
    if (ide.folder / npm.LOCK).exists():
        yield from (str((ide.folder / npm.LOCK).relative_to(recipes.root)), NODE)
    yield from (download.url for download in ide.config.downloads.values())
    for level in (cuda.levels[name] for name in cuda.below(profile.cuda_level)) if cuda else ():
        if level.lock and not (system.family == "rpm" and level.rpm):
            yield f"{CUDA_RECIPE}/locks/{level.lock}.txt"


def _build(release: str, recipes: Catalog, run: Run) -> ReleaseBuild:
    """Build what may be built here; the share of a paused operating system waits in its queue."""
    later = {"release": release, "date": run.date, "catalog": recipes.root, "graft": run.graft}
    share = admit(Request(release), recipes, run.settings, later)
    # A night without news starts no program, not even the one that draws a plan.
    return build_release(release, share, recipes, run, show_unchanged=False)


def _prove(attempt: Attempt, run: Run) -> GraftProof | None:
    """Make one graft again, any of them: the rule is proven in the tests, and held against the world every night."""
    report, graph = attempt.report, attempt.planned.graph
    carried = [stage for stage in report.grafted if has_layer(graph.stages[stage.stage].text)]
    if not carried or is_pod(run.settings):  # a builder would have to make it
        return None
    grafted = random.choice(carried)
    try:
        stage = graph.stages[grafted.stage]
        parent = next(built for built in report.stages if built.stage == stage.parent)
        differences = compare_graft(stage, parent, grafted, run)
    except Exception as error:  # a bug, too
        get_run_logger().exception("The graft of %s can't be made again", grafted.stage)
        return GraftProof(grafted.stage, problem=str(error) or repr(error))
    return GraftProof(
        grafted.stage,
        tuple(
            f"{difference.sort} {difference.name}: {difference.old} → {difference.new}" for difference in differences
        ),
    )


@task(task_run_name="make {stage.name} again", cache_policy=NO_CACHE)
def compare_graft(stage: Stage, parent: Built, grafted: Built, run: Run) -> tuple[Difference, ...]:
    """Make a stage that was grafted, and tell how what comes out differs."""
    return Builder(run.settings, run.registry).compare(stage, parent, grafted)


def _image_news(image: Published, before: str | None, registry: Registry) -> ImageNews:
    """The differences between an image and the one with the digest `before`."""
    try:
        old = registry.find(registry.repository, before) if before else None
        if old is None:
            return ImageNews(image)
        packages = [evidence.packages(registry, digest) for digest in (old.digest, image.digest)]
        return ImageNews(image, image.size - old.size, str(image_comparison.changes(*packages)))
    except Exception as error:  # a bug, too
        get_run_logger().exception("%s can't be compared with the image before it", image.tag)
        return ImageNews(image, problem=str(error) or repr(error))
