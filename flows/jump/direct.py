"""Connections to the sshd of a session that come past the jump host: from this machine itself, with a key it knew."""

from __future__ import annotations

import logging
from collections.abc import Collection

from flows.host.sockets import remote_ends
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import SSH_PORT

logger = logging.getLogger("refit.jump")


def connected() -> frozenset[str]:
    """The addresses at which programs of this machine have an sshd of a session; one look for all of them."""
    return frozenset(end.address for end in remote_ends() if end.port == SSH_PORT)


def end_those_without_a_key(sessions: Sessions, name: str, kept: Collection[tuple[str, int]] = ()) -> int:
    """End the connections to a session whose key it doesn't know any more; returns how many.

    Args:
        sessions: those of this Refit.
        name: the session.
        kept: ends on this machine (address, port) of connections that the jump host lets go on.

    Raises:
        RefitError: nobody knows by which keys they came in.
    """
    own, people = sessions.ssh.keys(name), sessions.ssh.people_keys(name)
    good = {key.fingerprint for key in (*own, *people)}
    if ended := sessions.engine.sshd.end_logins(sessions.store.session(name), good, kept):
        logger.warning("%d connections to %s end: their keys are not good any more", ended, name)
    return ended
