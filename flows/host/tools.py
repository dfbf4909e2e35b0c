"""Facts about this machine: found out once by trying, used by everything that starts containers.

Nothing here is a setting; a setting (`oci_runtime`, `isolation`) overrides what was found out. The facts are kept in
the home and hold for this boot and these programs, so that later calls read one small file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import psutil

from flows.core import fence
from flows.core.atomic_files import write_whole
from flows.core.errors import RefitError
from flows.core.file_locks import one_at_a_time
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import seccomp

logger = logging.getLogger("refit.host")

RUNTIMES = ("crun", "runc")
ISOLATIONS = ("chroot", "oci")
TRIAL_SECONDS = 30.0
# Soft and hard: what a login shell has, and enough for one person. Podman's own default is above many hard limits.
OPEN_FILES = (1024, 1_048_576)
# The kernel counts a uid's processes in all containers of the machine together, those of other homes as well. The
# control group bounds those of one container; a limit here would let one session keep another from starting anything.
PROCESSES = 1 << 22  # PID_MAX_LIMIT of linux/threads.h
_PID_MAX = "/proc/sys/kernel/pid_max"  # to which Podman lowers its own limit
# Room that one build is given (bytes): pip unpacks in memory; a layer is written, committed and compressed.
BUILD_MEMORY, BUILD_DISK = 1 << 30, 6 << 30
_ADMIN_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/libexec/podman:/usr/lib/podman:/usr/lib/cni:/usr/libexec/cni"
# Where Podman looks for hooks unless it is told.
_HOOKS = (Path("/usr/share/containers/oci/hooks.d"), Path("/etc/containers/oci/hooks.d"))
# Those whose version can change what is found out; `portmap` stands for the CNI plugins.
_PROGRAMS = ("podman", "buildah", "sudo", "iptables", "netavark", "portmap")


@dataclass(frozen=True)
class Facts:
    """Facts about this machine.

    Attributes:
        boot: the boot that it holds for.
        asked: the settings and the programs (path, size, time of change) that it holds for.
        runtime: OCI runtime that works, `crun` or `runc`.
        cgroup_manager: the manager of cgroups that works with it, `systemd` or `cgroupfs`.
        isolation: `chroot` or `oci`, for buildah.
        open_files: hard limit of a process that root starts.
        processes: the same for its number of processes.
        network_problem: why a container on the bridge network doesn't start; empty: it does.
        limits_problem: why a container can't be held to limits of memory and CPU; empty: it can.
        seccomp: file with the calls of the kernel that sessions may make, without user namespaces; empty: see next.
        seccomp_problem: why there is none.
    """

    boot: str
    asked: str
    runtime: str
    cgroup_manager: str
    isolation: str
    open_files: int
    processes: int
    network_problem: str
    limits_problem: str
    seccomp: str
    seccomp_problem: str


class NothingWorks(RefitError):
    """Everything that could be tried was tried, and failed."""

    def __init__(self, what: str, tried: Mapping[str, str], hint: str) -> None:
        self.tried = dict(tried)
        lines = "\n".join(f"  {name}: {problem}" for name, problem in tried.items())
        super().__init__(what, why=f"Tried:\n{lines}", hint=hint)


def podman(settings: Settings) -> list[str]:
    """The start of every Podman call: program, private storage, a runtime that works here.

    Raises:
        NothingWorks: no OCI runtime can start a container on this machine.
    """
    machine = facts(settings)
    return _podman(settings, machine.runtime, machine.cgroup_manager)


def run_limits(settings: Settings) -> list[str]:
    """`--ulimit …` options for `podman run` and `podman create` that stay within this machine's hard limits."""
    machine = facts(settings)
    return _limits(machine.open_files, machine.processes)


