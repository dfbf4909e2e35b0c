"""One-off containers: a program runs to its end in an image, and nothing of the container stays."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from uuid import uuid4

from flows.core.programs import command
from flows.core.programs.command import Completed
from flows.core.programs.process_records import ProcessId
from flows.core.settings import Settings
from flows.host import tools

LABEL = "io.refit.once"
NOBODY = "65534:65534"
REMOVE_SECONDS = 60.0
PULL_SECONDS = 3600.0


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host inside the container; read-only unless said otherwise."""

    source: Path
    target: str
    writable: bool = False

    def __str__(self) -> str:
        return f"type=bind,src={self.source},dst={self.target},ro={str(not self.writable).lower()}"


def run_once(
    settings: Settings,
    image: str | Path,
    argv: Sequence[str],
    *,
    mounts: Sequence[Mount] = (),
    env: Mapping[str, str] | None = None,
    user: str = NOBODY,
    capabilities: Sequence[str] = (),
    network: str = "none",
    stdin: str | None = None,
    limit: float = 600.0,
    accepted: Sequence[int] = (0,),
    on_line: Callable[[str], None] | None = None,
    most: int | None = None,
) -> Completed:
    """Run a program in a container of its own, which is gone when this returns or raises.

    Args:
        image: `docker://host/repository@sha256:…`, an image's name in Refit's Podman storage, or a file system's root.
        argv: the program and its arguments, in the place of the image's command.
        env: variables of the program. They reach Podman by its environment, so that no value is in any argv.
        user: uid:gid, without any capability but `capabilities`.
        network: `none`, `bridge`, or `host` (for an index or registry on loopback).
        stdin, limit, accepted, on_line, most: as in `command.run`.

    Raises:
        ProgramFailed: the image can't be pulled or started, the program failed or ran out of time.
    """
    remove_orphans(settings)
    name = f"refit-once-{uuid4().hex[:12]}"
    options = _options(settings, name, mounts, env or {}, user, capabilities, network, stdin is not None)
    source = ["--rootfs", str(image)] if isinstance(image, Path) else [pull(settings, image)]
    run = partial(command.run, [*tools.podman(settings), "run", *options, *source, *argv], root=True)
    try:
        return run(env=env, stdin=stdin, limit=limit, accepted=accepted, on_line=on_line, most=most)
    except BaseException:
        # Podman's client is gone; conmon and the container live on without it.
        _remove(settings, [name])
        raise


def _options(
    settings: Settings,
    name: str,
    mounts: Sequence[Mount],
    env: Mapping[str, str],
    user: str,
    capabilities: Sequence[str],
    network: str,
    reads: bool,
) -> list[str]:
    return [
        *("--rm", "--init", "--name", name, "--label", f"{LABEL}={creator()}", "--pull", "never"),
        *("--cap-drop", "all", "--security-opt", "no-new-privileges", "--pids-limit", "2048"),
        *(word for capability in capabilities for word in ("--cap-add", capability)),
        *("--user", user, "--network", network, *tools.run_limits(settings)),
        *(word for mount in mounts for word in ("--mount", str(mount))),
        *(word for variable in env for word in ("--env", variable)),
        *(("--interactive",) if reads else ()),
        *("--entrypoint", ""),
    ]


def pull(settings: Settings, image: str) -> str:
    """Bring an image to Refit's Podman storage if it isn't there; returns the name by which Podman knows it."""
    if not image.startswith("docker://"):
        return image
    name = image.removeprefix("docker://")
    call = tools.podman(settings)
    if command.run([*call, "image", "exists", name], root=True, accepted=(0, 1)).exit_code != 0:
        secure = f"--tls-verify={str(settings.registry_is_secure).lower()}"
        env = {"SSL_CERT_FILE": str(settings.ca_bundle)} if settings.ca_bundle else {}
        with _credentials(settings) as login:
            command.run([*call, "pull", "--quiet", secure, *login, image], root=True, env=env, limit=PULL_SECONDS)
    return name


def remove_orphans(settings: Settings) -> tuple[str, ...]:
    """Remove the one-off containers of processes that were killed; returns their names.

    Where Podman isn't installed, as in a Pod, there are none.
    """
    if tools.program("podman") is None:
        return ()
    listing = [*tools.podman(settings), "ps", "--all", "--filter", f"label={LABEL}", "--format", "json"]
    containers = json.loads(command.run(listing, root=True).stdout or "[]")
    orphans = [entry["Names"][0] for entry in containers if not _lives(entry["Labels"][LABEL])]
    if orphans:
        _remove(settings, orphans)
    return tuple(orphans)


def creator() -> str:
    """The value of `LABEL` on containers of this process: `remove_orphans` removes them once it is gone."""
    me = ProcessId.of(os.getpid())
    return f"{me.boot}/{me.pid}/{me.started}" if me else ""


def _lives(creator: str) -> bool:
    boot, pid, started = creator.split("/")
    return ProcessId(int(pid), boot, started).alive


def _remove(settings: Settings, names: Sequence[str]) -> None:
    command.run(
        [*tools.podman(settings), "rm", "--force", "--ignore", "--volumes", "--time", "0", *names],
        root=True,
        limit=REMOVE_SECONDS,
    )


@contextmanager
def _credentials(settings: Settings) -> Iterator[list[str]]:
    """Options that log in to the registry; the password is in a file that only its owner can read."""
    if not settings.registry_login[0]:
        yield []
        return
    pair = ":".join(settings.registry_login)
    login = {"auths": {settings.registry_host: {"auth": base64.b64encode(pair.encode()).decode()}}}
    with NamedTemporaryFile("w", dir=settings.folder(), prefix="login-") as file:
        json.dump(login, file)
        file.flush()
        yield ["--authfile", file.name]
