"""What the embedded services are: programs, settings and health checks, as data."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import bcrypt
import httpx

from flows.core import documents, program_output
from flows.core.atomic_files import kept_secret
from flows.core.errors import RefitError
from flows.core.settings import REGISTRY_PASSWORD, Settings, variables
from flows.gateway import routes
from flows.gateway.proxy import NODE
from flows.sessions.entry.forwarder import HEALTH, Forwarder

POOL = "refit"
HTPASSWD = "htpasswd"
TICKETS = "tickets"  # the folder of the server in which those are that let somebody in
# docker-registry hashes with each request. A password that is made up can't be guessed, however fast that is.
_BCRYPT_ROUNDS = 4
_NPM = Path(routes.__file__).parent / "npm"
_LOCK, _PROXY = ("package.json", "package-lock.json"), "gateway.mjs"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Seconds. A flow run whose process is gone is called crashed after three heartbeats that didn't come (deploy.py).
HEARTBEAT = 30
# Seconds. For each poll of a pool the server writes twice, also where nobody is at work.
POLL = 5
# What a service takes over from the shell that starts it; everything else comes from Refit's settings.
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True)
class Service:
    """One service.

    Attributes:
        name: `registry`, `prefect` or `worker`.
        title: what it is called in sentences.
        argv: its program; no two services of a machine have the same.
        environment: variables that make it what it is; secrets are among them.
        inherited: variables of the shell that it is started from.
        folder: where it runs and keeps what `prepare` writes.
        log: file for its output.
        health: URL that tells whether it does its work.
        socket: name of a socket in `folder` at which `health` is asked, in the place of a port.
        healthy: reads the answer of `health`.
        login: user and password for `health`.
        after: names of the services that it needs.
        address, port, setting: what it listens on, and the setting that moves it.
        url: where a person or a program reaches it.
        files: what it reads: path → content.
        passing: names of variables whose change is no reason to start it anew.
        install: what its program is made of, as one that is called in `folder` once `files` are there.
    """

    name: str
    title: str
    argv: tuple[str, ...]
    folder: Path
    log: Path
    health: str
    healthy: Callable[[httpx.Response], bool] = field(compare=False)
    environment: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, str] = field(default_factory=dict)
    login: tuple[str, str] | None = None
    after: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    port: int | None = None
    setting: str = ""
    url: str = ""
    files: Mapping[Path, str] = field(default_factory=dict)
    passing: tuple[str, ...] = ()
    socket: str = ""
    install: tuple[str, ...] = ()


def all_services(settings: Settings) -> tuple[Service, ...]:
    """The services that these settings ask for, in the order in which they start."""
    reading = (reader(settings),) if settings.registry_read_port else ()
    needed = (
        *(() if settings.registry else (registry(settings), *reading)),
        *(() if settings.prefect_server else (prefect(settings),)),
    )
    wanted = (forwarder(settings),) if Forwarder(settings).wanted else ()
    told = (metrics(settings),) if settings.metrics_port else ()
    way = (gateway(settings), waiting_page(settings)) if settings.gateway and not settings.prefect_server else ()
    people = (hub(settings), authorizer(settings)) if settings.hub_wanted else ()
    return (*needed, worker(settings), *wanted, *way, *people, *told)


def gateway(settings: Settings) -> Service:
    """The gateway in front of sessions (configurable-http-proxy), on a Node of its own."""
    folder = settings.folder("services", "gateway")
    listening = ["--ip", settings.listen, "--port", str(settings.gateway_port)]
    told = ["--api-port", str(settings.gateway_api_port), "--waiting-page", routes.WAITING_PAGE]
    asked = ["--authorizer", routes.AUTHORIZER] if settings.hub_wanted else []
    return Service(
        name="gateway",
        title="Gateway of sessions",
        argv=(str(NODE), str(folder / _PROXY), *listening, *told, *asked),
        environment={"CONFIGPROXY_AUTH_TOKEN": _secret(folder / "token")},
        inherited=_inherited(),
        folder=folder,
        log=settings.folder("logs") / "gateway.log",
        health=f"{settings.gateway_url}/_chp_healthz",
        healthy=lambda answer: answer.json() == {"status": "OK"},
        address=settings.listen,
        port=settings.gateway_port,
        setting="gateway_port",
        url=settings.gateway_url,
        files={folder / name: (_NPM / name).read_text(encoding="utf-8") for name in (*_LOCK, _PROXY)},
        install=_npm_ci(settings),
    )


def _npm_ci(settings: Settings) -> tuple[str, ...]:
    """Installs exactly what the lock names, each with its hash; no package runs a script of its own."""
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--cache=cache"]
    elsewhere = [f"--registry={settings.npm_registry}"] if settings.npm_registry else []
    trusted = [f"--cafile={settings.ca_bundle}"] if settings.ca_bundle else []
    npm = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return (str(NODE), str(npm), "ci", "--omit=dev", *quiet, *elsewhere, *trusted)


def waiting_page(settings: Settings) -> Service:
    """The waiting page: answers in the place of sessions that are away, and tells the gateway where the others are."""
    return Service(
        name="waiting-page",
        title="Waiting page of sessions",
        argv=(sys.executable, "-m", "flows.waiting_page"),
        environment=variables(settings),
        inherited=_inherited(),
        folder=settings.folder("services", "waiting-page"),
        log=settings.folder("logs") / "waiting-page.log",
        health="http://waiting-page/health",
        healthy=lambda answer: answer.text == "ok",
        socket="socket",
        after=("gateway",),
        passing=() if "catalog" in settings.model_fields_set else ("REFIT_CATALOG",),
    )


def hub(settings: Settings) -> Service:
    """JupyterHub, where people log in and start sessions; on loopback, reached through the gateway."""
    return Service(
        name="hub",
        title="JupyterHub",
        argv=(sys.executable, "-m", "flows.web.hub"),
        environment=variables(settings),
        inherited=_inherited(),
        folder=settings.folder("services", "hub"),
        log=settings.folder("logs") / "hub.log",
        health=f"{settings.hub_url}{routes.HUB}/health",
        healthy=lambda answer: answer.is_success,
        port=settings.hub_port,
        setting="hub_port",
        url=f"{settings.gateway_url}{routes.HUB}/",
        after=("gateway", "waiting-page"),
        passing=() if "catalog" in settings.model_fields_set else ("REFIT_CATALOG",),
    )


def authorizer(settings: Settings) -> Service:
    """The authorizer: leads people from the Hub's addresses to their sessions, and tells the Hub which there are."""
    return Service(
        name="authorizer",
        title="Authorizer of sessions",
        argv=(sys.executable, "-m", "flows.web.hub.authorizer"),
        environment=variables(settings),
        inherited=_inherited(),
        folder=settings.folder("services", "authorizer"),
        log=settings.folder("logs") / "authorizer.log",
        health="http://authorizer/health",
        healthy=lambda answer: answer.text == "ok",
        socket="socket",
        after=("hub",),
        passing=() if "catalog" in settings.model_fields_set else ("REFIT_CATALOG",),
    )


