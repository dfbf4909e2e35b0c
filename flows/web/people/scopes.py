"""Scopes: the rights of the bearer of one of the Hub's tokens here. Pure.

Scopes limit tokens. The rights of a person follow from whose session it is, and whether they administer the Hub.
"""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """Custom scopes of JupyterHub."""

    read = "custom:refit:read"
    sessions = "custom:refit:sessions"
    access = "custom:refit:access"
    updates = "custom:refit:updates"
    profiles = "custom:refit:profiles"
    operate = "custom:refit:operate"

    @property
    def text(self) -> str:
        """The right in words, for people."""
        return _TEXTS[self]


_TEXTS = {
    Scope.read: "See one's sessions, their logs and their history.",
    Scope.sessions: "Start and stop one's sessions, give them another profile, take snapshots and go back to them.",
    Scope.access: "Say who gets into one's sessions: share them, and add keys for ssh.",
    Scope.updates: "Say when one's sessions move onto new images.",
    Scope.profiles: "Build profiles of one's own, and offer them to others.",
    Scope.operate: "See all sessions and steer rollouts, for those who administer the Hub.",
}


def definitions() -> dict[str, dict[str, str]]:
    """As JupyterHub wants them in `custom_scopes`."""
    return {scope.value: {"description": scope.text} for scope in Scope}
