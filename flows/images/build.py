"""Stages become images: found in the registry by key, else built there and then with mmdebstrap or buildah.

A layer depends on nothing but what is in the stage's key. What belongs to the machine (authorities, index, proxies,
folders of wheels) reaches a build through a folder that is mounted read-only at `/mnt`: every base has that path, and
no isolation hides it, so nothing of it stays in a layer, in the configuration or in the history.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from flows import command, host, progress
from flows.database import Lease, lease, open_database
from flows.errors import RefitError
from flows.images import stages
from flows.images.ledger import Entry, Ledger
from flows.images.registry import Manifest, Registry, canonical, digest_of
from flows.images.stages import Kind, Stage, key_of
from flows.images.workspace import alone, recover, workspace
from flows.locks import system
from flows.progress import State
from flows.settings import Settings

__all__ = ["BUILD_LIMIT", "TIMESTAMP", "Builder", "Built", "recover"]

logger = logging.getLogger("refit.build")

# The oldest date that a wheel can hold. All files of all layers carry it.
TIMESTAMP = 315_532_800
BUILD_LIMIT = 3 * 3600.0
# Where the folder with the machine's own things is mounted.
MOUNT = "/mnt"
_PROGRAMS = {Kind.bootstrap: ("mmdebstrap", "buildah"), Kind.instructions: ("buildah",)}
# Bootstrapping copies these from the machine that it runs on, and openssh-server makes keys when it is installed:
# every session in the world would have the same. Whose apt's own folders are depends on who started it.
_NEUTRAL = (
    'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/apt/sources.list.d/*; '
    'install -d -o 0 -g 0 -m 0700 "$1"/var/cache/apt/archives/partial "$1"/var/lib/apt/lists/partial; '
    'for copied in resolv.conf hostname; do rm -f "$1/etc/$copied"; install -m 644 /dev/null "$1/etc/$copied"; done'
)
_AUTHORITIES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
_NO_SPACE = re.compile(r"[Nn]o space left on device|[Dd]isk quota exceeded")
_VANISHED = re.compile(r"Version '([^']+)' for '([^']+)' was not found")
_STEP = re.compile(r"^STEP \d+/\d+: ")


@dataclass(frozen=True)
class Built:
    """A stage in the registry.

    Attributes:
        stage: its name.
        key: its key, and its tag in the repository of stages.
        digest: its manifest's.
        reused: nothing had to be built.
        seconds: how long it took.
        log: the output of all programs; none where it was reused.
        size: bytes (compressed) of all its layers, those of its parents included.
    """

    stage: str
    key: str
    digest: str
    reused: bool
    seconds: float
    log: Path | None
    size: int = 0


@dataclass
class _Watcher:
    """Follows buildah's output: reports each step, and remembers the last for the error."""

    stage: str
    step: str = field(default="")

    def __call__(self, line: str) -> None:
        if _STEP.match(line):
            self.step = " ".join(line.split())
            progress.report(self.stage, State.running, self.step[:80])


