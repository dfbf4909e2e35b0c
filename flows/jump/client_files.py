"""The files below `~/.ssh` with which a person's own machine reaches all of their sessions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.core.atomic_files import write_whole
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.jump.sandbox import Sandbox
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import check_name
from flows.sessions.people import rights
from flows.sessions.ssh import client
from flows.sessions.ssh.client import JumpHost
from flows.sessions.ssh.keys import PublicKey, read_keys

HOST = r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}"  # one that begins with a hyphen would be an option of ssh
_HOST, _LAST_PORT = re.compile(HOST), 65535
CONFIG, KNOWN_HOSTS = f"{client.FOLDER}/config", f"{client.FOLDER}/known_hosts"


@dataclass(frozen=True)
class Way:
    """The way from a person's machine into their sessions.

    Attributes:
        jump: where they come in.
        keys: session → its host key, as far as it has one yet.
    """

    jump: JumpHost
    keys: Mapping[str, PublicKey]

    def files(self, *, forward_agent: bool = False) -> dict[str, str]:
        """Path below `~/.ssh` → content. Pure.

        Args:
            forward_agent: whether sessions may use the person's agent.
        """
        return {
            CONFIG: client.configuration(self.jump, forward_agent=forward_agent),
            KNOWN_HOSTS: client.known_hosts(self.jump, self.keys),
        }


def way(settings: Settings, person: str, *, host: str = "", port: int = 0) -> Way:
    """The way into the sessions of one person.

    Args:
        settings: of this Refit.
        person: by the name with which they log in.
        host: how their machine calls this one; empty: by the address that the services listen on.
        port: at which it is reached from there; 0: the setting.

    Raises:
        RefitError: nobody comes in by ssh from elsewhere here.
    """
    if not settings.jump_wanted:
        raise RefitError(
            "Sessions of this Refit can't be reached by ssh from other machines.",
            why="That needs JupyterHub (`hub: true`) and a `jump_port`.",
            hint="set them in settings.yaml, and run `refit up`.",
        )
    database = open_database(settings.database)
    entitlements = rights.entitlements(settings, database)
    ssh = Sessions.open(settings, database).ssh
    here = settings.seen_from_here.strip("[]")
    own = Sandbox(settings).host_key()
    jump = JumpHost(host or here, port or settings.jump_port, own, ssh.certificates.authority())
    return Way(jump, {name: key for name in entitlements.usable_by(person) if (key := ssh.host_key(name))})


def from_answer(host: str, port: int, key: str, keys: Mapping[str, str], authority: str = "") -> Way:
    """The way as another Refit tells it, whose words become lines of files here. Pure.

    Raises:
        RefitError: it can't be one.
    """
    if not _HOST.fullmatch(host) or not 0 < port <= _LAST_PORT:
        raise RefitError(
            f"{host!r} with the port {port} is no valid address for ssh.",
            hint=f"name a host or an IP address, and a port from 1 to {_LAST_PORT}.",
        )

    def read(text: str) -> PublicKey:
        [key] = read_keys(text.partition("\n")[0], "what that Refit says")
        return key

    jump = JumpHost(host, port, read(key), read(authority) if authority else None)
    return Way(jump, {check_name(name): read(line) for name, line in keys.items()})


def write(files: Mapping[str, str], folder: Path) -> tuple[Path, ...]:
    """Write them below a folder `~/.ssh`, and let its `config` include them; returns what was written.

    Raises:
        RefitError: that isn't possible.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        written = []
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(path, text, private=True)
            written.append(path)
        own = folder / "config"
        before = own.read_text(encoding="utf-8") if own.exists() else ""
        if (after := client.with_include(before)) != before:
            write_whole(own.resolve(), after, private=True)  # which may be a link into somebody's collection of files
            written.append(own)
    except (OSError, UnicodeDecodeError) as error:
        raise RefitError(
            f"The files for ssh can't be written below {folder}.",
            why=str(error),
            hint="check that the folder is yours and that the disk has room.",
        ) from None
    return tuple(written)


def script(files: Mapping[str, str]) -> str:
    """A script for `sh` that writes them on the machine where it runs. Pure."""
    lines = ["# For `sh` on your own machine: lets its ssh reach your sessions, as NAME.refit.", "umask 077"]
    lines.append(f"mkdir -p ~/.ssh/{client.FOLDER}")
    for name, text in files.items():
        lines += [f"cat >~/.ssh/{name} <<'END'", text.rstrip("\n"), "END"]
    include, own = shlex.quote(client.INCLUDE), "~/.ssh/config"
    lines += [
        f"touch {own}",
        f"if ! grep -qxF {include} {own}; then",
        f"    {{ printf '%s\\n\\n' {include} && cat {own}; }} >{own}.new && cat {own}.new >{own}",
        f"    rm -f {own}.new",
        "fi",
    ]
    return "\n".join(lines) + "\n"
