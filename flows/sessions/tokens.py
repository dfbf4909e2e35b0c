"""The tokens of sessions on this machine: a file for each, which its session alone may read."""

from __future__ import annotations

import secrets
from pathlib import Path

from flows.core.programs import command, program_output
from flows.core.settings import Settings
from flows.sessions import own_folder
from flows.sessions.model import Session, TokenRef


class FileTokens:
    """Implements `engine.Tokens` on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def token_of(self, name: str) -> TokenRef:
        """The path of the file with the token of the session `name`, there or not."""
        return TokenRef(str(own_folder.token(self._settings, name)))

    def make(self, session: Session) -> None:
        """Make the token of a session, unless it has one."""
        file = Path(session.token_ref)
        if file.exists():
            return
        command.run(["install", "-d", "-m", "0711", file.parent], root=True)
        # Renamed when it is whole: an IDE that finds an empty token may let everybody in.
        draft = file.with_suffix(".new")
        options = ["-m", "0400", "-o", str(session.uid), "-g", "0"]
        token = secrets.token_urlsafe(32)
        command.run(["install", *options, "/dev/stdin", draft], root=True, stdin=token)
        command.run(["mv", "-T", "--", draft, file], root=True)

    def read(self, session: Session) -> str:
        """The token of a session; kept out of logs from now on."""
        file = Path(session.token_ref)
        try:
            token = file.read_text(encoding="ascii").strip()
        except OSError:  # nobody but root may, and it says better what is wrong
            token = command.run(["cat", "--", file], root=True, secret=True).stdout.strip()
        program_output.protect(token)
        return token

    def forget(self, name: str) -> None:
        """Nothing: the token lies in the folder of its session, and goes with it."""
