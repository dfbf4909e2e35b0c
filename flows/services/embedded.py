"""The embedded services: programs, settings and health checks, as data."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt

from flows.core import documents
from flows.core.errors import RefitError
from flows.core.settings import REGISTRY_PASSWORD, Settings
from flows.core.settings.environment import variables
from flows.gateway import routes
from flows.gateway.proxy import NODE
from flows.host import jump_enclosure
from flows.services import prefect_services
from flows.services.service import Service, inherited_environment, written_secret
from flows.sessions.ssh.forwarder import HEALTH, Forwarder

HTPASSWD = "htpasswd"
TICKETS = "tickets"  # the folder of the server in which those are that let somebody in
# docker-registry hashes with each request. A password that is made up can't be guessed, however fast that is.
_BCRYPT_ROUNDS = 4
_SSHD = Path("/usr/sbin/sshd")
_NPM = Path(routes.__file__).parent / "npm"
# An image of Refit has the gateway's packages beside its program; elsewhere they are fetched, into the home.
GATEWAY_PACKAGES = _NPM / "node_modules"
_LOCK, _PROXY, _VISITS = ("package.json", "package-lock.json"), "gateway.mjs", "visits.mjs"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def all_services(settings: Settings) -> tuple[Service, ...]:
    """The services that these settings ask for, in the order in which they start."""
    reading = (reader(settings),) if settings.registry_read_port else ()
    needed = (
        *(() if settings.registry else (registry(settings), *reading)),
        *(() if settings.prefect_server else (prefect_services.prefect(settings),)),
    )
    jumps = _jumps(settings)
    if jumps:
        Forwarder(settings).begin()
    forwarders = (forwarder(settings),) if Forwarder(settings).needed else ()
    metrics_service = (metrics(settings),) if settings.metrics_port else ()
    way = (gateway(settings), waiting_page(settings)) if settings.gateway and not settings.prefect_server else ()
    own = () if settings.other_hub.api else (hub(settings),)
    people = (*own, authorizer(settings), my_sessions(settings)) if settings.hub_wanted else ()
    laptops = (jump(settings),) if jumps else ()
    return (*needed, prefect_services.worker(settings), *forwarders, *way, *people, *laptops, *metrics_service)


def _jumps(settings: Settings) -> bool:
    """Whether people come in by ssh. `refit doctor` says what is missing for it.

    Its sshd is a user of its own. Where nobody asked for a Hub, its programs need not be there, and an ordinary user
    gets none.
    """
    if not settings.jump_wanted:
        return False
    if os.geteuid() != 0:
        return bool(settings.hub) and not jump_enclosure.lack(settings.folder("services", "jump"))
    return bool(settings.hub) or (_SSHD.exists() and shutil.which("haproxy") is not None)


def no_way_in(settings: Settings) -> str:
    """Why nobody comes in by ssh, though the settings of this ordinary user ask for it; empty: people do."""
    if os.geteuid() == 0 or not (settings.jump_wanted and settings.hub):
        return ""
    return jump_enclosure.lack(settings.folder("services", "jump"))


def gateway(settings: Settings) -> Service:
    """The gateway in front of sessions (configurable-http-proxy), on a Node of its own."""
    folder = settings.folder("services", "gateway")
    brought = GATEWAY_PACKAGES.is_dir()
    program, fetched = (_NPM, ()) if brought else (folder, (*_LOCK, _PROXY, _VISITS))
    listening = ["--ip", settings.bind_address, "--port", str(settings.gateway_port)]
    listening += ["--second-ip", settings.second_loopback] if settings.second_loopback else []
    options = ["--api-port", str(settings.gateway_api_port), "--waiting-page", routes.WAITING_PAGE]
    authorizer = ["--authorizer", routes.AUTHORIZER] if settings.hub_wanted else []
    authorizer += ["--main", settings.people_host] if settings.hub_wanted and settings.people_host else []
    return Service(
        name="gateway",
        title="Gateway of sessions",
        argv=(str(NODE), str(program / _PROXY), *listening, *options, *authorizer),
        environment={"CONFIGPROXY_AUTH_TOKEN": written_secret(folder / "token")},
        inherited=inherited_environment(),
        folder=folder,
        log=settings.folder("logs") / "gateway.log",
        health=f"{settings.gateway_url}/_chp_healthz",
        healthy=lambda answer: answer.json() == {"status": "OK"},
        address=settings.bind_address,
        second_address=settings.second_loopback,
        port=settings.gateway_port,
        setting="gateway_port",
        url=settings.gateway_url,
        files={folder / name: (_NPM / name).read_text("utf-8") for name in fetched},
        install=() if brought else _npm_ci(settings),
    )


def _npm_ci(settings: Settings) -> tuple[str, ...]:
    """Installs exactly what the lock names, each with its hash; no package runs a script of its own."""
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--cache=cache"]
    elsewhere = [f"--registry={settings.npm_registry}"] if settings.npm_registry else []
    trusted = [f"--cafile={settings.ca_bundle}"] if settings.ca_bundle else []
    npm = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return (str(NODE), str(npm), "ci", "--omit=dev", *quiet, *elsewhere, *trusted)


def _of_refit(settings: Settings, name: str, title: str, module: str) -> Service:
    """A service that is a module of Refit, and answers at a socket in its folder."""
    return Service(
        name=name,
        title=title,
        argv=(sys.executable, "-m", module),
        environment=variables(settings),
        inherited=inherited_environment(),
        folder=settings.folder("services", name),
        log=settings.folder("logs") / f"{name}.log",
        health=f"http://{name}/health",
        healthy=lambda answer: answer.text == "ok",
        socket="socket",
        # Where nobody chose one, the catalog depends on the folder in which `refit` was called.
        passing=() if "catalog" in settings.model_fields_set else ("REFIT_CATALOG",),
    )


def waiting_page(settings: Settings) -> Service:
    """The waiting page: answers in the place of sessions that are away, and tells the gateway where the others are."""
    service = _of_refit(settings, "waiting-page", "Waiting page of sessions", "flows.waiting_page")
    return replace(service, after=("gateway",))


def hub(settings: Settings) -> Service:
    """JupyterHub, where people log in and start sessions; on loopback, reached through the gateway."""
    return replace(
        _of_refit(settings, "hub", "JupyterHub", "flows.web.hub"),
        health=f"{settings.hub_url}{routes.HUB}/health",
        healthy=lambda answer: answer.is_success,
        socket="",
        port=settings.hub_port,
        setting="hub_port",
        url=f"{settings.public_url}{routes.HUB}/",
        after=("gateway", "waiting-page"),
    )


def authorizer(settings: Settings) -> Service:
    """The authorizer: leads people from the Hub's addresses to their sessions, and tells the Hub which there are."""
    service = _of_refit(settings, "authorizer", "Authorizer of sessions", "flows.web.authorizer.service")
    return replace(service, after=_after_hub(settings))


