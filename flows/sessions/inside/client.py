#!/usr/bin/env python3
"""refit, as a session has it: shows this session, and says when it moves onto its next image.

It needs nothing but Python 3.8 and its standard library, for it runs in any image.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

SOCKET = "/run/refit/api/socket"
HOLD = Path(".config/refit/hold")
SECONDS = 60
MOST_BYTES = 1 << 20
LENGTH = re.compile("[0-9]{1,4}[mhd]", re.ASCII)
MODES = ("when-idle", "ask", "next-start", "pin", "forced-by")
VERBS = {
    "show": "profile, newer image, and when it moves",
    "snooze": "put its move off for a while",
    "mode": "choose when it moves onto new images",
    "hold": "count as busy for a while",
}


class Refused(Exception):
    """Refit doesn't do it, or doesn't answer."""


class Channel(http.client.HTTPConnection):
    """HTTP by the socket of this session."""

    def connect(self) -> None:
        """Connect with Refit."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(os.environ.get("REFIT_API_SOCKET", SOCKET))


def ask(method: str, path: str, given: dict[str, str] | None = None) -> dict[str, Any]:
    """The session as Refit describes it after that."""
    channel = Channel("refit")
    try:
        body = None if given is None else json.dumps(given)
        channel.request(method, path, body, {"Content-Type": "application/json"})
        answer = channel.getresponse()
        document: dict[str, Any] = json.loads(answer.read(MOST_BYTES))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Refused(
            f"Refit doesn't answer ({error}). Try again in a minute. If it stays so, ask the person who runs Refit: "
            "the page of sessions has to run, which belongs to JupyterHub."
        ) from error
    finally:
        channel.close()
    if answer.status >= 400:
        parts = [document.get(name) for name in ("title", "detail", "hint")]
        raise Refused(" ".join(str(part) for part in parts if part))
    return document


def printable(text: object) -> str:
    """A text without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def show(session: dict[str, Any]) -> None:
    """Print a session for people."""
    update = session.get("update") or {}
    image = update.get("image")
    rows = [
        ("session", session["name"]),
        ("owner", session["owner"]),
        ("state", session["state"]),
        ("profile", f"{session['profile']} ({session['release']})"),
        ("newer image", "yes" if image else "no"),
        ("changes", update.get("changes") if image else ""),
        ("moves", update.get("when")),
        ("deadline", update.get("deadline")),
    ]
    for name, value in rows:
        if value:
            print(f"{name:<12} {printable(value)}")


def hold(chosen: argparse.Namespace) -> str:
    """Keep this session where it is, by a file in its home; returns a line for people."""
    file = Path.home() / HOLD
    if chosen.end:
        if file.exists():
            file.unlink()
        return "The hold has ended."
    if not LENGTH.fullmatch(chosen.duration):
        raise Refused(f"{chosen.duration} is no duration: write 30m, 2h or 1d.")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(" ".join([chosen.duration, *chosen.why]) + "\n", encoding="utf-8")
    return f"This session counts as busy for {chosen.duration}. `refit session hold --end` ends that."


def arguments() -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(prog="refit", description="Shows this session, and says when it moves.")
    rooms = parser.add_subparsers(metavar="session", required=True)
    room = rooms.add_parser("session", help="this session").add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers = {
        name: room.add_parser(name, help=text, description=text.capitalize() + ".") for name, text in VERBS.items()
    }
    for name in ("show", "snooze", "mode"):
        parsers[name].add_argument("--json", action="store_true", help="print JSON")
    parsers["snooze"].add_argument(
        "duration", nargs="?", default="2h", help="30m, 2h, 1d12h; 30 days at most (%(default)s)"
    )
    parsers["mode"].add_argument("mode", choices=MODES)
    parsers["mode"].add_argument("day", nargs="?", help="2026-12-31; for pin and forced-by")
    parsers["hold"].add_argument("duration", nargs="?", default="1d", help="30m, 2h, 1d (%(default)s)")
    parsers["hold"].add_argument("why", nargs="*", help="told to the people who wait for it")
    parsers["hold"].add_argument("--end", action="store_true", help="end the hold")
    return parser.parse_args()


def told_by(chosen: argparse.Namespace) -> dict[str, Any]:
    """The answer to a verb of Refit."""
    if chosen.verb == "snooze":
        return ask("POST", "/session/snooze", {"duration": chosen.duration})
    if chosen.verb == "mode":
        day = {"day": chosen.day} if chosen.day else {}
        return ask("POST", "/session/mode", dict(day, mode=chosen.mode))
    return ask("GET", "/session")


def main() -> int:
    """Do what the arguments say; the status is 1 where Refit refuses."""
    chosen = arguments()
    try:
        if chosen.verb == "hold":
            print(hold(chosen))
            return 0
        answer = told_by(chosen)
    except (Refused, OSError) as error:
        print(printable(error), file=sys.stderr)
        return 1
    if chosen.json:
        print(json.dumps(answer, indent=2))
    else:
        show(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
