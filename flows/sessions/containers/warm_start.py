"""Homes that are bound in late: a container's /home is its slot, and the home comes into it when it may.

A slot is a folder of one container, below a mount that the host shares with containers: a mount there appears
in a container that runs already. Without a home a slot is root's and read-only, so nobody can mistake it for an empty
home. So a container may be started, and its IDE imported, while another one still has the home.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from flows.core import fence
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.core.waiting import retry, wait_until
from flows.host import containers, mounts, tools
from flows.sessions.homes.folders import folder_of
from flows.sessions.model import Container, Running, Session, session_of

PARENT, NAME = "/home", "dev"
# Set in containers whose home comes later: their start command waits for it, after every start.
VARIABLE = "REFIT_LATE_HOME"
# A program that waits there for its home leaves this file.
WAITING = "dev/shm/refit-waits"

# From sys/mount.h.
_MS_BIND, _UMOUNT_NOFOLLOW = 4096, 8
_LINGER_SECONDS = 10.0
_POLL_SECONDS, _AT_ONCE_SECONDS = 0.05, 0.01
_QUICK = 30.0
# One program that looks again and again: to start one takes as much as hundreds of looks, and others wait for Python.
_UNTIL_THERE, _TIMED_OUT = f'until [ -e "$1" ]; do sleep {_POLL_SECONDS}; done', 124


@dataclass(frozen=True)
class Mounted:
    """A line of `/proc/…/mountinfo`; `shared`: mounts below it appear elsewhere, too."""

    point: Path
    shared: bool


def objection(session: Session, containers: Iterable[Container], bound: Collection[str]) -> str:
    """Why the home must not come to the container of this session now: another one may write into it. Pure.

    Args:
        session: the one whose container is to get the home.
        containers: all containers of that name.
        bound: the containers, whether or not they are there still, in whose slots this home is.
    """
    if others := sorted(set(bound) - {session.container}):
        return f"{others[0]} has it"
    for other in containers:
        made = other.made_from
        direct = made is None or (made.home == session.home and not made.late_home)
        if other.name != session.container and direct and other.running is Running.running:
            return f"{other.name} runs with it"
    return ""


def with_warm(containers: tuple[Container, ...], bound: Collection[str]) -> tuple[Container, ...]:
    """Containers with what the homes in slots tell of them: those that run without theirs are warm. Pure.

    Args:
        containers: some containers.
        bound: the containers in whose slots there is a home.
    """
    return tuple(replace(each, warm=True) if _waits(each) and each.name not in bound else each for each in containers)


def _waits(container: Container) -> bool:
    """Whether a container runs whose home may be missing."""
    return bool(container.running is Running.running and container.made_from and container.made_from.late_home)


class Slots:
    """The slots of this machine's containers."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._folder = settings, settings.home.resolve() / "slots"

    def path(self, container: str) -> Path:
        """The folder that a container has as /home."""
        return self._folder / container

    def make(self, container: str) -> Path:
        """An empty slot."""
        self._share()
        slot = self.path(container)
        if not (slot / NAME).is_dir():
            command.run(["install", "-d", "-m", "0555", slot, slot / NAME], root=True)
        return slot

    def give(self, session: Session, containers: Iterable[Container]) -> None:
        """Bind a session's home into the slot of its container, or see that it may be mounted without one.

        Args:
            session: the one whose container is to have it; its lease has to be held.
            containers: all containers of that session, as they are now.

        Raises:
            RefitError: another container may write into that home.
        """
        if why := objection(session, containers, self._with_home_of(session)):
            raise RefitError(
                f"{session.container} doesn't get the home of {session.name!r}: {why}.",
                why="Two containers must never write into one home.",
                hint="a move of it was not finished: `refit migrate recover`.",
            )
        if not session.late_home:
            return
        place = self.make(session.container) / NAME
        if _is(place, folder_of(session.home)):
            return
        self.take(session.container)  # another one, from before the home was moved or restored
        _bind(folder_of(session.home), place)

    def take(self, container: str) -> None:
        """Take the home out of the slot of a container that has ended.

        Raises:
            RefitError: something in it still uses the home.
        """
        place = self.path(container) / NAME

        def unbind() -> None:
            while place in self._places():
                fence.check()
                _unbind(place)

        try:  # what its last process leaves may just be taken down
            retry(unbind, (OSError, ProgramFailed), seconds=_LINGER_SECONDS, pause=_AT_ONCE_SECONDS)
        except (OSError, ProgramFailed) as error:
            hint = "a program of the host may work in the home: end it, then `refit migrate recover`."
            raise RefitError(f"{container} doesn't give its home back.", why=str(error), hint=hint) from error

    def remove(self, container: str) -> None:
        """Remove a slot; it never removes what is in it."""
        slot = self.path(container)
        if slot.exists():
            self.take(container)
            command.run(["rmdir", "--", slot / NAME, slot], root=True)

    def with_warm(self, containers: tuple[Container, ...]) -> tuple[Container, ...]:
        """Containers as they are now; see the function."""
        return (
            with_warm(containers, {place.parent.name for place in self._places()})
            if any(map(_waits, containers))
            else containers
        )

    def arrived(self, pid: int) -> bool:
        """Whether the home is there for a process, a container's first one."""
        try:
            seen = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8")
        except PermissionError:
            seen = command.run(["cat", f"/proc/{pid}/mountinfo"], root=True, accepted=(0, 1)).stdout
        except OSError:  # it has ended
            return False
        return any(mount.point == Path(PARENT, NAME) for mount in mounted(seen))

    def waits(self, pid: int, seconds: float) -> bool:
        """Whether what a container began waits for its home, or will within some seconds; `pid`: its first process."""
        marker = Path(f"/proc/{pid}/root/{WAITING}")
        if os.geteuid() != 0:
            looks = ["timeout", str(seconds), "sh", "-c", _UNTIL_THERE, "sh", str(marker)]
            return command.run(looks, root=True, accepted=(0, _TIMED_OUT)).exit_code == 0
        return wait_until(marker.exists, seconds=seconds, pause=_POLL_SECONDS)

    def works(self) -> bool:
        """Whether what is bound into a slot appears in a container that runs: tried out once for each boot."""
        facts = tools.facts(self._settings)
        key = {"boot": facts.boot, "asked": facts.asked}
        file = self._settings.home / "slots.json"
        with suppress(OSError, ValueError):
            if (read := json.loads(file.read_text(encoding="utf-8"))).items() >= key.items():
                return bool(read["works"])
        works = self._tried()
        write_whole(file, json.dumps({**key, "works": works}))
        return works

    def _tried(self) -> bool:
        trial = f"trial-{uuid4().hex[:12]}"
        try:
            with tools.trial_tree(self._settings) as tree, TemporaryDirectory() as home:
                return self._try(trial, tree, Path(home))
        except ProgramFailed:
            return False
        finally:
            with fence.lifted():  # nobody else has one of this name
                self.remove(trial)

    def _try(self, trial: str, tree: Path, home: Path) -> bool:
        podman, name = tools.podman(self._settings), f"refit-{trial}"
        options = ["--detach", "--name", name, "--label", f"{containers.LABEL}={containers.creator()}"]
        alone = ["--network", "none", "--cap-drop", "all", *tools.run_limits(self._settings)]
        start = ["--mount", mount(self.make(trial)), "--rootfs", str(tree), "/bin/catatonit", "-P"]
        try:
            command.run([*podman, "run", *options, *alone, *start], root=True, limit=_QUICK)
            inspect = [*podman, "container", "inspect", "--format", "{{.State.Pid}}", name]
            pid = int(command.run(inspect, root=True, limit=_QUICK).stdout)
            command.run(["mount", "--bind", home, self.path(trial) / NAME], root=True, limit=_QUICK)
            return self.arrived(pid)
        finally:
            with fence.lifted():
                command.run([*podman, "rm", "--force", "--ignore", "--time", "0", name], root=True, limit=_QUICK)

    def _with_home_of(self, session: Session) -> frozenset[str]:
        """The containers in whose slots a session's home is, or what was its home before it was restored."""
        return frozenset(
            place.parent.name
            for place in self._places()
            if session_of(place.parent.name) == session.name or _is(place, folder_of(session.home))
        )

    def _places(self) -> tuple[Path, ...]:
        """Where in slots something is bound."""
        return tuple(point for point in mounts.mounts_below(self._folder) if point.parent.parent == self._folder)

    def _share(self) -> None:
        """Let containers see what is mounted below the folder of all slots, and nobody else."""
        if self._shared():
            return
        with one_at_a_time(self._settings.folder() / "slots.lock"):
            if self._folder not in mounts.mounts_below(self._folder):
                command.run(["install", "-d", "-m", "0755", self._folder], root=True)
                command.run(["mount", "--bind", self._folder, self._folder], root=True, limit=_QUICK)
            if not self._shared():
                # By way of private: else it is shared with whatever the folder's own file system is shared with.
                command.run(["mount", "--make-private", self._folder], root=True, limit=_QUICK)
                command.run(["mount", "--make-shared", self._folder], root=True, limit=_QUICK)

    def _shared(self) -> bool:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        return any(mount.point == self._folder and mount.shared for mount in mounted(lines))


