"""How one stage is made on this machine, with mmdebstrap and buildah, in a storage of its own.

A layer depends on nothing but what is in the stage's key.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import re
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from random import random

from flows.core import progress
from flows.core.atomic_files import write_whole
from flows.core.file_locks import one_at_a_time
from flows.core.programs import command
from flows.core.progress import State
from flows.core.settings import Settings
from flows.core.waiting import retry
from flows.host import tools
from flows.images.builder import confined
from flows.images.builder.cache import take_back
from flows.images.builder.context import BUILT, MOUNT, own_things, uv_program, write_files
from flows.images.builder.failures import NO_SPACE, Watcher, explained, no_image, verify
from flows.images.builder.log_stream import Live
from flows.images.builder.slots import slot
from flows.images.builder.workspace import workspace
from flows.images.grafting.configuration import TIMESTAMP
from flows.images.manifests import Manifest, canonical, digest_of
from flows.images.registry import Registry
from flows.images.stages import WHEELS, Kind, Stage, local_name
from flows.locks import apt

logger = logging.getLogger("refit.build")
_PROGRAMS = {
    Kind.bootstrap: ("mmdebstrap", "buildah"),
    Kind.instructions: ("buildah",),
    Kind.closed: ("buildah",),
    Kind.wheels: ("buildah",),
}
# A Containerfile that leaves nothing but the wheels of a build.
_WHEELS_ALONE = f"FROM scratch\nCOPY --from=0 {WHEELS}/ /\n"
# Bootstrapping copies these from the machine that it runs on, and openssh-server makes keys when it is installed:
# every session in the world would have the same. The owner of apt's own folders depends on who started it.
_NEUTRAL = (
    'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/apt/sources.list.d/*; '
    'install -d -o 0 -g 0 -m 0700 "$1"/var/cache/apt/archives/partial "$1"/var/lib/apt/lists/partial; '
    'for copied in resolv.conf hostname; do rm -f "$1/etc/$copied"; install -m 644 /dev/null "$1/etc/$copied"; done'
)
# By another chroot, a step could leave its own, and read the files of its builder, logins and keys among them. The
# environment of its builder, the kernel shows to nobody who has fewer capabilities.
_KEPT_IN = ("--cap-drop", "CAP_SYS_CHROOT")
_PAUSES = (1.0, 4.0)  # seconds, and up to twice that, before what speaks to a registry is tried again
_FULL = "as much is built here as the machine lets"


class StageBuilder:
    """Makes stages and keeps what came out in the registry."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings, self._registry = settings, registry
        self._version = cache(partial(_version, settings=settings))
        self._at_once = tools.builds_at_once(settings)
        self._here = set[str]()  # parents that lie in the storage under their names

    def tools(self, stage: Stage) -> Mapping[str, str]:
        """A program that can change the output beside the stage itself: its name and version."""
        rules = f"{TIMESTAMP} {MOUNT} {_NEUTRAL}"
        installers = {"uv": self._version(uv_program())} if f"{MOUNT}/uv " in stage.text else {}
        return {
            "architecture": platform.machine(),
            "rules": hashlib.sha256(rules.encode()).hexdigest(),
            **{name: self._version(_path_of(name)) for name in _PROGRAMS[stage.kind]},
            **installers,
        }

    def make(self, stage: Stage, parent: str | None, log: Path, wheels: str | None = None) -> Manifest:
        """Make a stage on the parent with this digest, and push it; nobody finds it by its key yet.

        It waits as long as other runs build here as much as the machine lets.

        Args:
            stage: the stage to make.
            parent: digest of what it stands on; none for a base.
            log: where the output of all programs goes; it goes live to the Prefect run as well.
            wheels: digest of the stage of its wheels.

        Raises:
            RefitError: a step failed, the disk is full, or the registry or the mirror doesn't do its part.
        """
        watcher = Watcher(stage.name)
        # Layers of recipes that nobody vouches for never get into the storage of others.
        walls = partial(confined.opened, settings=self._settings) if stage.confined else nullcontext
        with (
            command.logged(log, Live(stage.name)),
            explained(self._settings, stage, watcher, log),
            slot(self._settings, self._at_once, partial(progress.report, stage.name, State.waiting, _FULL)),
            workspace(self._settings) as work,
            walls(work),
        ):
            if wheels:
                self._unpack(wheels, work / "own" / BUILT)
            image = self._build(stage, parent, work, watcher)
            progress.report(stage.name, State.running, "pushing")
            return self._push(image, work)

    def _build(self, stage: Stage, parent: str | None, work: Path, watcher: Watcher) -> str:
        """Build a stage into the private storage; returns the id of the image."""
        progress.report(stage.name, State.running, "starts")
        context, own, image = work / "context", work / "own", work / "image"
        (work / "tmp").mkdir()
        write_files(context, stage.files)
        write_files(own / "files", stage.files)
        if stage.kind is Kind.bootstrap:
            progress.report(stage.name, State.running, "installing system packages")
            self._bootstrap(stage, work, context / "base.tar")
        origin = self._origin(stage, parent, work)
        suite = stage.suite if stage.family == "deb" else ""
        last = _WHEELS_ALONE if stage.kind is Kind.wheels else ""
        (work / "Containerfile").write_text(f"FROM {origin}\n{stage.text}\n{last}")
        options = [
            *("--timestamp", str(TIMESTAMP)),
            *("--layers=false", "--no-cache", "--force-rm", "--pull-never"),
            *("--iidfile", str(image), "--file", str(work / "Containerfile")),
        ]
        if stage.confined:
            options += confined.options(work, self._settings)
            with confined.things(own, self._settings, suite) as volumes:
                options += _as_options(volumes)
                seconds = confined.seconds(self._settings)
                self._buildah(work, "build", *options, str(context), watcher=watcher, limit=seconds)
            return image.read_text().strip()
        isolation = tools.isolation(self._settings)
        options += ["--isolation", isolation, *_KEPT_IN]
        if isolation == "oci":
            oci_runtime = tools.runtime(self._settings)
            options += ["--runtime", tools.program(oci_runtime) or oci_runtime]
        options += _as_options(own_things(own, self._settings, suite))
        self._buildah(work, "build", *options, str(context), watcher=watcher)
        take_back(own, self._settings)
        return image.read_text().strip()

    def _unpack(self, wheels: str, folder: Path) -> None:
        """Write the files of a stage of wheels into a folder."""
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        manifest = self._registry.manifest(self._registry.stages, wheels)
        for layer in manifest.document["layers"]:
            with tempfile.TemporaryFile(dir=folder.parent) as file:
                self._registry.get_file(self._registry.stages, layer["digest"], file, int(layer["size"]))
                with tarfile.open(fileobj=file) as tar:
                    tar.extractall(folder, filter="data")

    def _bootstrap(self, stage: Stage, work: Path, tar: Path) -> None:
        lines, status = work / "sources.list", work / "status"
        lines.write_text(apt.sources(stage.suite, self._settings.debian_mirror))
        hook = f"download /var/lib/dpkg/status {shlex.quote(str(status))}"
        argv = bootstrap(stage, str(tar), str(lines), hook)
        epoch = {"SOURCE_DATE_EPOCH": str(TIMESTAMP), "TMPDIR": str(work / "tmp"), **apt.proxy(self._settings)}
        with apt.trust(self._settings) as trusted:
            command.run([*argv, *trusted], root=True, env=epoch, limit=self._settings.build_timeout_seconds)
        verify(stage, installed(status.read_text()))

    def _origin(self, stage: Stage, parent: str | None, work: Path) -> str:
        """The image that a build starts from."""
        if parent:
            return self._parent(stage, parent, work)
        return self._public(stage, work) if stage.image else "scratch"

    def _public(self, stage: Stage, work: Path) -> str:
        """The local name of the public image that a base stands on; pulled if need be."""
        digest = stage.image.rpartition("@")[2]
        name = f"localhost/refit/image:{digest.removeprefix('sha256:')}"
        with one_at_a_time(self._settings.folder("locks") / f"pull-{digest.removeprefix('sha256:')}"):
            if self._buildah(work, "inspect", "--type", "image", name, accepted=(0, 1, 125)).exit_code:
                progress.report(stage.name, State.running, f"pulling {stage.image}")
                secure = not stage.image.startswith(("127.0.0.1:", "localhost:"))
                try:
                    self._copy(f"docker://{stage.image}", name, work, f"--src-tls-verify={str(secure).lower()}")
                except command.ProgramFailed as error:
                    raise no_image(stage, error) from None
        return name

    def _parent(self, stage: Stage, parent: str, work: Path) -> str:
        """The local name of the parent, the same on every machine because history records it; pulled if need be."""
        name = local_name(parent)
        digest = self._registry.manifest(self._registry.stages, parent).document["config"]["digest"]
        with one_at_a_time(self._settings.folder("locks") / f"pull-{parent.removeprefix('sha256:')}"):
            # Once is enough: as long as something is built, nobody removes anything from the storage.
            if stage.confined:
                self._pull(parent, name, work)
            elif name not in self._here and self._buildah(work, "tag", digest, name, accepted=(0, 1, 125)).exit_code:
                progress.report(stage.name, State.running, f"pulling {stage.parent}")
                self._pull(parent, name, work)
            self._here |= set() if stage.confined else {name}
        return name

    def _pull(self, digest: str, name: str, work: Path) -> None:
        """Not with `buildah pull`: history and annotations of what is built on it would tell where it came from."""
        source = f"docker://{self._registry.host}/{self._registry.stages}@{digest}"
        tls = f"--src-tls-verify={str(self._registry.secure).lower()}"
        self._copy(source, name, work, tls, f"--src-authfile={self._login(work)}", look=self._registry.ping)

    def _copy(
        self, source: str, name: str, work: Path, *options: str, look: Callable[[], object] = lambda: None
    ) -> None:
        """Copy an image from a registry into the private storage; `look` is that of `again`."""
        store = f"containers-storage:[{confined.storage(work, self._settings)}]{name}"
        argv = ["skopeo", "copy", "--quiet", *options, source, store]
        env, limit = self._environment(work), self._settings.build_timeout_seconds
        again(lambda: command.run(argv, root=True, env=env, limit=limit), look)

    def _push(self, image: str, work: Path) -> Manifest:
        """Push an image among the stages; its manifest is the same from whichever machine."""
        target = f"docker://{self._registry.host}/{self._registry.stages}:unfinished"
        tls = f"--tls-verify={str(self._registry.secure).lower()}"
        options = [tls, "--authfile", str(self._login(work)), "--format", "oci", "--digestfile", str(work / "digest")]
        self._registry.see_where_uploads_go(self._registry.stages)
        try:
            again(lambda: self._buildah(work, "push", *options, image, target), self._registry.try_storing)
        except command.ProgramFailed as error:
            if NO_SPACE.search(error.tail):
                raise
            self._registry.try_storing()
            raise self._registry.broken(error.tail) from None
        pushed = self._registry.manifest(self._registry.stages, (work / "digest").read_text().strip())
        # buildah annotates how the parent was stored on this machine; no other would get the same digest.
        content = canonical({name: part for name, part in pushed.document.items() if name != "annotations"})
        manifest = Manifest(digest_of(content), pushed.media_type, content)
        self._registry.keep_manifest(self._registry.stages, manifest)
        return manifest

    def _login(self, work: Path) -> Path:
        auth = work / "auth.json"
        auth.touch(mode=0o600)
        auth.write_bytes(self._registry.credentials())
        return auth

    def _environment(self, work: Path) -> Mapping[str, str]:
        authorities = {"SSL_CERT_FILE": str(self._settings.ca_bundle)} if self._settings.ca_bundle else {}
        return {"TMPDIR": str(confined.temporary(work)), **authorities}

    def _buildah(
        self,
        work: Path,
        *words: str,
        watcher: Watcher | None = None,
        accepted: tuple[int, ...] = (0,),
        limit: float | None = None,
    ) -> command.Completed:
        argv = [*confined.buildah(work, self._settings), *words]
        env, seconds = self._environment(work), limit or self._settings.build_timeout_seconds
        return command.run(argv, root=True, env=env, limit=seconds, accepted=accepted, on_line=watcher)