def session_memory(settings: Settings) -> int:
    """Bytes that a session may take whose profile doesn't say; 0: as the machine lets."""
    chosen = settings.session_memory
    if isinstance(chosen, str):
        return int(psutil.virtual_memory().total * float(chosen.rstrip("%")) / 100)
    return round(chosen * 1e9)


def resource_limits(memory: int, cpus: float) -> list[str]:
    """Options for `podman run` and `podman create` that limit memory (bytes) and cores; 0: no limit. Pure."""
    # The same with swap, or a container could take as much again there.
    of_memory = [f"--memory={memory}b", f"--memory-swap={memory}b"] if memory else []
    return [*of_memory, *([f"--cpus={cpus:g}"] if cpus else [])]


def call_filter(settings: Settings) -> list[str]:
    """The option for `podman run` and `podman create` that keeps a session from making user namespaces, if any can."""
    machine = facts(settings)
    if not machine.seccomp:
        logger.warning(
            "sessions can make user namespaces, for their calls can't be filtered: %s", machine.seccomp_problem
        )
        return []
    return [f"--security-opt=seccomp={machine.seccomp}"]


def buildah(settings: Settings) -> list[str]:
    """The start of every buildah call: program and private storage."""
    return ["buildah", "--root", str(builds(settings)), "--runroot", str(runtime_folder(settings) / "builds")]


def isolation(settings: Settings) -> str:
    """The isolation in which `buildah build` works here: `chroot`, or `oci` (to be used with `runtime`).

    One that the settings name is taken at its word: a builder needs no Podman, without which nothing can be found out.
    """
    return settings.isolation or facts(settings).isolation


def runtime(settings: Settings) -> str:
    """The OCI runtime that works here."""
    return facts(settings).runtime


def containers(settings: Settings) -> Path:
    """Podman's storage; root's."""
    return settings.home / "containers"


def networks(settings: Settings) -> Path:
    """Podman's networks of this home, beside its default one."""
    return settings.folder("walls", "networks")


def hooks(settings: Settings) -> Path:
    """The folder of hooks that the OCI runtime calls for containers of this home before their first process."""
    return settings.folder("walls", "hooks")


def builds(settings: Settings) -> Path:
    """buildah's storage; root's."""
    return settings.home / "builds"


def runtime_folder(settings: Settings) -> Path:
    """Where Podman and buildah keep what is true until the next boot; root's.

    Not in the home: the paths of sockets must be short.
    """
    name = hashlib.sha256(str(settings.home).encode()).hexdigest()[:12]
    return Path(f"/run/refit-{name}")


