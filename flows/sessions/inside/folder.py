"""The folder by which a session reaches Refit: a socket that the page of sessions listens at, and the command for it.

The socket is the session's right: no other session has this folder, and no other user of the machine may write to a
socket of theirs (the page asks the kernel who it is). So there is no token that could be copied out of a session.
"""

from __future__ import annotations

import os
from pathlib import Path

from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions import own_folder

INSIDE = "/run/refit/api"
"""Where a session has it."""
COMMAND, SOCKET = "refit", "socket"
COMMAND_INSIDE = f"/usr/local/bin/{COMMAND}"
_CLIENT = Path(__file__).with_name("client.py")


def prepare(settings: Settings, session: str) -> None:
    """Make the folder, unless it is there, with the command as this Refit has it."""
    folder = own_folder.api(settings, session)
    text, program = _CLIENT.read_bytes(), folder / COMMAND
    if program.exists() and program.read_bytes() == text:
        return
    mine = ["-o", str(os.geteuid()), "-g", str(os.getegid())]
    command.run(["install", "-d", "-m", "0711", folder.parent], root=True)
    command.run(["install", "-d", "-m", "0755", *mine, folder], root=True)
    draft = program.with_suffix(".new")
    command.run(["install", "-m", "0755", _CLIENT, draft], root=True)
    # A container that runs keeps the one that it was made with.
    command.run(["mv", "-T", "--", draft, program], root=True)


def is_there(settings: Settings, session: str) -> bool:
    """Whether a container of the session was made with it: one of an older Refit, and a Pod, has no such command."""
    return (own_folder.api(settings, session) / COMMAND).is_file()


def mounts(settings: Settings, session: str) -> list[str]:
    """The options with which Podman lets a container see it."""
    folder = own_folder.api(settings, session)
    return [
        f"--mount=type=bind,src={folder},dst={INSIDE},ro",
        f"--mount=type=bind,src={folder / COMMAND},dst={COMMAND_INSIDE},ro",
    ]
