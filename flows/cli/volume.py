"""The part of the `refit` command that is about volumes: what persists of sessions beside their homes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from flows.cli.console import Json, Yes, out, show_data
from flows.core.errors import UnknownName
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables
    from flows.core.settings import load
    from flows.sessions import engines, reconfigure
    from flows.sessions.homes.volumes import check_unused, read_wanted, users
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.model import HomeRef

app = typer.Typer(no_args_is_help=True)

VolumeName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the volume; of a session's own, SESSION/NAME.")
]


@dataclass(frozen=True)
class Listed:
    """A volume: its name, the sessions that have it, whether they share it, and where it is."""

    name: str
    sessions: tuple[str, ...]
    shared: bool
    folder: str


@app.command("list")
def list_volumes(as_json: Json = False) -> None:
    """List all volumes, those that were kept of sessions that are gone as well."""
    volumes = list(_all(Sessions.open(load())))
    rows = (
        (v.name, ", ".join(v.sessions) or ("" if v.shared else "kept"), "yes" if v.shared else "", v.folder)
        for v in volumes
    )
    show_data(as_json, volumes, tables.table("Volumes", ("volume", "session", "shared", "folder"), rows))


@app.command("create")
def create_volume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the volume.")],
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Share it among sessions; volumes of a session's own are made with the session."),
    ] = False,
) -> None:
    """Make a volume that sessions share: all read and write it, and no rollback undoes their changes."""
    if not shared:
        raise typer.BadParameter("a volume of a session's own is made with it: `refit session create --volume`")
    volume = engines.homes(load()).make_shared(name)
    out.print(f"The volume {name} is {volume}.", highlight=False, soft_wrap=True)


@app.command("add")
def add_volume(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="Name of the session.")],
    volume: Annotated[
        list[str], typer.Argument(metavar="VOLUME", help="Volume that it gets: NAME:/path or NAME:/path:ro.")
    ],
) -> None:
    """Add volumes to a stopped session; its container is made anew when it starts."""
    had = reconfigure.add_volumes(Sessions.open(load()), session, read_wanted(volume)).volumes
    out.print(f"{session} has {', '.join(f'{mounted.name} at {mounted.path}' for mounted in had)}.", highlight=False)


@app.command("rm")
def remove_volume(name: VolumeName, yes: Yes = False) -> None:
    """Remove a volume that no session has, with everything in it."""
    sessions = Sessions.open(load())
    volumes = {volume.name: volume for volume in _all(sessions)}
    if name not in volumes:
        raise UnknownName("volume", name, volumes)
    check_unused(name, volumes[name].sessions)
    if yes or typer.confirm(f"Remove {volumes[name].folder} with everything in it?", abort=True):
        reconfigure.remove_volume(sessions, name, HomeRef(volumes[name].folder))


def _all(sessions: Sessions) -> Iterator[Listed]:
    sessions_there = sessions.store.sessions()
    for name, volume in sessions.homes.shared().items():
        yield Listed(name, users(sessions_there, volume), True, volume)
    for session in sessions.store.homes():
        for name, volume in sessions.homes.volumes(session).items():
            yield Listed(f"{session}/{name}", users(sessions_there, volume), False, volume)
