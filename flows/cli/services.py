"""The commands for the services of this machine, for what it needs, and for the tour of all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.console import (
    Json,
    Yes,
    err,
    out,
    running_flows,
    show,
    show_error,
    show_json,
)
from flows.core.lazily import lazily

with lazily(globals()):
    from flows import services
    from flows.catalog.load import load_catalog
    from flows.catalog.model import Catalog
    from flows.cli import (
        screen,
        session_tables,
        tables,
    )
    from flows.core.database import open_database
    from flows.core.settings import Settings, load
    from flows.migrations import start_sessions
    from flows.migrations.rehearsals.rehearsal import sweep
    from flows.releases.branches import nights
    from flows.services import doctor, tickets
    from flows.services.embedded import no_way_in
    from flows.services.main_program import until_told_to_end
    from flows.services.reset import reset as remove_state
    from flows.services.reset import reset_parts
    from flows.sessions.engine_choice import choose
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.people import rights

if TYPE_CHECKING:
    from flows.cli.demo import Story
    from flows.services import ServiceState

# Prefect takes a second to import and reads its settings while it does: the verbs are imported where they are run.
# ruff: noqa: PLC0415


def up(
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Write systemd units instead of starting (experimental).")
    ] = False,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="Where sessions run from now on: podman or kubernetes.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Stay until told to end, then end the services: in a container.")
    ] = False,
) -> None:
    """Start registry, Prefect, gateway and the other services of the settings, then the sessions that ran before."""
    settings = choose(engine, load()) if engine else load()
    if systemd:
        for file in services.write_units(settings):
            out.print(f"wrote {file}")
        return
    came = _up(settings)
    if wait:  # sessions that didn't start are told, and keep nothing else from running
        until_told_to_end()
        services.down(settings)
    elif not came:
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
        show_error(f"session {name}: {problem}")
    if unowned := rights.unowned(settings, open_database(settings.database)):
        err.print(session_tables.unowned(unowned), highlight=False, soft_wrap=True)
    if why := no_way_in(settings):
        err.print(
            f"Nobody comes in by ssh from elsewhere. {why.rstrip('.')}. `refit doctor` says how to mend it.",
            markup=False,
        )
    serve()
    _show_link(settings)
    return not problems


def ui() -> None:
    """Print a link that opens Prefect's UI, logged in; it works once, for some minutes."""
    settings = load()
    services.require(settings)
    _show_link(settings)


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


def status(as_json: Json = False) -> None:
    """Show the services: what runs, where, and its log."""
    states = services.status(load())
    if as_json:
        show_json(states)
    else:
        _show_services(states)


def serve() -> None:
    """Offer the flows in the Prefect UI, each with a form."""
    with running_flows(quiet=True) as settings:
        from flows.orchestration import offered
        from flows.orchestration.deployments import deploy

        verbs = [offered.import_flow(entrypoint) for entrypoint in offered.ENTRYPOINTS]
        recipes = _catalog(settings)
        # Without one, nothing is known of releases: their nights stay as they are.
        names = deploy(verbs, recipes.bases.values(), nights(recipes)) if recipes else deploy(verbs)
    out.print(f"Deployments at {settings.prefect_url}: {', '.join(names)}.", highlight=False)


def _catalog(settings: Settings) -> Catalog | None:
    """The catalog; none, and its mistakes are told, where it has any."""
    from flows.core.documents import Mistakes

    try:
        return load_catalog(settings.catalog)
    except Mistakes as mistakes:
        err.print(f"{mistakes}\nQueues of operating systems and nights of releases are left as they are.")
        return None


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


def reset(
    homes: Annotated[bool, typer.Option("--homes", help="Remove the homes of sessions, too.")] = False,
    yes: Yes = False,
) -> None:
    """Remove Refit's own state from this machine, after asking."""
    settings = load()
    present = reset_parts(settings)
    # Homes that stay need the database: it knows whose they are.
    kept = set() if homes or "homes" not in {part.name for part in present} else {"homes", "database"}
    parts = [part for part in present if part.name not in kept]
    show(tables.table("This will be removed", ("part", "what"), ((part.name, part.what) for part in parts)))
    folders = sorted({str(path.parent) for part in parts for path in part.paths})
    out.print(f"It is in {', '.join(folders)}.", highlight=False)
    if kept:
        out.print("Homes stay, and the record of whose they are. --homes removes them, too.", highlight=False)
    if not yes:
        typer.confirm("Remove it?", abort=True)
    remove_state(
        settings,
        [part.name for part in parts],
        lambda part: err.print(f"Removing {part.what} …", highlight=False),
    )


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
    if settings.hub_wanted:
        from flows.cli.demo import SESSION, entry

        out.print(f"\nSession   {entry(settings)}", highlight=False, soft_wrap=True)
        out.print(f"          The link logs {SESSION} in, once, from this machine.", highlight=False)
    else:
        out.print(f"\nSession   {story.address}", highlight=False, soft_wrap=True)
    out.print(f"Prefect   {tickets.link(settings)}", highlight=False, soft_wrap=True)
    out.print(f"          {_once()}", highlight=False)
    out.print("Try next  refit session list · refit migrate history · refit build · refit down", highlight=False)


def _show_link(settings: Settings) -> None:
    out.print(f"Prefect's UI: {tickets.link(settings)}", highlight=False, soft_wrap=True)
    if not settings.prefect_server:
        out.print(_once(), highlight=False)


def _once() -> str:
    return f"The link logs in, once, within {tickets.MINUTES} minutes; `refit ui` prints another."


def _show_services(states: Sequence[ServiceState]) -> None:
    show(tables.service_states(states))
    out.print(f"Logs are in {states[0].log.parent}.", highlight=False, soft_wrap=True)
