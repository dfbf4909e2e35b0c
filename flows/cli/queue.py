"""The part of the `refit` command that is about queues of builds, one for each operating system."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flows.cli.console import Json, Yes, out, running_flows, show, show_data
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables

# As in `main`: the verbs import Prefect, so they are imported where they are run.
# ruff: noqa: PLC0415

app = typer.Typer(invoke_without_command=True)

OperatingSystem = Annotated[str, typer.Argument(metavar="OS", help="Operating system of the catalog, e.g. deb12.")]


@app.callback()
def show_queues(context: typer.Context, as_json: Json = False) -> None:
    """Show the queues: what is paused, what waits, what runs, and which workers take from them."""
    if context.invoked_subcommand is None:
        list_queues(as_json)


@app.command("list")
def list_queues(as_json: Json = False) -> None:
    """Show the queues: what is paused, what waits, what runs, and which workers take from them."""
    with running_flows(quiet=True):
        from flows.orchestration.queues import queues

        states = queues()
    show_data(as_json, states, tables.queues(states))


@app.command("pause")
def pause_queue(system: OperatingSystem) -> None:
    """Pause a queue: no run starts; running ones go on, queued ones stay queued."""
    with running_flows(quiet=True):
        from flows.orchestration.queues import pause

        pause(system)
    out.print(f"{system} is paused. `refit queue resume {system}` lets builds start again.")


@app.command("resume")
def resume_queue(system: OperatingSystem) -> None:
    """Resume a queue: those that have waited longest start first."""
    with running_flows(quiet=True):
        from flows.orchestration.queues import resume

        resume(system)
    out.print(f"{system} takes builds again.")


@app.command("purge")
def purge_queue(
    system: OperatingSystem,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be cancelled.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Cancel the queued runs, after asking; running ones and later nights of a schedule stay."""
    with running_flows(quiet=True):
        from flows.orchestration.queues import purge

        runs = purge(system, dry_run=True)
        if runs and not dry_run and not yes:
            if as_json or not sys.stdin.isatty():
                dry_run = True
            else:
                show(tables.runs("Would be cancelled", runs))
                typer.confirm("Cancel them?", abort=True)
        if not dry_run:
            runs = purge(system, dry_run=False)
    show_data(as_json, runs, tables.runs("Would be cancelled" if dry_run else "Cancelled", runs))


@app.command("drain")
def drain_queue(
    system: OperatingSystem,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 3600.0,
) -> None:
    """Pause a queue, and wait until nothing runs in it any more."""
    with running_flows():
        from flows.orchestration.queues import drain

        drain(system, timeout)
    out.print(f"{system} is paused, and nothing runs. `refit queue resume {system}` lets builds start again.")