def my_sessions(settings: Settings) -> Service:
    """The page and the API of people's own sessions, behind the gateway."""
    service = _of_refit(settings, "my-sessions", "Page of sessions", "flows.web.my_sessions")
    return replace(service, url=f"{settings.public_url}{routes.MY_SESSIONS}/", after=_after_hub(settings))


def _after_hub(settings: Settings) -> tuple[str, ...]:
    return () if settings.other_hub.api else ("hub",)


def forwarder(settings: Settings) -> Service:
    """The forwarder for ssh (HAProxy); sessions tell it where they are."""
    forwarder = Forwarder(settings)
    return Service(
        name="forwarder",
        title="Forwarder for ssh",
        argv=forwarder.argv,
        inherited=inherited_environment(),
        folder=forwarder.folder,
        log=settings.folder("logs") / "forwarder.log",
        health="http://forwarder/",
        healthy=lambda _: True,
        files=forwarder.files,
        socket=HEALTH,
    )


def jump(settings: Settings) -> Service:
    """The way in by ssh from people's own machines (OpenSSH)."""
    service = _of_refit(settings, "jump", "Way in by ssh", "flows.jump")
    return replace(service, address=settings.bind_address, port=settings.jump_port, setting="jump_port")


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
        inherited=inherited_environment(),
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
        "http": {"addr": f"127.0.0.1:{settings.registry_port}", "secret": written_secret(folder / "secret")},
        # Everybody on this machine reaches its port.
        "auth": {"htpasswd": {"realm": "refit", "path": str(folder / HTPASSWD)}},
    }


def htpasswd(written: Path, user: str, password: str) -> str:
    """The line that lets a user in by a password; the one that is `written`, if it does that."""
    secret = password.encode()
    with suppress(OSError, ValueError):
        text = written.read_text()
        name, _, hashed = text.strip().partition(":")
        if name == user and bcrypt.checkpw(secret, hashed.encode()):
            return text
    try:
        return f"{user}:{bcrypt.hashpw(secret, bcrypt.gensalt(_BCRYPT_ROUNDS)).decode()}\n"
    except ValueError:
        raise RefitError(
            "`registry_password` can't be the embedded registry's.",
            why="bcrypt, by which that one knows passwords, takes at most 72 bytes and no zero byte.",
            hint="choose a shorter one, or leave `registry_user` and `registry_password` out: then they are made up.",
        ) from None


def _registry_login(settings: Settings) -> tuple[str, str]:
    """User and password of the embedded registry, made up where nobody chose them."""
    if not settings.registry_user:
        written_secret(settings.home / REGISTRY_PASSWORD)
    return settings.registry_login


def metrics(settings: Settings) -> Service:
    """The service that answers Prometheus."""
    url = f"http://127.0.0.1:{settings.metrics_port}"
    return Service(
        name="metrics",
        title="Metrics",
        argv=(sys.executable, "-m", "flows.metrics.serving"),
        environment={**prefect_services.prefect_environment(settings), **variables(settings)},
        inherited=inherited_environment(),
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
