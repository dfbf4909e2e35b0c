"""What this machine lacks for Refit, and what of Refit's own needs a person; one finding for each, and how to mend it.

Each check is a plain function, most in `NEEDED` or `OWN`; most split into asking the machine and a pure judgement.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
from packaging.version import Version

from flows.core import command
from flows.core.command import ProgramFailed, ProgramMissing
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.outside import Bounds, Client
from flows.core.settings import Settings
from flows.gateway.proxy import NODE
from flows.host import tools
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.locks.simple_index import login, without_login
from flows.migrations.journal import Journal
from flows.migrations.move import State
from flows.migrations.orphaned_moves import interrupted
from flows.publishing import vouching
from flows.publishing.signatures import Publications, Refusal
from flows.services import privacy
from flows.sessions.containers.podman import Podman, input_rules, restoring
from flows.sessions.containers.walls import Wall, table
from flows.sessions.homes import enclosed
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import Pool, Room
from flows.sessions.recovery import homes_without_record, without_record
from flows.sessions.store import Store

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
        if tools.program("dnf"):
            return f"dnf install {self.dnf or self.name}"
        return f"apt-get install --no-install-recommends {self.apt or self.name}"


_IPTABLES = Program("iptables", "publishes ports of containers")
PROGRAMS = (
    Program("buildah", "builds images", "1.28"),
    Program("podman", "runs sessions", "4.3"),
    Program("skopeo", "copies images", "1.9"),
    Program("catatonit", "is process 1 of containers"),
    Program("mmdebstrap", "bootstraps Debian bases", "1.3"),
    Program("docker-registry", "is the embedded registry", "2.8", dnf="docker-distribution"),
    Program("rsync", "copies homes", "3.2"),
    Program("bwrap", "keeps what touches homes from all else", "0.5", apt="bubblewrap", dnf="bubblewrap"),
    Program("git", "keeps the catalog", "2.30"),
    _IPTABLES,
    Program("ss", "ends connections to sessions that are stopped", apt="iproute2", dnf="iproute", ask="-V"),
    Program("nft", "keeps sessions from each other and from this machine", "0.9.4", "nftables", "nftables"),
    Program("nsenter", "closes sessions before they are stopped", apt="util-linux", dnf="util-linux"),
    Program("ssh", "logs in to sessions", apt="openssh-client", dnf="openssh-clients", ask="-V"),
    Program("haproxy", "leads ssh to sessions", "2.6", ask="-v"),
)
# Without it there are no pictures of what is built, and nothing else is missing.
DOT = Program("dot", "draws the stages of a release", apt="graphviz", dnf="graphviz", ask="-V")

Check = Callable[[Settings], Iterable[Finding]]


def examine(settings: Settings, checks: Sequence[Check] = ()) -> tuple[Finding, ...]:
    """All findings of some checks or of all, in their order; under 3 seconds once `host` has found out its facts."""
    chosen = checks or (*NEEDED, pictures, *OWN)
    with ThreadPoolExecutor(len(chosen)) as pool:
        return tuple(chain.from_iterable(pool.map(lambda check: tuple(check(settings)), chosen)))


# --- Programs -------------------------------------------------------------------------------------------------------


def python(_: Settings) -> Iterable[Finding]:
    """The Python that Refit itself runs on."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("Python", sys.version_info[:2] == PYTHON, version, "make the virtual environment with Python 3.11.")


def programs(_: Settings) -> Iterable[Finding]:
    """The programs that Refit runs, and their versions."""
    with ThreadPoolExecutor(len(PROGRAMS)) as pool:
        yield from pool.map(lambda wanted: judge_program(wanted, _says(wanted)), PROGRAMS)


def pictures(_: Settings) -> Iterable[Finding]:
    """Whether the stages of a release can be drawn."""
    yield judge_program(DOT, _says(DOT))


def _says(wanted: Program) -> str | None:
    """What a program says about its version; none: it isn't installed."""
    path = tools.program(wanted.name)
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
        facts = tools.facts(settings)
    except RefitError as error:
        yield Finding("containers", False, f"{error.what} {error.why}".strip(), error.fix)
        return
    runtime = Program(facts.runtime, "runs containers")
    version = judge_program(runtime, _says(runtime)).seen
    works = f"{facts.runtime} {version} with {facts.cgroup_manager}; builds in {facts.isolation}"
    yield Finding("runtime", True, works)
    if tools.program("dnf"):
        fix = "dnf install netavark aardvark-dns"
    else:
        fix = "apt-get install --no-install-recommends containernetworking-plugins iptables"
    yield Finding("network", not facts.network_problem, facts.network_problem or "containers reach a bridge", fix)
    yield judge_open_files(facts.open_files)
    yield judge_limits(facts.limits_problem)
    yield judge_call_filter(facts.seccomp_problem)


