"""The part of the `refit` command that is about sessions: one developer's environment each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from flows.cli import capture, home, migrate, share, snapshots, ssh, system_packages
from flows.cli.console import (
    Json,
    OfRelease,
    SessionName,
    Yes,
    err,
    out,
    running_flows,
    show,
    show_data,
    show_json,
    show_text,
)
from flows.cli.groups import in_panels
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import screen, session_tables, tables
    from flows.core.database import now, open_database
    from flows.core.settings import Settings, load
    from flows.migrations import start_sessions
    from flows.migrations.journal import Journal
    from flows.migrations.snapshots import clone_session
    from flows.migrations.steps import shutdown_notice
    from flows.sessions import overview, preferences, recovery, wishes
    from flows.sessions.activity import probes
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.others.all_others import Others
    from flows.sessions.others.model import owner_of
    from flows.sessions.overview import Status
    from flows.sessions.people import rights
    from flows.sessions.preferences import UpdatePreferences
    from flows.sessions.wishes import PreferenceStore

app = typer.Typer(no_args_is_help=True)
updates_app = typer.Typer(no_args_is_help=True, help="When and how migrations may move a session: its owner's choice.")
app.add_typer(updates_app, name="updates")
for verb in (share.share, share.shares, share.unshare):
    app.command(verb.__name__)(verb)


@app.command("create")
def create_session(
    name: SessionName,
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE", help="Profile that it starts from, e.g. jupyter-minimal-deb12-py311.")
    ],
    release: OfRelease,
    volume: Annotated[
        list[str] | None, typer.Option(metavar="NAME:/PATH[:ro]", help="A volume that it has beside its home.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs that it has while it runs, if not as its profile says.")
    ] = None,
    owner: Annotated[str, typer.Option(metavar="PERSON", help="The person whose session it is, as they log in.")] = "",
    ssh_key: ssh.KeyFiles = None,
) -> None:
    """Start a session from the newest tested image of a profile."""
    keys = ssh.read_files(ssh_key or ())
    with running_flows() as settings:
        from flows.create_session import create_session as create  # noqa: PLC0415 - Prefect takes a second to import

        create(name, profile, release, volumes=tuple(volume or ()), gpus=gpus, owner=owner)
    sessions = Sessions.open(settings)
    if keys:
        ssh.exchange_keys(settings, sessions, name, keys)
    _show_session(sessions, name)
    if owner and not settings.hub_wanted:
        err.print(session_tables.without_hub(owner), highlight=False, soft_wrap=True)
    elif name in rights.unowned(settings, sessions.store.database):
        err.print(session_tables.unowned([name]), highlight=False, soft_wrap=True)


@app.command("list")
def list_sessions(as_json: Json = False) -> None:
    """List all sessions."""
    settings = load()
    listed, urls = overview.glance_at_all(settings) or _all_sessions(settings)
    listed, urls = _with_others(settings, listed, urls)
    shown = session_tables.sessions(listed, urls, out.width)
    show_data(as_json, listed, shown)
    if listed and not as_json and "url" not in [column.header for column in shown.columns]:
        err.print("The URL of a session is in `refit session show NAME`, and here where the terminal is wider.")


def _with_others(
    settings: Settings, own: Sequence[Status], urls: Mapping[str, str]
) -> tuple[Sequence[Status], Mapping[str, str]]:
    """All sessions, with those that others own, which say so in the place of an address."""
    if not (settings.others.notebooks or settings.others.hub.api):
        return own, urls
    seen, problems = Others(settings).see(besides={status.session.name for status in own})
    for problem in problems:
        err.print(str(problem), highlight=False)
    owners = {owned.session.name: owned.trouble or owner_of(owned.session) for owned in seen}
    return (*own, *(owned.status for owned in seen)), {**urls, **owners}


def _all_sessions(settings: Settings) -> tuple[Sequence[Status], Mapping[str, str]]:
    sessions = Sessions.open(settings)
    statuses = sessions.all()
    return statuses, sessions.urls(status.session for status in statuses)


@app.command("show")
def show_session(name: SessionName, as_json: Json = False) -> None:
    """Show one session, with the address to open."""
    sessions = Sessions.open(load())
    if as_json:
        show_json(sessions.show(name))
    else:
        _show_session(sessions, name)
        if ended := shutdown_notice.aftermath(Journal(open_database(load().database)), name):
            out.print(f"Its last move. {ended}", highlight=False)


@app.command("start")
def start_session(name: SessionName) -> None:
    """Start a stopped session: same home, same address; one in mode next-start gets its new image before."""
    settings = load()
    with screen.showing(err):
        _, result = start_sessions.start_session(settings, name)
    if result:
        show(session_tables.moves([result], whole=True))
    _show_session(Sessions.open(settings), name)


@app.command("stop")
def stop_session(name: SessionName) -> None:
    """Stop a session: kernels first, then every process, with time to save."""
    with screen.showing(err):
        Sessions.open(load()).stop(name)


@app.command("recover")
def recover_sessions(as_json: Json = False) -> None:
    """Recover the records of sessions from their containers after a loss of the database; all go on.

    New sessions that weren't copied whole, for the process was killed, are removed.
    """
    sessions = Sessions.open(load())
    with screen.showing(err):
        results = recovery.recover(sessions)
        removed = clone_session.remove_killed(sessions)
    show_data(as_json, results, session_tables.recovered(results))
    for name in removed:
        err.print(f"{name} is removed: the copy with which it was to begin is incomplete.", highlight=False)
    if any(result.problem for result in results):
        raise typer.Exit(1)


@app.command("activity")
def session_activity(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only this session.")] = "", as_json: Json = False
) -> None:
    """Show whether running sessions are busy, and why; asking doesn't count as work."""
    settings = load()
    sessions = Sessions.open(settings)
    seen = probes.look_at(settings, sessions.engine, sessions.that_run(name))
    show_data(as_json, seen, session_tables.activity(seen, settings.idle_state_hours))