def forwarder(settings: Settings) -> Service:
    """The forwarder for ssh (HAProxy); sessions tell it where they are."""
    told = Forwarder(settings)
    return Service(
        name="forwarder",
        title="Forwarder for ssh",
        argv=told.argv,
        inherited=_inherited(),
        folder=told.folder,
        log=settings.folder("logs") / "forwarder.log",
        health="http://forwarder/",
        healthy=lambda _: True,
        files=told.files,
        socket=HEALTH,
    )


def registry(settings: Settings) -> Service:
    """The image registry (docker-registry); it answers Refit alone."""
    folder, config = settings.folder("services", "registry"), registry_config(settings)
    login = _registry_login(settings)
    service = _docker_registry("registry", "Image registry", config, settings.registry_port, settings)
    files = {**service.files, folder / HTPASSWD: htpasswd(folder / HTPASSWD, *login)}
    return replace(service, files=files, login=login, setting="registry_port")


def reader(settings: Settings) -> Service:
    """A second registry with the same images, which lets everybody read and nobody write."""
    config = registry_config(settings)
    config["storage"] = {**config["storage"], "maintenance": {"readonly": {"enabled": True}}}
    config["http"]["addr"] = f"127.0.0.1:{settings.registry_read_port}"
    del config["auth"]
    service = _docker_registry("reader", "Image registry for reading", config, settings.registry_read_port, settings)
    return replace(service, setting="registry_read_port")


def _docker_registry(name: str, title: str, config: Mapping[str, Any], port: int, settings: Settings) -> Service:
    folder, url = settings.folder("services", name), f"http://127.0.0.1:{port}"
    return Service(
        name=name,
        title=title,
        argv=("docker-registry", "serve", str(folder / "config.yml")),
        inherited=_inherited(),
        folder=folder,
        log=settings.folder("logs") / f"{name}.log",
        health=f"{url}/v2/",
        healthy=lambda answer: answer.headers.get("docker-distribution-api-version") == "registry/2.0",
        port=port,
        url=url,
        files={folder / "config.yml": documents.dump(config)},
    )


