"""Changes to a session that is there: who comes in by ssh, volumes, GPUs, the pool, system packages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from flows.core.errors import RefitError, UnknownName
from flows.core.progress import reported
from flows.core.settings import Settings
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.volumes import Wanted, check_together, check_unused, users
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import HomeRef, Running, Session
from flows.sessions.packages.install import install
from flows.sessions.packages.model import Outcome, check_names
from flows.sessions.podman_only import only_on_podman
from flows.sessions.ssh.keys import PublicKey

Keys = tuple[PublicKey, ...]


def change_keys(sessions: Sessions, name: str, change: Callable[[Keys], Keys]) -> Keys:
    """Let other people come in by ssh, from now on: those whom `change` makes of who may now.

    Raises:
        UnknownName: there is no such session.
        RefitError: no port is left.
    """
    with sessions.alone(name):
        session = sessions.store.session(name)
        keys = change(sessions.ssh.keys(name))
        sessions.ssh.authorize(session, keys)
        if sessions.running(session) is Running.running:
            sessions.ssh.start(session)
    return keys


def install_packages(sessions: Sessions, settings: Settings, name: str, names: Sequence[str], by: str) -> Outcome:
    """Install system packages in a session that runs, and write them down: its next containers get them, too.

    Args:
        sessions: those of this machine.
        settings: those in force.
        name: the session.
        names: of packages; none: those that are on record.
        by: the person who wants it.

    Raises:
        UnknownName: there is no such session.
        NoIndex: no index answers; new packages are not on record then.
        RefitError: the session doesn't run, a name is none, or the packages can't be installed together.
    """
    only_on_podman(settings, "System packages of a session")
    chosen, store = check_names(names), sessions.packages.store
    with sessions.alone(name), reported(name, "installing system packages"):
        session = sessions.that_runs(name)
        had = store.of(name)
        chosen = chosen or tuple(package.name for package in had)
        store.begin(name, chosen, by)
        new = {*chosen} - {package.name for package in had}
        try:
            outcome = install(settings, session.container, chosen)
        except RefitError:
            store.forget(name, new, by)
            raise
        store.finish(name, outcome.there, by)
        store.forget(name, new & outcome.missing.keys(), by)
        return outcome


def forget_packages(sessions: Sessions, name: str, names: Sequence[str], by: str) -> tuple[str, ...]:
    """Let moves leave system packages behind; in the container of now they stay.

    Raises:
        UnknownName: there is no such session, or it was to have none of that name.
    """
    with sessions.alone(name):
        sessions.store.session(name)
        installed = {package.name for package in sessions.packages.store.of(name)}
        if unknown := [package for package in names if package not in installed]:
            raise UnknownName("package", unknown[0], sorted(installed))
        return sessions.packages.store.forget(name, names, by)


def add_volumes(sessions: Sessions, name: str, mounts: Sequence[Wanted]) -> Session:
    """Let a session that is stopped have further volumes; its container is made anew when it starts.

    Raises:
        UnknownName: there is no such session.
        RefitError: it runs, or has a volume of that name or at that path.
    """
    with sessions.alone(name):
        session = sessions.store.session(name)
        _refuse_running(sessions, name, f"stop it first: `refit session stop {name}`.")
        check_together([*(Wanted(had.name, had.path) for had in session.volumes), *mounts])
        added = (sessions.homes.mounted(name, volume) for volume in mounts)
        session = replace(session, volumes=(*session.volumes, *added))
        session = replace(session, late_home=sessions.binds_late(session))
        sessions.engine.remove(session.container)
        sessions.store.update(session)
        return session


def remove_volume(sessions: Sessions, name: str, volume: HomeRef) -> None:
    """Remove a volume with everything in it; of a session's own one the name begins with that of the session.

    Raises:
        RefitError: a session has it.
    """
    owner = name.rpartition("/")[0]
    with sessions.alone(owner) if owner else nullcontext():
        check_unused(name, users(sessions.store.sessions(), volume))
        sessions.homes.remove_volume(volume)


def release_gpus(sessions: Sessions, name: str) -> tuple[str, ...]:
    """Let others have the GPU of this name that a person holds, or those of a session; returns which those are.

    Raises:
        RefitError: the session runs: its programs have the GPUs open.
    """
    if "=" in name:
        return (name,) if sessions.gpus.let_go(name) else ()
    with sessions.alone(name):
        _refuse_running(sessions, name, f"`refit session stop {name}` gives its GPUs back.")
        return sessions.gpus.keep(name, ())


def put_into_pool(sessions: Sessions, homes: LocalHomes, name: str) -> Session:
    """Bring the home of a session that is stopped into the pool; its container is made anew when it starts.

    After any interruption, the session has the one home or the other as a whole; doing it again does the rest.

    Raises:
        UnknownName: there is no such session.
        RefitError: it runs, there is no pool, or the pool has no room.
    """
    if not homes.pool.exists:
        raise RefitError("There is no pool.", hint="`refit home pool create --size …` makes one.")
    with sessions.alone(name), reported(name, "putting its home into the pool"):
        session = sessions.store.session(name)
        _refuse_running(sessions, name, f"stop it first: `refit session stop {name}`.")
        if folder_of(session.home) not in homes.pool:
            session = homes.copy_to_pool(session)
            sessions.store.update(session)
        for container in sessions.engine.containers(name):
            if container.made_from != session:
                sessions.engine.remove(container.name)
        homes.forget_folder(name)
    return session


def _refuse_running(sessions: Sessions, name: str, hint: str) -> None:
    if any(container.running is Running.running for container in sessions.engine.containers(name)):
        raise RefitError(f"The session {name!r} runs.", hint=hint)
