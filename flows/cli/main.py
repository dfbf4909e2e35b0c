"""The `refit` command as a whole, and those of its verbs that belong to no group."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated

import typer
from typer.exceptions import TyperException

from flows.cli.console import err, out, show_error, show_json_error
from flows.cli.groups import Group, with_groups
from flows.core.errors import RefitError
from flows.core.formatting import Printable
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import (
        build,
        catalog,
        elsewhere,
        gpu,
        home,
        images,
        laptop,
        laptop_profiles,
        metrics,
        migrate,
        own_profiles,
        queue,
        services,
        session,
        settings,
        ssh_keys,
        user,
        volume,
    )

# Prefect takes a second to import and reads its settings while it does: the verbs are imported where they are run.
# ruff: noqa: PLC0415

GROUPS = (
    Group(
        "images", "Images", lambda: images.images_app, "List the images in the registry; sign, revoke and restore them."
    ),
    Group("cache", "Images", lambda: build.cache_app, "Show the caches of what builds download, or free their space."),
    Group("queue", "Images", lambda: queue.app, "Queues of builds, one for each operating system."),
    Group("release", "Catalog", lambda: catalog.release_app, "Cut releases, and see which are supported until when."),
    Group("new", "Catalog", lambda: catalog.new_app, "Begin a recipe from a minimal one that works."),
    Group(
        "import",
        "Catalog",
        lambda: catalog.import_app,
        "Make a catalog from recipes that were written for other tools.",
    ),
    Group(
        "profile",
        "Catalog",
        lambda: own_profiles.app,
        "Profiles of people's own: built in isolation, offered to groups (experimental).",
    ),
    Group(
        "session",
        "Sessions",
        lambda: session.app,
        "Create, show, start, stop and remove sessions: one developer's environment each.",
    ),
    Group("migrate", "Sessions", lambda: migrate.app, "Move sessions onto the newest images of their profiles."),
    Group(
        "home",
        "Sessions",
        lambda: home.home_app,
        "Homes of sessions: their owners, their pool, snapshots that moves have kept.",
    ),
    Group(
        "volume",
        "Sessions",
        lambda: volume.app,
        "Volumes: folders of sessions beside their homes; sessions can share them.",
    ),
    Group(
        "gpu", "Sessions", lambda: gpu.app, "GPUs of this machine: sessions take them when they start (experimental)."
    ),
    Group(
        "user",
        "People",
        lambda: user.app,
        "People who log in to JupyterHub and start their own sessions.",
    ),
    Group(
        "ssh-key",
        "People",
        lambda: ssh_keys.app,
        "Keys of people, with which they come in by ssh from their own machines (experimental).",
    ),
    Group(
        "mine",
        "Sessions elsewhere",
        lambda: laptop_profiles.app,
        "Your sessions at a Refit elsewhere, after `refit login`.",
    ),
)
PANELS = ("Images", "Catalog", "Sessions", "People", "Sessions elsewhere", "Services")
ABOUT = "Builds the images that developers work in, and moves their running sessions onto new ones."
app = typer.Typer(
    name="refit",
    cls=with_groups(*GROUPS, panels=PANELS),
    help=ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out.print(f"refit {version('refit')}", highlight=False)
        raise typer.Exit


@app.callback(help=ABOUT)
def refit(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print Refit's version and exit.")
    ] = False,
) -> None:
    """Options of `refit` itself."""


def main() -> None:
    """Run the command line; an error that a person can mend is printed without a traceback."""
    logging.setLogRecordFactory(Printable)
    # Unfinished work is undone then, and programs are ended; as it is when Prefect hears of it, while flows run.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    logging.getLogger("refit").addHandler(logging.NullHandler())
    if _wants_json(sys.argv[1:]):
        sys.exit(_answering_json())
    try:
        app()
    except RefitError as error:
        show_error(str(error))
        _tell_of_elsewhere()
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if ended.code == 128 + signal.SIGTERM:
            err.print("Ended by SIGTERM. Moves that had begun went back, or wait for `refit migrate recover`.")
        raise
    except KeyboardInterrupt:
        err.print("Cancelled.")
        sys.exit(130)


def _tell_of_elsewhere() -> None:
    if advice := elsewhere.after_failure(sys.argv[1:]):
        err.print(advice, highlight=False, soft_wrap=True)


def _wants_json(words: Sequence[str]) -> bool:
    """Whether a command is to answer JSON; words behind `exec` and `ssh` are another program's."""
    own = takewhile(lambda word: word != "--", words)
    return "--json" in own and not {"exec", "ssh"} & {*words[:2]}


def _answering_json() -> int:
    """Run the command line and return its exit code; standard output has one JSON document, whatever happens."""
    try:
        code = int(app(standalone_mode=False) or 0)
        if code:  # as a rule, its document is there
            show_json_error(
                RefitError("The command was cancelled." if code == 130 else f"It failed with exit code {code}.")
            )
        return code
    except RefitError as error:
        show_error(str(error))
        _tell_of_elsewhere()
        show_json_error(error)
        return error.exit_code
    except TyperException as error:  # words that are off
        message = str(getattr(error, "format_message", error.__str__)())
        show_error(message)
        show_json_error(RefitError(message, hint="add `--help` to the command."))
        return int(getattr(error, "exit_code", 2))
    except (KeyboardInterrupt, typer.Abort) as error:
        err.print("Cancelled.")
        show_json_error(RefitError("The command was cancelled."))
        return 1 if isinstance(error, typer.Abort) else 130


app.command("lock", rich_help_panel="Images")(build.lock)
app.command("build", rich_help_panel="Images")(build.build)
app.command("nightly", rich_help_panel="Images")(build.nightly)
app.command("plan", rich_help_panel="Images")(build.plan)
app.command("containerfile", rich_help_panel="Images")(build.show_containerfile)
app.command("evidence", rich_help_panel="Images")(build.show_evidence)
app.command("diff", rich_help_panel="Images")(build.compare_images)
app.command("prune", rich_help_panel="Images")(build.prune)
app.command("wizard", rich_help_panel="Catalog")(catalog.wizard)
app.command("lint", rich_help_panel="Catalog")(catalog.lint)
app.command("ssh-config", rich_help_panel="People")(ssh_keys.configure_ssh)
app.command("login", rich_help_panel="Sessions elsewhere")(laptop.log_in)
app.command("demo", rich_help_panel="Services")(services.demo)
app.command("up", rich_help_panel="Services")(services.up)
app.command("status", rich_help_panel="Services")(services.status)
app.command("down", rich_help_panel="Services")(services.down)
app.command("doctor", rich_help_panel="Services")(services.examine)
app.command("settings", rich_help_panel="Services")(settings.show_settings)
app.command("serve", rich_help_panel="Services")(services.serve)
app.command("ui", rich_help_panel="Services")(services.ui)
app.command("metrics", rich_help_panel="Services")(metrics.show_metrics)
app.command("reset", rich_help_panel="Services")(services.reset)


if __name__ == "__main__":
    main()