@app.command("logs")
def session_logs(name: SessionName, lines: Annotated[int, typer.Option(help="Number of lines.")] = 100) -> None:
    """Print the last lines that a session wrote."""
    show_text(f"{Sessions.open(load()).logs(name, lines)}\n")


@app.command("exec", context_settings={"ignore_unknown_options": True})
def execute_in_session(
    name: SessionName, command: Annotated[list[str], typer.Argument(metavar="PROGRAM", help="Program and arguments.")]
) -> None:
    """Run a program inside a session, as its user, with a terminal if there is one; the exit code is the program's."""
    Sessions.open(load()).attach(name, command, terminal=sys.stdin.isatty() and sys.stdout.isatty())


@updates_app.command("show")
def show_wish(name: SessionName, as_json: Json = False) -> None:
    """Show the wishes of a session's owner about migrations, and who set them."""
    store = PreferenceStore(open_database(load().database))
    wish, changes = store.all().get(name, UpdatePreferences()), store.changes(name)
    show_data(as_json, {"wish": wish, "changes": changes}, session_tables.wish_changes(changes))


@updates_app.command("mode")
def choose_mode(
    name: SessionName,
    mode: Annotated[
        str, typer.Argument(metavar="MODE", help="when-idle, ask, next-start, pin (until DATE) or forced-by (DATE).")
    ],
    day: Annotated[
        str,
        typer.Argument(metavar="DATE", help="For pin: it stays until this day. For forced-by: it moves by this day."),
    ] = "",
) -> None:
    """Choose when migrations may move a session: when it is idle, when asked, at its next start, not before a day."""
    _wish(name, **preferences.chosen_mode(mode, day))


@updates_app.command("snooze")
def snooze_session(
    name: SessionName,
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="How long: 30m, 2h, 1d12h.")],
) -> None:
    """Put a session's migration off for a while, though not past its deadline."""
    _wish(name, snoozed_until=now() + preferences.read_duration(duration))


@updates_app.command("hours")
def choose_hours(
    name: SessionName,
    quiet: Annotated[
        list[str] | None, typer.Option("--quiet", metavar="HOURS", help='E.g. "mon-fri 22:00-07:00"; "" for none.')
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", metavar="ZONE", help="Time zone of the hours, e.g. Europe/Zurich.")
    ] = None,
) -> None:
    """Choose the hours in which migrations leave a session alone, and their time zone."""
    _wish(name, **preferences.chosen_hours(None if quiet is None else tuple(quiet), time_zone))


@app.command("owner")
def choose_owner(
    name: SessionName,
    owner: Annotated[str, typer.Argument(metavar="OWNER", help='The owner; "" for nobody in particular.')],
) -> None:
    """Set a session's owner: of an owner's sessions one at a time is moved, and notices go to their addresses."""
    _wish(name, owner=owner.strip())


@updates_app.command("volunteer")
def volunteer(
    name: SessionName, no: Annotated[bool, typer.Option("--no", help="Take that wish back.")] = False
) -> None:
    """Let a session be among the first that get a new image."""
    _wish(name, volunteer=not no)


@app.command("rm")
def remove_session(
    name: SessionName,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its home as well, for good.")] = False,
    yes: Yes = False,
) -> None:
    """Remove a session; its home stays unless it is purged."""
    if purge and not yes:
        typer.confirm(f"Delete the home of {name!r} for good?", abort=True)
    with screen.showing(err):
        Sessions.open(load()).remove(name, purge)


home.add_to(app)
ssh.add_to(app)
migrate.add_to(app)
snapshots.add_to(app)
capture.add_to(app)
system_packages.add_to(app)
in_panels(
    app,
    {
        "Commands": (
            *("create", "list", "show", "start", "stop", "rm", "logs", "exec", "activity", "owner", "recover"),
            *("change-profile", "updates"),
        ),
        "Access": ("share", "shares", "unshare", "ssh", "ssh-keys"),
        "Snapshots": ("snapshot", "snapshots", "rollback", "diff", "clone", "remove-snapshot", "snapshot-rules"),
        "Changes by hand": ("drift", "scan", "capture", "install", "installed", "uninstall"),
    },
)


def _wish(name: str, **changes: Any) -> None:
    store = PreferenceStore(open_database(load().database))
    store.change(name, wishes.caller(), **changes)
    show(session_tables.wish_changes(store.changes(name)[-1:]))


def _show_session(sessions: Sessions, name: str) -> None:
    status = sessions.show(name)
    row = session_tables.session_row(status, {name: sessions.url(status.session)})
    show(tables.table("", ("session", "state", "profile", "image", "url"), [row]))
    if address := sessions.address(name):
        out.print(f"Open {address}", highlight=False, soft_wrap=True)
    if sessions.ssh.keys(name):
        ssh.show_way(sessions, name)
    for what in session_tables.had(status.session):
        out.print(what, highlight=False, soft_wrap=True)
