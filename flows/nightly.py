"""The night: locks are held against the indexes, then every supported release is built, checked and published."""

import datetime
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging.loggers import flow_run_logger
from sqlalchemy import Engine

from flows import branches, command, lock_requirements, notices, progress
from flows.admission import Request, admit
from flows.branches import ReleaseBranch
from flows.build_profiles import THREADS, BuildReport, carry_out, due_date, make_plan, summary
from flows.build_stages import clear_away
from flows.catalog import load
from flows.catalog.model import Catalog, Release
from flows.database import lease, now, open_database
from flows.documents import Mistakes
from flows.errors import RefitError
from flows.images.build import Builder, Built
from flows.images.grafting.configuration import has_layer
from flows.images.registry import Registry
from flows.images.stages import Difference, Stage
from flows.images.workshop.gate import building
from flows.images.workshop.workspace import recover
from flows.lock_requirements import Lock
from flows.locks import freshness
from flows.locks.freshness import Verdict
from flows.locks.locking import LOCK_SECONDS
from flows.night import (
    GraftProof,
    ImageNews,
    LockNews,
    Night,
    NightFailed,
    ReleaseNight,
    commit_message,
    markdown,
)
from flows.plan_release import ReleasePlan
from flows.publishing import evidence
from flows.publishing.publish import Published
from flows.settings import Settings
from flows.settings import load as load_settings


def tell(flow: Any, flow_run: Any, state: Any) -> None:
    """Send what went wrong to those whom the settings name.

    Prefect calls it, by these names of parameters: in the run that failed, or in the worker whose run was killed.
    """
    settings = load_settings()
    address = f"{settings.prefect_url}/flow-runs/flow-run/{flow_run.id}"
    text = f"{state.message or state.name}\n\n{address}"
    for failure in notices.send(f"Refit: {flow_run.name} {state.name.lower()}", text, settings):
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
    """Bring the images of all supported releases up to date. What fails stops nothing else.

    Args:
        releases: Names of releases, e.g. 2026a. Empty means all that are supported.
        date: Date of the tags. Empty means the UTC date on which this run was due.
        catalog: Folder of the catalog. Empty means the one of the settings.
        graft: Carry layers over to a new base where that gives what a build would give, instead of building them.
    """
    settings, started, day = load_settings(), monotonic(), date or due_date()
    recover(settings)
    recipes = load.load_catalog(catalog or settings.catalog)
    branched = {branch.release: branch for branch in branches.branches(recipes.root)}
    names = releases or sorted({*recipes.releases, *branched})
    chosen = [load.release(recipes, name) for name in names if name not in branched]
    supported = [release for release in chosen if release.is_supported(day)]
    followed = [branched[name] for name in names if name in branched and branched[name].is_supported(day)]
    database = open_database(settings.database)
    with building(database), command.ending_all():
        looked_at, locks = refresh_locks(supported, recipes, settings, database)
        nights = [build_release(release, day, recipes.root, settings, graft) for release in supported]
        for branch in followed:
            looked_at_there, locks_there, night_there = follow(branch, day, recipes.root, settings, graft, database)
            looked_at, locks = looked_at + looked_at_there, (*locks, *locks_there)
            nights.append(night_there)
    ended = {release.name: release.supported_until for release in chosen if release not in supported}
    ended |= {n: b.file.supported_until for n in names if (b := branched.get(n)) and b.file and b not in followed}
    night = Night(day, looked_at, locks, tuple(nights), ended, monotonic() - started)
    create_markdown_artifact(markdown(night), key="-".join(("nightly", *(releases or ()))), description=night.headline)
    if night.failures:
        raise NightFailed(night)
    return night


def follow(
    branch: ReleaseBranch, date: datetime.date, catalog: Path, settings: Settings, graft: bool, database: Engine
) -> tuple[int, tuple[LockNews, ...], ReleaseNight]:
    """A night of a release that has a branch: how many locks were looked at, what became of them, and its images.

    Recipes come from the branch, in a worktree of its own. Locks are committed to it, and pushed once images that were
    made of them have passed their checks.
    """
    started, name = monotonic(), branch.release
    try:
        # Another night would give up what lies uncommitted in the worktree.
        with lease(database, f"branch {name}", wait=LOCK_SECONDS):
            there = branches.check_out(catalog, name, settings.folder("worktrees") / name)
            recipes = load.load_catalog(there)
            release = load.release(recipes, name)
            looked_at, locks = refresh_locks([release], recipes, settings, database)
            locks = tuple(replace(lock, release=name) for lock in locks)
            branches.commit(there, commit_message(name, locks))
            night = build_release(release, date, there, settings, graft)
            return looked_at, locks, _pushed(there, night)
    except Exception as error:  # a bug, too: the other releases are to have their night
        get_run_logger().exception("Branch %s came to nothing", name)
        return 0, (), ReleaseNight(name, None, problem=str(error), seconds=monotonic() - started)