def registry_config(settings: Settings) -> dict[str, Any]:
    """The configuration of docker-registry."""
    folder = settings.folder("services", "registry")
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(settings.home / "registry")},
            "delete": {"enabled": True},
        },
        # Without a secret of its own, uploads would not survive its restart.
        "http": {"addr": f"127.0.0.1:{settings.registry_port}", "secret": _secret(folder / "secret")},
        # Everybody on this machine reaches its port.
        "auth": {"htpasswd": {"realm": "refit", "path": str(folder / HTPASSWD)}},
    }


def htpasswd(written: Path, user: str, password: str) -> str:
    """The line that lets a user in by a password; the one that is `written`, if it does that."""
    secret = password.encode()
    with suppress(OSError, ValueError):
        known = written.read_text()
        name, _, hashed = known.strip().partition(":")
        if name == user and bcrypt.checkpw(secret, hashed.encode()):
            return known
    try:
        return f"{user}:{bcrypt.hashpw(secret, bcrypt.gensalt(_BCRYPT_ROUNDS)).decode()}\n"
    except ValueError:
        raise RefitError(
            "`registry_password` can't be the embedded registry's.",
            why="bcrypt, by which that one knows passwords, takes at most 72 bytes and no zero byte.",
            fix="choose a shorter one, or leave `registry_user` and `registry_password` out: then they are made up.",
        ) from None


def _registry_login(settings: Settings) -> tuple[str, str]:
    """User and password of the embedded registry, made up where nobody chose them."""
    if not settings.registry_user:
        _secret(settings.home / REGISTRY_PASSWORD)
    return settings.registry_login


def prefect(settings: Settings) -> Service:
    """The Prefect server with its UI, on SQLite in the home."""
    return Service(
        name="prefect",
        title="Prefect server",
        argv=(
            *(sys.executable, "-m", "flows.orchestration.server"),
            *(settings.listen, str(settings.prefect_port)),
            *dict.fromkeys((settings.machine_name, socket.gethostname(), *settings.host_names)),
        ),
        environment=_server_environment(settings),
        inherited=_inherited(),
        folder=settings.folder("services", "prefect"),
        log=settings.folder("logs") / "prefect.log",
        health=f"{settings.prefect_api}/health",
        healthy=lambda answer: answer.json() is True,
        address=settings.listen,
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
            **_LOUD,
            **variables(settings),
            # Prefect's runner keeps its files in one folder of /tmp, which belongs to whoever came first.
            "TMPDIR": str(settings.folder("services", "worker", "tmp")),
        },
        inherited=_inherited(),
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


def metrics(settings: Settings) -> Service:
    """What answers Prometheus."""
    url = f"http://127.0.0.1:{settings.metrics_port}"
    return Service(
        name="metrics",
        title="Metrics",
        argv=(sys.executable, "-m", "flows.metrics.serving"),
        environment={**prefect_environment(settings), **variables(settings)},
        inherited=_inherited(),
        folder=settings.folder("services", "metrics"),
        log=settings.folder("logs") / "metrics.log",
        # The one path at which nothing is counted: to count, it asks how all services are, itself among them.
        health=f"{url}/favicon.ico",
        healthy=lambda answer: answer.is_success,
        port=settings.metrics_port,
        setting="metrics_port",
        url=f"{url}/metrics",
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
        **{name: _without_proxy(os.environ.get(name, "")) for name in ("NO_PROXY", "no_proxy")},
    }


_LOUD = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO", "PYTHONUNBUFFERED": "1"}


def _server_environment(settings: Settings) -> dict[str, str]:
    login = _login(settings)
    return {
        **prefect_environment(settings),
        **_LOUD,
        "PREFECT_SERVER_API_HOST": settings.listen,
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
    return f"refit:{_secret(settings.folder('services', 'prefect') / 'password')}"


def _secret(path: Path) -> str:
    """The secret in the file `path`, which no log shows."""
    secret = kept_secret(path)
    program_output.protect(secret)
    return secret


def _inherited() -> dict[str, str]:
    return {"LANG": "C.UTF-8", **{name: os.environ[name] for name in _INHERITED if name in os.environ}}


def _without_proxy(hosts: str) -> str:
    return ",".join(dict.fromkeys([*filter(None, hosts.split(",")), "127.0.0.1", "localhost"]))