def _as_options(volumes: Iterable[str]) -> list[str]:
    return [word for volume in volumes for word in ("--volume", volume)]


def again(attempt: Callable[[], object], look: Callable[[], object] = lambda: None) -> None:
    """Let a program that speaks to a registry try several times: it may have been busy, or a connection broke.

    Args:
        attempt: runs it.
        look: sees before another attempt whether the registry does its part, and waits while that is busy.

    Raises:
        ProgramFailed: of the last attempt, or at once where it ran out of time or nothing is to be started any more.
        RegistryError: as `look` says.
    """
    pauses_left = len(_PAUSES)

    def attempt_and_look() -> None:
        nonlocal pauses_left
        try:
            attempt()
        except command.ProgramFailed as error:
            if isinstance(error, command.CommandTimeout) or command.is_over() or not pauses_left:
                raise
            pauses_left -= 1
            look()
            logger.warning("%s failed; it is tried again", Path(error.argv[0]).name)
            raise _Again from error

    retry(attempt_and_look, _Again, pause=lambda number: _PAUSES[number - 1] * (1 + random()))


class _Again(Exception):
    """A program has failed, and is tried once more."""


def bootstrap(stage: Stage, tar: str, sources: str, *hooks: str) -> list[str]:
    """The command that writes a base's packages to `tar`, from the mirrors in the file `sources`. Pure."""
    return [
        *("mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(stage.system)}"),
        *(f"--customize-hook={hook}" for hook in (_NEUTRAL, *hooks)),
        *(stage.suite, tar, sources),
    ]


def installed(status: str) -> tuple[str, ...]:
    """The packages in dpkg's status file, as `name=version`, sorted. Pure."""
    records = (dict(re.findall(r"^(Package|Status|Version): (.+)$", part, re.M)) for part in status.split("\n\n"))
    return tuple(
        sorted(f"{r['Package']}={r['Version']}" for r in records if r.get("Status", "").endswith(" installed"))
    )


@cache
def _path_of(program: str) -> Path:
    path = tools.program(program)
    if path is None:
        raise command.ProgramMissing(program)
    return Path(path)


def _version(program: Path, settings: Settings) -> str:
    """The version that a program prints; asked once per file, so that a run with nothing to do starts nothing."""
    status = program.stat()
    identity = hashlib.sha256(f"{program} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    note = settings.folder("cache", "versions") / f"{program.name}-{identity}"
    if not note.exists():
        write_whole(note, command.run([program, "--version"]).stdout.strip())
    return note.read_text()
