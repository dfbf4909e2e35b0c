"""The part of the `refit` command that is about ssh: who may log in to a session, and logging in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import Json, SessionName, out, show_data
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows import services
    from flows.cli import tables
    from flows.core.programs import spawn
    from flows.core.settings import Settings, load
    from flows.sessions import reconfigure
    from flows.sessions.lifecycle import Sessions
    from flows.sessions.ssh.keys import PublicKey, added, read_keys, without

KeyFiles = Annotated[
    list[Path] | None,
    typer.Option("--ssh-key", metavar="FILE", help="Public keys of people who may log in by ssh."),
]


def add_to(session_app: typer.Typer) -> None:
    """Give the group of the command its verbs about ssh."""
    session_app.command("ssh-keys")(change_keys)
    session_app.command("ssh", context_settings={"ignore_unknown_options": True})(log_in)


def change_keys(
    name: SessionName,
    add: Annotated[list[Path] | None, typer.Option("--add", metavar="FILE", help="Add these public keys.")] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="KEY", help="Remove this key: comment or fingerprint."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show or change who may log in to a session by ssh; it holds for the next login."""
    settings = load()
    sessions = Sessions.open(settings)
    sessions.store.session(name)
    if add or remove:
        exchange_keys(settings, sessions, name, read_files(add or ()), remove or ())
    keys = sessions.ssh.keys(name)
    rows = ((key.comment, key.kind, key.fingerprint) for key in keys)
    shown = [{"comment": key.comment, "kind": key.kind, "fingerprint": key.fingerprint} for key in keys]
    show_data(as_json, shown, tables.table("Keys", ("comment", "kind", "fingerprint"), rows))
    if keys and not as_json:
        show_way(sessions, name)


def log_in(
    name: SessionName,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="PROGRAM", help="Program to run there; also options of ssh.")
    ] = None,
) -> None:
    """Log in to a session by ssh, with your own key; the session is known by its host key."""
    sessions = Sessions.open(load())
    sessions.that_runs(name)
    agent = {"SSH_AUTH_SOCK": os.environ["SSH_AUTH_SOCK"]} if "SSH_AUTH_SOCK" in os.environ else {}
    spawn.exec_replace(sessions.ssh.call(name, words or ()), env=agent)


def read_files(files: Sequence[Path]) -> tuple[PublicKey, ...]:
    """The public keys in files of people.

    Raises:
        RefitError: a file can't be read, or holds something else.
    """
    keys: tuple[PublicKey, ...] = ()
    for file in files:
        try:
            text = file.expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RefitError(
                f"{file} can't be read.", why=str(error), hint="name a file that is there and that you may read."
            ) from None
        keys = added(keys, read_keys(text, str(file)))
    return keys


def exchange_keys(
    settings: Settings,
    sessions: Sessions,
    name: str,
    new: tuple[PublicKey, ...],
    gone: Sequence[str] = (),
) -> None:
    """Change who may log in to a session, and see to it that the forwarder runs."""
    reconfigure.change_keys(sessions, name, lambda keys: without(added(keys, new), gone))
    services.up(settings, only=["forwarder"])


def show_way(sessions: Sessions, name: str) -> None:
    """Print how ssh finds a session that lets somebody in: the lines for `~/.ssh/config`, and its host key."""
    out.print(f"`refit session ssh {name}` logs in. In ~/.ssh/config:")
    out.print(sessions.ssh.configuration(name), highlight=False, soft_wrap=True)
    out.print(f"Its host key is {sessions.ssh.fingerprint(name)}", highlight=False, soft_wrap=True)
