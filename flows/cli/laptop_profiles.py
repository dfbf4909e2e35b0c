"""`refit mine`, continued: profiles of one's own at a Refit elsewhere, built there and offered to others."""

from __future__ import annotations

import base64
import io
import tarfile
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from flows.cli import tables
from flows.cli.console import Json, err, out, show, show_json
from flows.cli.groups import in_panels
from flows.cli.laptop import ask
from flows.cli.laptop_operators import app
from flows.core.documents import Mistake, Mistakes
from flows.core.errors import RefitError
from flows.core.formatting import on_a_line, printable
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.authoring.own import read_folder, reading, recipe
    from flows.core.waiting import wait_until

__all__ = ["app"]

_UNDER_WAY = ("waiting", "building")
_POLL_SECONDS = 2.0
_SHOWN = 80
# Characters of a log that are read; a server may go on for ever.
_LONGEST_LOG = 1 << 26
Own = Annotated[str, typer.Argument(metavar="NAME", help="Name of the bundle, or of its profile.")]


@app.command("own-profiles")
def list_own(as_json: Json = False) -> None:
    """List your own profiles: how their builds are, which of these ended since you last looked, and who may use them.

    With `--json`, a build that has ended stays news.
    """
    own = ask("GET", "/own-profiles")
    _show(own, as_json)
    if not as_json:
        _heard(own)


@app.command("build")
def build_own(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The bundle's folder.")],
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Name of the bundle; empty: that of the folder.")
    ] = "",
    ide: Annotated[str, typer.Option(help="IDE that opens.")] = "jupyter",
    system: Annotated[str, typer.Option("--os", metavar="OS", help="Operating system of the catalog.")] = "deb12",
    release: Annotated[str, typer.Option(metavar="RELEASE", help="Name of the release; empty: the newest.")] = "",
    wait: Annotated[bool, typer.Option(help="Whether to wait for its end, and to show how far it is.")] = True,
    as_json: Json = False,
) -> None:
    """Build a profile of your own from a folder on this machine, with a bundle that extends one of the catalog.

    It is built there when its turn comes, whether this command waits or not; `build-log` reads on. It takes the place
    of a recipe of yours with this name.
    """
    plain = folder.absolute().name.lstrip("0123456789").lstrip("-")
    given = {"name": name or plain, "archive": archived(folder), "ide": ide, "os": system, "release": release}
    answer = ask("POST", "/own-profiles/build", given)
    if wait:
        answer = _followed(answer, quiet=as_json)
        _heard([answer])
    if as_json:
        show_json(answer)
        raise typer.Exit(0 if not wait or answer["state"] == "built" else 1)
    if not wait:
        out.print(f"Its build waits. `refit mine build-log {answer['name']}` shows how far it is.", highlight=False)
    elif answer["state"] == "built":
        out.print(f"  refit mine create {answer['profile']} {answer['release']}", highlight=False)
    else:
        _end(answer)


def archived(folder: Path) -> str:
    """A tar archive of a folder's files in base64; no link is followed.

    Raises:
        Mistakes: it has something that is no part of a bundle.
        RefitError: it can't be read.
    """
    try:
        files = read_folder.read(read_folder.opened(str(folder.absolute())), reading.FILES, reading.SIZE, reading.DEPTH)
    except read_folder.Refused as refused:
        raise Mistakes([Mistake(Path(str(refused.args[0])), 0, str(refused.args[1]), "take it out")]) from None
    except OSError as error:
        raise RefitError(f"{folder} can't be read.", why=str(error.strerror)) from None
    if wrong := list(recipe.mistakes(files)):
        raise Mistakes(wrong)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return base64.b64encode(stream.getvalue()).decode()


