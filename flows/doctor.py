"""What this machine lacks for Refit, and how to mend it: one finding for each thing that it needs.

Each check is a plain function in `CHECKS`; most split into asking the machine and a pure judgement.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
from packaging.version import Version

from flows import command, forwarding, host
from flows.command import ProgramFailed, ProgramMissing
from flows.errors import RefitError
from flows.forwarding import Forwarding
from flows.gateway.proxy import NODE
from flows.settings import Settings

FREE_GIGABYTES = 10
OPEN_FILES = 4096
INDEX_SECONDS = 2.5
PYTHON = (3, 11)


@dataclass(frozen=True)
class Finding:
    """One thing that the machine needs: whether it is as it should be, what was seen, how to mend it."""

    thing: str
    ok: bool
    seen: str
    fix: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"[ok] {self.thing}: {self.seen}"
        return f"[todo] {self.thing}: {self.seen}" + (f"\n       To mend: {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class Program:
    """A program that Refit runs: what for, the least version, its packages, how it is asked for its version."""

    name: str
    purpose: str
    least: str = "0"
    apt: str = ""
    dnf: str = ""
    ask: str = "--version"

    def mend(self) -> str:
        """The command that installs it."""
        if host.program("dnf"):
            return f"dnf install {self.dnf or self.name}"
        return f"apt-get install --no-install-recommends {self.apt or self.name}"


PROGRAMS = (
    Program("buildah", "builds images", "1.28"),
    Program("podman", "runs sessions", "4.3"),
    Program("skopeo", "copies images", "1.9"),
    Program("catatonit", "is process 1 of containers"),
    Program("mmdebstrap", "bootstraps Debian bases", "1.3"),
    Program("docker-registry", "is the embedded registry", "2.8", dnf="docker-distribution"),
    Program("rsync", "copies homes", "3.2"),
    Program("git", "keeps the catalog", "2.30"),
    Program("iptables", "publishes ports of containers"),
    Program("ssh", "logs in to sessions", apt="openssh-client", dnf="openssh-clients", ask="-V"),
    Program("haproxy", "leads ssh to sessions", "2.6", ask="-v"),
)

Check = Callable[[Settings], Iterable[Finding]]


def examine(settings: Settings) -> tuple[Finding, ...]:
    """All findings, in the order of `CHECKS`; takes under 3 seconds once `host` has found out its facts."""
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        return tuple(chain.from_iterable(pool.map(lambda check: tuple(check(settings)), CHECKS)))


# --- Programs -------------------------------------------------------------------------------------------------------


def python(_: Settings) -> Iterable[Finding]:
    """The Python that Refit itself runs on."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", sys.version_info[:2] == PYTHON, version, "make the virtual environment with Python 3.11.")


def programs(_: Settings) -> Iterable[Finding]:
    """The programs that Refit runs, and their versions."""
    with ThreadPoolExecutor(len(PROGRAMS)) as pool:
        yield from pool.map(lambda wanted: judge_program(wanted, _says(wanted)), PROGRAMS)


def _says(wanted: Program) -> str | None:
    """What a program says about its version; none: it isn't installed."""
    path = host.program(wanted.name)
    if path is None:
        return None
    try:
        said = command.run([path, wanted.ask], limit=10)
        return said.stdout or said.stderr
    except ProgramFailed as error:
        return error.tail


def judge_program(wanted: Program, says: str | None) -> Finding:
    """Whether a program that says this about its version will do."""
    if says is None:
        return Finding(wanted.name, False, f"is not installed; it {wanted.purpose}", wanted.mend())
    found = re.search(r"\d+(\.\d+)+", says)
    if not found:
        return Finding(wanted.name, False, f"doesn't tell its version: {says.strip()[:80]}", wanted.mend())
    if Version(found[0]) < Version(wanted.least):
        return Finding(wanted.name, False, f"{found[0]}; at least {wanted.least} is needed", wanted.mend())
    return Finding(wanted.name, True, found[0])


