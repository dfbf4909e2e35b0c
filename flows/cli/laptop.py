"""The part of the `refit` command that works on people's own machines: log in to a Refit elsewhere, and use its API."""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from flows.cli.console import Json, err, out, show, show_json, show_text
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    from flows.cli import tables
    from flows.core import outside
    from flows.core.atomic_files import write_whole
    from flows.core.formatting import on_a_line, some
    from flows.core.waiting import wait_until
    from flows.sessions.homes.volumes import DiskUse
    from flows.web.people.scopes import Scope

_MOST_NAMED = 5
_BASE, _SECONDS, _BYTES = "/services/sessions", 60.0, 1 << 22
# The advice of an answer is for any program; by the answer's code, this one names a command.
_ADVICE = {
    "not-logged-in": "`refit login URL` logs you in again.",
    "scope-missing": "`refit login URL` gets you a token for that; with --operator, for what operators do.",
    "unknown": "`refit mine list` shows the sessions that you may use.",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
DURATIONS = "write 30m, 2h or 1d12h, for instance."
app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the session.")]


def log_in(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the Refit, e.g. https://refit.example.org.")],
    insecure: Annotated[bool, typer.Option("--insecure", help="Send the token without TLS, too.")] = False,
    operator: Annotated[
        bool, typer.Option("--operator", help="Also see all sessions and steer rollouts, if you administer its Hub.")
    ] = False,
) -> None:
    """Log in to a Refit elsewhere: shows a code, which you approve in a browser; the token is kept, yours alone."""
    place = urlsplit(url if "//" in url else f"https://{url}")
    if place.scheme not in ("http", "https") or not place.hostname:
        raise RefitError(f"{url!r} is no address of a Refit.", hint="write it as https://refit.example.org.")
    if place.scheme == "http" and place.hostname not in _LOOPBACK and not insecure:
        raise RefitError(
            "The address doesn't use TLS.",
            why="Everybody on the network path could read the token.",
            hint="use https://, or say --insecure on a network of your own.",
        )
    address = f"{place.scheme}://{place.netloc}"
    request = {"client_id": socket.gethostname(), **({"scope": Scope.operate.value} if operator else {})}
    begun = _post(f"{address}{_BASE}/device_authorization", **request)
    out.print(f"Open this page, and compare the code {begun['user_code']}:")
    out.print(f"{address}{begun['verification_uri_complete']}", highlight=False, soft_wrap=True)
    token = _awaited(f"{address}{_BASE}/token", begun)
    _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(_file(), json.dumps({"url": address, "token": token}), private=True)
    out.print(f"You are logged in at {address}. `refit mine list` shows your sessions.", highlight=False)


def _awaited(url: str, begun: dict[str, Any]) -> str:
    answer = wait_until(
        lambda: _post(url, device_code=begun["device_code"]),
        enough=lambda reply: reply.get("error") != "authorization_pending",
        seconds=float(begun["expires_in"]),
        pause=float(begun["interval"]),
    )
    if "access_token" in answer:
        return str(answer["access_token"])
    if answer.get("error") != "authorization_pending":
        raise RefitError(
            "The login was not approved.", why=f"The answer was {answer.get('error')}.", hint="log in again."
        )
    raise RefitError("Nobody has approved the code in time.", hint="log in again.")


@app.command("list")
def list_mine(as_json: Json = False) -> None:
    """List the sessions that you may use."""
    mine = ask("GET", "/sessions")
    rows = (
        (session["name"], session["state"], session["profile"], session["owner"], _disk(session), _ahead(session))
        for session in mine
    )
    if as_json:
        show_json(mine)
    else:
        show(tables.table("Sessions", ("session", "state", "profile", "owner", "disk", "new image"), rows))


@app.command("limits")
def show_limits(as_json: Json = False) -> None:
    """Show what you may have of sessions, memory, cores and disk, and what you use."""
    limits = ask("GET", "/limits")
    if as_json:
        show_json(limits)
    else:
        out.print(limits["text"] or "You have no limits.", highlight=False)


@app.command("show")
def show_mine(name: Name, as_json: Json = False) -> None:
    """Show one session."""
    show_session(ask("GET", path(name)), as_json)


@app.command("start")
def start_mine(name: Name, as_json: Json = False) -> None:
    """Start a session that is stopped, and wait for it."""
    act(name, "start", as_json)


@app.command("stop")
def stop_mine(name: Name, as_json: Json = False) -> None:
    """Stop a session, and wait for it; its home stays as it is."""
    act(name, "stop", as_json)


@app.command("move")
def move_mine(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask about an image that another person built.")] = False,
    as_json: Json = False,
) -> None:
    """Move a session onto its newest image now, whatever works in it, and wait for it.

    If that image is of another person's own profile, you are shown what changes and asked first. An image that is
    published after that is not used.
    """
    session = ask("GET", path(name))
    update = session.get("update") or {}
    if by := update.get("by"):
        changes = f" Changes: {update['changes']}." if update.get("changes") else ""
        err.print(f"{by} built it, and nobody else vouches for what it runs.{changes}", highlight=False, soft_wrap=True)
        if not yes:
            typer.confirm(f"Move {on_a_line(name)} onto this image?", abort=True, err=True)
    shown = (
        update.get("image") or session["image"]
    )  # where there is no newer one, the API refuses any that has come since
    act(name, "move", as_json, {"image": shown["digest"]})


@app.command("snooze")
def snooze_mine(
    name: Name, duration: Annotated[str, typer.Argument(help="How long: 30m, 2h, 1d12h.")] = "2h", as_json: Json = False
) -> None:
    """Put a session's move off for a while, though not past its deadline."""
    show_session(ask("POST", f"{path(name)}/snooze", {"duration": duration}, hint=DURATIONS), as_json)


@app.command("mode")
def choose_mode(
    name: Name,
    mode: Annotated[str, typer.Argument(help="when-idle, ask, next-start, pin (until DATE) or forced-by (DATE).")],
    day: Annotated[
        str, typer.Argument(help="For pin: it stays until this day. For forced-by: it moves by this day.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Choose when a session moves onto new images."""
    show_session(ask("POST", f"{path(name)}/mode", {"mode": mode, "day": day or None}), as_json)


@app.command("history")
def read_history(name: Name, as_json: Json = False) -> None:
    """List what happened to a session, newest first: moves, and who came in."""
    events = ask("GET", f"{path(name)}/history")
    rows = ((when(event["at"]), event["kind"], event["by"], event["what"]) for event in events)
    if as_json:
        show_json(events)
    else:
        show(tables.table("History", ("when", "what", "by", ""), rows))


@app.command("profiles")
def list_profiles(as_json: Json = False) -> None:
    """List the profiles that your sessions can have, what is in them, and why one can't be had now."""
    offered = ask("GET", "/profiles")
    rows = (
        (
            *(offer["profile"], offer["release"], offer["by"] and f"{offer['by']}, nobody else vouches for it"),
            *(offer["why_not"] or offer["over_limit"], some(offer["packages"], _MOST_NAMED)),
        )
        for offer in offered
    )
    if as_json:
        show_json(offered)
    else:
        show(tables.table("Profiles", ("profile", "release", "own profile of", "not now, because", "packages"), rows))


@app.command("change-profile")
def change_profile(
    name: Name,
    profile: Annotated[str, typer.Argument(help="As `refit mine profiles` lists it.")],
    release: Annotated[str, typer.Argument(help="E.g. 2026a.")],
    as_json: Json = False,
) -> None:
    """Give a session that runs another profile, at once: its programs end, home and address stay."""
    tell_maker(profile, release)
    act(name, "profile", as_json, {"profile": profile, "release": release})


@app.command("logs")
def read_logs(name: Name, lines: Annotated[int, typer.Option(help="Number of lines.")] = 100) -> None:
    """Print the last lines that a session wrote."""
    show_text(ask("GET", f"{path(name)}/logs?{urlencode({'lines': lines})}")["text"])


def tell_maker(profile: str, release: str) -> None:
    """Say of a profile that is a person's own whose it is, before a session has it."""
    makers = {(one["profile"], one["release"]): one["by"] for one in ask("GET", "/profiles")}
    if by := makers.get((profile, release)):
        err.print(
            f"{profile} is {by}'s own profile. Nobody else vouches for what it runs, with your files and your rights.",
            highlight=False,
            markup=False,
        )


def act(name: str, verb: str, as_json: bool, given: dict[str, Any] | None = None) -> None:
    """Let an action begin, wait for its end, and show the session.

    Raises:
        RefitError: it isn't done.
    """
    answer = ask("POST", f"{path(name)}/{verb}", given)
    if answer["doing"] and not answer["doing"]["ended"]:
        answer = wait_until(
            lambda: ask("GET", path(name)), enough=lambda reply: not reply["doing"] or reply["doing"]["ended"], pause=1
        )
    if answer["doing"] and answer["doing"]["problem"]:
        raise RefitError(f"{name}: {answer['doing']['problem']}", hint=answer["doing"]["hint"])
    show_session(answer, as_json)


def show_session(session: dict[str, Any], as_json: bool) -> None:
    """Print a session as the API tells of it."""
    if as_json:
        show_json(session)
        return
    row = (session["name"], session["state"], session["profile"], _disk(session), _ahead(session))
    show(tables.table("", ("session", "state", "profile", "disk", "new image"), [row]))
    if session["url"] and session["state"] == "running":
        out.print(f"Open {_login()['url']}{session['url']}", highlight=False, soft_wrap=True)


def _disk(session: dict[str, Any]) -> str:
    return ", ".join(str(DiskUse(**use)) for use in session["disk"])


def _ahead(session: dict[str, Any]) -> str:
    return str(session["update"]["when"]) if session["update"] else ""


def path(name: str) -> str:
    """Where the API has a session."""
    return f"/sessions/{quote(name, safe='')}"


def when(moment: str | None) -> str:
    """A moment of an answer, by the clock of this machine; empty: there is none."""
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""


def ask(method: str, path: str, given: dict[str, Any] | None = None, *, hint: str = "") -> Any:
    """The answer of the API, for whoever is logged in.

    Args:
        method, path, given: the request, and its fields.
        hint: the advice where it refuses without any.

    Raises:
        RefitError: nobody is, nobody answers, or it refuses.
    """
    login = _login()
    headers = {"Authorization": f"Bearer {login['token']}"}
    content = json.dumps(given or {}).encode() if method == "POST" else None
    return _exchange(method, f"{login['url']}{_BASE}/api{path}", headers, content, hint=hint)


def _post(url: str, **fields: str) -> dict[str, Any]:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer: dict[str, Any] = _exchange("POST", url, kind, urlencode(fields).encode(), fails=False)
    return answer


def _exchange(
    method: str, url: str, headers: dict[str, str], content: bytes | None, *, fails: bool = True, hint: str = ""
) -> Any:
    import httpx  # noqa: PLC0415 - it takes a while

    try:
        with outside.Client(True, trust_env=urlsplit(url).hostname not in _LOOPBACK) as client:
            answer = client.exchange(method, url, outside.Bounds(_BYTES, _SECONDS), headers=headers, content=content)
        document = json.loads(answer.text)
    except (httpx.HTTPError, ValueError) as error:
        raise RefitError(
            "There is no Refit at that address, or it doesn't answer.",
            why=str(error),
            hint="check the address with the person who runs it.",
        ) from None
    if answer.status >= 400 and fails:
        advice = _ADVICE.get(str(document.get("code"))) or str(document.get("hint", "")) or hint
        raise RefitError(
            str(document.get("title", "The server refuses the request.")),
            why=str(document.get("detail", "")),
            hint=advice,
        )
    return document


def _login() -> dict[str, str]:
    try:
        return dict(json.loads(_file().read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise RefitError("You aren't logged in anywhere.", hint="`refit login URL` logs you in.") from None


def logged_in_at() -> str:
    """The address of the Refit at which this account is logged in; empty: none."""
    try:
        return _login()["url"]
    except (RefitError, KeyError):
        return ""


def _file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "refit" / "login.json"
