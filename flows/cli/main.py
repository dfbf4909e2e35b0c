"""The `refit` command as a whole, and those of its verbs that belong to no group."""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

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
    show_json,
    show_json_error,
    show_text,
    shown_catalog,
)
from flows.cli.groups import Group, with_groups
from flows.core.errors import RefitError
from flows.core.formatting import Printable
from flows.core.lazily import lazily

with lazily(globals()):
    from rich.markdown import Markdown

    from flows import services
    from flows.catalog.load import load_catalog
    from flows.catalog.model import Catalog
    from flows.cli import (
        catalog,
        gpu,
        home,
        images,
        metrics,
        migrate,
        queue,
        screen,
        session,
        session_tables,
        settings,
        tables,
        user,
        volume,
    )
    from flows.core.settings import Settings, load
    from flows.images import graph_drawing
    from flows.images.builder import cache
    from flows.images.registry import Registry
    from flows.migrations import start_sessions
    from flows.migrations.rehearsal import sweep
    from flows.publishing import evidence
    from flows.releases.branches import nights
    from flows.releases.containerfile import show_profile
    from flows.releases.plan import NotBuildable, due_locks, plan_release
    from flows.services import doctor, tickets
    from flows.services.reset import reset as remove_state
    from flows.services.reset import reset_parts
    from flows.sessions.lifecycle import Sessions

if TYPE_CHECKING:
    from flows.cli.demo import Story
    from flows.services import ServiceState

# Prefect takes a second to import and reads its settings while it does: the verbs are imported where they are run.
# ruff: noqa: PLC0415

