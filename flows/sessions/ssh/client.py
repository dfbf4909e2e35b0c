"""The files that ssh on a person's own machine reads: one block for all sessions, and the host keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flows.sessions.model import SSH_PORT, USER
from flows.sessions.ssh.keys import PublicKey

DOMAIN = "refit"
JUMP_USER = "jump"
# The name by which clients know the jump host: no session has one with a dot.
JUMP_NAME = f"jump.host.{DOMAIN}"
FOLDER = "refit"  # below ~/.ssh
INCLUDE = f"Include {FOLDER}/config"


def host_name(session: str) -> str:
    """The name of a session for programs that speak ssh: `ada.refit`."""
    return f"{session}.{DOMAIN}"


@dataclass(frozen=True)
class JumpHost:
    """Where people come in.

    Attributes:
        host, port: as their machines reach it.
        key: its host key.
        authority: the key that signs the host keys of sessions; none: those of an older Refit are signed by nobody.
    """

    host: str
    port: int
    key: PublicKey
    authority: PublicKey | None = None


def configuration(jump: JumpHost, *, forward_agent: bool = False) -> str:
    """The lines for `~/.ssh/config`. They hold for sessions that come later, too."""
    lines = {
        f"Host {JUMP_NAME}": {
            "HostName": jump.host,
            "Port": str(jump.port),
            "User": JUMP_USER,
            "HostKeyAlias": JUMP_NAME,
            "ProxyJump": "none",
            "ForwardAgent": "no",
        },
        f"Host *.{DOMAIN}": {
            "User": USER,
            "Port": str(SSH_PORT),
            "ProxyJump": JUMP_NAME,
            "ForwardAgent": "yes" if forward_agent else "no",
            "UserKnownHostsFile": f"~/.ssh/{FOLDER}/known_hosts",
            "StrictHostKeyChecking": "yes",
            "ServerAliveInterval": "30",
            "ServerAliveCountMax": "4",
        },
    }
    blocks = (
        f"{name}\n" + "".join(f"    {word} {value}\n" for word, value in own.items()) for name, own in lines.items()
    )
    return "\n".join(blocks)


def known_hosts(jump: JumpHost, sessions: Mapping[str, PublicKey]) -> str:
    """The lines for `known_hosts`: of the jump host, of the authority for all sessions, and of sessions by name.

    The last are for sessions whose sshd was started before there were certificates.
    """
    lines = [f"{JUMP_NAME} {jump.key.kind} {jump.key.body}\n"]
    if signer := jump.authority:
        lines.append(f"@cert-authority [*.{DOMAIN}]:{SSH_PORT} {signer.kind} {signer.body}\n")
    lines += [f"[{host_name(name)}]:{SSH_PORT} {key.kind} {key.body}\n" for name, key in sorted(sessions.items())]
    return "".join(lines)


def with_include(text: str) -> str:
    """A person's `~/.ssh/config` with the line that reads ours: before all others, for what comes first counts."""
    return text if INCLUDE in text.splitlines() else f"{INCLUDE}\n\n{text}" if text else f"{INCLUDE}\n"
