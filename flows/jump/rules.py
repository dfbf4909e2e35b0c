"""The rules of the jump host: what a key is good for, and when a connection has to end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from flows.sessions.model import SSH_PORT
from flows.sessions.people.entitlements import Access, Role
from flows.sessions.ssh.client import host_name
from flows.sessions.ssh.keys import PublicKey

# OpenSSH takes at most 4096 addresses for a key (SSH_AUTHOPT_PERMIT_MAX).
MOST_SESSIONS = 4000


class End(StrEnum):
    """Why a connection ends."""

    key_removed = "key-removed"
    not_entitled = "not-entitled"
    elsewhere = "session-moved-or-stopped"


@dataclass(frozen=True)
class Login:
    """A person who was let in, and for which sessions.

    Attributes:
        person: the person with that key.
        fingerprint: of that key.
        sessions: those that they may be led to, as of the login.
    """

    person: str
    fingerprint: str
    sessions: frozenset[str]


def chosen(usable: Mapping[str, Access]) -> list[str]:
    """Those of the sessions that somebody may use to which one key can lead; their own come first."""
    return sorted(usable, key=lambda session: (usable[session].role is not Role.owner, session))[:MOST_SESSIONS]


def line(key: PublicKey, sessions: Collection[str]) -> str:
    """The line of `authorized_keys` that lets a key forward to the sshds of these sessions and to nothing else."""
    if not sessions:  # without any address, OpenSSH would let it forward to all
        return f"restrict {key.kind} {key.body}\n"
    permitted = ",".join(f'permitopen="{host_name(session)}:{SSH_PORT}"' for session in sessions)
    return f"restrict,port-forwarding,{permitted} {key.kind} {key.body}\n"


def why_to_end(
    login: Login,
    owner: str,
    usable: Collection[str],
    sessions: Collection[str],
    addresses: Mapping[str, str],
    targets: Collection[str],
) -> End | None:
    """Why a connection has to end now; none: it may go on.

    Args:
        login: the login that opened it.
        owner: the person whose its key is now; empty: nobody's.
        usable: the sessions that this person may use now.
        sessions: all that there are. To lose one that is gone ends nothing but what leads there.
        addresses: session → where it is now.
        targets: the addresses to which the connection leads.
    """
    if owner != login.person:
        return End.key_removed
    if (login.sessions & frozenset(sessions)) - frozenset(usable):
        return End.not_entitled
    here = {address for session, address in addresses.items() if session in login.sessions}
    return None if here.issuperset(targets) else End.elsewhere


def hosts(addresses: Mapping[str, str]) -> str:
    """The file `/etc/hosts` of the jump host: where each session is now."""
    return "".join(f"{address} {host_name(session)}\n" for session, address in sorted(addresses.items()))
