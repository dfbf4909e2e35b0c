"""`refit mine`, continued: new sessions, shares, snapshots and keys of one's own sessions at a Refit elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from flows.cli import tables
from flows.cli.console import Json, out, show, show_json, show_text
from flows.cli.laptop import DURATIONS, Name, act, app, ask, logged_in_at, path, show_session, tell_maker, when
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.core.waiting import wait_until
    from flows.jump import client_files
    from flows.sessions.ssh.keys import read_keys

__all__ = ["app"]

_KEYS_BYTES = 1 << 16  # of a file with public keys
_MAKE_SECONDS = 3600.0  # in which a session is made
_BEGIN_SECONDS = 60.0  # in which the Hub begins to make a session
_LOOK_SECONDS = 1.0  # between two looks at how far it is
Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="A group of the Hub.")]
Chosen = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="As `refit mine snapshots` names it.")]
With = Annotated[str, typer.Option("--with", metavar="PERSON", help="A person who has an account.")]


@app.command("create")
def create_mine(
    profile: Annotated[str, typer.Argument(help="E.g. jupyter-datascience-deb12-py311.")],
    release: Annotated[str, typer.Argument(help="E.g. 2026a.")],
    called: Annotated[str, typer.Option("--name", help="Its name for you; without one: your first session.")] = "",
    as_json: Json = False,
) -> None:
    """Begin another session with a profile that can be had now, and wait for it."""
    tell_maker(profile, release)
    before = _creation(called)
    begun = ask("POST", "/sessions", {"profile": profile, "release": release, "server": called})
    page = f"{logged_in_at()}{begun['page']}"
    if not as_json:
        out.print("It is being made. This page shows how far it is:")
        out.print(page, highlight=False, soft_wrap=True)
    _wait_for_creation(called, before, page)
    for session in ask("GET", "/sessions"):
        if session["server"] == called and session["role"] == "owner":
            show_session(session, as_json)


def _creation(server: str) -> dict[str, Any]:
    """How the session of a server is made, or was made last; empty: that isn't known."""
    return next((creation for creation in ask("GET", "/creations") if creation["server"] == server), {})


def _wait_for_creation(server: str, before: dict[str, Any], page: str) -> None:
    """Wait until a session is made.

    Raises:
        RefitError: it isn't.
    """

    def begun() -> dict[str, Any]:
        creation = _creation(server)
        return creation if creation.get("since") != before.get("since") else {}

    if not wait_until(begun, enough=bool, seconds=_BEGIN_SECONDS, pause=_LOOK_SECONDS):
        raise RefitError("The Hub hasn't begun to make the session yet.", hint=f"{page} shows what it does.")
    made = wait_until(
        begun, enough=lambda made: not made or bool(made["ended"]), seconds=_MAKE_SECONDS, pause=_LOOK_SECONDS
    )
    if made and not made["ended"]:
        raise RefitError("The session isn't made yet.", hint=f"{page} shows what the Hub does.")
    if made.get("problem"):
        raise RefitError(f"The session wasn't made. {made['problem']}", hint=made["hint"])


