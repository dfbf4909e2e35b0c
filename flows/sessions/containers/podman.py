"""Sessions as containers of Podman on this machine."""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn
from uuid import uuid4

from flows.core.atomic_files import kept_secret
from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.programs import command, spawn
from flows.core.programs.command import FOREIGN_OUTPUT, ProgramFailed
from flows.core.programs.process_records import ProcessId
from flows.core.settings import Settings
from flows.host import containers, tools
from flows.sessions.containers import drift, ending, last_lines, sshd, warm_start, weight
from flows.sessions.containers.ingress import filter_input
from flows.sessions.containers.networks import SessionNetworks
from flows.sessions.containers.podman_options import create_options, prepare
from flows.sessions.containers.podman_records import _LABEL, as_address, as_container, is_ours, not_running
from flows.sessions.model import Container, Running, Session, session_of
from flows.sessions.podman_only import only_on_podman

with lazily(globals()):
    from flows.images.registry import Registry

logger = logging.getLogger("refit.sessions")

_RESERVED = re.compile(r"([0-9a-f.:]+) has been allocated to \w+, duplicate allocation")
# The variable by which looks at a session know each other (`activity/inspect_processes.py`).
_LOOKER = "REFIT_LOOK"
# Bytes that a dialogue may have: a look at thousands of processes, with what they were called with.
_LOOKS = 4 * FOREIGN_OUTPUT
_QUICK, _DIFF = 60.0, 300.0
_MOST_CHANGES = 64 << 20  # bytes
_WAIT = 1.0
_LAST_LINES = 15
# `podman stop` was killed, and Podman waits for it to go on; or `podman start`, and Podman doesn't know that it runs.
_CUT_SHORT = ("stopping", "initialized")


@dataclass(frozen=True)
class _Waiting:
    """A container that waits for its home: its session, its first process, and all containers of that session then."""

    session: Session
    first: ProcessId
    containers: tuple[Container, ...]


