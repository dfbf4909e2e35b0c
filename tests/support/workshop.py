"""buildah and a registry by themselves: images as the builder makes them, and layers on other parents."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.grafting.configuration import TIMESTAMP, Config, configured
from flows.images.grafting.layers import Stored, composed, layers_of
from flows.images.manifests import MANIFEST, Manifest, canonical, digest_of
from flows.images.registry import Registry
from flows.images.stages import local_name
from tests.support.machine import private_home, serve_registry

_PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/chmod", "/bin/mkdir", "/bin/ln", "/bin/rm")

PARENT = """\
ADD base.tar /
RUN mkdir -p /opt/app-root /home/dev /usr/share; echo root:x:0:0 > /etc/passwd; echo cache > /etc/ld.so.cache; \\
    mkdir -p /usr/share/old; echo 1 > /usr/share/old/a
ENV HOME=/home/dev PATH=/usr/local/bin:/usr/bin:/bin
WORKDIR /home/dev
CMD ["base"]
"""


@dataclass(frozen=True)
class Workshop:
    """buildah and a registry, as the builder uses them."""

    settings: Settings
    registry: Registry
    context: Path

    @property
    def repository(self) -> str:
        return self.registry.stages

    def build(self, text: str, parent: Manifest | None = None) -> Manifest:
        origin = local_name(parent.digest) if parent else "scratch"
        containerfile, noted = self.context.parent / "Containerfile", self.context.parent / "noted"
        containerfile.write_text(f"FROM {origin}\n{text}\n")
        isolation = ["--isolation", tools.isolation(self.settings), "--timestamp", str(TIMESTAMP)]
        options = [*isolation, "--layers=false", "--no-cache", "--pull-never", "--iidfile", str(noted)]
        self.buildah("build", *options, "--file", str(containerfile), str(self.context))
        image = noted.read_text().strip()
        target = f"docker://{self.registry.host}/{self.repository}:built"
        self.buildah("push", "--tls-verify=false", "--format", "oci", image, target)
        pushed = self.registry.manifest(self.repository, "built").document
        content = canonical({name: part for name, part in pushed.items() if name != "annotations"})
        digest = self.registry.put_manifest(self.repository, digest_of(content), content, MANIFEST)
        self.buildah("tag", image, local_name(digest))
        return Manifest(digest, MANIFEST, content)

    def buildah(self, *words: str) -> str:
        return command.run([*tools.buildah(self.settings), *words], root=True).stdout

    def graft(self, old: Manifest, old_parent: Manifest, parent: Manifest, text: str) -> Manifest:
        """Put what stands above one parent onto another, whatever the rule says."""
        (part,) = self.carried(old, old_parent)
        config = configured(self.config(parent), text, part.diff_id, origin=local_name(parent.digest))
        return self.append(parent, [part], self.with_copies(config, old))

    def append(self, parent: Manifest, layers: Sequence[Stored], config: Config) -> Manifest:
        """The image that layers give on top of a parent, in the registry."""
        image = composed(self.registry, self.repository, parent, layers, config)
        self.registry.put_manifest(self.repository, image.digest, image.content, image.media_type)
        return image

    def with_copies(self, config: Config, built: Manifest) -> Config:
        """A configuration with each COPY as buildah has recorded it: by the hash of what was copied."""
        recorded = iter(entry for entry in self.config(built)["history"] if _is_copy(entry))
        return {**config, "history": [next(recorded) if _is_copy(entry) else entry for entry in config["history"]]}

    def carried(self, image: Manifest, parent: Manifest) -> tuple[Stored, ...]:
        return layers_of(self.registry, self.repository, image)[len(parent.document["layers"]) :]

    def config(self, image: Manifest) -> Config:
        return self.registry.config(self.repository, image)


def _is_copy(entry: Mapping[str, str]) -> bool:
    return " COPY " in entry["created_by"]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("workshop")
    context = folder / "context"
    (context / "files").mkdir(parents=True)
    (context / "files" / "start").write_text("#!/bin/sh\n")
    _write_base(context / "base.tar")
    with serve_registry(folder / "registry") as server, private_home(folder / "home", server.port) as settings:
        yield Workshop(settings, Registry(settings), context)


def _write_base(path: Path) -> None:
    """The smallest root filesystem in which a shell runs: programs of this machine, and what they are linked with."""
    linked = command.run(["ldd", *_PROGRAMS]).stdout.split()
    with tarfile.open(path, "w") as tar:
        for folder in ("bin", "etc", "usr", "usr/bin", "home", "opt", "tmp", "proc", "sys", "dev", "run"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name in sorted({*_PROGRAMS, *(word for word in linked if word.startswith("/") and not word.endswith(":"))}):
            tar.add(Path(name).resolve(), name)
