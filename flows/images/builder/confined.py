"""Builds of recipes that nobody vouches for: in a user namespace and a file system of their own, without a network.

The steps run as root of their namespace, which is an ordinary uid of this machine, under an OCI runtime. The storage is
a file system of btrfs in a sparse file: it can't take more than that, and all of it goes with the build. Never chroot
isolation: there, root of a step is root of this machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.builder import in_build, mirrors
from flows.images.builder.confined_space import STORE, cgroup, confined_space
from flows.images.builder.context import own_things
from flows.images.builder.workspace import workspace

UIDS = 65_536
_TRIAL = 'FROM scratch\nCOPY bin /bin\nRUN ["/bin/catatonit", "--version"]\n'
# Root of the namespace is an ordinary uid, and can't go through folders that are root's alone, as Refit's home is. So
# the folder of each build is seen at a path of its own, in a namespace of mounts that ends with its program.
_OPEN = Path("/run/refit-confined")
_SEEN = 'install -d -m 0711 "$2"; mount --bind "$1" "$2"; export TMPDIR="$2"; shift 2; exec "$@"'
_PROXY = f"http://127.0.0.1:{in_build.PORT}"
_tried: dict[Path, str] = {}
_lock = threading.Lock()


class Refused(RefitError):
    """This machine can't confine a build, so it doesn't build recipes that nobody vouches for."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "Profiles of people's own can't be built on this machine.",
            why=why,
            hint="`refit doctor` names missing packages; docs/security.md says what such a build needs.",
        )


def buildah(work: Path, settings: Settings) -> list[str]:
    """The start of buildah calls of the build in `work`: its own storage, where it is confined."""
    store = work / STORE
    if not store.is_dir():
        return tools.buildah(settings)
    own = ["buildah", "--storage-driver", "btrfs", "--root", f"{store}/storage", "--runroot", f"{store}/run"]
    return ["unshare", "--mount", "sh", "-c", _SEEN, "sh", f"{store}/tmp", str(_OPEN), *own]


def storage(work: Path, settings: Settings) -> str:
    """The same storage as skopeo names it."""
    store = work / STORE
    if store.is_dir():
        return f"btrfs@{store}/storage+{store}/run"
    return f"overlay@{tools.builds(settings)}+{tools.runtime_folder(settings) / 'builds'}"


def temporary(work: Path) -> Path:
    """Where the programs of a build may write what they need for a moment."""
    return work / STORE / "tmp" if (work / STORE).is_dir() else work / "tmp"


@contextmanager
def opened(work: Path, settings: Settings) -> Iterator[None]:
    """Make the storage of a confined build inside the `with` block; `workspace` removes it, whatever happens.

    Raises:
        Refused: this machine can't confine a build.
        RefitError: the disk lacks the room that a build may take.
    """
    if why := obstacle(settings):
        raise Refused(why)
    with confined_space(work, settings):
        yield


def seconds(settings: Settings) -> float:
    """How long the programs of a confined stage may take."""
    return 60.0 * settings.personal_builds.minutes


def options(work: Path, settings: Settings) -> list[str]:
    """The options of `buildah build` for a confined build."""
    limits = settings.personal_builds
    mapped, memory = f"0:{limits.first_uid}:{UIDS}", f"{int(limits.memory_gb * 1e9)}b"
    oci_runtime = tools.runtime(settings)
    return [
        *("--isolation", "oci", "--runtime", tools.program(oci_runtime) or oci_runtime),
        *("--userns-uid-map", mapped, "--userns-gid-map", mapped, "--network", "none", "--http-proxy=false"),
        *("--cgroup-parent", f"/{cgroup(work, settings).name}/step", "--memory", memory, "--memory-swap", memory),
        *("--ulimit", f"nproc={limits.processes}:{limits.processes}", "--ulimit", "core=0:0"),
        *(word for name in ("MKNOD", "SYS_CHROOT", "AUDIT_WRITE", "NET_BIND_SERVICE") for word in _dropped(name)),
    ]


def _dropped(capability: str) -> tuple[str, str]:
    return "--cap-drop", f"CAP_{capability}"


@contextmanager
def things(own: Path, settings: Settings, suite: str) -> Iterator[tuple[str, ...]]:
    """The volumes of a confined build: mirrors and wheels, without caches that others use, or a login.

    The mirrors answer inside the `with` block.
    """
    plain = settings.model_copy(update={"cache_gb": 0.0, "apt_proxy": _PROXY})
    volumes = own_things(own, plain, suite)
    program = Path(in_build.__file__).read_text(encoding="utf-8")
    (own / "in_build.py").write_text(program, encoding="utf-8")
    (own / "in_build.py").chmod(0o644)
    # All that can be written lies in the file system of the build.
    first, archives = settings.personal_builds.first_uid, own.parent / STORE / "apt"
    command.run(["install", "-d", "-m", "0755", "-o", str(first), "-g", str(first), "--", archives], root=True)
    volumes = tuple(volume.replace(f"{own}/apt:", f"{archives}:", 1) for volume in volumes)
    if written := [
        volume for volume in volumes if not volume.endswith(":ro") and not volume.startswith(f"{archives}:")
    ]:
        raise ValueError(f"a confined build could write to {written}")
    variables = "".join(f"export {name}={_PROXY}\n" for name in ("http_proxy", "https_proxy", "HTTPS_PROXY"))
    with (own / "env.sh").open("a", encoding="utf-8") as file:
        file.write(f"{variables}python3 -I -S /mnt/in_build.py\n")
    with mirrors.serving(own / mirrors.SOCKET, settings):
        yield volumes


def obstacle(settings: Settings) -> str:
    """Why this machine can't confine a build; empty: it can. Tried once by each process, which takes some seconds."""
    if not settings.personal_builds.at_once:
        return "`personal_builds.at_once` is 0"
    if why := mirrors.problem(settings):
        return why
    with _lock:
        if settings.home not in _tried:
            _tried[settings.home] = _try(settings)
        return _tried[settings.home]


def _try(settings: Settings) -> str:
    missing = [name for name in ("mkfs.btrfs", "buildah") if tools.program(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    try:
        with (
            workspace(settings) as work,
            tools.trial_tree(settings) as tree,
            confined_space(work, settings),
        ):
            (work / "Containerfile").write_text(_TRIAL, encoding="utf-8")
            call = [*buildah(work, settings), "build", *options(work, settings), "--layers=false", "--pull-never"]
            call += ["--file", str(work / "Containerfile"), str(tree)]
            command.run(call, root=True, env={"TMPDIR": str(temporary(work))}, limit=tools.TRIAL_SECONDS)
    except command.ProgramFailed as error:
        return error.tail.strip().rpartition("\n")[2] or error.what
    except RefitError as error:
        return error.what
    return ""
