"""The part of the `refit` command that is about snapshots of sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Annotated

import typer
from rich.table import Table

from flows.cli import migrate
from flows.cli.console import Json, OfRelease, SessionName, Yes, err, out, show_data, show_json
from flows.core.errors import RefitError
from flows.core.formatting import megabytes, on_a_line, some
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import screen, tables
    from flows.core.settings import load
    from flows.migrations.snapshots import clone_session, snapshot_actions
    from flows.migrations.snapshots import roll_back as rolling_back
    from flows.migrations.snapshots.clone_session import Wish
    from flows.migrations.snapshots.roll_back import Foreseen
    from flows.migrations.snapshots.snapshot_actions import Listed
    from flows.migrations.switch_profile import go_back
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.snapshots.model import Snapshot
    from flows.sessions.snapshots.retention import Rules
    from flows.sessions.snapshots.retention_overrides import RulesStore
    from flows.sessions.wishes import caller

Chosen = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="As `refit session snapshots` names it.")]


def add_to(session_app: typer.Typer) -> None:
    """Give the group of sessions its verbs about snapshots."""
    session_app.command("snapshot")(take)
    session_app.command("snapshots")(list_all)
    session_app.command("remove-snapshot")(remove)
    session_app.command("snapshot-rules")(choose_rules)
    session_app.command("clone")(clone)
    session_app.command("diff")(show_diff)
    session_app.command("rollback")(roll_back)


def take(
    name: SessionName,
    called: Annotated[
        str, typer.Option("--name", help="Its name; a named snapshot stays until it is removed, others for a while.")
    ] = "",
    note: Annotated[str, typer.Option(help="A note about it.")] = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Take a snapshot of a session's home and volumes, while it runs or not: in the pool at once, elsewhere a copy."""
    sessions = Sessions.open(load())
    if not as_json and (cost := snapshot_actions.cost(sessions, name)):
        warning = f"The home isn't in a pool (`refit home pool`): {megabytes(cost)} are copied."
        out.print(warning, highlight=False)
        if not yes and cost > ASKED:
            typer.confirm("Go on?", abort=True)
    with screen.showing(err):
        snapshot = snapshot_actions.take(sessions, name, caller(), called=called, note=note)
    if as_json:
        show_json(snapshot)
    else:
        out.print(f"{snapshot.name} holds the home of {name}{_volumes(snapshot)}.", highlight=False)


SHOWN = 100
ASKED = 1_000_000_000  # bytes: of a copy that takes more, a person is asked first


def list_all(name: SessionName, as_json: Json = False) -> None:
    """List the snapshots of a session: when, by whom, of what image, how large by itself, what has changed since."""
    snapshots = snapshot_actions.listed(Sessions.open(load()), name)
    show_data(as_json, snapshots, _table(snapshots))


def remove(name: SessionName, snapshot: Chosen, yes: Yes = False) -> None:
    """Remove a snapshot of a session for good, after asking."""
    if not yes:
        typer.confirm(f"Remove the snapshot {snapshot} of {name} for good?", abort=True)
    snapshot_actions.remove(Sessions.open(load()), name, snapshot, caller())


