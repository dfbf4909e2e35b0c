"""The options with which `podman create` makes the container of a session."""

from __future__ import annotations

import logging

from flows.core.settings import Settings
from flows.host import tools
from flows.sessions import own_folder
from flows.sessions.containers import warm_start
from flows.sessions.containers.networks import SessionNetworks
from flows.sessions.containers.podman_records import labels
from flows.sessions.inside import folder
from flows.sessions.model import HOME, USER, Session, Volume

TOKEN_FILE = "/run/refit/token"
SSH_FOLDER = "/run/refit/ssh"
logger = logging.getLogger("refit.sessions")

PROCESSES = 4096


def prepare(session: Session, settings: Settings, slots: warm_start.Slots) -> None:
    """Make what a session's container has from this machine, as far as the engine makes it."""
    folder.prepare(settings, session.name)
    if session.late_home:
        slots.make(session.container)


def create_options(session: Session, settings: Settings, slots: warm_start.Slots, nets: SessionNetworks) -> list[str]:
    """All that `podman create` is told of a session's container, besides the image.

    Args:
        session: the session of the container.
        settings: those in force.
        slots: where its home comes later, if it does.
        nets: the networks that keep sessions from each other.
    """
    variables = {**session.environment, "REFIT_SESSION": session.name, "REFIT_TOKEN_FILE": TOKEN_FILE}
    home = f"type=bind,src={session.home},dst={HOME}"
    if session.late_home:
        variables[warm_start.VARIABLE] = "1"
        home = warm_start.mount(slots.path(session.container))
    return [
        f"--name={session.container}",
        f"--hostname={session.name}",
        "--pull=never",
        "--init",
        "--stop-signal=SIGTERM",
        f"--user={session.uid}:0",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        *([] if session.access.user_namespaces else tools.call_filter(settings)),
        f"--pids-limit={PROCESSES}",
        *nets.options(session.access.machine_ports),
        *tools.run_limits(settings),
        *_resource_limits(session, settings),
        # The journal, which Podman may prefer, isn't there on every machine and isn't bounded.
        "--log-driver=k8s-file",
        "--log-opt=max-size=16mb",
        f"--mount={home}",
        f"--mount=type=bind,src={session.token_ref},dst={TOKEN_FILE},ro",
        *map(mount_option, session.volumes),
        *(f"--device={device}" for device in session.devices),
        *_ssh(session, settings),
        *folder.mounts(settings, session.name),
        *(f"--env={name}={value}" for name, value in variables.items()),
        *(f"--label={name}={value}" for name, value in labels(session).items()),
    ]


def _resource_limits(session: Session, settings: Settings) -> list[str]:
    """Its limits on the machine, where they can be enforced."""
    memory = session.memory or tools.session_memory(settings)
    shares = settings.session_cpu_shares
    limits = [*tools.resource_limits(memory, session.cpus), *([f"--cpu-shares={shares}"] if shares else [])]
    if limits and (problem := tools.facts(settings).limits_problem):
        logger.warning("%s has no limits of memory and CPU, for containers can't have any: %s", session.name, problem)
        return []
    return limits


def _ssh(session: Session, settings: Settings) -> list[str]:
    return [
        f"--mount=type=bind,src={own_folder.ssh(settings, session.name)},dst={SSH_FOLDER},ro",
        f"--passwd-entry={USER}:*:{session.uid}:0::{HOME}:/bin/bash",
    ]


def mount_option(volume: Volume) -> str:
    """The option of Podman that lets a container have a volume. Pure."""
    return f"--mount=type=bind,src={volume.ref},dst={volume.path}{',ro' if volume.read_only else ''}"
