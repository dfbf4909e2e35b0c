"""A flow for the tests of the services: it starts a program that waits."""

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from pydantic import BaseModel

from flows.core.programs import command
from flows.core.settings import load


class Wait(BaseModel):
    """How to wait."""

    seconds: int = 0
    note: Path
    in_a_thread: bool = False
    root: bool = False


@task
def run_program(wait: Wait) -> str:
    script = 'echo $$ >"$1"; sleep "$2" & echo $! >>"$1"; wait; echo waited'
    return command.run(["bash", "-c", script, "trial", wait.note, str(wait.seconds)], root=wait.root).stdout


def note_the_end(flow: Any, flow_run: Any, state: Any) -> None:
    """Say beside the note that the run was cancelled."""
    Path(flow_run.parameters["wait"]["note"]).with_suffix(".cancelled").write_text(flow.name)


@flow(name="trial", on_cancellation=[note_the_end])
def trial(wait: Wait, systems: list[str] | None = None) -> str:
    """Start a program that starts another, and wait for both.

    Args:
        wait: How long, and where their pids are noted.
        systems: In whose queues it is.
    """
    settings = load()
    get_run_logger().info("home %s, registry port %s", settings.home, settings.registry_port)
    if not wait.in_a_thread:
        return run_program(wait)
    future = run_program.submit(wait)
    with command.terminating_children():
        return future.result()
