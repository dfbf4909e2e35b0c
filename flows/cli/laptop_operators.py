"""`refit mine`, for those who administer the Hub: all sessions and rollouts of a Refit elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from flows.cli.console import Json, out, show, show_json
from flows.cli.laptop import ask
from flows.cli.laptop_access import app
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables
    from flows.core.formatting import short

__all__ = ["app"]

Step = Literal["approve", "pause", "resume", "abort"]


@app.command("overview")
def overview(as_json: Json = False) -> None:
    """Show rollouts, and where all sessions stand; for those who administer the Hub."""
    _show(ask("GET", "/overview"), as_json)


@app.command("steer")
def steer(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Digest of the rollout's image, or its first digits.")],
    step: Annotated[Step, typer.Argument(help="approve lets the next wave begin.")],
    as_json: Json = False,
) -> None:
    """Approve, pause, resume or abort a rollout; moves that have begun come to their end in any case."""
    _show(ask("POST", "/rollouts", {"image": image, "step": step}), as_json)


def _show(overview: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(overview)
        return
    for rollout in overview["rollouts"]:
        waves = ", ".join(f"{wave['title']}: {wave['moved']} moved, {wave['left']} left" for wave in rollout["waves"])
        can = ", ".join(rollout["steps"])
        out.print(
            f"{short(rollout['image'])}  {rollout['profile']} of {rollout['release']}: {rollout['state']}",
            highlight=False,
        )
        out.print(f"    {waves or 'no waves yet'}{f'; can be: {can}' if can else ''}", highlight=False)
    rows = (
        (
            session["session"],
            session["owner"],
            short(session["image"]),
            "behind" if session["behind"] else "",
            session["why"],
        )
        for session in overview["sessions"]
    )
    show(tables.table("Sessions", ("session", "owner", "image", "newest", "why"), rows))