def clone(
    name: SessionName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new session.")],
    release: OfRelease,
    profile: Annotated[str, typer.Option(metavar="PROFILE", help="Another profile than the session's.")] = "",
    snapshot: Annotated[
        str, typer.Option(metavar="SNAPSHOT", help="Begin with this snapshot, not with the present home.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Clone even if files in the home don't fit the profile.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a session that begins with a copy of another one's home, to try something beside it; that one goes on."""
    wish = Wish(new, profile, release, snapshot, force)
    with screen.showing(err):
        clone = clone_session.clone(load(), name, wish, caller())
    if as_json:
        show_json(clone)
        return
    out.print(
        f"{clone.name} runs, with a copy of the home of {name}. `refit session show {clone.name}` has its address."
    )


def choose_rules(
    name: SessionName,
    every: Annotated[
        float | None, typer.Option(min=0, metavar="HOURS", help="Hours between two snapshots; 0: none are taken.")
    ] = None,
    newest: Annotated[int | None, typer.Option(min=0, help="Number of snapshots without a name that stay.")] = None,
    days: Annotated[int | None, typer.Option(min=0, help="Number of days of which the last snapshot stays.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Follow the settings again.")] = False,
    as_json: Json = False,
) -> None:
    """Show or choose how often the schedule takes snapshots of a session, and how long those without a name stay."""
    settings = load()
    sessions = Sessions.open(settings)
    sessions.store.session(name)
    store = RulesStore(sessions.store.database)
    had, given = Rules() if default else store.of(name), Rules(every, newest, days)
    if default or given != Rules():
        store.choose(name, given.over_rules(had), caller())
    policy = store.of(name).over(settings.snapshots)
    if as_json:
        show_json(policy)
        return
    often = f"every {policy.every_hours:g} hours" if policy.every_hours else "only when asked for"
    stay = f"the newest {policy.newest} without a name stay, and the last one of each of the latest {policy.days} days"
    out.print(f"Snapshots of {name} are taken {often}; {stay}.", highlight=False)


def show_diff(
    name: SessionName,
    snapshot: Chosen,
    contents: Annotated[
        bool, typer.Option("--contents", help="Read files of the same size and time, too; that takes longer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what has changed in a session's home and volumes since a snapshot."""
    with screen.showing(err):
        changes = snapshot_actions.diff(Sessions.open(load()), name, snapshot, contents=contents)
    if as_json:
        show_json(changes)
    else:
        _show_changes(changes)


def roll_back(
    name: SessionName,
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="Name of a snapshot; without one, back to the former image.")
    ] = "",
    with_image: Annotated[bool, typer.Option("--with-image", help="Also give it the image that it had then.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Bring only this file or folder back; nothing is stopped.")
    ] = None,
    to: Annotated[str, typer.Option(metavar="FOLDER", help="With --only: into this new folder of the home.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Roll back even if programs work in it, or files don't fit the image.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Roll a session back: its home to a snapshot, or, without one, to the image that it had before its last move.

    It stops, and starts anew. Its home as it is until then becomes a snapshot itself; a failure is undone.
    """
    settings = load()
    if not snapshot:
        _refuse_without(with_image=with_image, dry_run=dry_run, only=bool(only), to=bool(to))
        with screen.showing(err):
            result = go_back(settings, name, force=force)
    elif only:
        _bring_back(name, snapshot, only, to)
        return
    else:
        foreseen = rolling_back.foresee(settings, name, snapshot, with_image=with_image)
        if dry_run:
            _show_foreseen(foreseen, as_json)
            return
        agreed = as_json or yes or force or _agrees(foreseen)
        force = force or (agreed and not as_json and not yes)
        with screen.showing(err):
            result = rolling_back.roll_back(settings, name, snapshot, caller(), with_image=with_image, force=force)
    migrate.show_moves([result], as_json)


def _agrees(foreseen: Foreseen) -> bool:
    _show_foreseen(foreseen, as_json=False)
    return typer.confirm("Go back?", abort=True)


def _bring_back(name: str, snapshot: str, only: Sequence[str], to: str) -> None:
    with screen.showing(err):
        outcome = snapshot_actions.bring_back(Sessions.open(load()), name, snapshot, only, caller(), to=to)
    out.print(f"{some(only)} of {snapshot} is in {to or 'place'}.", highlight=False)
    if outcome:
        out.print(f"{outcome[0].upper()}{outcome[1:]}.", highlight=False)


def _refuse_without(**options: bool) -> None:
    if given := [f"--{option.replace('_', '-')}" for option, chosen in options.items() if chosen]:
        raise RefitError(
            f"{some(given)} needs the name of a snapshot.", hint="`refit session snapshots NAME` lists them."
        )


def _show_foreseen(foreseen: Foreseen, as_json: bool) -> None:
    if as_json:
        show_json(foreseen)
        return
    _show_changes(foreseen.changed)
    image = (
        "keeps its image"
        if foreseen.image == foreseen.session.image
        else f"gets the image {tables.short(foreseen.image)}"
    )
    sentence = f"{foreseen.session.name} goes back to {foreseen.snapshot.name}, and {image}."
    out.print(f"{sentence} All that is listed becomes what it was; as it is now, the home becomes a snapshot.")
    if foreseen.cost:
        out.print(f"The cost: {foreseen.cost}.", highlight=False)
    if foreseen.work:
        out.print(f"It is in use: {foreseen.work}.", style="bold")


def _show_changes(changes: Sequence[str]) -> None:
    for change in changes[:SHOWN]:
        out.print(change, highlight=False, soft_wrap=True)
    if len(changes) > SHOWN:
        out.print(f"and {len(changes) - SHOWN} more; `--json` has them all.")
    if not changes:
        out.print("Nothing has changed since.")


def _table(snapshots: Iterable[Listed]) -> Table:
    rows = (
        (
            listed.snapshot.name,
            f"{listed.snapshot.at:%Y-%m-%d %H:%M} UTC",
            f"{listed.snapshot.by}, {listed.snapshot.kind.text}" if listed.snapshot.by else listed.snapshot.kind.text,
            tables.short(listed.snapshot.image),
            "" if listed.size is None else megabytes(listed.size, 1),
            in_few_words(listed.changed),
            listed.snapshot.note,
        )
        for listed in snapshots
    )
    return tables.table("Snapshots", ("snapshot", "from", "by", "image", "size", "changed since", "note"), rows)


def in_few_words(changed: tuple[str, ...] | None) -> str:
    """How many paths, and in which folders of the home most of them are."""
    if changed is None:
        return ""
    if not changed:
        return "nothing"
    tops = list(dict.fromkeys(on_a_line(PurePosixPath(path).parts[0]) for path in changed if path))
    return f"{len(changed)}: {some(tops, 3)}"


def _volumes(snapshot: Snapshot) -> str:
    return f" and {some(snapshot.volumes)}" if snapshot.volumes else ""
