"""The part of the `refit` command that makes a bundle of what was installed by hand in a session."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from flows.cli import migrate
from flows.cli.console import Json, SessionName, err, out, running_flows, show, show_json, show_text
from flows.core.formatting import on_a_line
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.authoring.capture.facts import Reason, Source
    from flows.cli import screen, tables
    from flows.compatibility import capture as capturing
    from flows.compatibility.capture import Captured, Wish
    from flows.core.settings import load
    from flows.prove_capture import Proof

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
    prove: Annotated[
        bool,
        typer.Option(help="Whether to lock and build it, start it on a copy of the home, and compare."),
    ] = True,
    as_json: Json = False,
) -> None:
    """Make a bundle of what was installed by hand in a session that runs; it extends the session's bundle.

    It has what a person asked for, not what came along: Python packages, system packages, and files that are named.
    The rest is told with the reason. Then the bundle is proven, which takes minutes, and at a terminal you are asked
    whether the session is to move to it.
    """
    captured = _captured(name, Wish(bundle, tuple(environment or ()), tuple(file or ()), into), as_json)
    written = bool(captured.capture) and not dry_run
    if written:
        capturing.write(captured)
    if not as_json:
        _show(captured, written=written)
    proof = _prove(captured, name, quiet=as_json) if written and prove else None
    if as_json:
        show_json({**_as_json(captured), "written": written, "proof": proof})
    elif written:
        _show_next(captured, name, proof)
    _go_on(captured, name, proof, asks=_asks(as_json))


def _go_on(captured: Captured, name: str, proof: Proof | None, *, asks: bool) -> None:
    """Move the session to what was proven, if a person at a terminal wants that."""
    if proof and proof.lost:
        raise typer.Exit(1)
    if proof and asks and typer.confirm(f"Move {name} to {captured.profile} now? Its programs end."):
        migrate.change_profile(name, captured.profile, captured.release)


def _captured(name: str, wish: Wish, as_json: bool) -> Captured:
    """The capture, once more with the environments that a person at a terminal wants to be taken."""
    settings = load()
    with screen.showing(err):
        captured = capturing.capture(settings, name, wish)
    if not _asks(as_json) or not (more := _asked(captured)):
        return captured
    with screen.showing(err):
        return capturing.capture(settings, name, replace(wish, environments=(*wish.environments, *more)))


def _prove(captured: Captured, name: str, *, quiet: bool) -> Proof:
    with running_flows(quiet=quiet):
        from flows.prove_capture import prove_capture  # noqa: PLC0415 - Prefect takes a second to import

        capture = captured.capture
        things = [*capture.packages], [*capture.system], [*capture.files]
        return prove_capture(name, capture.name, captured.profile, captured.release, *things, captured.catalog)


def _asks(as_json: bool) -> bool:
    """Whether somebody at a terminal can answer."""
    return sys.stdin.isatty() and out.is_terminal and not as_json


def _asked(captured: Captured) -> list[str]:
    """The environments of the home that a person wants to be taken, asked for one by one."""
    left = captured.capture.left
    places = [
        change.name for change in left if (change.source, change.reason) == (Source.environment, Reason.not_chosen)
    ]
    return [path for path in places if typer.confirm(f"Take what was asked for in {on_a_line(path)}, too?")]


def _as_json(captured: Captured) -> dict[str, object]:
    capture = captured.capture
    return {
        "bundle": capture.name,
        "extends": capture.extends,
        "packages": capture.packages,
        "system": capture.system,
        "files": sorted(capture.files),
        "left": capture.left,
        "texts": captured.files,
        "profile": captured.profile,
        "release": captured.release,
        "catalog": captured.catalog,
    }


def _show(captured: Captured, *, written: bool) -> None:
    capture = captured.capture
    if not capture:
        out.print("Nothing that a bundle could hold was installed by hand.")
    elif not written:
        for path, text in captured.files.items():
            out.print(path, style="bold", highlight=False)
            show_text(text)
    rows = [
        (change.source.value, on_a_line(change.name), change.reason.value, on_a_line(change.why))
        for change in capture.left
    ]
    if rows:
        show(tables.table("Not captured", ("what", "name", "reason", ""), rows[:SHOWN]))
    if len(rows) > SHOWN:
        out.print(f"and {len(rows) - SHOWN} more: `--json` has them all.")
    if written:
        python, system, files = len(capture.packages), len(capture.system), len(capture.files)
        counted = f"{python} Python packages, {system} system packages, {files} files"
        out.print(f"The bundle {capture.name} has {counted}.", highlight=False)


def _show_next(captured: Captured, name: str, proof: Proof | None) -> None:
    """The lines with which it goes on."""
    release, profile = captured.release, captured.profile
    change = f"refit session change-profile {name} {profile} --release {release}"
    lines = [f"refit lock {release} --bundle {captured.capture.name}", f"refit build {release} --profile {profile}"]
    if proof and proof.lost:
        rows = [(lost.source.value, on_a_line(lost.name)) for lost in proof.lost]
        show(tables.table(f"Not in the image that was built of it: {proof.image}", ("what", "name"), rows))
    elif proof:
        out.print(f"{profile} has all of it, and started on a copy of the home. The session moves there by:")
    for line in [change] if proof else [*lines, change]:
        out.print(f"  {line}", highlight=False, soft_wrap=True)
