"""Sessions as containers of Podman on this machine."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from flows import command, containers, host
from flows.command import ProgramFailed
from flows.errors import RefitError
from flows.images.registry import Registry
from flows.sessions.model import Container, Running, Session
from flows.settings import Settings

logger = logging.getLogger("refit.sessions")

HOME = "/home/dev"
TOKEN_FILE = "/run/refit/token"
PROCESSES = 4096

# One file for each address that CNI has given to a container of Podman's default network.
_ADDRESSES = Path("/var/lib/cni/networks/podman")

_RESERVED = re.compile(r"([0-9a-f.:]+) has been allocated to \w+, duplicate allocation")
_LABEL = "io.refit."
_QUICK = 60.0
_STATES = {
    "configured": Running.created,
    "created": Running.created,
    "initialized": Running.created,
    "running": Running.running,
    "paused": Running.running,
    "stopping": Running.running,
}

# SIGTERM to all but the init, the main program and this shell, then up to $1 tenths of a second for them to go. The
# main program has its turn afterwards: with it the container ends, and whatever was still saving with it. Shells
# that wait for a person ignore SIGTERM, so nobody waits for a program that does.
_END_ALL = """
look() {
    main= others= waiting=
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/} parent= state= ignored=0
        while read -r key value rest; do
            case $key in
                State:) state=$value ;;
                PPid:) parent=$value ;;
                SigIgn:) ignored=$((0x$value >> 14 & 1)) ;;
            esac
        done 2>/dev/null <"$folder/status"
        if [ -z "$state" ] || [ "$state" = Z ] || [ "$pid" = 1 ] || [ "$pid" = $$ ]; then continue; fi
        others="$others $pid"
        if [ "$ignored" = 0 ]; then waiting="$waiting $pid"; fi
        if [ "$parent" = 1 ] && [ "$pid" -lt "${main:-4194305}" ]; then main=$pid; fi
    done
}
look
first=$main
for pid in $others; do if [ "$pid" != "$first" ]; then kill -TERM "$pid" 2>/dev/null; fi; done
left=$1
while [ "$left" -gt 0 ]; do
    look
    if [ -z "$waiting" ] || [ "$waiting" = " $first" ]; then break; fi
    sleep 0.1
    left=$((left - 1))
