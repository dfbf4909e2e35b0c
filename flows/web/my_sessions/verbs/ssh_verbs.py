"""The verb that gives people the files by which ssh on their own machines reaches their sessions."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import Field

from flows.jump import client_files
from flows.web.my_sessions.callers import Caller
from flows.web.my_sessions.verbs.context import Parameters, Verb, VerbContext
from flows.web.people.scopes import Scope


class Machine(Parameters):
    """The wishes for a person's machine."""

    host: str = Field(
        "",
        pattern=rf"^({client_files.HOST})?$",
        description="Name or address of this host for that machine; empty: as browsers reach it.",
    )
    port: int = Field(0, ge=0, le=65535, description="Port by which that machine reaches Refit; 0: Refit's own.")
    forward_agent: bool = Field(False, description="Whether sessions may use the agent of that machine.")


@dataclass(frozen=True)
class SshFiles:
    """The way in, and the files that follow from it. They hold no secret.

    Attributes:
        host, port: where that machine comes in.
        key: the host key there.
        authority: the key that signs the host keys of sessions.
        keys: session → its host key, as far as it has one yet.
        files: path below `~/.ssh` → content.
        script: for `sh` on the person's machine: writes them, and lets its `~/.ssh/config` include them.
    """

    host: str
    port: int
    key: str
    authority: str
    keys: dict[str, str]
    files: dict[str, str]
    script: str


def _ssh_config(context: VerbContext, caller: Caller, _: str, machine: Machine) -> SshFiles:
    host = machine.host or urlsplit(context.settings.public_url).hostname or ""
    way = client_files.way(context.settings, caller.person, host=host, port=machine.port)
    files, keys = way.files(forward_agent=machine.forward_agent), {name: str(key) for name, key in way.keys.items()}
    jump = way.jump
    own = (jump.host, jump.port, str(jump.key), str(jump.authority or ""))
    return SshFiles(*own, keys, files, client_files.script(files))


VERBS = (
    Verb(
        "ssh-config",
        "GET",
        "/ssh-config",
        Scope.read,
        "Get the files by which ssh on one's own machine reaches one's sessions, and a script that writes them.",
        _ssh_config,
        Machine,
        SshFiles,
    ),
)
