"""The part of the `refit` command that is about homes: whether they go together with an image, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import Json, SessionName, Yes, err, out, show, show_data, show_json
from flows.core.errors import RefitError
from flows.core.formatting import gigabytes, on_a_line
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import screen, tables
    from flows.compatibility.changes import HandMade, hand_made
    from flows.compatibility.judge import Verdict
    from flows.compatibility.scan import Scan, scan
    from flows.core.database import open_database
    from flows.core.settings import Settings, load
    from flows.images.registry import Registry
    from flows.migrations.journal import Journal
    from flows.migrations.planning.plan import moved
    from flows.migrations.rehearsals.rehearsal import rehearse
    from flows.migrations.rollouts.targets import targets
    from flows.migrations.snapshots import snapshots_of_moves
    from flows.publishing.publish import access_of
    from flows.publishing.signatures import Publications
    from flows.sessions.homes.home import LocalHomes
    from flows.sessions.homes.pool import Pool, Room, read_size
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.model import Session
    from flows.sessions.podman_only import only_on_podman
    from flows.sessions.reconfigure import put_into_pool
    from flows.sessions.wishes import PreferenceStore, caller

Snapshot = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="As `refit home snapshot list` names it.")]
To = Annotated[
    str, typer.Option(metavar="IMAGE", help="Tag or digest of the other image, instead of the newest tested one.")
]


@dataclass(frozen=True)
class Home:
    """A home: whose files it holds, where it is, and whether a session uses it."""

    name: str
    uid: int
    path: Path
    used: bool


home_app = typer.Typer(no_args_is_help=True)
pool_app = typer.Typer(invoke_without_command=True, help="The pool of homes, in which a snapshot takes milliseconds.")
home_app.add_typer(pool_app, name="pool")
snapshot_app = typer.Typer(no_args_is_help=True, help="Snapshots of homes that moves have kept.")
home_app.add_typer(snapshot_app, name="snapshot")


def add_to(session_app: typer.Typer) -> None:
    """Give the group of sessions its verbs about homes."""
    session_app.command("scan")(scan_home)
    session_app.command("drift")(show_drift)


def scan_home(name: SessionName, to: To = "", as_json: Json = False) -> None:
    """Show what in a session's home would break on another image, and how to mend it (experimental)."""
    settings = load()
    sessions = Sessions.open(settings)
    # Homes that no program of this machine reads are read beside the session.
    session = sessions.store.session(name) if sessions.engine.on_this_machine else sessions.that_runs(name)
    result = scan(settings, sessions.engine, session, _target(settings, session, to))
    if as_json:
        show_json(result)
    else:
        _show_scan(result)
    if result.verdict is Verdict.blocked:
        raise typer.Exit(1)


