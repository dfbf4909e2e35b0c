"""The commands that build, show and prune images."""

from __future__ import annotations

import datetime
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.console import (
    Json,
    OfRelease,
    ReleaseName,
    Yes,
    err,
    out,
    running_flows,
    show,
    show_data,
    show_error,
    show_json,
    show_json_error,
    show_text,
    shown_catalog,
)
from flows.core.errors import RefitError
from flows.core.formatting import megabytes
from flows.core.lazily import lazily

with lazily(globals()):
    from rich.markdown import Markdown

    from flows.cli import (
        screen,
        tables,
    )
    from flows.core.atomic_files import write_whole
    from flows.core.settings import load
    from flows.images import graph_drawing
    from flows.images.builder import cache
    from flows.images.registry import Registry
    from flows.publishing import evidence, image_comparison
    from flows.releases.containerfile import show_profile
    from flows.releases.plan import NotBuildable, chosen, due_locks, plan_release, read_catalog

if TYPE_CHECKING:
    from flows.core.settings import Settings
    from flows.releases.plan import ReleasePlan

# Prefect takes a second to import and reads its settings while it does: the verbs are imported where they are run.
# ruff: noqa: PLC0415

cache_app = typer.Typer(invoke_without_command=True)

Graft = Annotated[bool, typer.Option(help="Carry layers over to a new base instead of building them.")]
Image = Annotated[str, typer.Argument(metavar="TAG", help="Tag, alias or digest of an image.")]