class Builder:
    """Builds stages on this machine and keeps them in the registry; one for all threads of a run."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings, self._registry = settings, registry
        self._database = open_database(settings.database)
        self._ledger = Ledger(self._database)

    def build(self, stage: Stage, parent: Built | None) -> Built:
        """Find a stage by its key; build and push it where it isn't there.

        Raises:
            RefitError: a step failed, the disk is full, or the registry or the mirror doesn't do its part.
        """
        started = monotonic()
        inputs = self.inputs(stage, parent.digest if parent else None)
        stage_key = key_of(inputs)
        if found := self._find(stage, stage_key, started):
            return found
        # Another run, here or elsewhere, may be at the same stage: then wait for it, and take what it made.
        with lease(self._database, f"stage {stage_key}", wait=BUILD_LIMIT) as mine:
            if found := self._find(stage, stage_key, started):
                return found
            log = self._settings.folder("logs", "stages") / f"{stage.name}-{stage_key[:12]}.log"
            watcher = _Watcher(stage.name)
            with (
                command.logged(log),
                _explained(self._settings, stage, watcher, log),
                workspace(self._settings) as work,
            ):
                image = self._make(stage, parent, work, watcher)
                progress.report(stage.name, State.running, "pushing")
                entry = Entry(stage_key, self._push(image, work), inputs, monotonic() - started)
                manifest = self._name(stage, entry, mine)
            progress.report(stage.name, State.done)
        return Built(stage.name, stage_key, manifest.digest, False, monotonic() - started, log, manifest.size)

    def inputs(self, stage: Stage, parent_digest: str | None) -> dict[str, dict[str, str]]:
        """All that goes into a stage on this machine (see `stages.inputs`)."""
        return stages.inputs(stage, parent_digest, self._tools(stage.kind))

    def _find(self, stage: Stage, stage_key: str, started: float) -> Built | None:
        manifest = self._registry.find(self._registry.stages, stage_key)
        if manifest is None:
            return None
        progress.report(stage.name, State.reused)
        return Built(stage.name, stage_key, manifest.digest, True, monotonic() - started, None, manifest.size)

    def _tools(self, kind: Kind) -> Mapping[str, str]:
        """What beside the stage itself can change the output."""
        rules = f"{TIMESTAMP} {MOUNT} {_NEUTRAL}"
        return {
            "architecture": platform.machine(),
            "rules": hashlib.sha256(rules.encode()).hexdigest(),
            **{program: _version(program, self._settings) for program in _PROGRAMS[kind]},
        }

    def _make(self, stage: Stage, parent: Built | None, work: Path, watcher: _Watcher) -> str:
        """Build a stage into the private storage; returns the id of the image."""
        progress.report(stage.name, State.running, "starts")
        context, own, image = work / "context", work / "own", work / "image"
        (work / "tmp").mkdir()
        write_files(context, stage.files)
        write_files(own / "files", stage.files)
        if stage.kind is Kind.bootstrap:
            progress.report(stage.name, State.running, "installing system packages")
            self._bootstrap(stage, work, context / "base.tar")
        origin = self._parent(parent, work) if parent else "scratch"
        (work / "Containerfile").write_text(f"FROM {origin}\n{stage.text}\n")
        oci_runtime = host.runtime(self._settings)
        options = [
            *("--isolation", host.isolation(self._settings)),
            *("--runtime", host.program(oci_runtime) or oci_runtime),
            *("--timestamp", str(TIMESTAMP)),
            *("--layers=false", "--no-cache", "--force-rm", "--pull-never"),
            *(word for volume in own_things(own, self._settings) for word in ("--volume", volume)),
            *("--iidfile", str(image), "--file", str(work / "Containerfile")),
        ]
        self._buildah(work, "build", *options, str(context), watcher=watcher)
        return image.read_text().strip()

    def _bootstrap(self, stage: Stage, work: Path, tar: Path) -> None:
        lines, status = work / "sources.list", work / "status"
        lines.write_text(system.sources(stage.suite, self._settings.debian_mirror))
        argv = [
            *("mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(stage.system)}"),
            f"--customize-hook={_NEUTRAL}",
            f"--customize-hook=download /var/lib/dpkg/status {shlex.quote(str(status))}",
            *(stage.suite, str(tar), str(lines)),
        ]
        epoch = {"SOURCE_DATE_EPOCH": str(TIMESTAMP), "TMPDIR": str(work / "tmp"), **system.proxy(self._settings)}
        command.run(argv, root=True, env=epoch, limit=BUILD_LIMIT)
        _verify(stage, installed(status.read_text()))

    def _parent(self, parent: Built, work: Path) -> str:
        """The local name of the parent, the same on every machine because history records it; pulled if need be."""
        name = local_name(parent.digest)
        wanted = self._registry.manifest(self._registry.stages, parent.digest).document["config"]["digest"]
        with alone(self._settings, f"pull-{parent.digest.removeprefix('sha256:')}"):
            looked = self._buildah(
                *(work, "inspect", "--type", "image", "--format", "{{.FromImageID}}", name), accepted=(0, 1, 125)
            )
            if f"sha256:{looked.stdout.strip()}" != wanted:
                progress.report(parent.stage, State.reused, "pulling")
                self._pull(parent.digest, name, work)
        return name

    def _pull(self, digest: str, name: str, work: Path) -> None:
        """Not with `buildah pull`: history and annotations of what is built on it would tell where it came from."""
        runroot = host.runtime_folder(self._settings) / "builds"
        store = f"containers-storage:[overlay@{host.builds(self._settings)}+{runroot}]{name}"
        source = f"docker://{self._registry.host}/{self._registry.stages}@{digest}"
        tls = f"--src-tls-verify={str(self._registry.secure).lower()}"
        argv = ["skopeo", "copy", "--quiet", tls, "--src-authfile", str(self._login(work)), source, store]
        command.run(argv, root=True, env=self._environment(work), limit=BUILD_LIMIT)

    def _push(self, image: str, work: Path) -> str:
        """Push an image among the stages; returns the digest of its manifest, the same from whichever machine."""
        target = f"docker://{self._registry.host}/{self._registry.stages}:unfinished"
        tls = f"--tls-verify={str(self._registry.secure).lower()}"
        options = [tls, "--authfile", str(self._login(work)), "--format", "oci", "--digestfile", str(work / "digest")]
        try:
            self._buildah(work, "push", *options, image, target)
        except command.ProgramFailed as error:
            if _NO_SPACE.search(error.tail):
                raise
            self._registry.try_storing()
            raise self._registry.broken(error.tail) from None
        pushed = self._registry.manifest(self._registry.stages, (work / "digest").read_text().strip())
        # buildah annotates how the parent was stored on this machine; no other would get the same digest.
        content = canonical({name: part for name, part in pushed.document.items() if name != "annotations"})
        digest = self._registry.put_manifest(self._registry.stages, digest_of(content), content, pushed.media_type)
        self._buildah(work, "tag", image, local_name(digest))
        return digest

    def _name(self, stage: Stage, entry: Entry, mine: Lease) -> Manifest:
        """Let the stage be found by its key: as what came out of it first."""
        repository = self._registry.stages
        counts = self._ledger.record(stage.name, entry, mine)
        manifest = self._registry.find(repository, counts)
        if manifest is None:  # the registry has lost what came out first
            self._ledger.forget(entry.key, mine)
            counts = self._ledger.record(stage.name, entry, mine)
            manifest = self._registry.manifest(repository, counts)
        if counts != entry.digest:
            logger.warning(
                "%s is not deterministic: %s came out now, %s before; that one counts", stage.name, entry.digest, counts
            )
        self._registry.put_manifest(repository, entry.key, manifest.content, manifest.media_type)
        return manifest

    def _login(self, work: Path) -> Path:
        auth = work / "auth.json"
        auth.touch(mode=0o600)
        auth.write_bytes(self._registry.credentials())
        return auth

    def _environment(self, work: Path) -> Mapping[str, str]:
        authorities = {"SSL_CERT_FILE": str(self._settings.ca_bundle)} if self._settings.ca_bundle else {}
        return {"TMPDIR": str(work / "tmp"), **authorities}

    def _buildah(
        self, work: Path, *words: str, watcher: _Watcher | None = None, accepted: tuple[int, ...] = (0,)
    ) -> command.Completed:
        argv = [*host.buildah(self._settings), *words]
        env = self._environment(work)
        return command.run(argv, root=True, env=env, limit=BUILD_LIMIT, accepted=accepted, on_line=watcher)


def local_name(digest: str) -> str:
    """The name that a stage with this digest has in the private storage of every machine."""
    return f"localhost/refit/stage:{digest.removeprefix('sha256:')}"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below `folder`, all readable, whatever the umask is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"a stage's file lies outside of its context: {name!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        path.chmod(0o755)


def own_things(folder: Path, settings: Settings) -> tuple[str, ...]:
    """Fill the folder that builds see at `MOUNT` with what is this machine's own; returns the volumes to mount."""
    wheels = [f"{MOUNT}/wheels/{number}" for number, _ in enumerate(settings.wheel_folders)]
    variables = {"PIP_FIND_LINKS": " ".join(wheels), "PIP_INDEX_URL": settings.pip_index_url.get_secret_value()}
    variables["NPM_CONFIG_REGISTRY"] = settings.npm_registry
    apt = [f'Acquire::http::Proxy "{settings.apt_proxy}";'] if settings.apt_proxy else []
    if settings.ca_bundle:
        shutil.copyfile(settings.ca_bundle, folder / "ca.pem")
        variables |= dict.fromkeys(_AUTHORITIES, f"{MOUNT}/ca.pem")
        apt.append(f'Acquire::https::CaInfo "{MOUNT}/ca.pem";')
    if apt:
        (folder / "apt.conf").write_text("\n".join(apt) + "\n")
        variables["APT_CONFIG"] = f"{MOUNT}/apt.conf"
    for number, _ in enumerate(wheels):
        (folder / "wheels" / str(number)).mkdir(parents=True)
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()) if value]
    (folder / "env.sh").write_text("".join(exports))
    folders = zip(settings.wheel_folders, wheels, strict=True)
    return f"{folder}:{MOUNT}:ro", *(f"{wheel_folder}:{target}:ro" for wheel_folder, target in folders)


