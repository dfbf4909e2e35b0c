"""The part of the `refit` command that installs system packages in sessions."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli.console import Json, SessionName, err, out, show, show_data, show_json
from flows.core.formatting import on_a_line
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import screen, tables
    from flows.core.settings import load
    from flows.sessions import reconfigure
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.packages.model import Outcome
    from flows.sessions.wishes import caller

Names = Annotated[list[str], typer.Argument(metavar="PACKAGE…", help="Names of system packages, without versions.")]


def add_to(session_app: typer.Typer) -> None:
    """Give the group of sessions its verbs."""
    session_app.command("install")(install)
    session_app.command("uninstall")(uninstall)
    session_app.command("installed")(installed)


def install(
    name: SessionName,
    package: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PACKAGE…]", help="Names of system packages, without versions; none: all on record."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Install system packages in a session that runs; each of its next containers gets them, too.

    Scripts of packages run as root of the session's file system, so this is an operator's verb. Each image gets the
    versions that its own system has then; images of people's own get none.
    """
    settings = load()
    with screen.showing(err):
        sessions = Sessions.open(settings)
        outcome = reconfigure.install_packages(sessions, settings, name, package or (), caller())
    if as_json:
        show_json(outcome)
    else:
        _show(name, outcome)
    if outcome.missing:
        raise typer.Exit(1)


def uninstall(name: SessionName, package: Names, as_json: Json = False) -> None:
    """Let moves of a session leave system packages behind; its present container keeps them."""
    gone = reconfigure.forget_packages(Sessions.open(load()), name, package, caller())
    if as_json:
        show_json(gone)
        return
    out.print(f"The next container of {name} is made without {', '.join(package)}; the present one keeps it.")


def installed(name: SessionName, as_json: Json = False) -> None:
    """List the system packages that an operator has installed in a session: moves install them again."""
    sessions = Sessions.open(load())
    sessions.store.session(name)
    packages = sessions.packages.store.of(name)
    rows = (
        (
            package.name,
            package.by,
            f"{package.at:%Y-%m-%d %H:%M} UTC",
            "" if package.finished else "not finished: install it again",
        )
        for package in packages
    )
    show_data(as_json, packages, tables.table("System packages", ("name", "by", "at", ""), rows))


def _show(name: str, outcome: Outcome) -> None:
    if outcome.there:
        versions = ", ".join(f"{package} {version}".strip() for package, version in outcome.there.items())
        out.print(f"In {name}, and in its next containers: {versions}.", highlight=False)
    if outcome.missing:
        rows = [(package, on_a_line(why)) for package, why in outcome.missing.items()]
        show(tables.table("Not installed", ("name", "reason"), rows))
    if not outcome.there and not outcome.missing:
        out.print(f"No system packages are on record for {name}: name some.", highlight=False)
