"""The tokens of sessions on this machine: a file for each, which its session alone may read."""

from __future__ import annotations

import secrets

from flows.core.programs import command, program_output
from flows.sessions.model import Session


class FileTokens:
    """Implements `engine.Tokens` on this machine."""

    def make(self, session: Session) -> None:
        """Make the token of a session, unless it has one."""
        if session.token_file.exists():
            return
        command.run(["install", "-d", "-m", "0711", session.token_file.parent], root=True)
        # Renamed when it is whole: an IDE that finds an empty token may let everybody in.
        draft = session.token_file.with_suffix(".new")
        options = ["-m", "0400", "-o", str(session.uid), "-g", "0"]
        token = secrets.token_urlsafe(32)
        command.run(["install", *options, "/dev/stdin", draft], root=True, stdin=token)
        command.run(["mv", "-T", "--", draft, session.token_file], root=True)

    def read(self, session: Session) -> str:
        """The token of a session; kept out of logs from now on."""
        try:
            token = session.token_file.read_text(encoding="ascii").strip()
        except OSError:  # nobody but root may, and it says better what is wrong
            token = command.run(["cat", "--", session.token_file], root=True, secret=True).stdout.strip()
        program_output.protect(token)
        return token

    def forget(self, name: str) -> None:
        """Nothing: the token lies in the folder of its session, and goes with it."""