def judge_limits(problem: str) -> Finding:
    """Whether sessions can be held to limits of memory and CPU, as this problem of an attempt says."""
    fix = "let the kernel account for memory and CPU of groups (cgroup_enable=memory on its command line)."
    seen = f"a session may take all of the machine's memory: {problem}" if problem else "hold a container"
    return Finding("limits", not problem, seen, fix)


def judge_call_filter(problem: str) -> Finding:
    """Whether sessions can be kept from making user namespaces, as this problem of an attempt says."""
    fix = "install the package with Podman's seccomp profile (containers-common, golang-github-containers-common)."
    seen = f"sessions can make user namespaces: {problem}" if problem else "sessions can make no user namespaces"
    return Finding("call filter", not problem, seen, fix)


def judge_open_files(limit: int) -> Finding:
    """Whether this hard limit of open files is enough for sessions."""
    fix = f"raise the hard limit of open files to {OPEN_FILES} or more, e.g. in /etc/security/limits.d/."
    return Finding("open files", limit >= OPEN_FILES, f"hard limit {limit}", fix)


def kernel(settings: Settings) -> Iterable[Finding]:
    """What the kernel must be able to do."""
    with suppress(RefitError):
        tools.facts(settings)  # starting a container loads the module
    overlay = "\toverlay\n" in Path("/proc/filesystems").read_text()
    yield Finding("overlay", overlay, "in the kernel" if overlay else "not in the kernel", "modprobe overlay")
    file = Path("/proc/sys/user/max_user_namespaces")
    spaces = int(file.read_text()) if file.exists() else 0
    fix = "sysctl user.max_user_namespaces=15000, and keep it in /etc/sysctl.d/."
    yield Finding("user namespaces", spaces > 0, f"at most {spaces}", fix)


def enclosure(_: Settings) -> Iterable[Finding]:
    """Whether what root does in homes can be kept from everything else, without which nothing is done in them."""
    try:
        problem = enclosed.unusable()
    except ProgramMissing as error:
        problem = error.what
    fix = "in a container, let it make namespaces of mounts (CAP_SYS_ADMIN, and a seccomp profile that lets it mount)."
    seen = f"no session can be moved, and no home removed: {problem[-200:]}" if problem else "bwrap works"
    yield Finding("touching homes", not problem, seen, fix)


def doors(_: Settings) -> Iterable[Finding]:
    """Whether a session can be closed to its people, as it is before it is stopped: in a network of its own."""
    if any(tools.program(name) is None for name in ("iptables-restore", "unshare")):
        yield Finding("closing sessions", False, "iptables is not installed", _IPTABLES.mend())
        return
    try:
        command.run(["unshare", "--net", "--", *restoring()], root=True, stdin=input_rules([8000, 2222]), limit=10)
        yield Finding("closing sessions", True, "iptables works in a container's network")
    except (ProgramFailed, ProgramMissing) as error:
        said = error.tail.strip() if isinstance(error, ProgramFailed) else error.what
        fix = "modprobe -a ip_tables iptable_filter xt_multiport, or install the iptables that fits the kernel."
        yield Finding("closing sessions", False, f"no session can be moved: {said[-200:]}", fix)


def walls(settings: Settings) -> Iterable[Finding]:
    """Whether sessions can be kept from each other and from this machine: in a network of its own."""
    if not settings.walls:
        yield Finding("walls", True, "not wanted (`walls: false`): sessions reach each other and this machine")
    elif (nft := tools.program("nft")) and tools.program("unshare"):
        try:
            rules = table(Wall("0" * 12, (5432,)), ("192.0.2.1", "2001:db8::1"))
            command.run(["unshare", "--net", "--", nft, "--file", "-"], root=True, stdin=rules, limit=10)
            yield Finding("walls", True, "nftables works")
        except ProgramFailed as error:
            fix = "`modprobe -a nf_tables nf_conntrack`, or `walls: false` in settings.yaml."
            yield Finding("walls", False, f"no session can start: {error.tail.strip()[-200:]}", fix)


# --- Room -----------------------------------------------------------------------------------------------------------


def disk(settings: Settings) -> Iterable[Finding]:
    """Whether the home has room for images."""
    there = next(folder for folder in (settings.home, *settings.home.parents) if folder.exists())
    yield judge_disk(shutil.disk_usage(there).free, settings.home)