def lock(
    release: ReleaseName,
    bundle: Annotated[list[str] | None, typer.Option(metavar="BUNDLE", help="Only these bundles.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check whether all locks fit; write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Lock the Python requirements of a release's bundles, each inside its target base's container."""
    if check:
        from flows.lock_requirements import check_locks

        targets = [(target.bundle.name, target.base.name, target.python) for target in check_locks(release, bundle)]
        show_data(as_json, targets, tables.table("Locks that are in order", ("bundle", "base", "python"), targets))
        return
    with running_flows(quiet=as_json):
        from flows.lock_requirements import lock_requirements

        locks = lock_requirements(release, bundle)
    rows = ((x.bundle, x.base, x.python, x.change or "unchanged") for x in locks)
    show_data(as_json, locks, tables.table("Locks", ("bundle", "base", "python", "change"), rows))
    if not as_json and any(x.held or x.unmended for x in locks):
        show(tables.held_back(locks))
    for x in locks if not as_json else ():
        if x.from_folders:
            out.print(f"{x.bundle} {x.python} has {', '.join(x.from_folders)} from a folder of `wheel_folders` alone.")


def build(
    release: ReleaseName,
    profile: Annotated[list[str] | None, typer.Option(metavar="PROFILE", help="Only these profiles.")] = None,
    date: Annotated[
        datetime.datetime | None, typer.Option(metavar="YYYY-MM-DD", formats=["%Y-%m-%d"], help="UTC date of the tags.")
    ] = None,
    graft: Graft = True,
    system: Annotated[
        list[str] | None, typer.Option("--os", metavar="OS", help="Only for these operating systems.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Build for operating systems that are paused, too.")] = False,
    builders: Annotated[
        int | None,
        typer.Option(min=0, help="Machines that share the stages, for each system; 0: this one alone (experimental)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build and publish the images of a release; stages that are there already are not built again."""
    with running_flows(quiet=as_json):
        from flows.build_profiles import build_profiles
        from flows.releases.plan import ELSEWHERE

        day = date.date() if date else None
        report = build_profiles(release, profile, day, graft=graft, systems=system, force=force, builders=builders)
    show_data(as_json, report, tables.images(report))
    if not as_json:
        out.print(tables.built(report))
    for name, why in report.left.items():
        err.print(f"Nothing was built for {name}: {why}. `--force` builds all the same.")
    for name, why in report.unbuildable.items():
        err.print(f"{name} can't be built here: {why}", highlight=False, soft_wrap=True)
    if report.unbuildable:
        err.print(f"Hint: {ELSEWHERE}", highlight=False)


def nightly(
    release: Annotated[list[str] | None, typer.Argument(metavar="RELEASE", help="Only these releases.")] = None,
    graft: Graft = True,
    as_json: Json = False,
) -> None:
    """Bring all supported releases up to date: locks, images, checks, tags. A failure stops nothing else."""
    with running_flows(quiet=as_json):
        from flows.nightly import nightly as run
        from flows.releases.night_report import NightFailed, markdown

        try:
            night = run(release or None, graft=graft)
        except NightFailed as error:
            night = error.night
    if as_json:
        show_json({"failures": night.failures, **vars(night)})
    else:
        out.print(Markdown(markdown(night), hyperlinks=False))
    if night.failures:
        raise typer.Exit(1)


def plan(
    release: ReleaseName,
    profile: Annotated[list[str] | None, typer.Option(metavar="PROFILE", help="Only these profiles.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Name every input that changed.")] = False,
    drawing: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Write the graph of all stages as SVG.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Don't look whether the registry has lost parts of stages; a build does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what building a release would do to each stage, and why; nothing is touched."""
    settings = load()
    if drawing:
        _check_picture(drawing)
    with nullcontext() if as_json else screen.showing(err):
        recipes = read_catalog(settings.catalog)
        profiles = chosen(recipes, release, profile or ())
        planned = plan_release(
            release, profiles, recipes, settings, Registry(settings), thorough=not quick, tolerant=True
        )
    if drawing:
        write_whole(drawing, graph_drawing.svg(planned.graph, planned.plan))
    for mistake in planned.overdue:
        err.print(f"{mistake}. Locking stops at it.", highlight=False, soft_wrap=True)
    if as_json and (planned.problems or planned.unbuildable):
        error = NotBuildable(planned)
        show_error(str(error))
        show_json_error(error, steps=planned.plan.steps)
        raise typer.Exit(error.exit_code)
    show_data(as_json, planned.plan.steps, tables.plan(planned.plan, explain))
    if not as_json:
        _show_rest(planned, settings)
    if planned.problems or planned.unbuildable:
        raise NotBuildable(planned)
    if not as_json:
        out.print(f"All {len(planned.profiles)} profiles can be built here.")


def _show_rest(planned: ReleasePlan, settings: Settings) -> None:
    out.print(shown_catalog(settings.catalog), highlight=False, soft_wrap=True)
    out.print(tables.planned(planned.plan))
    if locks := due_locks(planned, settings):
        out.print(tables.due(locks))


def _check_picture(file: Path) -> None:
    """Refuse a file that can't be written before the plan is made."""
    try:
        if file.exists() and not file.is_file():
            raise OSError("it is there, and no file")
        new = not file.exists()
        file.open("a").close()
        if new:
            file.unlink()
    except OSError as error:
        raise RefitError(
            f"The picture can't be written to {file}.", why=str(error), hint="name another file."
        ) from None


def show_containerfile(
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE", help="Profile to show, e.g. jupyter-minimal-deb12-py311.")
    ],
    release: OfRelease,
) -> None:
    """Print the image of a profile as one plain Containerfile, of which `buildah build` alone makes the same files.

    Labels and history are others: labels name the release, and Refit records each stage by itself. Without the
    --timestamp that its first lines give, dates of files differ, too: no Containerfile can set them.
    """
    show_text(show_profile(profile, release, load()))


def show_evidence(
    image: Image,
    file: Annotated[str, typer.Option("--file", metavar="NAME", help="Print this file and nothing else.")] = "",
    as_json: Json = False,
) -> None:
    """Show what is attached to an image: its locks, its packages, how it was made, what its checks found."""
    registry = Registry(load())
    digest = evidence.find(registry, image).digest
    if file:
        show_text(evidence.read(registry, digest, file))
        return
    files, findings = evidence.listed(registry, digest), evidence.findings(registry, digest)
    show_data(as_json, {"digest": digest, "files": files, "checks": findings}, tables.evidence(digest, files))
    if not as_json:
        show(tables.findings(findings))


def compare_images(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Tag, alias or digest of the older image.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Tag, alias or digest of the newer image.")],
    as_json: Json = False,
) -> None:
    """Show the differences of two images: packages, layers, and the size of what a host with the first must pull."""
    registry = Registry(load())
    comparison = image_comparison.compare(registry, evidence.find(registry, old), evidence.find(registry, new))
    show_data(as_json, comparison, tables.changes(comparison.packages))
    if not as_json:
        out.print(tables.layers(comparison))


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove images, stages and logs that nobody needs, and free their space; shows them first, and asks."""
    with running_flows(quiet=as_json):
        from flows.prune_images import prune_images

        report = prune_images(dry_run=True)
    if not dry_run and not yes:
        if as_json or not sys.stdin.isatty():
            dry_run = True
        else:
            show(tables.prune(report))
            typer.confirm("Remove them?", abort=True)
    if not dry_run:
        with running_flows(quiet=as_json):
            report = prune_images(dry_run=False)
    show_data(as_json, report, tables.prune(report))
    if not as_json:
        out.print(tables.pruned(report))


@cache_app.callback()
def show_caches(context: typer.Context, as_json: Json = False) -> None:
    """Show the caches of what builds download: size, limit, last use."""
    if context.invoked_subcommand is None:
        caches = cache.caches(load())
        show_data(as_json, caches, tables.caches(caches))


@cache_app.command("prune")
def prune_caches(
    name: Annotated[list[str] | None, typer.Argument(metavar="CACHE", help="Only these caches.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Empty them, whatever their size is.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the caches under their limit, least recently used first; waits until nothing is built."""
    freed = cache.prune(load(), name or (), everything)
    rows = ((cache_name, megabytes(size, 1)) for cache_name, size in freed.items())
    show_data(as_json, freed, tables.table("Freed", ("cache", "size"), rows))