def _followed(begun: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """The profile once its build has ended; its log is printed meanwhile."""
    name, start, before = begun["name"], 0, -1

    def look() -> dict[str, Any]:
        nonlocal start, before
        own = next((profile for profile in ask("GET", "/own-profiles") if profile["name"] == name), None)
        if own is None:
            raise RefitError(f"The profile {on_a_line(name)} was removed meanwhile.", hint="send its folder again.")
        if own["state"] == "waiting":
            if own["before"] != before and not quiet:
                err.print(f"It waits; {own['before']} come first.", highlight=False)
            before = own["before"]
            return dict(own)
        part = ask("GET", f"/own-profiles/log?{urlencode({'name': name, 'start': start})}")
        if not quiet and part["text"]:
            err.print(printable(part["text"]), end="", highlight=False, soft_wrap=True)
        # Where there is more to read it goes on at once, though the build has ended.
        own["state"] = "building" if part["next"] != start and own["state"] not in _UNDER_WAY else own["state"]
        start = part["next"]
        return dict(own)

    return wait_until(look, enough=lambda own: own["state"] not in _UNDER_WAY, pause=_POLL_SECONDS)


def _heard(own: list[dict[str, Any]]) -> None:
    """Let those builds be news no more whose end was just told."""
    if news := [profile["news"] for profile in own if profile.get("news")]:  # an older Refit there knows of none
        ask("POST", "/own-profiles/seen", {"until": max(news, key=datetime.fromisoformat)})


def _end(build: dict[str, Any]) -> None:
    """Say why there is no image."""
    if build["state"] == "killed":
        raise RefitError("The build was ended before its time.", hint="send it again.")
    raise RefitError("It wasn't built.", why=build["problem"], hint="mend the folder, and send it again.")


@app.command("build-log")
def read_log(name: Own, as_json: Json = False) -> None:
    """Print the log of the last build of a profile of yours, as far as it is."""
    start, text, answer = 0, "", dict[str, Any]()
    while (not answer or answer["next"] != start) and len(text) < _LONGEST_LOG:
        start = answer.get("next", 0)
        answer = ask("GET", f"/own-profiles/log?{urlencode({'name': name, 'start': start})}")
        text += answer["text"]
    if as_json:
        show_json({**answer, "text": text})
        return
    out.print(printable(text), end="", highlight=False, soft_wrap=True)
    out.print(f"State: {answer['state']}.", highlight=False)


@app.command("offer")
def offer_own(
    name: Own,
    groups: Annotated[list[str] | None, typer.Option("--to", metavar="GROUP", help="A group that you are in.")] = None,
    people: Annotated[list[str] | None, typer.Option("--to-person", metavar="PERSON", help="A person.")] = None,
    as_json: Json = False,
) -> None:
    """Let others start sessions from a profile of yours: these groups and people, and nobody else."""
    given = {"name": name, "groups": "\n".join(groups or ()), "people": "\n".join(people or ())}
    _show([ask("POST", "/own-profiles/offer", given)], as_json)


@app.command("withdraw")
def withdraw_own(name: Own, as_json: Json = False) -> None:
    """Offer a profile of yours to nobody any more; sessions that others have on it go on."""
    _show([ask("POST", "/own-profiles/withdraw", {"name": name})], as_json)


@app.command("remove-profile")
def remove_own(
    name: Own,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Give the name of a profile of yours back: its recipe goes, and sessions on its images go on."""
    if not yes:
        typer.confirm(f"Remove the recipe of {on_a_line(name)}?", abort=True)
    _show(ask("POST", "/own-profiles/remove", {"name": name, "confirm": name}), as_json)


def _show(own: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json(own)
        return
    rows = (
        (
            profile["profile"],
            f"{profile['state']}, new" if profile.get("news") else profile["state"],
            profile["at"] or "",
            ", ".join(profile["groups"] + profile["people"]),
            _brief(profile["problem"]),
        )
        for profile in own
    )
    show(tables.table("Your own profiles", ("profile", "build", "at", "for", ""), rows))


def _brief(problem: str) -> str:
    return on_a_line(problem)[:_SHOWN]


in_panels(
    app,
    {
        "Commands": ("list", "show", "create", "start", "stop", "logs", "history", "profiles", "limits"),
        "Updates": ("move", "snooze", "mode", "change-profile"),
        "Access": ("share", "shares", "unshare", "keys", "add-key", "remove-key", "ssh-config"),
        "Snapshots": ("snapshot", "snapshots", "rollback", "diff", "clone", "remove-snapshot"),
        "Your own profiles": ("own-profiles", "build", "build-log", "offer", "withdraw", "remove-profile"),
        "Administrators of the Hub": ("overview", "steer"),
    },
)