def judge_disk(free: int, home: Path) -> Finding:
    """Whether so many free bytes are enough."""
    fix = "make room, or let REFIT_HOME name a folder on a larger disk."
    return Finding("disk", free >= FREE_GIGABYTES * 10**9, f"{free / 10**9:.0f} GB are free for {home}", fix)


def home(settings: Settings) -> Iterable[Finding]:
    """Whether nobody but its owner looks into the home, or can exchange what is in it."""
    yield judge_home(settings.home, tuple(privacy.objections(settings.home)))


def judge_home(home: Path, objections: Sequence[str]) -> Finding:
    """Whether a home that this is to be said about is its owner's alone."""
    fix = "`refit up` makes it private; folders above it are to be root's or yours, and `chmod go-w`."
    return Finding("home", not objections, "; ".join(objections) or f"{home} is its owner's alone", fix)


def ports(settings: Settings) -> Iterable[Finding]:
    """Whether the ports of the embedded services are free, or held by these services."""
    wanted = {} if settings.prefect_server else {"prefect_port": settings.prefect_port}
    if not settings.registry:
        wanted |= {"registry_port": settings.registry_port}
        wanted |= {"registry_read_port": settings.registry_read_port} if settings.registry_read_port else {}
    if settings.gateway and not settings.prefect_server:
        wanted |= {"gateway_port": settings.gateway_port, "gateway_api_port": settings.gateway_api_port}
    if settings.hub_wanted:
        wanted |= {"hub_port": settings.hub_port}
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
        fix = "run scripts/setup again. With REFIT_GATEWAY=false, sessions are reached from this machine alone."
        yield Finding("gateway", False, f"Node doesn't start: {error.what}", fix)
        return
    fetched = (settings.home / "services" / "gateway" / "installed").exists()
    seen = "is installed" if fetched else "is fetched from npm's registry by the first `refit up`"
    yield Finding("gateway", True, f"configurable-http-proxy {seen}; Node {version}")


def hub(settings: Settings) -> Iterable[Finding]:
    """Whether JupyterHub can start, where it is wanted."""
    if not settings.hub:
        return
    if not settings.hub_wanted:
        yield Finding("hub", False, "JupyterHub needs the gateway, which doesn't run here", "set `gateway` to true.")
        return
    missing = [name for name in ("jupyterhub", "nativeauthenticator") if importlib.util.find_spec(name) is None]
    fix = "install Refit with its extra: `uv pip install 'refit[hub]'`."
    if missing:
        yield Finding("hub", False, f"{' and '.join(missing)} can't be imported", fix)
    else:
        yield Finding("hub", True, f"JupyterHub {importlib.metadata.version('jupyterhub')}")


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
        with Client(context) as client:
            status = client.fetch("HEAD", without_login(url), Bounds(0, INDEX_SECONDS), private=login(url)).status
    except (httpx.RequestError, httpx.InvalidURL) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            fix = "let REFIT_CA_BUNDLE name the PEM file with the authority of your network."
            return Finding(thing, False, "its certificate is signed by nobody that is trusted", fix)
        fix = "check the network and its proxy, or let REFIT_PIP_INDEX_URL name an index that can be reached."
        return Finding(thing, False, f"doesn't answer: {error or type(error).__name__}", fix)
    fix = "check REFIT_PIP_INDEX_URL: the address, user and password."
    return Finding(thing, status < 400, f"answers with status {status}", fix)


# --- What is Refit's own --------------------------------------------------------------------------------------------


def pool(settings: Settings) -> Iterable[Finding]:
    """Whether the pool of homes, if there is one, can be had and has room."""
    try:
        homes = Pool(settings)
        if homes.ready():
            yield judge_pool(homes.room())
    except RefitError as error:
        yield Finding("pool", False, f"{error.what} {error.why}".strip(), error.fix)


def bounds(settings: Settings) -> Iterable[Finding]:
    """Whether one session can fill the disk; nothing is said on a machine that has no sessions' homes."""
    try:
        homes = LocalHomes(settings)
        owned = homes.owners()
    except RefitError:  # that of the pool says why
        return
    if owned:
        free = [name for name in owned if homes.path(name) not in homes.pool]
        yield judge_bounds(free, not homes.pool.exists or homes.pool.bounds_homes)


def judge_bounds(in_folders: Sequence[str], pool_has_limits: bool) -> Finding:
    """Whether all homes have a limit: those in folders have none, those in the pool where the kernel can."""
    told = [f"homes in folders have no limit of room: {', '.join(in_folders)}"] if in_folders else []
    told += [] if pool_has_limits else ["homes in the pool have no limit of room"]
    told += ["what a session writes outside its home has none"] if told else []
    fixes = ["`refit home pool create` and `refit home pool add` give them one"] if in_folders else []
    fixes += [] if pool_has_limits else ["a kernel from 6.7 on has limits for the pool"]
    seen = "; ".join(told) or "all homes have a limit of room; what sessions write outside them has none"
    return Finding("room of sessions", not told, seen, "; ".join(fixes) + ".")


