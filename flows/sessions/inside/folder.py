"""The folder by which a session reaches Refit: a socket that the page of sessions listens at, and the command for it.

The socket is the session's right: no other session has this folder, and no other user of the machine may write to a
socket of theirs (the page asks the kernel who it is). So there is no token that could be copied out of a session.
"""

from __future__ import annotations

import os
from pathlib import Path

from flows.core.programs import command
from flows.sessions.model import Session

INSIDE = "/run/refit/api"
"""Where a session has it."""
COMMAND, SOCKET = "refit", "socket"
COMMAND_INSIDE = f"/usr/local/bin/{COMMAND}"
_CLIENT = Path(__file__).with_name("client.py")


def prepare(session: Session) -> None:
    """Make the folder, unless it is there, with the command as this Refit has it."""
    text, program = _CLIENT.read_bytes(), session.api_folder / COMMAND
    if program.exists() and program.read_bytes() == text:
        return
    mine = ["-o", str(os.geteuid()), "-g", str(os.getegid())]
    command.run(["install", "-d", "-m", "0711", session.api_folder.parent], root=True)
    command.run(["install", "-d", "-m", "0755", *mine, session.api_folder], root=True)
    draft = program.with_suffix(".new")
    command.run(["install", "-m", "0755", _CLIENT, draft], root=True)
    # A container that runs keeps the one that it was made with.
    command.run(["mv", "-T", "--", draft, program], root=True)


def is_there(session: Session) -> bool:
    """Whether a container of the session was made with it: one of an older Refit, and a Pod, has no such command."""
    return (session.api_folder / COMMAND).is_file()


def mounts(session: Session) -> list[str]:
    """The options with which Podman lets a container see it. Pure."""
    program = session.api_folder / COMMAND
    return [
        f"--mount=type=bind,src={session.api_folder},dst={INSIDE},ro",
        f"--mount=type=bind,src={program},dst={COMMAND_INSIDE},ro",
    ]