def installed(status: str) -> tuple[str, ...]:
    """The packages in dpkg's status file, as `name=version`, sorted. Pure."""
    records = (dict(re.findall(r"^(Package|Status|Version): (.+)$", part, re.M)) for part in status.split("\n\n"))
    return tuple(
        sorted(f"{r['Package']}={r['Version']}" for r in records if r.get("Status", "").endswith(" installed"))
    )


def _verify(stage: Stage, found: tuple[str, ...]) -> None:
    if found != tuple(sorted(stage.system)):
        differing = sorted(set(found) ^ set(stage.system))
        raise RefitError(
            f"The system packages of stage {stage.name!r} are not those that were resolved.",
            why=f"They differ in {', '.join(differing[:10])}: the mirror changed meanwhile.",
            fix="run it again; it resolves them anew.",
        )


def _version(program: str, settings: Settings) -> str:
    """What a program says of its version; asked once per file, so that a run with nothing to do starts nothing."""
    path = host.program(program)
    if path is None:
        raise command.ProgramMissing(program)
    status = Path(path).stat()
    identity = hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    note = settings.folder("cache", "versions") / f"{program}-{identity}"
    if not note.exists():
        draft = note.with_suffix(f".{os.getpid()}")
        draft.write_text(command.run([path, "--version"]).stdout.strip())
        draft.replace(note)
    return note.read_text()


