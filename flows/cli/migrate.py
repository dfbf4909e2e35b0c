"""The part of the `refit` command that moves sessions: plans it, steers it, and tells how it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live

from flows.cli import home
from flows.cli.console import Json, OfRelease, SessionName, err, out, running_flows, show, show_data, show_json
from flows.core.errors import RefitError
from flows.core.formatting import first_sentence, some
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import screen, session_tables
    from flows.core.database import open_database
    from flows.core.settings import load
    from flows.core.waiting import wait_until
    from flows.migrations.journal import Journal
    from flows.migrations.notifications.fleet import Fleet
    from flows.migrations.rollouts.control import steer
    from flows.migrations.rollouts.session_planner import SessionPlanner, plan_migration
    from flows.migrations.switch_profile import switch_session
    from flows.sessions.history import History
    from flows.sessions.wishes import caller

if TYPE_CHECKING:
    from flows.migrations.results import Result

# Prefect takes a second to import and reads its settings while it does: the verbs are imported where they are run.
# ruff: noqa: PLC0415

WATCH_SECONDS = 5.0

app = typer.Typer(no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Option("--session", metavar="NAME", help="Only these sessions, at once.")]
Force = Annotated[bool, typer.Option("--force", help="Proceed even if something in the home would break.")]
To = Annotated[str, typer.Option(metavar="IMAGE", help="Tag or digest to move to, instead of the newest tested image.")]
Image = Annotated[
    str, typer.Argument(metavar="IMAGE", help="Its digest, or the first twelve digits, or its tag; else the only one.")
]


def add_to(session_app: typer.Typer) -> None:
    """Give the group of sessions its verbs that are moves."""
    session_app.command("change-profile")(change_profile)


def change_profile(
    name: SessionName,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="E.g. jupyter-datascience-deb12-py311.")],
    release: OfRelease,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Give a session another profile, at once: home, address and token stay, and what fails is undone."""
    with screen.showing(err):
        result = switch_session(load(), name, profile, release, force=force)
    show_moves([result], as_json)


@app.command("run")
def migrate(
    session: Names = None,
    to: To = "",
    once: Annotated[bool, typer.Option("--once", help="Don't wait for sessions that can't be moved yet.")] = False,
    as_json: Json = False,
) -> None:
    """Move sessions onto the newest tested images of their profiles, each as soon as it may; a failed move is undone.

    It waits for those that are busy, or have other hours, and for waves to prove themselves: `max_run_hours` at most.
    Ending it ends nothing but the waiting; the next run goes on.
    """
    with running_flows(quiet=as_json):
        from flows.migrate_sessions import migrate_sessions

        results = migrate_sessions(session, to, once=once)
    show_moves(results, as_json)


@app.command("plan")
def show_plan(
    session: Names = None,
    to: To = "",
    origin: Annotated[str, typer.Option("--from", metavar="TAG", help="Only sessions that have this image.")] = "",
    as_json: Json = False,
) -> None:
    """Show which sessions would move when, in which wave, which not, and why; no session is moved or told.

    Homes are compared with the new images first, for 90 s at most. In a cluster, a program reads a home in its
    session's Pod, and an image that wasn't read yet gets a Pod of its own for some seconds.
    """
    planned = plan_migration(session or [], to, load(), origin)
    show_data(as_json, planned, session_tables.migration(planned))
    if not as_json:
        about = [
            (line.session, note)
            for line in planned
            for note in (line.machine, line.home, *(f"{lack.text} ({line.unscanned})" for lack in line.lacks))
            if note
        ]
        for sentence in dict.fromkeys(note for _, note in about):
            names = [name for name, note in about if note == sentence]
            out.print(f"{some(names)}: {sentence}.", highlight=False, soft_wrap=True)


@app.command("status")
def show_status(
    watch: Annotated[bool, typer.Option("--watch", help="Go on until every rollout is over.")] = False,
    as_json: Json = False,
) -> None:
    """Show the rollouts, and each session with its image: which are behind, and why.

    In a cluster, it reads no homes and no images: of those it shows what the last plans have found.
    """
    planning = SessionPlanner(load())
    if as_json:
        show_json(planning.fleet())
    elif watch:
        _watch(planning.fleet)
    else:
        for table in session_tables.of_fleet(planning.fleet()):
            show(table)


def _watch(look: Callable[[], Fleet]) -> None:
    """Show how all stands, again and again, until no rollout goes on or rests."""
    with Live(console=out, auto_refresh=False, vertical_overflow="visible") as screen:

        def show_once() -> bool:
            fleet = look()
            screen.update(Group(*session_tables.of_fleet(fleet)), refresh=True)
            return all(rollout.over for rollout in fleet.rollouts)

        wait_until(show_once, pause=WATCH_SECONDS)


@app.command("pause")
def pause(image: Image = "") -> None:
    """Pause the rollout of an image; moves that have begun end. `resume` lets it go on."""
    out.print(steer("pause", image, load(), caller()))


@app.command("abort")
def abort(image: Image = "") -> None:
    """Abort the rollout of an image: sessions that have not been moved keep theirs."""
    out.print(steer("abort", image, load(), caller()))


@app.command("approve")
def approve(image: Image = "") -> None:
    """Approve the next wave of an image after a look at those before; holds for this digest alone."""
    out.print(steer("approve", image, load(), caller()))


@app.command("resume")
def resume(image: Image = "") -> None:
    """Resume a rollout that was paused or aborted."""
    out.print(steer("resume", image, load(), caller()))


@app.command("recover")
def recover(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="A session whose move is held; try it again.")] = "",
    as_json: Json = False,
) -> None:
    """Finish or undo every move that a crash interrupted."""
    with running_flows(quiet=as_json):
        from flows.migrate_sessions import recover_migrations

        results = recover_migrations(session)
    show_moves(results, as_json)


@app.command("history")
def show_history(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Only this session.")] = "",
    events: Annotated[
        bool,
        typer.Option(
            "--events", help="Show every event of rollouts, moves and notices, and check that none was changed."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show past moves, newest first; of one session, with all reasons."""
    database = open_database(load().database)
    if not events:
        moves = Journal(database).history(session)[::-1]
        show_data(as_json, moves, session_tables.past_moves(moves, whole=bool(session)))
        return
    history = History(database).events(session)[::-1]
    show_data(as_json, history, session_tables.events(history))
    if broken := History(database).broken():
        raise RefitError(
            "The history isn't as Refit wrote it.",
            why=f"Its chain of digests breaks: {broken}.",
            hint="find out who changed the database. A backup of refit.db from before has the history as it was.",
        )


app.command("rehearse")(home.rehearse_move)


def show_moves(results: Sequence[Result], as_json: bool) -> None:
    """Print what became of sessions; the command fails where one of them did."""
    alone = len(results) == 1
    show_data(as_json, results, session_tables.moves(results, whole=alone))
    cut = [] if alone else [result.session for result in results if first_sentence(result.reason) != result.reason]
    if cut and not as_json:
        out.print(f"`refit migrate history NAME` tells all of why; NAME is {some(cut, between=' or ')}.")
    if any(result.failed for result in results):
        raise typer.Exit(1)