# --- Containers -----------------------------------------------------------------------------------------------------


def root(_: Settings) -> Iterable[Finding]:
    """Whether containers can be run as root."""
    if os.geteuid() == 0:
        yield Finding("root", True, "this is root")
        return
    try:
        command.run(["true"], root=True, limit=10)
        yield Finding("root", True, "by sudo, without a password")
    except (ProgramMissing, ProgramFailed):
        yield Finding(
            "root", False, "sudo is missing or wants a password", "run `sudo -v` first, or allow NOPASSWD in sudoers."
        )


def containers(settings: Settings) -> Iterable[Finding]:
    """An OCI runtime that works, networks, limits, and the isolation of builds."""
    try:
        facts = host.facts(settings)
    except RefitError as error:
        yield Finding("containers", False, f"{error.what} {error.why}".strip(), error.fix)
        return
    runtime = Program(facts.runtime, "runs containers")
    version = judge_program(runtime, _says(runtime)).seen
    works = f"{facts.runtime} {version} with {facts.cgroup_manager}; builds in {facts.isolation}"
    yield Finding("runtime", True, works)
    if host.program("dnf"):
        fix = "dnf install netavark aardvark-dns"
    else:
        fix = "apt-get install --no-install-recommends containernetworking-plugins iptables"
    yield Finding("network", not facts.network_problem, facts.network_problem or "containers reach a bridge", fix)
    yield judge_open_files(facts.open_files)


def judge_open_files(limit: int) -> Finding:
    """Whether this hard limit of open files is enough for sessions."""
    fix = f"raise the hard limit of open files to {OPEN_FILES} or more, e.g. in /etc/security/limits.d/."
    return Finding("open files", limit >= OPEN_FILES, f"hard limit {limit}", fix)


def kernel(settings: Settings) -> Iterable[Finding]:
    """What the kernel must be able to do."""
    with suppress(RefitError):
        host.facts(settings)  # starting a container loads the module
    overlay = "\toverlay\n" in Path("/proc/filesystems").read_text()
    yield Finding("overlay", overlay, "in the kernel" if overlay else "not in the kernel", "modprobe overlay")
    file = Path("/proc/sys/user/max_user_namespaces")
    spaces = int(file.read_text()) if file.exists() else 0
    fix = "sysctl user.max_user_namespaces=15000, and keep it in /etc/sysctl.d/."
    yield Finding("user namespaces", spaces > 0, f"at most {spaces}", fix)


# --- Room -----------------------------------------------------------------------------------------------------------


def disk(settings: Settings) -> Iterable[Finding]:
    """Whether the home has room for images."""
    there = next(folder for folder in (settings.home, *settings.home.parents) if folder.exists())
    yield judge_disk(shutil.disk_usage(there).free, settings.home)


def judge_disk(free: int, home: Path) -> Finding:
    """Whether so many free bytes are enough."""
    fix = "make room, or let REFIT_HOME name a folder on a larger disk."
    return Finding("disk", free >= FREE_GIGABYTES * 10**9, f"{free / 10**9:.0f} GB are free for {home}", fix)


def ports(settings: Settings) -> Iterable[Finding]:
    """Whether the ports of the embedded services are free, or held by these services."""
    wanted = {} if settings.prefect_server else {"prefect_port": settings.prefect_port}
    if not settings.registry:
        wanted["registry_port"] = settings.registry_port
    if settings.gateway and not settings.prefect_server:
        wanted |= {"gateway_port": settings.gateway_port, "gateway_api_port": settings.gateway_api_port}
    holders = {
        connection.laddr.port: connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr
    }
    for setting, port in wanted.items():
        yield _port(setting, port, port in holders, holders.get(port), settings.home)


