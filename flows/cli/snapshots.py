"""The part of the `refit` command that is about snapshots of sessions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated

import typer
from rich.table import Table

from flows.cli.console import Json, SessionName, Yes, err, out, show_data, show_json
from flows.core.formatting import on_a_line, some
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import screen, tables
    from flows.core.settings import load
    from flows.migrations import session_snapshots
    from flows.migrations.session_snapshots import Listed
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.snapshots.model import Snapshot
    from flows.sessions.wishes import caller

Chosen = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="As `refit session snapshots` names it.")]


def add_to(session_app: typer.Typer) -> None:
    """Give the group of sessions its verbs about snapshots."""
    session_app.command("snapshot")(take)
    session_app.command("snapshots")(list_all)
    session_app.command("remove-snapshot")(remove)


def take(
    name: SessionName,
    called: Annotated[
        str, typer.Option("--name", help="Name of it; a named one stays until it is removed, others for a while.")
    ] = "",
    note: Annotated[str, typer.Option(help="A few words about it.")] = "",
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Take a snapshot of a session's home and volumes, while it runs or not: in the pool at once, elsewhere a copy."""
    sessions = Sessions.open(load())
    if not as_json and (cost := session_snapshots.cost(sessions, name)):
        told = f"The home isn't in a pool (`refit home pool`): {cost / 1e6:.0f} MB are copied."
        out.print(told, highlight=False)
        if not yes and cost > ASKED:
            typer.confirm("Go on?", abort=True)
    with screen.showing(err):
        made = session_snapshots.take(sessions, name, caller(), called=called, note=note)
    if as_json:
        show_json(made)
    else:
        out.print(f"{made.name} holds the home of {name}{_volumes(made)}.", highlight=False)


ASKED = 1_000_000_000  # bytes: of a copy that takes more, a person is asked first


def list_all(name: SessionName, as_json: Json = False) -> None:
    """List the snapshots of a session: when, by whom, of what image, how large by itself, what has changed since."""
    found = session_snapshots.listed(Sessions.open(load()), name)
    show_data(as_json, found, _table(found))


def remove(name: SessionName, snapshot: Chosen, yes: Yes = False) -> None:
    """Remove a snapshot of a session for good, after asking."""
    if not yes:
        typer.confirm(f"Remove the snapshot {snapshot} of {name} for good?", abort=True)
    session_snapshots.remove(Sessions.open(load()), name, snapshot, caller())


def _table(found: Iterable[Listed]) -> Table:
    rows = (
        (
            one.snapshot.name,
            f"{one.snapshot.at:%Y-%m-%d %H:%M} UTC",
            f"{one.snapshot.by}, {one.snapshot.kind.text}" if one.snapshot.by else one.snapshot.kind.text,
            tables.short(one.snapshot.image),
            "" if one.size is None else f"{one.size / 1e6:.1f} MB",
            in_few_words(one.changed),
            one.snapshot.note,
        )
        for one in found
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
