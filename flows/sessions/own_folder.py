"""The folder of Refit's machine with what is a session's own beside home and image: token, files of sshd, way to Refit.

Podman lets its container see parts of it; where sessions run elsewhere, their engine brings them what they need.
"""

from __future__ import annotations

from pathlib import Path

from flows.core.settings import Settings
from flows.sessions.model import check_name


def of(settings: Settings, session: str) -> Path:
    """The folder of a session, there or not."""
    return settings.folder("sessions") / check_name(session)


def token(settings: Settings, session: str) -> Path:
    """The file with its token, where sessions run on this machine."""
    return of(settings, session) / "token"


def ssh(settings: Settings, session: str) -> Path:
    """The folder with what its sshd reads."""
    return of(settings, session) / "ssh"


def api(settings: Settings, session: str) -> Path:
    """The folder by which it reaches Refit, where sessions run on this machine."""
    return of(settings, session) / "api"
