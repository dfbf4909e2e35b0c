"""The part of the `refit` command that is about profiles of people's own."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import Json, OfRelease, Yes, err, out, running_flows, show_data, show_json
from flows.core.errors import RefitError
from flows.core.formatting import on_a_line, printable
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.authoring.own import adopt as adopting
    from flows.authoring.own import catalog as own_catalog
    from flows.authoring.own import reading
    from flows.catalog.load import load_catalog
    from flows.cli import tables
    from flows.core import documents
    from flows.core.database import open_database
    from flows.core.settings import Settings, load
    from flows.publishing import own_profiles
    from flows.publishing.own_build_requests import BuildRequests
    from flows.releases import own_profiles as asking

# As in `main`: the verbs import Prefect, so they are imported where they are run.
# ruff: noqa: PLC0415

app = typer.Typer(no_args_is_help=True)
SHOWN = 80
MOST_LOG = 1 << 20  # bytes


def _caller() -> str:
    return os.environ.get("SUDO_USER") or getpass.getuser()


Folder = Annotated[
    str, typer.Argument(metavar="FOLDER", help="The bundle's folder; `-`: a tar archive of it from standard input.")
]
Owner = Annotated[
    str, typer.Option("--for", metavar="PERSON", help="The person whose profile it is.", default_factory=_caller)
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the bundle, or of its profile.")]
As = Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the bundle; empty: that of the folder.")]
Ide = Annotated[str, typer.Option(help="IDE that opens.")]
System = Annotated[str, typer.Option("--os", metavar="OS", help="Operating system of the catalog.")]


@app.command("lint")
def lint(
    folder: Folder,
    release: OfRelease,
    owner: Owner,
    name: As = "",
    ide: Ide = "jupyter",
    system: System = "deb12",
    as_json: Json = False,
) -> None:
    """Look at a bundle of one's own: what it may not have, and every mistake, with file and line. Nothing is built."""
    settings, wish = load(), _wish(folder, name, owner, ide, system, release)
    mistakes = []
    try:
        new = own_profiles.OwnProfiles(open_database(settings.database)).find(wish.name) is None
        with own_catalog.composed(wish, _files(folder, owner), settings, new=new):
            pass
    except documents.Mistakes as error:
        if not as_json:
            raise
        mistakes = [
            {"file": mistake.file, "line": mistake.line, "what": mistake.what, "hint": mistake.hint}
            for mistake in error.mistakes
        ]
    if as_json:
        show_json({"bundle": wish.name, "mistakes": mistakes})
        raise typer.Exit(1 if mistakes else 0)
    out.print(f"The bundle {wish.name} has no mistakes.")


@app.command("build")
def build(
    folder: Folder,
    release: OfRelease,
    owner: Owner,
    name: As = "",
    ide: Ide = "jupyter",
    system: System = "deb12",
    lines: Annotated[int, typer.Option(min=0, help="Lines of the log to show of a step that fails.")] = 0,
    as_json: Json = False,
) -> None:
    """Build a profile of one's own from a folder with a bundle that extends one of the catalog.

    Its name is taken from then on. Its steps run in a user namespace, without a network but the mirrors, and with the
    limits of `personal_builds` in settings.yaml. Its images lie in a repository of the person's own.
    """
    files, wish = _files(folder, owner), _wish(folder, name, owner, ide, system, release)
    with running_flows(quiet=as_json) as settings:
        from flows.build_own_profile import build_own_profile

        own = asking.give(wish, files, settings)
        began = time.time()
        try:
            images = build_own_profile(own.bundle)
        except RefitError:
            if text := log_of(settings.folder("logs", "stages"), own.bundle, began, lines):
                err.print(printable(text), highlight=False, soft_wrap=True)
            raise
    if as_json:
        show_json({"profile": own.profile, "owner": owner, "images": images})
        return
    for image in images:
        out.print(f"{image.tag} {'is new' if image.new else 'is as it was'}.", highlight=False)
    out.print(f"  refit session create NAME {own.profile}", highlight=False)


def log_of(logs: Path, bundle: str, since: float, lines: int) -> str:
    """The last lines of the log that a stage of a bundle wrote last, after a moment (seconds of Unix); empty: none."""
    of_bundle = [log for log in logs.glob("*.log") if bundle in log.stem.split("-") and log.stat().st_mtime >= since]
    if not lines or not of_bundle:
        return ""
    with max(of_bundle, key=lambda log: log.stat().st_mtime).open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - MOST_LOG))
        return "\n".join(log.read(MOST_LOG).decode(errors="replace").splitlines()[-lines:])


def _twins(settings: Settings, profiles: Iterable[own_profiles.OwnProfile]) -> dict[str, str]:
    """Bundle → what of the catalog people may take it for; none if the catalog can't be read."""
    with suppress(RefitError):
        shipped = load_catalog(settings.catalog)
        return {own.bundle: twin for own in profiles if (twin := own_catalog.looks_like(own.bundle, shipped))}
    return {}


