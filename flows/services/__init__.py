"""The embedded services: image registry, Prefect server and worker, gateway of sessions, started and ended as one.

`up` brings what is missing in the right order, `down` ends what `up` started and nothing else. Both can be repeated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.waiting import wait_until
from flows.services import privacy, process, systemd
from flows.services.embedded import all_services
from flows.services.prefect_services import prefect_environment, prefect_login
from flows.services.service import Service
from flows.services.supervision import end_started

__all__ = [
    "ServiceState",
    "down",
    "prefect_environment",
    "prefect_login",
    "require",
    "status",
    "units",
    "up",
    "write_units",
]

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ServiceState:
    """How one service is now.

    Attributes:
        name: `registry`, `prefect`, `worker`, …
        title: its name in sentences.
        running: its process is there.
        answering: it does its work.
        pid: of its process; none where there is none.
        uptime: seconds since its start.
        url: where it answers; empty for those that nobody asks.
        port: that it listens on; none for the same.
        log: file with its output.
    """

    name: str
    title: str
    running: bool
    answering: bool
    pid: int | None
    uptime: float
    url: str
    port: int | None
    log: Path


def up(settings: Settings, only: Collection[str] = ()) -> tuple[ServiceState, ...]:
    """Start what doesn't run, and start anew what runs with other settings; a service waits for the one before it.

    Args:
        settings: of the services.
        only: names of services; the others are left as they are.

    Raises:
        RefitError: a port is taken or the database can't be opened (both are looked at before anything starts), a
            service doesn't answer, or the home is somebody else's.
    """
    privacy.close(settings)
    open_database(settings.database)
    with process.alone(settings):
        services = [service for service in all_services(settings) if not only or service.name in only]
        missing = [service for service in services if not process.as_wanted(service)]
        for service in reversed(missing):
            process.end(service)
        for service in missing:
            process.refuse_taken_port(service)
        for service in services:
            if service in missing:
                process.start(service)
            # A worker that comes before its server hears of cancellations late.
            process.wait_until_answering(service)
    return status(settings)


def down(settings: Settings) -> tuple[str, ...]:
    """End what `up` started, last first, with everything that it started; the titles of what was ended.

    A service that the settings no longer ask for is told by its name.
    """
    with process.alone(settings):
        ended = tuple(service.title for service in reversed(all_services(settings)) if process.end(service))
        # The settings, or this machine, may ask for less than when `up` started them.
        return ended + end_started(settings.folder("services"))


def status(settings: Settings) -> tuple[ServiceState, ...]:
    """How each service is now, in the order in which they start."""
    return tuple(_state(service) for service in all_services(settings))


def require(settings: Settings) -> None:
    """See to it that all services answer; those that run are waited for, for a busy machine lets everybody wait.

    Raises:
        RefitError: one doesn't.
    """
    silent = wait_until(
        lambda: _silent(settings),
        enough=lambda states: not states or not all(state.running for state in states),
        seconds=process.ANSWER_SECONDS,
        pause=_POLL_SECONDS,
    )
    if silent:
        raise RefitError(
            f"{' and '.join(state.title for state in silent)} {'does' if len(silent) == 1 else 'do'} not answer.",
            why="; ".join(
                f"{s.title}: {'running, log: ' + str(s.log) if s.running else 'not running'}" for s in silent
            ),
            hint="run `refit up`.",
        )


def _silent(settings: Settings) -> list[ServiceState]:
    return [state for state in status(settings) if not state.answering]


def units(settings: Settings) -> dict[str, str]:
    """The systemd units that do what `up` does: file name → text. They read what `write_units` writes."""
    return {f"refit-{service.name}.service": systemd.unit(service) for service in all_services(settings)}


def write_units(settings: Settings, folder: Path = systemd.FOLDER) -> tuple[Path, ...]:
    """Write the units into `folder`, and what they read into the home; systemd is told, nothing is started."""
    privacy.close(settings)
    for service in all_services(settings):
        process.prepare(service)
    texts = units(settings)
    for name, text in texts.items():
        command.run(["tee", folder / name], root=True, stdin=text)
    if folder == systemd.FOLDER:
        command.run(["systemctl", "daemon-reload"], root=True)
    return tuple(folder / name for name in texts)


def _state(service: Service) -> ServiceState:
    running = process.find(service)
    return ServiceState(
        name=service.name,
        title=service.title,
        running=running is not None,
        answering=running is not None and process.answers(service),
        pid=running.pid if running else None,
        uptime=process.age(running) if running else 0.0,
        url=service.url,
        port=service.port,
        log=service.log,
    )
