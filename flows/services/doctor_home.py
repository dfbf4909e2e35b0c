"""The doctor's findings on the home: room, ports, the gateway and the Hub."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

import psutil

from flows.core.formatting import some
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed, ProgramMissing
from flows.core.settings import Settings
from flows.gateway.proxy import NODE
from flows.services import privacy
from flows.services.doctor_findings import Finding
from flows.services.embedded import GATEWAY_PACKAGES
from flows.services.supervision import kept
from flows.sessions import engines

FREE_GIGABYTES = 10
# The home of a Refit that is a Pod: keys, logs, maybe the database.
_WITHOUT_IMAGES_GIGABYTES = 1
_EVERY_ADDRESS = {"0.0.0.0", "::"}


def disk(settings: Settings) -> Iterable[Finding]:
    """Whether the home has room for images."""
    existing = next(folder for folder in (settings.home, *settings.home.parents) if folder.exists())
    needed = _WITHOUT_IMAGES_GIGABYTES if engines.is_pod(settings) else FREE_GIGABYTES
    yield judge_disk(shutil.disk_usage(existing).free, settings.home, needed)


def judge_disk(free: int, home: Path, needed: int = FREE_GIGABYTES) -> Finding:
    """Whether so many free bytes are enough, where so many gigabytes are needed."""
    hint = "make room, or let REFIT_HOME name a folder on a larger disk."
    return Finding("disk", free >= needed * 10**9, f"{free / 10**9:.0f} GB are free for {home}", hint)


def home(settings: Settings) -> Iterable[Finding]:
    """Whether nobody but its owner looks into the home, or can exchange what is in it."""
    yield judge_home(settings.home, tuple(privacy.objections(settings.home, alone=engines.is_pod(settings))))


def judge_home(home: Path, objections: Sequence[str]) -> Finding:
    """Whether a home that this is to be said about is its owner's alone."""
    hint = "`refit up` makes it private; folders above it are to be root's or yours, and `chmod go-w`."
    return Finding("home", not objections, "; ".join(objections) or f"{home} is its owner's alone", hint)


def ports(settings: Settings) -> Iterable[Finding]:
    """Whether the ports of the embedded services are free, or held by these services."""
    ports_needed = {} if settings.prefect_server else {"prefect_port": settings.prefect_port}
    if not settings.registry:
        ports_needed |= {"registry_port": settings.registry_port}
        ports_needed |= {"registry_read_port": settings.registry_read_port} if settings.registry_read_port else {}
    if settings.gateway and not settings.prefect_server:
        ports_needed |= {"gateway_port": settings.gateway_port, "gateway_api_port": settings.gateway_api_port}
    if settings.hub_wanted and not settings.other_hub.api:
        ports_needed |= {"hub_port": settings.hub_port}
    if settings.jump_wanted:
        ports_needed |= {"jump_port": settings.jump_port}
    own = {"127.0.0.1", settings.bind_address}
    beside = {settings.second_loopback} if settings.second_loopback else set[str]()
    holders = {
        connection.laddr.port: connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and _meet(connection.laddr.ip, own | (beside if connection.laddr.port == settings.gateway_port else set()))
    }
    for setting, port in ports_needed.items():
        yield _port(setting, port, port in holders, holders.get(port), settings.home)


def _meet(address: str, own: Set[str]) -> bool:
    """Whether a program that listens at an address keeps others from the same port at one of their `own`."""
    return address in own | _EVERY_ADDRESS or not own.isdisjoint(_EVERY_ADDRESS)


def _port(setting: str, port: int, taken: bool, pid: int | None, home: Path) -> Finding:
    thing, hint = f"port {port}", f"end that program, or set REFIT_{setting.upper()} to another port."
    if not taken:
        return Finding(thing, True, "is free")
    if pid is None:
        return Finding(thing, False, "is held by a program of another user", hint)
    try:
        process = psutil.Process(pid)
        own = any(_names(each, home) for each in (process, *process.parents()))  # sshd overwrites its own words
        holder = f"{Path(process.exe()).name} (pid {pid})"  # a process may call itself what it likes
    except psutil.Error:
        return Finding(thing, False, f"is held by pid {pid}", hint)
    if own:
        return Finding(thing, True, f"is Refit's own: {holder}")
    return Finding(thing, False, f"is held by {holder}", hint)


def gateway(settings: Settings) -> Iterable[Finding]:
    """Whether Node works, on which the gateway runs, and whether the gateway has to be fetched first."""
    if not settings.gateway or settings.prefect_server:
        return
    try:
        version = command.run([NODE, "--version"], limit=10).stdout.strip()
    except (ProgramFailed, ProgramMissing) as error:
        hint = "run scripts/setup again. With REFIT_GATEWAY=false, sessions are reached from this machine alone."
        yield Finding("gateway", False, f"Node doesn't start: {error.what}", hint)
        return
    fetched = GATEWAY_PACKAGES.is_dir() or (settings.home / "services" / "gateway" / "installed").exists()
    seen = "is installed" if fetched else "is fetched from npm's registry by the first `refit up`"
    yield Finding("gateway", True, f"configurable-http-proxy {seen}; Node {version}")


def hub(settings: Settings) -> Iterable[Finding]:
    """Whether JupyterHub can start, where it is wanted."""
    if not settings.hub_wanted:
        if settings.hub:
            reason = "JupyterHub needs the gateway, which doesn't run here"
            yield Finding("hub", False, reason, "set `gateway` to true, or `hub` to false.")
        return
    missing = [name for name in ("jupyterhub", "nativeauthenticator") if importlib.util.find_spec(name) is None]
    hint = "install Refit with all that it needs (`uv pip install refit`), or set `hub` to false."
    if missing:
        yield Finding("hub", False, f"{' and '.join(missing)} can't be imported", hint)
    else:
        yield Finding("hub", True, f"JupyterHub {importlib.metadata.version('jupyterhub')}")


def supervisor(settings: Settings) -> Iterable[Finding]:
    """Whether the services that run are started again when they die."""
    if running := kept(settings.home / "services"):
        yield judge_supervisor(running)


def judge_supervisor(services: Mapping[str, bool]) -> Finding:
    """The finding of services that run: name → whether the supervisor keeps it. Pure."""
    if lost := [name for name, is_kept in services.items() if not is_kept]:
        seen = f"is gone: nothing starts {some(lost)} again after a crash"
        return Finding("supervisor", False, seen, "`refit up` starts it, and what it keeps, anew.")
    return Finding("supervisor", True, f"starts {some(services)} again after a crash")


def _names(process: psutil.Process, home: Path) -> bool:
    with suppress(psutil.Error):  # nobody may read the words of the first process of a machine
        return any(str(home) in word for word in (*process.cmdline(), *process.environ().values()))
    return False