def program(name: str) -> str | None:
    """Where a program lies, also one that only root has in its PATH; none: it isn't installed."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_ADMIN_FOLDERS}")


def facts(settings: Settings) -> Facts:
    """The facts about this machine: read from the home, or found out now (about 2 seconds).

    Raises:
        NothingWorks: no OCI runtime can start a container, or no isolation can run a build step.
    """
    boot, programs = _boot(), _asked(settings)
    if (kept := _known(settings, boot, programs)) is not None:
        return kept
    with one_at_a_time(settings.folder() / "host.lock"):
        if (kept := _known(settings, boot, programs)) is not None:
            return kept
        _forget_earlier_boot(settings, boot)
        machine = _find_out(settings, boot, programs)
        write_whole(_file(settings), json.dumps(asdict(machine), indent=2) + "\n")
    return machine


def _file(settings: Settings) -> Path:
    return settings.home / "host.json"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _asked(settings: Settings) -> str:
    """Another version of a program is another file; asking each for its version would cost every call 0.1 s."""
    seen = [settings.oci_runtime, settings.isolation]
    for name in (*_PROGRAMS, settings.oci_runtime, *RUNTIMES):
        if name and (path := program(name)):
            status = Path(path).stat()
            seen.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return "; ".join(seen)


def _known(settings: Settings, boot: str, programs: str) -> Facts | None:
    try:
        kept = Facts(**json.loads(_file(settings).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # never asked, half written, or written by another version of Refit
        return None
    return kept if (kept.boot, kept.asked) == (boot, programs) else None


def _forget_earlier_boot(settings: Settings, boot: str) -> None:
    """Where /run is a plain folder, it survives the reboot, and Podman takes dead mounts and pids for living ones."""
    try:
        earlier = json.loads(_file(settings).read_text(encoding="utf-8")).get("boot")
    except (OSError, ValueError, AttributeError):
        return
    if earlier != boot:
        command.run(["rm", "-rf", "--one-file-system", runtime_folder(settings)], root=True)


def _find_out(settings: Settings, boot: str, programs: str) -> Facts:
    open_files, processes = hard_limits(command.run(["cat", "/proc/self/limits"], root=True).stdout)
    processes = min(processes, int(Path(_PID_MAX).read_text()))
    limits = _limits(open_files, processes)
    with trial_tree(settings) as tree:

        def start(choice: tuple[str, str], network: str = "none", more: Sequence[str] = ()) -> None:
            # All that a session asks for: a program that isn't tried here fails on a person later.
            options = ["--rm", "--init", "--network", network, "--cap-drop", "all", "--pids-limit", "64"]
            hardening = ["--security-opt", "no-new-privileges", "--rootfs", str(tree)]
            call = [*_podman(settings, *choice), "run", *options, *limits, *more, *hardening]
            _as_root([*call, "/bin/catatonit", "--version"])

        choice = _first_that_works("No OCI runtime can start a container here.", _choices(settings), start)
        network_problem = _problem(start, choice, "bridge")
        limits_problem = _problem(start, choice, "none", resource_limits(64 << 20, 0.5))
        seccomp, seccomp_problem = _call_filter(settings, partial(start, choice, "none"), choice)
        way = _isolation_that_works(settings, choice[0], tree)
    problems = network_problem, limits_problem, seccomp, seccomp_problem
    return Facts(boot, programs, *choice, way, open_files, processes, *problems)


def _call_filter(
    settings: Settings, start: Callable[[Sequence[str]], None], choice: tuple[str, str]
) -> tuple[str, str]:
    """The file with the calls that sessions may make, made of Podman's own, and why there is none."""
    info = [*_podman(settings, *choice), "info", "--format", "{{.Host.Security.SECCOMPProfilePath}}"]
    file = settings.folder() / "seccomp.json"
    try:
        own = Path(_as_root(info).stdout.strip())
        profile = seccomp.without_user_namespaces(json.loads(own.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, command.ProgramFailed) as error:
        return "", f"Podman names no profile that can be read: {error}"
    write_whole(file, json.dumps(profile), private=True)
    problem = _problem(start, [f"--security-opt=seccomp={file}"])
    return ("", problem) if problem else (str(file), "")


def _choices(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Runtime and cgroup manager, the preferred pair first; systemd only where it runs."""
    managers = ("systemd", "cgroupfs") if Path("/run/systemd/system").is_dir() else ("cgroupfs",)
    names = (settings.oci_runtime,) if settings.oci_runtime else RUNTIMES
    return tuple((name, manager) for name in names for manager in managers)


def _first_that_works(
    what: str, choices: Iterable[tuple[str, str]], attempt: Callable[[tuple[str, str]], None]
) -> tuple[str, str]:
    tried: dict[str, str] = {}
    for choice in choices:
        if program(choice[0]) is None:
            tried[choice[0]] = "is not installed"
            continue
        problem = _problem(attempt, choice)
        if not problem:
            return choice
        tried[" with ".join(choice)] = problem
    raise NothingWorks(
        what, tried, "install runc or crun (`refit doctor` names the packages), or set REFIT_OCI_RUNTIME."
    )


def _isolation_that_works(settings: Settings, oci_runtime: str, tree: Path) -> str:
    call = buildah(settings)
    container = _as_root([*call, "from", "scratch"]).stdout.strip()
    try:
        _as_root([*call, "copy", container, tree / "bin", "/bin"])
        tried: dict[str, str] = {}
        for way in (settings.isolation,) if settings.isolation else ISOLATIONS:
            options = ["--isolation", way, "--runtime", program(oci_runtime) or oci_runtime]
            tried[way] = _problem(_as_root, [*call, "run", *options, container, "/bin/catatonit", "--version"])
            if not tried[way]:
                return way
    finally:
        with fence.lifted():
            _as_root([*call, "rm", container])
    raise NothingWorks(
        "No isolation lets buildah run a build step here.", tried, "set REFIT_ISOLATION to chroot or oci."
    )


def _as_root(argv: Sequence[str | Path]) -> command.Completed:
    return command.run(argv, root=True, limit=TRIAL_SECONDS)


def _problem(attempt: Callable[..., object], *arguments: object) -> str:
    """Why an attempt failed, in one line; empty: it worked."""
    try:
        attempt(*arguments)
    except command.ProgramMissing as error:
        return error.what
    except command.ProgramFailed as error:
        return error.tail.strip().rpartition("\n")[2] or error.what
    return ""


@contextmanager
def trial_tree(settings: Settings) -> Iterator[Path]:
    """A root filesystem of one static program, the one that will be process 1 of sessions."""
    init = program("catatonit")
    if init is None:
        raise RefitError(
            "The program 'catatonit' is not installed.",
            why="It is process 1 of every container: it forwards signals and collects the dead.",
            hint="run `refit doctor`; it names the package.",
        )
    tree = Path(mkdtemp(prefix="trial-", dir=settings.folder()))
    try:
        (tree / "bin").mkdir()
        shutil.copy(init, tree / "bin" / "catatonit")
        tree.chmod(0o755)
        yield tree
    finally:
        # Podman made mount points in it, as root.
        with fence.lifted():
            command.run(["rm", "-rf", "--one-file-system", tree], root=True)


def _podman(settings: Settings, oci_runtime: str, cgroup_manager: str) -> list[str]:
    state = runtime_folder(settings)
    storage = [
        "--root",
        str(containers(settings)),
        "--runroot",
        str(state / "containers"),
        "--tmpdir",
        str(state / "tmp"),
    ]
    folders = [str(folder) for folder in _HOOKS if folder.is_dir()]
    hooked = [word for folder in (*folders, str(hooks(settings))) for word in ("--hooks-dir", folder)]
    network = ["--network-config-dir", str(networks(settings))]
    return ["podman", *storage, *network, *hooked, "--runtime", oci_runtime, "--cgroup-manager", cgroup_manager]


def _limits(open_files: int, processes: int) -> list[str]:
    nofile = f"nofile={min(OPEN_FILES[0], open_files)}:{min(OPEN_FILES[1], open_files)}"
    return ["--ulimit", nofile, "--ulimit", f"nproc={processes}:{processes}"]


def hard_limits(limits: str) -> tuple[int, int]:
    """Open files and processes from the text of `/proc/<pid>/limits`; for "unlimited" the most that we ask for."""
    hard: dict[str, str] = {}
    for line in limits.splitlines():
        hard[line[:26].strip()] = (line[26:].split() or ["", ""])[1]
    open_files, processes = hard["Max open files"], hard["Max processes"]
    return (
        OPEN_FILES[1] if open_files == "unlimited" else int(open_files),
        PROCESSES if processes == "unlimited" else int(processes),
    )


def builds_at_once(settings: Settings) -> int:
    """How many stages this machine can build at the same time: as its cores, free memory and free disk let, never 0."""
    if settings.builds_at_once:
        return settings.builds_at_once
    memory = psutil.virtual_memory().available
    disk = shutil.disk_usage(settings.folder()).free
    return max(1, min(len(os.sched_getaffinity(0)), memory // BUILD_MEMORY, disk // BUILD_DISK))
