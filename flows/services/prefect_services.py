"""Prefect's server and worker, as services of a home, and what everybody needs to reach them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from flows.core.settings import Settings
from flows.core.settings.environment import variables
from flows.services.service import Service, inherited_environment, without_proxy, written_secret

POOL = "refit"


# Seconds. A flow run whose process is gone is called crashed after three heartbeats that didn't come (deploy.py).
HEARTBEAT = 30


# Seconds. For each poll of a pool the server writes twice, also where nobody is at work.
POLL = 5


def prefect(settings: Settings) -> Service:
    """The Prefect server with its UI, on SQLite in the home."""
    return Service(
        name="prefect",
        title="Prefect server",
        argv=(
            *(sys.executable, "-m", "flows.orchestration.server"),
            *(settings.bind_address, str(settings.prefect_port)),
            *dict.fromkeys((settings.machine_name, socket.gethostname(), *settings.host_names)),
        ),
        environment=_server_environment(settings),
        inherited=inherited_environment(),
        folder=settings.folder("services", "prefect"),
        log=settings.folder("logs") / "prefect.log",
        health=f"{settings.prefect_api}/health",
        healthy=lambda answer: answer.json() is True,
        address=settings.bind_address,
        port=settings.prefect_port,
        setting="prefect_port",
        url=settings.prefect_api.removesuffix("/api"),
    )


def worker(settings: Settings) -> Service:
    """The Prefect worker: runs flows that were started in the UI or by a schedule, each in a process of its own."""
    folder = settings.folder("services", "worker")
    return Service(
        name="worker",
        title="Prefect worker",
        argv=(sys.executable, "-m", "flows.orchestration.worker"),
        # A flow run inherits all of it: that is how it finds the same settings, since the pool accepts no `env`.
        environment={
            **prefect_environment(settings),
            **LOUD,
            **variables(settings),
            # Prefect's runner keeps its files in one folder of /tmp, which belongs to whoever came first.
            "TMPDIR": str(settings.folder("services", "worker", "tmp")),
        },
        inherited=inherited_environment(),
        folder=folder,
        log=settings.folder("logs") / "worker.log",
        health=f"{settings.prefect_api}/work_pools/{POOL}",
        healthy=lambda answer: answer.json().get("status") == "READY",
        login=prefect_login(settings),
        after=tuple(
            name
            for name, elsewhere in {"registry": settings.registry, "prefect": settings.prefect_server}.items()
            if not elsewhere
        ),
        # Where nobody chose one, the catalog depends on the folder in which `refit` was called.
        passing=() if "catalog" in settings.model_fields_set else ("REFIT_CATALOG",),
    )


# Prefect's own template lets whoever reaches the API choose the command and the environment of a flow run. Neither may
# even stand under job_configuration: an `env` there is merged with what a run asks for, whatever the variables say.
BASE_JOB_TEMPLATE: Mapping[str, Any] = {
    "job_configuration": {"stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}


def prefect_environment(settings: Settings) -> dict[str, str]:
    """The variables with which a process talks to Refit's Prefect server, and to no other.

    They have to stand in `os.environ` before Prefect is imported: it reads its settings once. With them

    - nothing is read from or written to the person's own Prefect (`PREFECT_HOME`), no server starts by itself when
      ours is down, and nothing is reported to Prefect's makers;
    - the logger `refit`, and with it every program that `command.run` calls, goes into the log of the flow run that
      it belongs to; threads started without Prefect have no flow run, and their lines are dropped quietly;
    - the console stays quiet: the run's log is in the UI, progress on the screen is the command line's.

    A heartbeat thread makes a sync flow end up to 1.1 s late, and no variable turns it off. Inside
    `prefect.settings.temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})` there is none; a run that never
    had a heartbeat is not taken for crashed, but neither is it when its process is killed: for short flows only.
    """
    login = _login(settings)
    return {
        "PREFECT_HOME": str(settings.folder("prefect")),
        "PREFECT_API_URL": settings.prefect_api,
        **({"PREFECT_API_AUTH_STRING": login} if login else {}),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT),
        "PREFECT_WORKER_QUERY_SECONDS": str(POLL),
        # On SQLite the server says 503 while its database is locked: four minutes of that are no reason to fail a run.
        "PREFECT_CLIENT_MAX_RETRIES": "7",
        "PREFECT_RUNNER_AUTO_INSTALL_DEPENDENCIES": "false",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "refit",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        **{name: without_proxy(os.environ.get(name, "")) for name in ("NO_PROXY", "no_proxy")},
    }


LOUD = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO", "PYTHONUNBUFFERED": "1"}


def _server_environment(settings: Settings) -> dict[str, str]:
    login = _login(settings)
    return {
        **prefect_environment(settings),
        **LOUD,
        "PREFECT_SERVER_API_HOST": settings.bind_address,
        "PREFECT_SERVER_API_PORT": str(settings.prefect_port),
        # Everybody on this machine reaches its port, and so does every page in a browser of theirs.
        "PREFECT_SERVER_API_AUTH_STRING": login,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": settings.prefect_url,
        # By whichever name somebody has come, the UI asks where it came from.
        "PREFECT_UI_API_URL": "/api",
        # In memory, the default, a restart would leave limits held for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # By default the UI is copied into the installed package.
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(settings.folder("prefect", "ui")),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    }


def prefect_login(settings: Settings) -> tuple[str, str] | None:
    """User and password of the Prefect server; none where it is elsewhere and no login was chosen."""
    user, _, password = _login(settings).partition(":")
    return (user, password) if user else None


def _login(settings: Settings) -> str:
    """user:password of the Prefect server; made up where none was chosen, unless it is elsewhere."""
    chosen = settings.auth.get_secret_value()
    if chosen or settings.prefect_server:
        return chosen
    return f"refit:{written_secret(settings.folder('services', 'prefect') / 'password')}"