def _port(setting: str, port: int, taken: bool, pid: int | None, home: Path) -> Finding:
    thing, fix = f"port {port}", f"end that program, or set REFIT_{setting.upper()} to another port."
    if not taken:
        return Finding(thing, True, "is free")
    if pid is None:
        return Finding(thing, False, "is held by a program of another user", fix)
    try:
        process = psutil.Process(pid)
        words = [*process.cmdline(), *process.environ().values()]
        holder = f"{Path(process.exe()).name} (pid {pid})"  # a process may call itself what it likes
    except psutil.Error:
        return Finding(thing, False, f"is held by pid {pid}", fix)
    if any(str(home) in word for word in words):
        return Finding(thing, True, f"is Refit's own: {holder}")
    return Finding(thing, False, f"is held by {holder}", fix)


def gateway(settings: Settings) -> Iterable[Finding]:
    """Whether Node works, on which the gateway runs, and whether the gateway has to be fetched first."""
    if not settings.gateway or settings.prefect_server:
        return
    try:
        version = command.run([NODE, "--version"], limit=10).stdout.strip()
    except (ProgramFailed, ProgramMissing) as error:
        fix = "run scripts/setup again, or set REFIT_GATEWAY to false: sessions get a port of their own then."
        yield Finding("gateway", False, f"Node doesn't start: {error.what}", fix)
        return
    fetched = (settings.home / "services" / "gateway" / "installed").exists()
    seen = "is installed" if fetched else "is fetched from npm's registry by the first `refit up`"
    yield Finding("gateway", True, f"configurable-http-proxy {seen}; Node {version}")


def forwardings(settings: Settings) -> Iterable[Finding]:
    """Whether all ports that Refit may use are forwarded to nobody who is gone."""
    span = settings.session_ports
    ours = {settings.prefect_port, settings.registry_port, *range(span.first, span.last + 1)}
    yield judge_forwardings([found for found in forwarding.stale() if ours.intersection(found.ports)])


def judge_forwardings(stale: Sequence[Forwarding]) -> Finding:
    """Whether there is any port that is forwarded to a container that is gone."""
    if not stale:
        return Finding("forwarded ports", True, "none leads to a container that is gone")
    ports = ", ".join(str(port) for found in stale for port in found.ports)
    seen = f"{ports}: forwarded to containers that are gone; nothing that listens there is reached"
    return Finding("forwarded ports", False, seen, "; ".join(found.removal for found in stale))


# --- The world outside ----------------------------------------------------------------------------------------------


def index(settings: Settings) -> Iterable[Finding]:
    """Whether the package index answers, and its certificate is signed by an authority that is trusted."""
    url = settings.pip_index_url.get_secret_value() or "https://pypi.org/simple/"
    yield _answer(url.rstrip("/") + "/pip/", settings.ca_bundle)


def _answer(url: str, ca_bundle: Path | None) -> Finding:
    # Without what may be secret in it.
    thing = f"package index {urlsplit(url).hostname}"
    try:
        context = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None)
    except (OSError, ssl.SSLError) as error:
        return Finding(
            "CA bundle", False, f"{ca_bundle} can't be used: {error}", "let REFIT_CA_BUNDLE name a PEM file."
        )
    try:
        status = httpx.head(url, verify=context, timeout=INDEX_SECONDS, follow_redirects=True).status_code
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            fix = "let REFIT_CA_BUNDLE name the PEM file with the authority of your network."
            return Finding(thing, False, "its certificate is signed by nobody that is trusted", fix)
        fix = "check the network and its proxy, or let REFIT_PIP_INDEX_URL name an index that can be reached."
        return Finding(thing, False, f"doesn't answer: {error or type(error).__name__}", fix)
    fix = "check REFIT_PIP_INDEX_URL: the address, user and password."
    return Finding(thing, status < 400, f"answers with status {status}", fix)


CHECKS: tuple[Check, ...] = (python, programs, root, containers, kernel, disk, ports, gateway, forwardings, index)
