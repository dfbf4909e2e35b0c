"""Taking Refit off a machine: everything that it made, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import mounts, tools
from flows.services import process
from flows.services.embedded import all_services
from flows.services.supervision import end_started
from flows.sessions.containers.networks import SessionNetworks
from flows.sessions.homes import copying


@dataclass(frozen=True)
class Part:
    """Something that can be removed.

    Attributes:
        name: `services`, `containers`, `database` or `homes`.
        what: its description, in words.
        paths: the files and folders that are there, all made by Refit.
    """

    name: str
    what: str
    paths: tuple[Path, ...]


def reset_parts(settings: Settings) -> tuple[Part, ...]:
    """The parts that a reset would remove, without those of which nothing is there.

    `homes` holds what people wrote: it is only to be removed after a question of its own. `settings.yaml` stays, and
    so does whatever else lies in the home, and a database that is not in it.
    """
    home = settings.home
    parts = (
        Part("containers", "all containers of sessions, and the images on this machine", _containers(settings)),
        Part(
            "services",
            "the embedded registry with its images, Prefect's history, all logs, the demo's catalog, worktrees",
            _services(home),
        ),
        Part("database", "Refit's record of sessions and migrations", _records(home)),
        Part("homes", "the homes and volumes of all sessions, with everything that people saved in them", _homes(home)),
    )
    return tuple(part for part in _there(parts) if part.paths)


def reset(settings: Settings, names: Collection[str], begins: Callable[[Part], object] = lambda _: None) -> None:
    """Remove the parts with these names. Services are ended first; mounts are unmounted, never descended into.

    Args:
        settings: those with the home to remove.
        names: of parts.
        begins: is told of each part before it is removed, which may take minutes.

    Raises:
        RefitError: homes shall stay while the database goes (nobody would know whose they are), or something is still
            mounted below a folder that is to go.
    """
    parts = [part for part in reset_parts(settings) if part.name in names]
    kept = {part.name for part in reset_parts(settings)} - set(names)
    if "homes" in kept and "database" in names:
        raise RefitError(
            "Homes can't stay when the database goes.",
            why="Only the database knows whose they are and which uid owns their files.",
            hint="remove both, or neither.",
        )
    if (settings.home / "services").exists():
        with process.alone(settings):
            for service in reversed(all_services(settings)):
                process.end(service)
            end_started(settings.folder("services"))
    for part in parts:
        begins(part)
        if part.name == "containers":
            _end_containers(settings)
        for path in part.paths:
            _remove(path)


def _containers(settings: Settings) -> tuple[Path, ...]:
    return (
        tools.containers(settings),
        tools.builds(settings),
        tools.runtime_folder(settings),
        *(settings.home / name for name in ("host.json", "host.lock", "slots", "slots.json", "slots.lock")),
        *(
            settings.home / name
            for name in ("cache", "locks", "room", "running", "seccomp.json", "walls", "walls.lock")
        ),
    )


def _services(home: Path) -> tuple[Path, ...]:
    return tuple(home / name for name in ("services", "registry", "prefect", "logs", "demo", "worktrees"))


def _records(home: Path) -> tuple[Path, ...]:
    return (*home.glob("refit.db*"), home / "activity", home / "scans")


def _homes(home: Path) -> tuple[Path, ...]:
    names = ("homes", "volumes", "shared", "snapshots", "sessions", "rehearsals", "spares")
    return tuple(home / name for name in (*names, "pool", "pool.btrfs", "pool.lock"))


def _there(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(Part(p.name, p.what, tuple(path for path in p.paths if path.exists())) for p in parts)


def _end_containers(settings: Settings) -> None:
    """End and remove all containers of the private stores, so that nothing in them is mounted any more."""
    if shutil.which("podman") and tools.containers(settings).exists():
        command.run([*tools.podman(settings), "rm", "--all", "--force", "--time", "10"], root=True)
        SessionNetworks(settings).remove()
    if shutil.which("buildah") and tools.builds(settings).exists():
        command.run([*tools.buildah(settings), "rm", "--all"], root=True)


def _remove(path: Path) -> None:
    for mount in reversed(mounts.mounts_below(path)):
        command.run(["umount", mount], root=True)
    copying.remove(path)