cache_app = typer.Typer(invoke_without_command=True)
GROUPS = (
    Group(
        "images", "Images", lambda: images.images_app, "List the images in the registry; sign, revoke and restore them."
    ),
    Group("cache", "Images", lambda: cache_app, "Show the caches of what builds download, or free their space."),
    Group("queue", "Images", lambda: queue.app, "Queues of builds, one for each operating system."),
    Group("release", "Catalog", lambda: catalog.release_app, "Cut releases, and see which are supported until when."),
    Group("new", "Catalog", lambda: catalog.new_app, "Begin a recipe: the least that works, to be changed."),
    Group("import", "Catalog", lambda: catalog.import_app, "Make a catalog of what others wrote for other tools."),
    Group(
        "session",
        "Sessions",
        lambda: session.app,
        "Create, show, start, stop and remove sessions: one developer's environment each.",
    ),
    Group("migrate", "Sessions", lambda: migrate.app, "Move sessions onto the newest images of their profiles."),
    Group("home", "Sessions", lambda: home.home_app, "Homes of sessions: what persists, and where it lies."),
    Group(
        "volume",
        "Sessions",
        lambda: volume.app,
        "Volumes: folders of sessions beside their homes, and those they share.",
    ),
    Group("gpu", "Sessions", lambda: gpu.app, "GPUs of this machine: sessions take them when they start."),
    Group("user", "Sessions", lambda: user.app, "People who log in to JupyterHub and start their own sessions."),
)
app = typer.Typer(
    name="refit",
    cls=with_groups(*GROUPS),
    help="Builds the images that developers work in, and moves their running sessions onto new ones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Graft = Annotated[bool, typer.Option(help="Carry layers over to a new base instead of building them.")]
Image = Annotated[str, typer.Argument(metavar="TAG", help="Tag, alias or digest of an image.")]


def main() -> None:
    """Run the command line; what a person can mend is printed without a traceback."""
    logging.setLogRecordFactory(Printable)
    # What was begun is put back then, and what runs is ended; as it is when Prefect hears of it, while flows run.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.getLogger("refit").addHandler(logging.NullHandler())
    if _wants_json(sys.argv[1:]):
        sys.exit(_answering_json())
    try:
        app()
    except RefitError as error:
        _show_error(str(error))
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if ended.code == 128 + signal.SIGTERM:
            err.print("Ended by SIGTERM. Moves that had begun went back, or wait for `refit migrate resume`.")
        raise
    except KeyboardInterrupt:
        err.print("Cancelled.")
        sys.exit(130)


def _wants_json(words: Sequence[str]) -> bool:
    """Whether a command is to answer JSON; what follows `exec` and `ssh` is another program's."""
    own = takewhile(lambda word: word != "--", words)
    return "--json" in own and not {"exec", "ssh"} & {*words[:2]}


def _answering_json() -> int:
    """Run the command line and return its exit code; standard output has one JSON document, whatever happens."""
    try:
        code = int(app(standalone_mode=False) or 0)
        if code:  # as a rule, its document is there
            show_json_error(RefitError("This was cancelled." if code == 130 else f"This failed with code {code}."))
        return code
    except RefitError as error:
        _show_error(str(error))
        show_json_error(error)
        return error.exit_code
    except TyperException as error:  # words that are off
        said = str(getattr(error, "format_message", error.__str__)())
        _show_error(said)
        show_json_error(RefitError(said, fix="add `--help` to the command."))
        return int(getattr(error, "exit_code", 2))
    except (KeyboardInterrupt, typer.Abort) as error:
        err.print("Cancelled.")
        show_json_error(RefitError("This was cancelled."))
        return 1 if isinstance(error, typer.Abort) else 130


# --- Images -------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel="Images")
def lock(
    release: ReleaseName,
    bundle: Annotated[list[str] | None, typer.Option(metavar="BUNDLE", help="Only these bundles.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only see whether all locks fit; nothing is written.")] = False,
    as_json: Json = False,
) -> None:
    """Lock the Python requirements of a release's bundles, each inside its target base's container."""
    if check:
        from flows.lock_requirements import check_locks

        found = [(target.bundle.name, target.base.name, target.python) for target in check_locks(release, bundle)]
        show_data(as_json, found, tables.table("Locks that are in order", ("bundle", "base", "python"), found))
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


@app.command(rich_help_panel="Images")
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
    force: Annotated[bool, typer.Option("--force", help="Build for operating systems that are held, too.")] = False,
    builders: Annotated[
        int | None,
        typer.Option(min=0, help="Machines that share the stages, for each operating system; 0: this one alone."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Build and publish the images of a release; what is there already is not built again."""
    with running_flows(quiet=as_json):
        from flows.build_profiles import build_profiles
        from flows.releases.plan import ELSEWHERE

        day = date.date() if date else None
        report = build_profiles(release, profile, day, graft=graft, systems=system, force=force, builders=builders)
    show_data(as_json, report, tables.images(report))
    if not as_json:
        out.print(tables.built(report))
    for name, why in report.left.items():
        err.print(f"Nothing was built for {name}: {why}. `--force` builds in spite of it.")
    for name, why in report.unbuildable.items():
        err.print(f"{name} can't be built here: {why}", highlight=False, soft_wrap=True)
    if report.unbuildable:
        err.print(f"To mend: {ELSEWHERE}", highlight=False)


@app.command(rich_help_panel="Images")
def nightly(
    release: Annotated[list[str] | None, typer.Argument(metavar="RELEASE", help="Only these releases.")] = None,
    graft: Graft = True,
    as_json: Json = False,
) -> None:
    """Bring all supported releases up to date: locks, images, checks, tags. What fails stops nothing else."""
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


@app.command(rich_help_panel="Images")
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
        planned = plan_release(
            release, profile or (), None, settings, Registry(settings), thorough=not quick, tolerant=True
        )
    if drawing:
        drawing.write_text(graph_drawing.svg(planned.graph, planned.plan), encoding="utf-8")
    for mistake in planned.overdue:
        err.print(f"{mistake}. Locking stops at it.", highlight=False, soft_wrap=True)
    if as_json and (planned.problems or planned.unbuildable):
        error = NotBuildable(planned)
        _show_error(str(error))
        show_json_error(error, steps=planned.plan.steps)
        raise typer.Exit(error.exit_code)
    show_data(as_json, planned.plan.steps, tables.plan(planned.plan, explain))
    if not as_json:
        out.print(shown_catalog(settings.catalog), highlight=False, soft_wrap=True)
        out.print(tables.planned(planned.plan))
        if locks := due_locks(planned, settings):
            out.print(tables.due(locks))
    if planned.problems or planned.unbuildable:
        raise NotBuildable(planned)
    if not as_json:
        out.print(f"All {len(planned.profiles)} profiles can be built here.")


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
        raise RefitError(f"The picture can't be written to {file}.", why=str(error), fix="name another file.") from None


@app.command("show", rich_help_panel="Images")
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


@app.command("evidence", rich_help_panel="Images")
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


@app.command("diff", rich_help_panel="Images")
def compare_images(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Tag, alias or digest of the older image.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The same of the newer one.")],
    as_json: Json = False,
) -> None:
    """Show what differs between two images: packages, layers, and what a host must pull that has the first."""
    registry = Registry(load())
    found = evidence.compare(registry, evidence.find(registry, old), evidence.find(registry, new))
    show_data(as_json, found, tables.changes(found.packages))
    if not as_json:
        out.print(tables.layers(found))


@app.command(rich_help_panel="Images")
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
        found = cache.caches(load())
        show_data(as_json, found, tables.caches(found))


@cache_app.command("prune")
def prune_caches(
    name: Annotated[list[str] | None, typer.Argument(metavar="CACHE", help="Only these caches.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Empty them, whatever their size is.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the caches under their limit, least recently used first; waits until nothing is built."""
    freed = cache.prune(load(), name or (), everything)
    rows = ((cache_name, f"{size / 1e6:.1f} MB") for cache_name, size in freed.items())
    show_data(as_json, freed, tables.table("Freed", ("cache", "size"), rows))


# --- Catalog ------------------------------------------------------------------------------------------------------

# After those of images: help shows groups in the order of their first verbs.
app.command(rich_help_panel="Catalog")(catalog.wizard)
app.command(rich_help_panel="Catalog")(catalog.lint)


# --- Services -----------------------------------------------------------------------------------------------------


app.command("metrics", rich_help_panel="Services")(metrics.show_metrics)
app.command("settings", rich_help_panel="Services")(settings.show_settings)


@app.command(rich_help_panel="Services")
def up(
    systemd: Annotated[bool, typer.Option("--systemd", help="Write systemd units instead of starting.")] = False,
) -> None:
    """Start registry, Prefect, gateway and what else is wanted, then the sessions that ran; what runs is left alone."""
    settings = load()
    if systemd:
        for file in services.write_units(settings):
            out.print(f"wrote {file}")
        return
    if not _up(settings):
        raise typer.Exit(1)


def _up(settings: Settings) -> bool:
    """Whether all came up."""
    with screen.showing(err):
        states = services.up(settings)
        if settings.prefect_server:  # this machine works for another, where sessions and deployments are looked after
            _show_services(states)
            return True
        sweep(settings, Sessions.open(settings).homes)
        problems = start_sessions.start_all(settings)
    _show_services(states)
    for name, problem in problems.items():
        _show_error(f"session {name}: {problem}")
    serve()
    _show_link(settings)
    return not problems


@app.command(rich_help_panel="Services")
def ui() -> None:
    """Print a link that opens Prefect's UI, logged in; it works once, for some minutes."""
    settings = load()
    services.require(settings)
    _show_link(settings)


@app.command(rich_help_panel="Services")
def down(
    sessions: Annotated[bool, typer.Option("--sessions", help="Stop the sessions as well.")] = False,
) -> None:
    """End the services that `up` started, and nothing else."""
    settings = load()
    with screen.showing(err):
        if sessions:
            Sessions.open(settings).down()
        ended = services.down(settings)
    out.print(f"Ended: {', '.join(ended)}." if ended else "Nothing ran.")


@app.command(rich_help_panel="Services")
def status(as_json: Json = False) -> None:
    """Show the services: what runs, where, and its log."""
    states = services.status(load())
    if as_json:
        show_json(states)
    else:
        _show_services(states)


@app.command(rich_help_panel="Services")
def serve() -> None:
    """Offer the flows in the Prefect UI, each with a form."""
    with running_flows(quiet=True) as settings:
        from flows.orchestration import offered
        from flows.orchestration.deployments import deploy

        verbs = [offered.import_flow(entrypoint) for entrypoint in offered.ENTRYPOINTS]
        recipes = _catalog(settings)
        # Without one, nothing is known of releases: their nights stay as they are.
        names = deploy(verbs, recipes.bases.values(), nights(recipes)) if recipes else deploy(verbs)
    out.print(f"Offered at {settings.prefect_url}: {', '.join(names)}.", highlight=False)


def _catalog(settings: Settings) -> Catalog | None:
    """The catalog; none, and its mistakes are told, where it has any."""
    from flows.core.documents import Mistakes

    try:
        return load_catalog(settings.catalog)
    except Mistakes as mistakes:
        err.print(f"{mistakes}\nQueues of operating systems and nights of releases are left as they are.")
        return None


@app.command("doctor", rich_help_panel="Services")
def examine(as_json: Json = False) -> None:
    """Check what this machine needs, and say how to mend what is missing."""
    findings = doctor.examine(load())
    if as_json:
        show_json(findings)
    else:
        for finding in findings:
            out.print(str(finding), highlight=False, style="" if finding.ok else "yellow")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


@app.command(rich_help_panel="Services")
def reset(
    homes: Annotated[bool, typer.Option("--homes", help="Remove the homes of sessions, too.")] = False,
    yes: Yes = False,
) -> None:
    """Remove Refit's own state from this machine, after asking."""
    settings = load()
    there = reset_parts(settings)
    # Homes that stay need the database: it knows whose they are.
    kept = set() if homes or "homes" not in {part.name for part in there} else {"homes", "database"}
    parts = [part for part in there if part.name not in kept]
    show(
        tables.table("This will be removed", ("part", "what"), ((p.name, ", ".join(map(str, p.paths))) for p in parts))
    )
    if not yes:
        typer.confirm("Remove it?", abort=True)
    remove_state(settings, [part.name for part in parts])


@app.command(rich_help_panel="Services")
def demo() -> None:
    """Show the whole loop: build, start a session, change something, build again, move the session."""
    settings = load()
    problems = [finding for finding in doctor.examine(settings, doctor.NEEDED) if not finding.ok]
    for problem in problems:
        err.print(str(problem))
    if problems:
        raise typer.Exit(1)
    _up(settings)
    os.environ.update(services.prefect_environment(settings))
    from flows.cli.demo import play

    story = play(settings, _chapter)
    _tell(story, settings)
    if not story.home_intact or not all(move.moved for move in story.moves):
        raise typer.Exit(1)


@contextmanager
def _chapter(title: str) -> Iterator[None]:
    err.print(f"\n{title}", style="bold")
    with screen.showing(err):
        yield


def _tell(story: Story, settings: Settings) -> None:
    out.print()
    show(tables.images(story.first))
    show(tables.images(story.second))
    if story.moves:
        show(session_tables.moves(story.moves))
    else:
        out.print("The session is on the newest image already: nothing was moved.")
    out.print(
        "Nothing had to be built."
        if story.built_nothing
        else f"First: {tables.built(story.first)}\nThen: {tables.built(story.second)}"
    )
    out.print(f"\nSession   {story.address}", highlight=False, soft_wrap=True)
    out.print(f"Prefect   {tickets.link(settings)}", highlight=False, soft_wrap=True)
    out.print(f"          {_once()}", highlight=False)
    out.print("Try next  refit session list · refit migrate history · refit build · refit down", highlight=False)


# --- Printing -----------------------------------------------------------------------------------------------------


def _show_error(text: str) -> None:
    err.print("✗ ", style="red", end="")
    # Paths and addresses that are longer than a line stay in one piece.
    err.print(text, highlight=False, overflow="ignore", crop=False)


def _show_link(settings: Settings) -> None:
    out.print(f"Prefect's UI: {tickets.link(settings)}", highlight=False, soft_wrap=True)
    if not settings.prefect_server:
        out.print(_once(), highlight=False)


def _once() -> str:
    return f"The link logs in, once, within {tickets.MINUTES} minutes; `refit ui` prints another."


def _show_services(states: Sequence[ServiceState]) -> None:
    show(tables.service_states(states))
    out.print(f"Logs are in {states[0].log.parent}.", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