class Podman:
    """Implements `engine.Engine`; each container says by its labels what it is and how to make it anew."""

    on_this_machine = True
    # A move works for two thirds of its time, and waits for the rest: so all cores have work. More would only make
    # those wait longer that are away; of more than may wait for their homes (`warm_containers`), some would start cold.
    at_once = min(8, math.ceil(1.5 * len(os.sched_getaffinity(0))))

    def __init__(self, settings: Settings) -> None:
        only_on_podman(settings, "Containers of Podman")
        self._settings, self._slots, self._networks = settings, warm_start.Slots(settings), SessionNetworks(settings)
        self.sshd = sshd.ContainerSshd(self)
        self._firsts, self._favoured = dict[str, ProcessId](), dict[str, ProcessId]()
        self._dead: set[str] = set()
        self._waiting: dict[str, _Waiting] = {}
        self._inspected: dict[str, tuple[ProcessId, Mapping[str, Any]]] = {}

    def containers(self, session: str = "") -> tuple[Container, ...]:
        """All containers that Refit made, or those of one session, lowest generation first."""
        label = f"label={_LABEL}session{f'={session}' if session else ''}"
        listed = json.loads(self._podman("ps", "--all", "--filter", label, "--format", "json").stdout or "[]")
        ours = sorted(map(as_container, filter(is_ours, listed)), key=lambda ours: (ours.session, ours.generation))
        return self._slots.with_warm(tuple(map(self._checked, ours)))

    def _checked(self, container: Container) -> Container:
        """A container as it is: that one has ended, Podman notices later than the kernel (see `_acknowledge_end`)."""
        self._dead.discard(container.name)
        if container.running is not Running.running or not container.pid:
            self._firsts.pop(container.name, None)
            return container
        if (first := ProcessId.of(container.pid)) is None:
            self._dead.add(container.name)
            return replace(container, running=Running.stopped)
        self._firsts[container.name] = first
        return container

    def _first(self, container: str) -> int:
        """The pid of the first process of a container that runs; 0: it doesn't."""
        first = self._firsts.get(container)
        if first is None or not first.alive:
            self.containers(session_of(container))
            first = self._firsts.get(container)
        return first.pid if first else 0

    def pull(self, image: str) -> None:
        """Bring the image with this digest from the registry, unless it is here.

        Raises:
            RefitError: the registry has no such image, or doesn't answer.
        """
        reference = self._reference(image)
        if self._podman("image", "exists", reference, accepted=(0, 1)).exit_code == 0:
            return
        Registry(self._settings).manifest(self._settings.repository, image)  # says better why an image can't be had
        containers.pull(self._settings, f"docker://{reference}")

    def create(self, session: Session) -> Container:
        """Create the container of this session and generation without starting it.

        Raises:
            RefitError: there is one of that name, made otherwise; or its image isn't here.
        """
        prepare(session, self._settings, self._slots)
        if (id := self._find(session)) is None:
            # A create that was killed leaves storage that bears the name and that nobody lists: hence --replace.
            options = drift.marked(create_options(session, self._settings, self._slots, self._networks))
            self._podman("create", "--replace", *options, self._reference(session.image))
            id = self._find(session)
        if id is None or id.made_from != session:
            raise RefitError(
                f"There is a container {session.container!r} already, made with other options.",
                hint="look at it (`podman inspect`); if nobody needs it, remove it and try again.",
            )
        return id

    def start(self, container: str) -> None:
        """Start a created or stopped container, with its home.

        Raises:
            RefitError: another container may write into that home.
        """
        if self._continued(container):
            return
        siblings = self.containers(session_of(container))
        mine = next((each for each in siblings if each.name == container), None)
        if mine and mine.made_from:
            self._slots.give(mine.made_from, siblings)
            if mine.running is Running.running and mine.made_from.late_home:
                if self._slots.arrived(mine.pid):
                    return
                # Somebody started it before the slots were shared, as after a reboot: it can't see its home.
                self._podman("stop", "--time", "1", container)
        self._start(container)

    def _continued(self, container: str) -> bool:
        """Give a container that this process let wait its home; whether it has it. Podman is slow, and not asked."""
        waiting = self._waiting.pop(container, None)
        if waiting is None or not waiting.first.alive:
            return False
        self._slots.give(waiting.session, map(self._checked, waiting.containers))
        return self._slots.arrived(waiting.first.pid)

    def binds_late(self) -> bool:
        """Whether a home can come into a container that runs already: tried out on this machine."""
        return self._slots.works()

    def has_place(self, session: Session) -> bool:
        """Yes: each container of a session is given the same devices."""
        return True

    def warm(self, session: Session, wait: bool = True) -> None:
        """Start a container that doesn't run and whose home comes later.

        If so wished, this waits until it waits for nothing but that; else it gets its home when it is so far.

        Raises:
            RefitError: it has ended, or didn't get so far within the `ready_timeout_seconds` of the settings.
        """
        self._slots.make(session.container)
        self._slots.take(session.container)
        self._start(session.container)
        until = time.monotonic() + self._settings.ready_timeout_seconds * session.access.patience
        siblings = self.containers(session.name)
        first = self._firsts.get(session.container)
        while first and first.alive:  # the kernel says so, which takes less than to ask Podman again
            if not wait or self._slots.waits(first.pid, _WAIT):
                self._waiting[session.container] = _Waiting(session, first, siblings)
                self._inspect(session.container)  # while there is time
                return
            if time.monotonic() > until:
                break
        raise RefitError(
            f"{session.container} doesn't wait for its home.",
            why=f"The last lines that it wrote:\n{self.logs(session.container, _LAST_LINES)}",
            hint="try again; `warm_containers: 0` in settings.yaml starts containers with their homes.",
        )

    def _start(self, container: str) -> None:
        if container in self._dead:
            self._acknowledge_end(container)
        try:
            self._podman("start", container)
        except ProgramFailed as error:
            if not self._mended(container, error):
                raise
            self._podman("start", container)

    def favour(self, container: str, favoured: bool) -> None:
        """Give a running container a higher weight where cores are short, or its own again; see `weight`."""
        if not (pid := self._first(container)) or (
            favoured and self._favoured.get(container) == self._firsts[container]
        ):
            return
        if not (words := weight.update(self._settings, container, favoured)):
            return
        first = self._firsts[container]
        try:
            self._podman(*words)
        except ProgramFailed:
            if ProcessId.of(pid) == first:
                raise
        self._favoured.pop(container, None)
        if favoured:
            self._favoured[container] = first

    def stop(self, container: str, grace: float, settle: bool = True) -> None:
        """SIGTERM to every process in it, the main program last, up to `grace` seconds, then SIGKILL.

        Podman has more to do than to end it (networks, mounts): that is waited for if it is to `settle`.
        """
        deadline = time.monotonic() + grace
        ended = False
        if first := self._first(container):
            try:
                ending.as_root(first, grace)
                ended = True
            except (OSError, ProgramFailed) as error:  # then the main program's SIGTERM has to do
                logger.info("not every process in %s could be told to end: %s", container, error)
        if settle or not ended:
            remaining = max(1, math.ceil(deadline - time.monotonic()))
            self._podman("stop", "--ignore", "--time", str(remaining), container, limit=remaining + _QUICK)
        self._slots.take(container)

    def childless(self, container: str) -> bool:
        """Whether the main program of a running container has started nothing that still runs but terminals."""
        try:
            return bool(first := self._first(container)) and ending.is_childless(first)
        except OSError:
            return False

    def remove(self, container: str) -> None:
        """Remove a container that doesn't run; its home stays."""
        try:
            self._podman("rm", "--ignore", container)
        except ProgramFailed:
            self.containers(session_of(container))
            if container not in self._dead:
                raise
            self._acknowledge_end(container)
            self._podman("rm", "--force", "--ignore", "--time", "0", container)
        self._slots.remove(container)

    def address(self, container: str, port: int) -> tuple[str, int]:
        """Where this port of a running container is reached from this machine: on Podman's bridge.

        Raises:
            RefitError: it doesn't run, or has no address there.
        """
        inspected = self._inspect(container)
        if (address := as_address(inspected, port)) is None:
            raise not_running(f"{container} can't be reached.", "It doesn't run, or has no address of its own.")
        return address

    def _inspect(self, container: str) -> Mapping[str, Any]:
        """Podman's record of a container; for as long as its first process lives, it is the same."""
        first, inspected = self._inspected.get(container, (None, {}))
        if first is None or not first.alive:
            (inspected,) = json.loads(self._podman("container", "inspect", container).stdout)
            if first := ProcessId.of(inspected["State"]["Pid"]):
                self._inspected[container] = first, inspected
        return inspected

    def by_hand(self, session: Session) -> tuple[str, ...]:
        """Changes by hand to a session's container, each in words."""
        own = [each.name for each in self.containers(session.name) if each.generation == session.generation]
        inspected = json.loads(self._podman("container", "inspect", *own).stdout) if own else []
        return tuple(change for each in inspected for change in drift.changes(each))

    def changed_files(self, container: str) -> Mapping[str, Collection[str]]:
        """Kind of change → paths of a container that its image hasn't, or has otherwise."""
        call = self._call("diff", "--format", "json", container)
        # Programs of a session may make as many files as there is room for.
        told = command.run(call, root=True, cwd=self._settings.folder(), limit=_DIFF, most=_MOST_CHANGES).stdout
        changes: Mapping[str, Collection[str]] = json.loads(told)
        return changes

    def execute(
        self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = FOREIGN_OUTPUT
    ) -> str:
        """Run a program inside a running container as the session's user; returns its standard output."""
        mark, call = self._marked("--interactive", container, *argv)
        bounds: Any = {"stdin": stdin, "limit": limit, "most": most, "ending": mark}
        return command.run(call, root=True, cwd=self._settings.folder(), **bounds).stdout

    def dialogue(
        self, container: str, argv: Sequence[str], limit: float = 600.0
    ) -> AbstractContextManager[Callable[[str], str]]:
        """Let a program inside a running container answer lines with lines, as the session's user."""
        mark, call = self._marked(f"--env={_LOOKER}={self._nonce(container)}", "--interactive", container, *argv)
        bounds: Any = {"limit": limit, "most": _LOOKS, "ending": mark}
        return spawn.dialogue(call, root=True, cwd=self._settings.folder(), **bounds)

    def _marked(self, *words: str) -> tuple[Callable[[], None], list[str]]:
        """The command that runs a program in a container, and a function that ends the program there."""
        mark = uuid4().hex
        return partial(ending.marked_as_root, mark), self._call("exec", f"--env={ending.MARK}={mark}", *words)

    def _nonce(self, container: str) -> str:
        """By this, those who look at a session at the same time know each other; nobody can guess it from outside."""
        key = kept_secret(self._settings.folder("activity") / "key")
        return hmac.new(key.encode(), container.encode(), "sha256").hexdigest()[:32]

    def block_ingress(self, container: str, ports: Sequence[int]) -> Callable[[], None]:
        """Let nothing more come in through these ports of a running container; returns what undoes it at once.

        Connections stay, and wait. The rule is in the container's own network and ends with it: nothing is left behind.
        """
        network = self._network(container)
        filter_input(network, ports)
        return partial(filter_input, network)

    def allow_ingress(self, container: str) -> None:
        """Undo every `block_ingress` of a running container, also those of a process that has died."""
        filter_input(self._network(container))

    def _network(self, container: str) -> str:
        """The file that stands for its network; gone with the container, where a pid might be another's already."""
        if not (network := self._inspect(container)["NetworkSettings"]["SandboxKey"]):
            raise not_running(f"{container} has no network of its own.", "It doesn't run, or uses the host's.")
        return str(network)

    def attach(self, container: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        """Let this process become a program inside a running container, with a terminal of its own if so wished."""
        # Without keys to detach: Ctrl-P, the first of them, is a key that shells and editors need.
        options = ["--interactive", *(["--tty", "--detach-keys="] if terminal else [])]
        os.chdir(self._settings.folder())
        spawn.exec_replace(self._call("exec", *options, container, *argv), root=True)

    def logs(self, container: str, lines: int = 100) -> str:
        """The last lines that the container wrote, on its standard output and its standard error."""
        return last_lines.of(self._call("logs"), container, lines)

    def _find(self, session: Session) -> Container | None:
        containers = self.containers(session.name)
        return next((container for container in containers if container.name == session.container), None)

    def _mended(self, container: str, error: ProgramFailed) -> bool:
        """Take away what a killed Podman has left of a container that doesn't start; whether there was anything."""
        if reserved := _RESERVED.search(error.tail):
            # `podman start` was killed: its address stays reserved, and Podman never asks whether by itself.
            files = [folder / reserved[1] for folder in self._networks.addresses()]
            command.run(["rm", "-f", "--", *files], root=True)
            return True
        inspect = ["container", "inspect", "--format", "{{.State.Status}}", container]
        if self._podman(*inspect, accepted=(0, 125)).stdout.strip() in _CUT_SHORT:
            grace = math.ceil(self._settings.stop_grace_seconds)
            self._podman("stop", "--time", str(grace), container, limit=grace + _QUICK)  # its slot keeps the home
            return True
        return False

    def _acknowledge_end(self, container: str) -> None:
        """Let Podman know that a container has ended whose first process and monitor (conmon) were killed.

        Until then it can neither be started, which seems to work, nor removed.
        """
        # The exit file that conmon would have left: without it, 4.3.1 waits, or takes the container as "stopping".
        id = self._podman("container", "inspect", "--format", "{{.Id}}", container).stdout
        file = tools.runtime_folder(self._settings) / "tmp" / "exits" / id.strip()
        command.run(["sh", "-c", '[ -e "$1" ] || printf 137 >"$1"', "sh", file], root=True)
        self._podman("stop", "--ignore", "--time", "1", container, accepted=(0, 125))
        self._podman("container", "cleanup", container, accepted=(0, 125))
        self._dead.discard(container)

    def _call(self, *words: str) -> list[str]:
        return [*tools.podman(self._settings), *words]

    def _podman(
        self, *words: str, accepted: Sequence[int] = (0,), stdin: str = "", limit: float = _QUICK
    ) -> command.Completed:
        # Where the kernel ends a program for its memory, conmon leaves a file in the folder in which it was started.
        bounds: Any = {"accepted": accepted, "stdin": stdin, "limit": limit}
        return command.run(self._call(*words), root=True, cwd=self._settings.folder(), **bounds)

    def _reference(self, image: str) -> str:
        return f"{self._settings.registry_host}/{self._settings.repository}@{image}"
