"""Installs again, in the container that a session is to move to, what was installed by hand in the one that it has.

It happens before that container is started, in its file system alone: nobody waits for it, and what packages run while
they are installed sees neither the home nor the token. Sessions themselves have no way to become root.
"""

from __future__ import annotations

from flows.compatibility.changes import HandMade, of_system
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.packages.install import Unvouched, run_inside


class NotReplayed(RefitError):
    """The same packages can't be had any more, or not together with the new image."""


def replay(settings: Settings, changes: HandMade, container: str) -> str:
    """Make the changes to system packages again in a container that was never started; says what was done.

    Python packages are left to their owner: another image may have another Python.

    Raises:
        NotReplayed: a package can't be installed or removed.
    """
    lines = of_system(changes.system, changes.manager)
    if not lines:
        return ""
    try:
        run_inside(settings, container, ["sh", "-euc", "\n".join(lines)])
    except (command.ProgramFailed, Unvouched) as error:
        raise NotReplayed(
            "The packages that were installed by hand can't be installed in the new image.",
            why=error.why,
            hint=f"`refit session drift {changes.session} --no-replay` lets it move without.",
        ) from error
    added, gone = ", ".join([*changes.system.added, *changes.system.changed]), ", ".join(changes.system.removed)
    done = (f"installed again: {added}" if added else "", f"removed again: {gone}" if gone else "")
    return "; ".join(filter(None, done))