@app.command("list")
def list_profiles(
    owner: Annotated[str, typer.Option("--for", metavar="PERSON", help="Only those of this person.")] = "",
    as_json: Json = False,
) -> None:
    """List the profiles of people's own: whose, who else may start them, how their last builds went, and the queue."""
    settings = load()
    records = own_profiles.OwnProfiles(open_database(settings.database))
    twins = _twins(settings, records.all(owner))
    builds, queue, rows, cells = records.last_builds(), records.builds(), [], []
    waiting = {request.bundle for request in BuildRequests(records.database).all() if request.begun is None}
    for own in records.all(owner):
        last = builds.get(own.bundle)
        built, problem = (last.ended, last.problem) if last else (None, "")
        outcome = {
            "profile": own.profile,
            "owner": own.owner,
            "release": own.release,
            "offered": own.offered,
            "people": own.people,
        }
        state = {None: "", False: "waits", True: "is built"}[
            queue.get(own.bundle, False if own.bundle in waiting else None)
        ]
        twin = twins.get(own.bundle, "")
        rows.append(
            {**outcome, "given": own.at, "built": built, "problem": problem, "state": state, "looks_like": twin}
        )
        about = "; ".join(filter(None, (f"looks like {twin}" if twin else "", on_a_line(problem)[:SHOWN])))
        shown = str(built.date()) if built else ""
        cells.append((own.profile, own.owner, ", ".join((*own.offered, *own.people)), shown, state, about))
    columns = ("profile", "of", "for", "built", "now", "")
    show_data(as_json, rows, tables.table("Profiles of people's own", columns, cells))


@app.command("offer")
def offer(
    name: Name,
    owner: Owner,
    groups: Annotated[
        list[str] | None, typer.Option("--to", metavar="GROUP", help="Group whose members may start it, too.")
    ] = None,
    people: Annotated[
        list[str] | None, typer.Option("--to-person", metavar="PERSON", help="Person who may start it, too.")
    ] = None,
) -> None:
    """Let others start sessions from a profile of one's own: these, and nobody else. Nobody but its owner vouches for
    it.

    An offer to a group stays when its owner isn't in that group, or leaves it.
    """
    if not (groups or people):
        raise RefitError(
            "No person or group was named to offer it to.", hint="name a group by --to, or a person by --to-person."
        )
    records = own_profiles.OwnProfiles(open_database(load().database))
    own = records.offer(name, owner, groups or (), people or (), vouched=groups or ())
    out.print(f"{own.profile} is offered to {', '.join((*own.offered, *own.people))}.")


@app.command("withdraw")
def withdraw(name: Name, owner: Owner) -> None:
    """Offer a profile of one's own to nobody any more; sessions that others have on it go on."""
    own = own_profiles.OwnProfiles(open_database(load().database)).offer(name, owner, ())
    out.print(f"{own.profile} is offered to nobody any more.")


@app.command("adopt")
def adopt_profile(
    name: Name,
    release: Annotated[str, typer.Option(help="Release that ships it; empty: that of its builds.")] = "",
    commit: Annotated[bool, typer.Option(help="Whether its files become a commit of the catalog's repository.")] = True,
) -> None:
    """Take a person's own bundle into the catalog: an operator vouches for it from then on.

    Its steps run as those of all recipes then, so read it before. Its name stays the person's no longer.
    """
    settings = load()
    records = own_profiles.OwnProfiles(open_database(settings.database))
    own = records.get(name)
    ide, _, system, _ = own.profile.split("-")
    wish = own_catalog.Wish(own.bundle, own.owner, ide, system, release or own.release)
    folder = adopting.adopt(wish, own.files, settings.catalog, commit=commit)
    records.forget(own.bundle, own.owner)
    out.print(f"{folder} is a bundle of the catalog, and {own.profile} a profile of {wish.release}.", highlight=False)
    out.print(f"  refit lock {wish.release} --bundle {own.bundle}", highlight=False)
    out.print(f"  refit build {wish.release} --profile {own.profile}", highlight=False)


@app.command("rm")
def remove(name: Name, owner: Owner, yes: Yes = False) -> None:
    """Give the name of a profile of one's own back; its images stay, and sessions on them go on."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Remove the recipe of {on_a_line(name)}?", abort=True)
    own_profiles.OwnProfiles(open_database(load().database)).forget(name, owner)
    out.print(f"{name} is nobody's any more.")


def _files(folder: str, owner: str) -> dict[str, bytes]:
    if folder == "-":
        return reading.from_archive(sys.stdin.buffer)
    return reading.from_folder(Path(folder), reading.uid_of(owner))


def _wish(folder: str, name: str, owner: str, ide: str, system: str, release: str) -> own_catalog.Wish:
    """The wish of a command; a folder is called as bundles are, with a number or without."""
    plain = Path(folder).absolute().name.lstrip("0123456789").lstrip("-")
    return own_catalog.Wish(name or plain, owner, ide, system, release)
