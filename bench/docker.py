"""A Docker daemon of one's own, for `docker buildx bake`; nothing of the machine's network is changed for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import yaml

from flows.core.programs import command
from flows.host import tools

PLUGINS = ("/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins", "/usr/local/lib/docker/cli-plugins")
START_SECONDS = 60.0


class Unavailable(Exception):
    """There is no Docker that could be measured here; says why."""


@dataclass(frozen=True)
class Docker:
    """A daemon that runs, and the program that lets it build."""

    buildx: str
    socket: Path

    def bake(self, contexts: Mapping[str, Path]) -> float:
        """Build all images (full name → folder with a Containerfile) in one go, and push them; returns the seconds."""
        # In the bake files of Debian's buildx no network can be named, in those of compose it can.
        file = self.socket.with_name("compose.yaml")
        services = {name.rpartition("/")[2]: _service(name, path) for name, path in contexts.items()}
        file.write_text(yaml.safe_dump({"services": services}))
        argv = [self.buildx, "bake", "--push", "--progress", "plain", "--file", str(file)]
        started = monotonic()
        command.run(argv, env={"DOCKER_HOST": f"unix://{self.socket}"}, limit=3600)
        return monotonic() - started


def _service(name: str, context: Path) -> dict[str, object]:
    build = {"context": str(context), "dockerfile": "Containerfile", "network": "host"}
    return {"image": name, "build": build}


@contextmanager
def daemon(folder: Path) -> Iterator[Docker]:
    """Run a daemon that keeps everything below `folder`.

    Raises:
        Unavailable: it isn't installed, or doesn't start.
    """
    buildx = shutil.which("docker-buildx", path=":".join(PLUGINS)) or tools.program("docker-buildx")
    dockerd, socket = tools.program("dockerd"), folder / "socket"
    if not (dockerd and buildx):
        raise Unavailable("not measured, needs the packages docker.io and docker-buildx")
    if os.geteuid() != 0:
        raise Unavailable("not measured, its daemon has to be started by root")
    options = [f"--data-root={folder / 'data'}", f"--exec-root={folder / 'run'}", f"--pidfile={folder / 'pid'}"]
    network = ["--iptables=false", "--ip6tables=false", "--bridge=none", f"--host=unix://{socket}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([dockerd, *options, *network], stdout=log, stderr=log)
    try:
        _wait(process, socket, folder / "log")
        yield Docker(buildx, socket)
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline = monotonic() + START_SECONDS
    while not socket.exists():
        if process.poll() is not None or monotonic() > deadline:
            said = log.read_text(errors="replace").strip().splitlines()
            raise Unavailable(f"not measured, dockerd doesn't start: {said[-1] if said else 'it says nothing'}")
        sleep(0.1)