def _pushed(catalog: Path, night: ReleaseNight) -> ReleaseNight:
    """Push what a branch has that its remote hasn't, if all images passed; the night, and what became of that."""
    if not branches.ahead(catalog, night.release):
        return night
    if night.problem or night.report is None or night.report.failures or night.report.left:
        return replace(
            night, branch="Its commits were not pushed, because not all of its images were built and passed."
        )
    try:
        branches.push(catalog, night.release)
    except RefitError as error:
        return replace(night, unpushed=str(error))
    return replace(night, branch="Its commits were pushed.")


def refresh_locks(
    releases: Iterable[Release], recipes: Catalog, settings: Settings, database: Engine
) -> tuple[int, tuple[LockNews, ...]]:
    """Make the locks anew that could come out otherwise now; how many were looked at, and what became of those."""
    overdue = [(release, _overdue(release, recipes.root)) for release in releases]
    try:
        wanted = lock_requirements.targets(release for release, why in overdue if not why)
    except RefitError as error:  # two releases hold the same lock
        return 0, (LockNews("every", "bundle", "", problem=str(error)),)
    # Another night waits here, and then sees that there is nothing left to be done.
    with lease(database, f"locks {recipes.root}", wait=LOCK_SECONDS), progress.reported("locks", "looking at indexes"):
        looks = freshness.look_at_locks({target.folder: target.terms for target in wanted}, settings)
        moved = [target for target in wanted if looks[target.folder].finding.verdict is not Verdict.same]
        outcomes = lock_requirements.carry_out(moved, looks, recipes, settings)
        for release, _ in overdue:
            lock_requirements.write_down(release, moved, outcomes, recipes.root)
    news = [
        _lock_news(target.bundle.name, target.python, looks[target.folder].finding.reason, outcome)
        for target, outcome in zip(moved, outcomes, strict=True)
    ]
    for release, why in overdue:
        if why:
            news += [LockNews(t.bundle.name, t.python, "", problem=why) for t in lock_requirements.targets([release])]
    return len(wanted), tuple(news)


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


def build_release(
    release: Release, date: datetime.date, catalog: Path, settings: Settings, graft: bool
) -> ReleaseNight:
    """Plan, build, check and publish the images of a release."""
    started, registry = monotonic(), Registry(settings)
    try:
        before = registry.digests(registry.repository, [f"{p.stem}_{release.name}" for p in release.profiles])
        report, planned = _build(release.name, date, catalog, settings, graft)
        proof = _prove(report, planned, settings) if planned else None
        new = [image for image in report.images if image.new]
        news = tuple(_image_news(image, before.get(f"{image.profile}_{release.name}"), registry) for image in new)
    except Exception as error:  # a bug, too: the other releases are to have their night
        get_run_logger().exception("Release %s came to nothing", release.name)
        return ReleaseNight(release.name, None, problem=str(error), seconds=monotonic() - started)
    return ReleaseNight(release.name, report, news, proof, seconds=monotonic() - started)


def _build(
    release: str, date: datetime.date, catalog: Path, settings: Settings, graft: bool
) -> tuple[BuildReport, ReleasePlan | None]:
    # What is left out for a system that is held waits in the queue of that system.
    later = {"release": release, "date": date, "catalog": catalog, "graft": graft}
    share = admit(Request(release, catalog=catalog), settings, later)
    if not share.profiles:
        return BuildReport((), (), {}, share.left), None
    planned = make_plan(release, [profile.stem for profile in share.profiles], catalog, settings)
    report = summary(planned, carry_out(planned, date, settings, graft=graft))
    return replace(report, left=share.left), planned


def _prove(report: BuildReport, planned: ReleasePlan, settings: Settings) -> GraftProof | None:
    """Make one graft again, any of them: the rule is proven in the tests, and held against the world every night."""
    carried = [stage for stage in report.grafted if has_layer(planned.graph.stages[stage.stage].text)]
    if not carried:
        return None
    grafted = random.choice(carried)
    stage = planned.graph.stages[grafted.stage]
    parent = next(built for built in report.stages if built.stage == stage.parent)
    try:
        found = compare_graft(stage, parent, grafted, settings)
    except RefitError as error:
        return GraftProof(stage.name, problem=str(error))
    return GraftProof(stage.name, tuple(f"{one.sort} {one.name}: {one.old} → {one.new}" for one in found))


@task(task_run_name="make {stage.name} again", cache_policy=NO_CACHE)
def compare_graft(stage: Stage, parent: Built, grafted: Built, settings: Settings) -> tuple[Difference, ...]:
    """Make a stage that was grafted, and tell how what comes out differs."""
    return Builder(settings, Registry(settings)).compare(stage, parent, grafted)


def _image_news(image: Published, before: str | None, registry: Registry) -> ImageNews:
    old = registry.find(registry.repository, before) if before else None
    if old is None:
        return ImageNews(image)
    try:
        found = [evidence.packages(registry, digest) for digest in (old.digest, image.digest)]
        packages = str(evidence.changes(*found))
    except RefitError:  # the older one has lost its evidence
        packages = "its packages can't be compared"
    return ImageNews(image, image.size - old.size, packages)