done
"""


class Podman:
    """Implements `engine.Engine`; each container says by its labels what it is and how to make it anew."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def containers(self, session: str = "") -> tuple[Container, ...]:
        """All containers that Refit made, or those of one session, lowest generation first."""
        wanted = f"label={_LABEL}session{f'={session}' if session else ''}"
        listed = json.loads(self._podman("ps", "--all", "--filter", wanted, "--format", "json").stdout or "[]")
        return tuple(sorted(map(as_container, listed), key=lambda found: (found.session, found.generation)))

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
        if (found := self._find(session)) is None:
            # A create that was killed leaves storage that bears the name and that nobody lists: hence --replace.
            self._podman("create", "--replace", *self._options(session), self._reference(session.image))
            found = self._find(session)
        if found is None or found.made_from != session:
            raise RefitError(
                f"There is a container {session.container!r} already, and it is made otherwise.",
                fix="look at it (`podman inspect`); if nobody needs it, remove it and try again.",
            )
        return found

    def start(self, container: str) -> None:
        """Start a created or stopped container."""
        try:
            self._podman("start", container)
        except ProgramFailed as error:
            if not self._mended(container, error):
                raise
            self._podman("start", container)

    def stop(self, container: str, grace: float) -> None:
        """SIGTERM to every process in it, the main program last, up to `grace` seconds, then SIGKILL."""
        deadline = time.monotonic() + grace
        try:
            self.execute(container, ["sh", "-c", _END_ALL, "sh", str(round(grace * 10))], limit=grace + _QUICK)
        except ProgramFailed as error:
            # It doesn't run, ends just now, or has no shell: then the main program's SIGTERM has to do.
            logger.info("not every process in %s could be told to end: %s", container, error.tail)
        left = max(1, math.ceil(deadline - time.monotonic()))
        self._podman("stop", "--ignore", "--time", str(left), container, limit=left + _QUICK)

    def remove(self, container: str) -> None:
        """Remove a container that doesn't run; its home stays."""
        self._podman("rm", "--ignore", container)

    def execute(self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0) -> str:
        """Run a program inside a running container as the session's user; returns its standard output."""
        return self._podman("exec", "--interactive", container, *argv, stdin=stdin, limit=limit).stdout

    def shut_out(self, container: str, ports: Sequence[int]) -> Callable[[], None]:
        """Let nothing more come in through these ports of a running container; returns what undoes it at once.

        Connections stay, and wait. The rule is in the container's own network and ends with it: nothing is left behind.
        """
        network, numbers = self._network(container), ",".join(map(str, ports))
        _filter_input(network, f"-A INPUT ! -i lo -p tcp -m multiport --dports {numbers} -j DROP\n")
        return partial(_filter_input, network, "")

    def let_in(self, container: str) -> None:
        """Undo every `shut_out` of a running container, also those of a process that has died."""
        _filter_input(self._network(container), "")

    def _network(self, container: str) -> str:
        """The file that stands for its network; gone with the container, where a pid might be another's already."""
        asked = ["container", "inspect", "--format", "{{.NetworkSettings.SandboxKey}}", container]
        if not (network := self._podman(*asked).stdout.strip()):
            raise RefitError(f"{container} has no network of its own.", why="It doesn't run, or uses the host's.")
        return network

    def attach(self, container: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        """Let this process become a program inside a running container, with a terminal of its own if so wished."""
        # Without keys to detach: Ctrl-P, the first of them, is a key that shells and editors need.
        options = ["--interactive", *(["--tty", "--detach-keys="] if terminal else [])]
        command.become(self._call("exec", *options, container, *argv), root=True)

    def logs(self, container: str, lines: int = 100) -> str:
        """The last lines that the container wrote, on its standard output and its standard error."""
        seen: list[str] = []
        command.run(self._call("logs", "--tail", str(lines), container), root=True, limit=_QUICK, on_line=seen.append)
        return "\n".join(seen)

    def _find(self, session: Session) -> Container | None:
        made = self.containers(session.name)
        return next((container for container in made if container.name == session.container), None)

    def _mended(self, container: str, error: ProgramFailed) -> bool:
        """Take away what a killed Podman has left of a container that doesn't start; whether there was anything."""
        if reserved := _RESERVED.search(error.tail):
            # `podman start` was killed: its address stays reserved, and Podman never asks whether by itself.
            command.run(["rm", "-f", "--", _ADDRESSES / reserved[1]], root=True)
            return True
        asked = ["container", "inspect", "--format", "{{.State.Status}}", container]
        if self._podman(*asked, accepted=(0, 125)).stdout.strip() == "stopping":
            # `podman stop` was killed: Podman waits for it to do the rest.
            self.stop(container, self._settings.stop_grace)
            return True
        return False

    def _call(self, *words: str) -> list[str]:
        return [*host.podman(self._settings), *words]

    def _podman(
        self, *words: str, accepted: Sequence[int] = (0,), stdin: str = "", limit: float = _QUICK
    ) -> command.Completed:
        return command.run(self._call(*words), root=True, accepted=accepted, stdin=stdin, limit=limit)

    def _reference(self, image: str) -> str:
        return f"{self._settings.registry_host}/{self._settings.repository}@{image}"

    def _options(self, session: Session) -> list[str]:
        variables = {**session.environment, "REFIT_SESSION": session.name, "REFIT_TOKEN_FILE": TOKEN_FILE}
        return [
            f"--name={session.container}",
            f"--hostname={session.name}",
            "--pull=never",
            "--init",
            "--stop-signal=SIGTERM",
            f"--user={session.uid}:0",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            f"--pids-limit={PROCESSES}",
            *host.run_limits(self._settings),
            # The journal, which Podman may prefer, isn't there on every machine and isn't bounded.
            "--log-driver=k8s-file",
            "--log-opt=max-size=16mb",
            *([f"--publish=127.0.0.1:{session.port}:{session.access.port}"] if session.port else []),
            f"--mount=type=bind,src={session.home},dst={HOME}",
            f"--mount=type=bind,src={session.token_file},dst={TOKEN_FILE},ro",
            *(f"--env={name}={value}" for name, value in variables.items()),
            *(f"--label={name}={value}" for name, value in labels(session).items()),
        ]


def _filter_input(network: str, rules: str) -> None:
    """Let these be the only rules for what comes into a container's network, from one instant to the next."""
    restore = [host.program("iptables-restore") or "iptables-restore", "--noflush", "--wait", "5"]
    told = f"*filter\n-F INPUT\n{rules}COMMIT\n"
    command.run(["nsenter", f"--net={network}", "--", *restore], root=True, stdin=told, limit=_QUICK)


def labels(session: Session) -> Mapping[str, str]:
    """What is written on a session's container; anybody may read it, so there is no secret in it. Pure."""
    return {
        f"{_LABEL}session": session.name,
        f"{_LABEL}generation": str(session.generation),
        f"{_LABEL}image": session.image,
        f"{_LABEL}spec": session.to_json(),
    }


def as_container(listed: Mapping[str, Any]) -> Container:
    """What one entry of `podman ps --format json` says. Pure."""
    written: Mapping[str, str] = listed["Labels"]
    return Container(
        name=listed["Names"][0],
        session=written[f"{_LABEL}session"],
        generation=int(written[f"{_LABEL}generation"]),
        image=written[f"{_LABEL}image"],
        running=_STATES.get(listed["State"], Running.stopped),
        made_from=_made_from(written.get(f"{_LABEL}spec", "")),
    )


def _made_from(spec: str) -> Session | None:
    try:
        return Session.from_json(spec)
    except ValueError:  # written by a Refit that knew other sessions
        return None
