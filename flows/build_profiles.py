"""Build and publish the images of a release: each distinct stage once, then each image's labels, checks and tags."""

import datetime
from pathlib import Path

from prefect import flow, runtime
from prefect.artifacts import create_table_artifact

from flows.catalog.load import newest_release
from flows.core.formatting import as_cells
from flows.core.programs import command
from flows.core.settings import load as load_settings
from flows.images.builder.build_lock import building
from flows.images.builder.workspace import recover
from flows.images.run import opened
from flows.orchestration.admission import Request, admit
from flows.orchestration.builders import clear_away
from flows.orchestration.release_build import THREADS, build_release, due_date
from flows.releases.plan import read_catalog
from flows.releases.report import BuildFailed, BuildReport, has_failed


def _name() -> str:
    return f"build {runtime.flow_run.parameters.get('release') or 'the newest release'}"


@flow(
    name="build-profiles",
    flow_run_name=_name,
    on_cancellation=[clear_away],
    on_crashed=[clear_away],
    task_runner=THREADS,
)
def build_profiles(
    release: str = "",
    profiles: list[str] | None = None,
    date: datetime.date | None = None,
    catalog: Path | None = None,
    graft: bool = True,
    systems: list[str] | None = None,
    force: bool = False,
    builders: int | None = None,
) -> BuildReport:
    """Build and publish the images of a release.

    Args:
        release: Name of the release, e.g. 2026a. Empty means the newest.
        profiles: Profiles to build, e.g. jupyter-minimal-deb12-py311. Empty means all of the release.
        date: Date of the tags. Empty means the UTC date on which this run was due.
        catalog: Folder of the catalog. Empty means the one of the settings.
        graft: Carry layers over to a new base where that gives what a build would give, instead of building them.
        systems: Operating systems to build for, e.g. deb12. Empty means all of the release.
        force: Build for operating systems that are held, too.
        builders: Machines that share the stages, for each operating system. 0 means this one alone, empty what the
            settings say.
    """
    settings = load_settings()
    if builders is not None:
        settings = settings.model_copy(update={"builders": builders})
    recover(settings)
    date = date or due_date()
    folder = catalog or settings.catalog
    request = Request(release or newest_release(folder), profiles or (), systems or (), force)
    recipes = read_catalog(folder)
    share = admit(request, recipes, settings, {**runtime.flow_run.parameters, "release": request.release, "date": date})
    if not share.profiles:
        return BuildReport((), (), {}, share.left)
    with opened(settings, date, graft=graft) as run, building(run.database), command.terminating_children():
        report = build_release(request.release, share, recipes, run, show_unchanged=True).report
    _show(report, request.release)
    if has_failed(report, named=bool(profiles)):
        raise BuildFailed(report)
    return report


def _show(report: BuildReport, release: str) -> None:
    create_table_artifact(
        key=f"images-{release}",
        description=f"Images of release {release}",
        table=as_cells(
            [
                {"tag": i.tag, "digest": i.digest, "size (MB)": round(i.size / 1e6, 1), "new": i.new}
                for i in report.images
            ]
        ),
    )
    create_table_artifact(
        key=f"stages-{release}",
        description=f"Stages of release {release}",
        table=as_cells(
            [
                {"stage": s.stage, "digest": s.digest, "how": s.how, "seconds": round(s.seconds, 2), "why": s.reason}
                for s in report.stages
            ]
        ),
    )