def judge_pool(room: Room) -> Finding:
    """Whether so much room is enough for homes that grow, and for their snapshots."""
    seen = f"{room.free / 1e9:.1f} of {room.size / 1e9:.1f} GB are free"
    fix = "`refit home pool grow --size …`, or remove homes that were kept and nobody needs (`refit home list`)."
    return Finding("pool", not room.short, seen, fix)


def moves(settings: Settings) -> Iterable[Finding]:
    """Whether a move was interrupted, or is held; nothing is said on a machine on which nothing was ever moved."""
    if not _has_database(settings):
        return
    try:
        journal = Journal(open_database(settings.database))
        left = [move.before.name for move in interrupted(journal)]
        held = [name for name, move in journal.latest().items() if move.state is State.held]
    except RefitError as error:
        yield Finding("database", False, f"{error.what} {error.why}".strip(), error.fix)
        return
    yield judge_moves(left, held)


def judge_moves(interrupted: Sequence[str], held: Sequence[str]) -> Finding:
    """What to do about moves of these sessions."""
    if not interrupted and not held:
        return Finding("moves", True, "none was interrupted, none is held")
    told = [f"of {', '.join(interrupted)}: interrupted"] if interrupted else []
    told += [f"of {', '.join(held)}: held, nothing more happens by itself"] if held else []
    fixes = ["`refit migrate resume` ends what was interrupted"] if interrupted else []
    fixes += [f"`refit migrate history {held[0]}` says what to do"] if held else []
    return Finding("moves", False, "; ".join(told), "; ".join(fixes) + ".")


def records(settings: Settings) -> Iterable[Finding]:
    """Whether homes, and sessions that have containers, are on record; nothing where there are no containers."""
    if not tools.containers(settings).exists():
        return
    try:
        store = Store(open_database(settings.database)) if _has_database(settings) else None
        known = {session.name for session in store.sessions()} if store else set[str]()
        lost = [family[0].session for family in without_record(Podman(settings).containers(), known)]
        homes = homes_without_record(LocalHomes(settings).owners(), {*(store.homes() if store else ()), *lost})
    except RefitError as error:
        yield Finding("records", False, f"{error.what} {error.why}".strip(), error.fix)
        return
    yield judge_records(lost, [*homes])


def judge_records(lost: Sequence[str], homes: Sequence[str]) -> Finding:
    """What to do about sessions and homes that are on no record."""
    if not lost and not homes:
        return Finding("records", True, "all homes, and all sessions that have containers, are on record")
    told = [f"of {', '.join(lost)}: containers, and no record"] if lost else []
    told += [f"of {', '.join(homes)}: homes, and no record"] if homes else []
    seen = f"{'; '.join(told)}, as after the loss of the database"
    return Finding("records", False, seen, "`refit session recover` records them again.")


def aliases(settings: Settings) -> Iterable[Finding]:
    """Whether aliases point at what was published; nothing while the registry doesn't answer."""
    if not _has_database(settings):
        return
    with suppress(RegistryError):  # `refit status` tells of that
        registry = Registry(settings)
        publications = Publications(settings, registry=registry)
        known = vouching.aliases(registry)
        found = publications.current(known.values())
        pointed = {alias: found.get(key) for alias, key in known.items()}
        yield judge_aliases({alias: str(one.doubt) for alias, one in pointed.items() if isinstance(one, Refusal)})


def judge_aliases(wrong: Mapping[str, str]) -> Finding:
    """What to do about aliases that point at images that don't count: alias → code of the reason."""
    if not wrong:
        return Finding("aliases", True, "all point at what was published")
    told = "; ".join(f"{alias} ({doubt})" for alias, doubt in sorted(wrong.items()))
    fix = "`refit build` publishes these images again; `refit images sign` shows them, and signs those that you know."
    return Finding("aliases", False, f"point at what nobody published: {told}", fix)


def _has_database(settings: Settings) -> bool:
    return bool(settings.database_url) or (settings.home / "refit.db").exists()


NEEDED: tuple[Check, ...] = (
    *(python, programs, root, containers, kernel, enclosure, doors, disk, home),
    *(ports, gateway, hub, walls, index),
)
OWN: tuple[Check, ...] = (pool, bounds, moves, records, aliases)
