"""The part of the `refit` command that is about the GPUs of this machine, and who has which."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer

from flows.cli.console import Json, out, show_data
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables
    from flows.core.database import now
    from flows.core.settings import load
    from flows.sessions.gpus.gpu import Taken
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.reconfigure import release_gpus
    from flows.sessions.wishes import caller

app = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True)
class Listed:
    """A GPU: its device nodes on the host, and who has it."""

    gpu: str
    nodes: tuple[str, ...]
    taken: tuple[Taken, ...]


@app.command("list")
def list_gpus(as_json: Json = False) -> None:
    """List the GPUs of this machine, and who has them."""
    pool = Sessions.open(load()).gpus
    taken = pool.taken()
    gpus = [
        Listed(gpu.name, tuple(gpu.nodes.values()), tuple(seat for seat in taken if seat.gpu == gpu.name))
        for gpu in pool.gpus()
    ]
    rows = ((listed.gpu, ", ".join(listed.nodes), "\n".join(map(_holder, listed.taken)) or "free") for listed in gpus)
    show_data(as_json, gpus, tables.table("GPUs", ("GPU", "devices", "who has it"), rows))


@app.command("hold")
def hold_gpu(
    gpu: Annotated[str, typer.Argument(metavar="GPU", help="Name of the GPU, as `refit gpu list` shows it.")],
    hours: Annotated[float | None, typer.Option(min=0, help="For how long; without it, until it is released.")] = None,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Reason; people who wait for it are told.")] = "",
) -> None:
    """Hold a GPU, so that no session takes it."""
    until = None if hours is None else now() + timedelta(hours=hours)
    Sessions.open(load()).gpus.hold(gpu, by=caller(), why=why, until=until)


@app.command("release")
def release_gpu(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A GPU that a person holds, or a session.")],
) -> None:
    """Release a GPU that a person holds, or those of a session that doesn't run."""
    sessions = Sessions.open(load())
    given = release_gpus(sessions, name)
    if not given:
        raise RefitError(f"{name!r} has no GPU, and nobody holds one of that name.", hint="`refit gpu list` shows all.")
    out.print(f"Free now: {', '.join(given)}.", highlight=False)


def _holder(taken: Taken) -> str:
    return str(taken).removeprefix(f"{taken.gpu}: ")
