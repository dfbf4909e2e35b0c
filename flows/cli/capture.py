"""The part of the `refit` command that makes a bundle of what was installed by hand in a session."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import Json, SessionName, err, out, show, show_json, show_text
from flows.core.formatting import on_a_line
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.authoring.capture.facts import Reason, Source
    from flows.cli import screen, tables
    from flows.compatibility import capture as capturing
    from flows.compatibility.capture import Captured, Wish
    from flows.core.settings import load

SHOWN = 100


def add_to(session_app: typer.Typer) -> None:
    """Give the group of sessions its verb."""
    session_app.command("capture")(capture)


def capture(
    name: SessionName,
    bundle: Annotated[str, typer.Option("--as", metavar="BUNDLE", help="Name of the new bundle.")],
    environment: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Take the packages of this environment of the home, too; `.local`: --user."),
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Take this file below /etc or /usr/local, too.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option(metavar="CATALOG", help="Another catalog than the settings'.", file_okay=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the bundle, and write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make a bundle of what was installed by hand in a session that runs; it extends the session's bundle.

    It has what a person asked for, not what came along: Python packages, system packages, and files that are named.
    The rest is told with the reason.
    """
    settings, wish = load(), Wish(bundle, tuple(environment or ()), tuple(file or ()), into)
    with screen.showing(err):
        captured = capturing.capture(settings, name, wish)
    asking = sys.stdin.isatty() and out.is_terminal and not as_json
    if asking and (more := _asked(captured)):
        with screen.showing(err):
            wish = Wish(bundle, (*wish.environments, *more), wish.files, into)
            captured = capturing.capture(settings, name, wish)
    if captured.capture and not dry_run:
        capturing.write(captured)
    if as_json:
        show_json({**_told(captured), "written": bool(captured.capture) and not dry_run})
        return
    _show(captured, written=bool(captured.capture) and not dry_run)


def _asked(captured: Captured) -> list[str]:
    """The environments of the home that a person wants to be taken, asked for one by one."""
    left = captured.capture.left
    places = [one.name for one in left if (one.source, one.reason) == (Source.environment, Reason.not_chosen)]
    return [path for path in places if typer.confirm(f"Take what was asked for in {on_a_line(path)}, too?")]


def _told(captured: Captured) -> dict[str, object]:
    made = captured.capture
    return {
        "bundle": made.name,
        "extends": made.extends,
        "packages": made.packages,
        "system": made.system,
        "files": sorted(made.files),
        "left": made.left,
        "texts": captured.files,
        "profile": captured.profile,
        "release": captured.release,
        "catalog": captured.catalog,
    }


def _show(captured: Captured, *, written: bool) -> None:
    made = captured.capture
    if not made:
        out.print("Nothing that a bundle could hold was installed by hand.")
    elif not written:
        for path, text in captured.files.items():
            out.print(path, style="bold", highlight=False)
            show_text(text)
    rows = [(one.source.value, on_a_line(one.name), one.reason.value, on_a_line(one.why)) for one in made.left]
    if rows:
        show(tables.table("Not captured", ("what", "name", "reason", ""), rows[:SHOWN]))
    if len(rows) > SHOWN:
        out.print(f"and {len(rows) - SHOWN} more: `--json` has them all.")
    if written:
        _show_next(captured)


def _show_next(captured: Captured) -> None:
    made, release = captured.capture, captured.release
    counted = f"{len(made.packages)} Python packages, {len(made.system)} system packages, {len(made.files)} files"
    out.print(f"The bundle {made.name} has {counted}. {captured.profile} in {release} starts from it.", highlight=False)
    for line in (
        f"refit lint {captured.catalog}",
        f"refit lock {release} --bundle {made.name}",
        f"refit build {release} --profile {captured.profile}",
    ):
        out.print(f"  {line}", highlight=False, soft_wrap=True)
