"""The part of the `refit` command that lets people in from their own machines: their keys, and what their ssh needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.console import Json, out, show_data
from flows.cli.ssh import read_files
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables
    from flows.core.database import open_database
    from flows.core.settings import load
    from flows.jump import client_files
    from flows.sessions.people.person_keys import PersonKey, PersonKeys
    from flows.sessions.ssh.keys import PublicKey, read_keys

_MOST_BYTES = 1 << 16
Person = Annotated[str, typer.Argument(metavar="PERSON", help="Name with which the person logs in.")]

app = typer.Typer(no_args_is_help=True, help="Keys of people for ssh: good for all sessions that the person may use.")


@app.command("add")
def add(
    person: Person,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Public keys; - is standard input.")],
    as_json: Json = False,
) -> None:
    """Give a person further keys; within a second they let the person in."""
    keys = tuple(key for file in files for key in _read(file))
    _show(_keys().add(person, keys), as_json)


@app.command("list")
def list_keys(
    person: Annotated[str, typer.Argument(metavar="[PERSON]", help="The person; otherwise everybody.")] = "",
    as_json: Json = False,
) -> None:
    """List the keys of a person, or of everybody."""
    _show(_keys().of(person) if person else _keys().all(), as_json)


@app.command("remove")
def remove(
    person: Person,
    keys: Annotated[list[str], typer.Argument(metavar="KEY…", help="Fingerprints or comments.")],
    as_json: Json = False,
) -> None:
    """Remove keys of a person; connections that were opened with them from another machine end within two seconds."""
    _show(_keys().remove(person, keys), as_json)


def configure_ssh(
    person: Person,
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Name or address by which the person's machine reaches this one.")
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", help="Port by which the person's machine reaches this Refit, if another one leads here."
        ),
    ] = 0,
    forward_agent: Annotated[
        bool, typer.Option("--forward-agent", help="Let sessions use the person's ssh agent.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Write it into your ~/.ssh.")] = False,
    as_json: Json = False,
) -> None:
    """Print what ssh on a person's own machine needs to reach all of their sessions, as NAME.refit."""
    files = client_files.way(load(), person, host=host, port=port).files(forward_agent=forward_agent)
    if write:
        for path in client_files.write(files, Path.home() / ".ssh"):
            out.print(f"{path} is written.", highlight=False, soft_wrap=True)
    elif as_json:
        out.print_json(data=files)
    else:
        out.print(client_files.script(files), end="", highlight=False, soft_wrap=True)


def _read(file: Path) -> tuple[PublicKey, ...]:
    if str(file) != "-":
        return read_files([file])
    text = sys.stdin.read(_MOST_BYTES)
    if len(text) == _MOST_BYTES:
        raise RefitError(
            "Standard input is too long to be public keys.",
            hint="give the content of a file like ~/.ssh/id_ed25519.pub.",
        )
    return read_keys(text, "standard input")


def _keys() -> PersonKeys:
    return PersonKeys(open_database(load().database))


def _show(keys: tuple[PersonKey, ...], as_json: bool) -> None:
    shown: list[dict[str, Any]] = [
        {
            "person": registered.person,
            "comment": registered.key.comment,
            "kind": registered.key.kind,
            "fingerprint": registered.key.fingerprint,
            "added": registered.added.isoformat(),
        }
        for registered in keys
    ]
    rows = ((key["person"], key["comment"], key["kind"], key["fingerprint"]) for key in shown)
    show_data(as_json, shown, tables.table("Keys", ("person", "comment", "kind", "fingerprint"), rows))
