"""Installs system packages in the file system of a session's container, whether that runs or not.

It is done by root of a container of its own, which has the file system alone: neither the home nor the token is there,
and it has no capability that reaches beyond it. Sessions themselves have no way to become root. Programs of images of
people's own never run as root, for nobody vouches for them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine as Database

from flows.core.errors import RefitError
from flows.core.formatting import on_a_line
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.host import containers, tools
from flows.locks import apt
from flows.sessions.model import Session
from flows.sessions.packages.model import NO_INDEX, NoIndex, Outcome, check_names, read_report, script
from flows.sessions.packages.store import PackageStore

logger = logging.getLogger("refit.sessions")

# Capabilities to unpack packages and to run their scripts, and none that reaches beyond the container.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT")
LIMIT = 1800.0


class Unvouched(RefitError):
    """The container's image is made of a recipe that nobody vouches for."""

    def __init__(self, owner: str) -> None:
        super().__init__(
            "System packages can't be installed here.",
            why=f"The image is of {owner}'s own recipe, whose programs never run as root.",
            hint="put the packages into `os-packages.txt` of that recipe.",
        )


class SystemPackages:
    """The system packages of sessions: their record, and the containers that are to have them.

    Attributes:
        store: the record.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self.store = PackageStore(database)
        self._settings = settings

    def replay(self, session: Session) -> Outcome:
        """Install in a session's container what is on record for it.

        Raises:
            NoIndex: no index answers.
            RefitError: the packages can't be installed together.
        """
        names = self.store.names(session.name)
        return install(self._settings, session.container, names) if names else Outcome()

    def complete(self, session: Session) -> None:
        """As `replay`, for a session whose person waits: it starts without them, too, and the log says so."""
        try:
            outcome = self.replay(session)
        except RefitError as error:
            logger.warning("%s starts without its system packages: %s", session.name, error.what)
        else:
            if outcome.missing:
                logger.warning("%s starts without %s", session.name, ", ".join(outcome.missing))


def install(settings: Settings, container: str, names: Sequence[str]) -> Outcome:
    """Install system packages in a container; those that are there already stay.

    Args:
        settings: those in force.
        container: its name.
        names: of packages, without versions.

    Raises:
        NoIndex: no index answers.
        RefitError: a name is none, or the packages can't be installed together.
    """
    if not (chosen := check_names(names)):
        return Outcome()
    try:
        done = run_inside(settings, container, ["sh", "-euc", script(), "sh", *chosen], accepted=(0, NO_INDEX))
    except Unvouched as error:
        return Outcome(missing=dict.fromkeys(chosen, error.why))
    except command.ProgramFailed as error:
        raise RefitError(
            f"The system packages can't be installed: {', '.join(chosen)}.",
            why=error.why,
            hint="what was begun is completed by the next attempt.",
        ) from error
    if done.exit_code == NO_INDEX:
        raise NoIndex(
            "The index of the image's system packages doesn't answer.",
            why=on_a_line(done.stderr.strip().rpartition("\n")[2]),
            hint="check `apt_proxy` in settings.yaml, and what the image's own apt or dnf reads.",
        )
    return read_report(done.stdout, chosen)


def run_inside(
    settings: Settings, container: str, argv: Sequence[str], accepted: Sequence[int] = (0,)
) -> command.Completed:
    """Run a program as root in the file system of a container, with the host's network as in builds.

    Raises:
        Unvouched: the image is a person's own.
        ProgramFailed: it can't be started, failed, or ran out of time.
    """
    if owner := _owner(settings, container):
        raise Unvouched(owner)
    with _mounted(settings, container) as root:
        return containers.run_once(
            settings,
            root,
            argv,
            env={"DEBIAN_FRONTEND": "noninteractive", **apt.proxy(settings)},
            user="0:0",
            capabilities=CAPABILITIES,
            network="host",
            limit=LIMIT,
            accepted=accepted,
            most=command.FOREIGN_OUTPUT,
        )


def _owner(settings: Settings, container: str) -> str:
    """The person by whose own recipe the image of a container was made; empty: it is of the catalog."""
    inspect = [*tools.podman(settings), "container", "inspect", "--format", "{{json .Config.Labels}}", container]
    labels = json.loads(command.run(inspect, root=True).stdout) or {}
    return on_a_line(str(labels.get(OWNER_LABEL, "")))


@contextmanager
def _mounted(settings: Settings, container: str) -> Iterator[Path]:
    """The file system of a container."""
    podman = tools.podman(settings)
    root = command.run([*podman, "mount", container], root=True).stdout.strip()
    try:
        yield Path(root)
    finally:
        command.run([*podman, "unmount", container], root=True)