def mount(slot: Path) -> str:
    """Podman's option for a slot. Pure."""
    return f"type=bind,src={slot},dst={PARENT},bind-propagation=rslave"


def mounted(lines: str) -> tuple[Mounted, ...]:
    """The mounts in `/proc/<pid>/mountinfo`. Pure."""
    return tuple(
        Mounted(mounts.mount_point(line), " shared:" in line.partition(" - ")[0]) for line in lines.splitlines()
    )


def _bind(source: Path, place: Path) -> None:
    """`mount --bind`; somebody waits, and to start a program takes longer than the mount."""
    if os.geteuid() != 0:
        command.run(["mount", "--bind", source, place], root=True, limit=_QUICK)
        return
    fence.check()
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(os.fsencode(source), os.fsencode(fence.through(place)), None, ctypes.c_ulong(_MS_BIND), None):
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))
        fence.check()  # for whoever was taken for dead since, there is no such place
        raise error


def _unbind(place: Path) -> None:
    if os.geteuid() != 0:
        command.run(["umount", place], root=True, limit=_QUICK)
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.umount2(os.fsencode(fence.through(place)), _UMOUNT_NOFOLLOW):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


def _is(place: Path, home: Path) -> bool:
    with suppress(OSError):
        return place.samefile(home)
    return False