def show_drift(
    name: SessionName,
    replay: Annotated[
        bool | None,
        typer.Option(
            help="Install its system packages again in each new image, or don't; without it, nothing changes."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was changed by hand in a session's container, outside its home: a move leaves it behind."""
    settings = load()
    if replay:
        only_on_podman(settings, "Packages that a move installs again")
    if replay is not None:
        PreferenceStore(open_database(settings.database)).change(name, caller(), replay=replay)
    sessions = Sessions.open(settings)
    session = sessions.that_runs(name)
    changes = hand_made(settings, sessions.engine, session)
    if as_json:
        show_json(changes)
        return
    _show_changes(changes, replays=not settings.in_cluster)
    for change in sessions.engine.by_hand(session):
        out.print(f"Because of this it isn't moved: {change}.", highlight=False)


def rehearse_move(name: SessionName, to: To = "", as_json: Json = False) -> None:
    """Start another image against a copy of a session's home, and see whether it can; the session goes on meanwhile."""
    settings = load()
    sessions = Sessions.open(settings)
    session = sessions.store.session(name)
    image = _target(settings, session, to)
    with screen.showing(err):
        result = rehearse(settings, sessions.homes, moved(session, image, access_of(image, Registry(settings))))
    show_data(as_json, result, tables.findings(map(asdict, result.findings)))
    if result.skipped and not as_json:
        err.print(f"It was not rehearsed: {result.skipped}.", highlight=False)
    if result.failed:
        raise typer.Exit(1)


@home_app.command("owner")
def choose_owner(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the home, and of its session, if it has one.")],
    owner: Annotated[str, typer.Argument(metavar="OWNER", help='The owner; "" for nobody in particular.')],
) -> None:
    """Set the owner of a home: only that person can have a session with it in the Hub."""
    store = Sessions.open(load()).store
    if store.find(name):
        PreferenceStore(store.database).change(name, caller(), owner=owner.strip())
    else:
        store.give_home(name, owner.strip())
    out.print(f"The home {name} is {owner.strip() or 'nobody'}'s.", highlight=False)


@home_app.command("list")
def list_homes(as_json: Json = False) -> None:
    """List all homes, those that were kept of sessions that are gone as well."""
    settings = load()
    sessions = Sessions.open(settings)
    homes, used = LocalHomes(settings), {session.name for session in sessions.store.sessions()}
    homes_there = [Home(name, uid, homes.path(name), name in used) for name, uid in sessions.store.homes().items()]
    rows = (
        (h.name, h.uid, "yes" if h.used else "kept", "yes" if h.path in homes.pool else "", h.path) for h in homes_there
    )
    show_data(as_json, homes_there, tables.table("Homes", ("home", "uid", "session", "pool", "folder"), rows))


@snapshot_app.command("list")
def list_kept(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Only of this session.")] = "", as_json: Json = False
) -> None:
    """List the snapshots of homes that moves have kept, because a person may have worked there since."""
    sessions = Sessions.open(load())
    snapshots = snapshots_of_moves.kept(sessions, Journal(sessions.store.database), name)
    rows = (
        (snapshot.session, snapshot.id, f"{snapshot.at:%Y-%m-%d %H:%M} UTC", snapshot.why) for snapshot in snapshots
    )
    show_data(as_json, snapshots, tables.table("Snapshots", ("session", "snapshot", "from", "why"), rows))


@snapshot_app.command("restore")
def restore_home(name: SessionName, snapshot: Snapshot, yes: Yes = False) -> None:
    """Restore the home and volumes of a stopped session from a snapshot that a move has kept; asks first."""
    if not yes:
        typer.confirm(f"Lose everything that was changed in the home of {name!r} since then?", abort=True)
    sessions = Sessions.open(load())
    with screen.showing(err):
        snapshots_of_moves.take_back(sessions, Journal(sessions.store.database), name, snapshot)
    out.print(f"The home of {name} is as it was. `refit home snapshot rm {name} {snapshot}` removes the snapshot.")


@snapshot_app.command("rm")
def drop_kept(name: SessionName, snapshot: Snapshot, yes: Yes = False) -> None:
    """Remove a snapshot that was kept, for good, after asking."""
    if not yes:
        typer.confirm(f"Remove the snapshot {snapshot} of the home of {name!r} for good?", abort=True)
    sessions = Sessions.open(load())
    snapshots_of_moves.drop(sessions, Journal(sessions.store.database), name, snapshot)


@pool_app.callback()
def show_pool(context: typer.Context, as_json: Json = False) -> None:
    """Show the pool of homes: its size, and how much of it is free."""
    if context.invoked_subcommand is None:
        pool = Pool(load())
        rooms = [pool.room()] if pool.ready() else []
        _show_pool(pool, rooms, as_json)


@pool_app.command("create")
def create_pool(
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of the pool, e.g. 50 GB.")],
    as_json: Json = False,
) -> None:
    """Make the pool, a file with a file system of btrfs; new homes lie in it, those that are there stay."""
    pool = Pool(load())
    _show_pool(pool, [pool.create(read_size(size))], as_json)


@pool_app.command("grow")
def grow_pool(
    size: Annotated[str, typer.Option(metavar="SIZE", help="New size of the pool, e.g. 100 GB.")],
    as_json: Json = False,
) -> None:
    """Grow the pool; sessions go on to use the homes in it."""
    pool = Pool(load())
    _show_pool(pool, [pool.grow(read_size(size))], as_json)


@pool_app.command("add")
def add_to_pool(name: SessionName) -> None:
    """Bring the home of a stopped session into the pool; its container is made anew when it starts."""
    with screen.showing(err):
        settings = load()
        session = put_into_pool(Sessions.open(settings), LocalHomes(settings), name)
    out.print(f"The home of {name} is {session.home} now.", highlight=False, soft_wrap=True)


def _show_pool(pool: Pool, rooms: Sequence[Room], as_json: bool) -> None:
    rows = ((gigabytes(room.size), gigabytes(room.free), pool.folder) for room in rooms)
    show_data(as_json, rooms, tables.table("Pool", ("size", "free", "folder"), rows))


def _target(settings: Settings, session: Session, to: str) -> str:
    if not to:
        Publications(settings).newest(session.profile, session.release)  # says best why it can't be that
    digest: str = targets([session], to, settings).get((session.profile, session.release), "")
    if not digest:
        raise RefitError(
            f"There is no tested image of {session.profile} in release {session.release}.",
            hint=f"`refit build {session.release}` makes it, or `--to` names another image.",
        )
    return digest


def _show_scan(scanned: Scan) -> None:
    rows = ((finding.verdict, finding.path or "the home", finding.what) for finding in scanned.findings)
    show(tables.table("Findings", ("verdict", "path", "what"), rows))
    out.print(
        f"{scanned.files} files of {scanned.session} were read. On {tables.short(scanned.new)}: {scanned.verdict}.",
        highlight=False,
    )
    _show_recipe(
        "To run in the session after the move:", [line for finding in scanned.findings for line in finding.recipe]
    )


def _show_changes(report: HandMade, *, replays: bool) -> None:
    for title, changes in (("System packages", report.system), ("Python packages", report.python)):
        if changes.added or changes.removed or changes.changed:
            show(tables.changes(changes, title))
    if report.files:
        show(tables.table("Files", ("path",), ((path,) for path in report.files)))
    if not report:
        out.print(f"The container of {report.session} is as its image was.")
    if not report.files_known:
        out.print("Packages were compared, other files weren't: in a cluster, the node alone knows which were changed.")
    as_root = ", as root" if replays else ""
    _show_recipe(f"To make the same packages anew{as_root} in the next container:", report.recipe)
    if report.recipe and replays:
        out.print(f"`refit session drift {report.session} --replay` lets moves do so with those of the system.")


def _show_recipe(title: str, lines: Sequence[str]) -> None:
    if lines:
        out.print(title, style="bold")
    for line in lines:  # what is copied stays in one piece
        out.print(f"  {on_a_line(line)}", highlight=False, soft_wrap=True)