@app.command("share")
def share_mine(
    name: Name,
    person: With = "",
    group: Group = "",
    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="DURATION", help="How long it lasts: 2h, 3d; without it, until it is taken back."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Let a person or a group use a session; with neither, print a link for the first person who accepts it."""
    kind, subject = _subject(person, group, "")
    given = {"kind": kind, "subject": "" if kind == "code" else subject, "duration": until}
    share = ask("POST", f"{path(name)}/shares", given, hint=DURATIONS if until else "")
    if as_json:
        show_json(share)
    elif share["link"]:
        out.print(f"Give this link to one person; it works once. `refit mine shares` calls it {share['subject']}.")
        out.print(share["link"], highlight=False, soft_wrap=True)
    else:
        out.print(f"{share['subject']} may use the session {name}. Guests act as its user, with your files and logins.")


@app.command("shares")
def list_shares(name: Name, as_json: Json = False) -> None:
    """List the people, groups and links that a session is shared with."""
    shares = ask("GET", f"{path(name)}/shares")
    rows = ((share["kind"], share["subject"], when(share["until"]), when(share["came_in"])) for share in shares)
    _table("Shares", shares, ("kind", "with", "until", "came in last"), rows, as_json)


@app.command("unshare")
def unshare_mine(
    name: Name,
    person: With = "",
    group: Group = "",
    code: Annotated[str, typer.Option("--code", metavar="NUMBER", help="A link, by its number.")] = "",
) -> None:
    """End a share: open connections of these people close within two seconds."""
    kind, subject = _subject(person, group, code)
    if not subject:
        raise RefitError("No share was named.", hint="name one of --with, --group and --code.")
    if not ask("POST", f"{path(name)}/unshare", {"kind": kind, "subject": subject})["ended"]:
        raise RefitError(
            f"The session {name} isn't shared with {subject!r}.", hint=f"`refit mine shares {name}` lists."
        )
    out.print(f"The session {name} isn't shared with {subject} any more.")


@app.command("snapshot")
def take_snapshot(
    name: Name,
    called: Annotated[
        str, typer.Option("--name", help="Its name; a snapshot without one is removed after a while.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Take a snapshot of a session's home, and wait for it; the session may run."""
    act(name, "snapshots", as_json, {"name": called})


@app.command("snapshots")
def list_snapshots(name: Name, as_json: Json = False) -> None:
    """List the snapshots of a session, newest first."""
    kept = ask("GET", f"{path(name)}/snapshots")
    rows = ((entry["name"], when(entry["at"]), entry["kind"]) for entry in kept)
    _table("Snapshots", kept, ("name", "at", "why"), rows, as_json)


@app.command("remove-snapshot")
def remove_snapshot(
    name: Name,
    snapshot: Chosen,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a snapshot for good, and wait for it."""
    kept = ask("GET", f"{path(name)}/snapshots")
    chosen = next((entry["name"] for entry in kept if snapshot in (entry["name"], entry["id"])), snapshot)
    if not yes:
        typer.confirm(f"Nobody can go back to it afterwards. Remove {chosen}?", abort=True)
    act(name, "snapshots/remove", as_json, {"snapshot": snapshot, "confirm": chosen})


@app.command("rollback")
def go_back(
    name: Name,
    snapshot: Chosen,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Bring only this file or folder back; nothing is stopped.")
    ] = None,
    to: Annotated[str, typer.Option(metavar="FOLDER", help="With --only: into this new folder of the home.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Roll back even if programs work in it.")] = False,
    as_json: Json = False,
) -> None:
    """Let the home be what it is in a snapshot, and wait for it; the session stops for it, and starts anew."""
    if to and not only:
        raise RefitError("--to needs files.", hint="name them by --only.")
    if only:
        act(name, "snapshots/files", as_json, {"snapshot": snapshot, "paths": "\n".join(only), "to": to})
        return
    if not yes:
        typer.confirm(f"{name} stops, and its home of now becomes a snapshot. Go back to {snapshot}?", abort=True)
    act(name, "rollback", as_json, {"snapshot": snapshot, "confirm": name, "force": force})


@app.command("diff")
def compare(
    name: Name,
    snapshot: Chosen,
    contents: Annotated[
        bool, typer.Option("--contents", help="Read files of the same size and time, too; that takes longer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what has changed in a session's home and volumes since a snapshot."""
    query = urlencode({"snapshot": snapshot, "contents": str(contents).lower()})
    comparison = ask("GET", f"{path(name)}/snapshots/differences?{query}")
    if as_json:
        show_json(comparison)
        return
    show_text("\n".join(comparison["changes"]) or "Nothing has changed since.")
    if comparison["more"]:
        out.print(f"and {comparison['more']} more.")


@app.command("clone")
def clone(
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the new session, for you.")],
    snapshot: Annotated[
        str, typer.Option(metavar="SNAPSHOT", help="Begin with this snapshot, not with the present home.")
    ] = "",
    profile: Annotated[str, typer.Option(metavar="PROFILE", help="Another profile than the session's.")] = "",
    release: Annotated[str, typer.Option(metavar="RELEASE", help="The release of that profile.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Clone even if files in the home don't fit the profile.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Begin another session with a copy of a session's home, and wait for it; that one goes on."""
    if profile:
        tell_maker(profile, release)
    given = {"server": new, "snapshot": snapshot, "profile": profile, "release": release, "force": force}
    act(name, "clone", as_json, given)
    if not as_json:
        out.print("`refit mine list` has the copy.")


@app.command("keys")
def list_keys(as_json: Json = False) -> None:
    """List your public keys for ssh."""
    _keys(ask("GET", "/keys"), as_json)


@app.command("add-key")
def add_key(
    file: Annotated[Path, typer.Argument(help="A public key, e.g. ~/.ssh/id_ed25519.pub.", exists=True)],
    as_json: Json = False,
) -> None:
    """Add the public keys of a file: each opens all sessions that you may use, by ssh."""
    if file.stat().st_size > _KEYS_BYTES:
        raise RefitError(f"{file} is too large for public keys.", hint="give the file that ends in .pub.")
    # Looked at here: a private key must not leave this machine.
    keys = read_keys(file.read_text(encoding="utf-8", errors="replace"), str(file))
    _keys(ask("POST", "/keys", {"keys": "\n".join(map(str, keys))}), as_json)


@app.command("remove-key")
def remove_key(
    key: Annotated[str, typer.Argument(help="Its title or its fingerprint.")], as_json: Json = False
) -> None:
    """Remove a public key: nobody comes in with it any more."""
    _keys(ask("POST", "/keys/remove", {"key": key}, hint="`refit mine keys` lists them."), as_json)


@app.command("ssh-config")
def configure_ssh(
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Name or address of that Refit for ssh; without it, that of its URL.")
    ] = "",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port by which your ssh reaches that Refit; 0: the one that it names.")
    ] = 0,
    forward_agent: Annotated[bool, typer.Option("--forward-agent", help="Let sessions use your ssh agent.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write it into your ~/.ssh.")] = False,
    as_json: Json = False,
) -> None:
    """Print a script by which your ssh reaches all of your sessions, as NAME.refit; or write its files at once."""
    query = urlencode({"host": host, "port": port, "forward_agent": str(forward_agent).lower()})
    answer = ask("GET", f"/ssh-config?{query}")
    # The lines are made here: some of those that ssh understands would run a program on this machine.
    way = client_files.from_answer(
        answer["host"], answer["port"], answer["key"], answer["keys"], answer.get("authority", "")
    )
    files = way.files(forward_agent=forward_agent)
    if write:
        for file in client_files.write(files, Path.home() / ".ssh"):
            out.print(f"{file} is written.", highlight=False, soft_wrap=True)
    elif as_json:
        show_json(files)
    else:
        show_text(client_files.script(files))


def _subject(person: str, group: str, code: str) -> tuple[str, str]:
    if sum(map(bool, (person, group, code))) > 1:
        raise RefitError("That is more than one share.", hint="name one of --with, --group and --code.")
    return ("person", person) if person else ("group", group) if group else ("code", code)


def _keys(keys: list[dict[str, Any]], as_json: bool) -> None:
    rows = ((key["title"], key["fingerprint"], when(key["added"])) for key in keys)
    _table("Keys", keys, ("title", "fingerprint", "since"), rows, as_json)


def _table(title: str, answer: Any, columns: tuple[str, ...], rows: Any, as_json: bool) -> None:
    if as_json:
        show_json(answer)
    else:
        show(tables.table(title, columns, rows))