@contextmanager
def _explained(settings: Settings, stage: Stage, watcher: _Watcher, log: Path) -> Iterator[None]:
    """Report a failed build, and say of it what a person needs to know."""
    try:
        yield
    except BaseException as error:
        progress.report(stage.name, State.failed, str(error).partition("\n")[0])
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(settings, stage, str(error)) from None
        if isinstance(error, command.ProgramFailed):
            raise _failure(settings, stage, watcher.step, error, log) from None
        raise


def _failure(settings: Settings, stage: Stage, step: str, error: command.ProgramFailed, log: Path) -> RefitError:
    if _NO_SPACE.search(error.tail):
        return _disk_full(settings, stage, error.tail.splitlines()[-1])
    if vanished := _VANISHED.findall(error.tail):
        return RefitError(
            f"The mirror has no longer what stage {stage.name!r} was resolved to.",
            why=", ".join(f"{name} {version}" for version, name in vanished),
            fix="run it again; it resolves them anew.",
        )
    return RefitError(
        f"Stage {stage.name!r} can't be built: {step or Path(error.argv[0]).name} failed.",
        why=error.why,
        fix=f"the whole output is in {log}.",
    )


def _disk_full(settings: Settings, stage: Stage, said: str) -> RefitError:
    free = shutil.disk_usage(settings.home).free
    return RefitError(
        f"The disk is full: stage {stage.name!r} can't be built.",
        why=f"{settings.home} has {free / 1e6:.0f} MB left. {said.strip()}",
        fix="make space there, or move Refit's home to a larger disk (REFIT_HOME), then run it again.",
    )
