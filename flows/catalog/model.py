"""The catalog: recipes for bases, bundles and IDEs, and the releases that combine them. Plain data, no effects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from flows.catalog.pins import Pins
from flows.core.documents import Document
from flows.core.settings.policy import SessionPolicy

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+$")]
PythonName = Annotated[str, StringConstraints(pattern=r"^py3[0-9]+$")]
MachineName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
CudaName = Annotated[str, StringConstraints(pattern=r"^[a-z]+(-[a-z]+)?$")]
PackageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*$")]
RepositoryName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")]
HomePath = Annotated[str, StringConstraints(pattern=r"^(\.*[\w-][\w.-]*)(/\.*[\w-][\w.-]*)*$", max_length=200)]
Mount = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}:(/[A-Za-z0-9._-]+)+(:ro)?$")]

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(MB|GB|MiB|GiB)")
_UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}


def _bytes(size: object) -> object:
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None:
        raise ValueError("a size is a number with its unit, MB, GB, MiB or GiB, e.g. 450 MB")
    return int(float(match[1]) * _UNITS[match[2]])


# Bytes, written as a number with its unit.
Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]


def python_version(name: str) -> str:
    """The version that the name of a Python stands for: `py311` is 3.11."""
    return f"3.{name.removeprefix('py3')}"


class Access(Document):
    """How an IDE is reached, asked for its health, and told apart from its user: part of a profile's configuration."""

    port: int | None = Field(None, ge=1, le=65535, description="Port inside the container; none: no IDE to reach.")
    health: str = Field("", description="Path that answers 200 once the IDE is ready, without a token.")
    page: str = Field("/", description="Path that a person opens; `{token}` is replaced.")
    protocol: str = Field("none", pattern="^(jupyter|none)$", description="Protocol of its API; none: process only.")
    own_paths: tuple[str, ...] = Field((), description="Paths in the home that the IDE itself writes (rsync patterns).")
    helpers: tuple[str, ...] = Field((), description="Names of programs (with *) that the IDE runs for itself.")
    late_home: bool = Field(False, description="Its start command waits for a home that comes later.")
    heartbeat: str = Field("", description="File in the home that the IDE touches while somebody works in it.")
    notices: str = Field(
        "", pattern=r"^([\w.-]+(/[\w.-]+)*)?$", description="File in the home in which its windows look for a notice."
    )
    patience: float = Field(
        1.0, ge=1, le=10, description="How many times the settings' ready_timeout_seconds it may need."
    )
    user_namespaces: bool = Field(
        False,
        description="Programs in it may make user namespaces, as sandboxes of browsers and rootless containers do.",
    )
    machine_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(
        (), description="TCP ports of the machine that its sessions reach, e.g. of a database there; else none."
    )

    secrets: tuple[HomePath, ...] = Field(
        (),
        max_length=100,
        description="Files and folders in the home that are one session's alone, as keys and tokens: clones lack them.",
    )

    def as_label(self) -> str:
        """The label on images. Settings that came later are left out unless chosen: images stay what they are."""
        later = {
            "user_namespaces": self.user_namespaces,
            "machine_ports": self.machine_ports,
            "secrets": self.secrets,
        }
        return self.model_dump_json(exclude={name for name, chosen in later.items() if not chosen})


class Resources(Document):
    """Limits of a profile's sessions on their machine, and which of its GPUs it needs."""

    memory: Size | None = Field(None, description="Memory that it may take, e.g. 8 GB; none: as the machine lets.")
    cpus: float | None = Field(None, gt=0, description="Cores that it may take; none: as the machine lets.")
    gpus: int = Field(0, ge=0, description="GPUs that it has while it runs.")


class Repository(Document):
    """Where packages of rpm come from, and who signs them."""

    baseurl: str = Field(pattern=r"^https?://[^\s?#]+/$", description="Where `repodata/` is; may have `$basearch`.")
    gpgkey: str = Field(pattern=r"^/[A-Za-z0-9/._+-]+$", description="File with its public key, in the base's image.")
    fingerprint: str = Field(pattern="^[0-9A-F]{40}$", description="Fingerprint of that key.")


class BaseConfig(Document):
    """`base/<os>/base.yaml`. A base of the family `deb` is made of packages alone, one of `rpm` of a public image."""

    family: str = Field(pattern="^(deb|rpm)$")
    suite: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="The distribution's release, e.g. bookworm.")
    pythons: tuple[PythonName, ...] = Field(min_length=1)
    python_packages: Mapping[PythonName, tuple[PackageName, ...]] = Field(
        {}, description="System packages that one of its Pythons needs beside `os-packages.txt`."
    )
    image: str = Field(
        "",
        pattern=r"^([a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+@sha256:[0-9a-f]{64})?$",
        description="Public image that it stands on, by digest.",
    )
    platform: str = Field("", pattern="^[a-z0-9]*$", description="Platform that its modules are made for, e.g. el9.")
    needs: tuple[str, ...] = Field((), description="Capability that a machine must offer to build for it, e.g. gpu.")
    repositories: Mapping[RepositoryName, Repository] = {}

    @model_validator(mode="after")
    def _whole(self) -> BaseConfig:
        """A base of rpm needs all settings that only such a base has."""
        own = {name: bool(getattr(self, name)) for name in ("image", "platform", "repositories")}
        if wrong := [name for name, is_set in own.items() if is_set != (self.family == "rpm")]:
            verb = "needs" if self.family == "rpm" else "has no"
            raise ValueError(f"a base of the family {self.family} {verb} {', '.join(wrong)}")
        if unknown := sorted(self.python_packages.keys() - set(self.pythons)):
            raise ValueError(f"python_packages names {', '.join(unknown)}, which pythons doesn't")
        return self


@dataclass(frozen=True)
class Base:
    """An operating system with its Python: `base/<os>/`."""

    name: str
    folder: Path
    display: str
    config: BaseConfig
    packages: tuple[str, ...]


class Download(Document):
    """A file that a recipe takes from the internet."""

    url: str = Field(pattern=r"^https://[^\s?#]+$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of its content; anything else is refused.")
    machine: str = Field(
        "", pattern="^[a-z0-9_]*$", description="The machine that it is for, as `uname -m` says; empty: for all."
    )


class CudaLevel(Document):
    """How much of CUDA an image has; without a lock it is only told what it needs of its host's driver."""

    display: str = Field(min_length=1, description="Text that menus show for it.")
    above: str = Field("", description="The level that it stands on.")
    lock: str = Field("", pattern=r"^[a-z]*$", description="Name of its packages' lock in base/cuda/locks/.")
    packages: tuple[PackageName, ...] = Field((), description="System packages that it needs beside its wheels.")
    rpm: tuple[PackageName, ...] = Field((), description="Packages that it consists of on a system of rpm.")


class CudaConfig(Document):
    """`base/cuda/cuda.yaml`."""

    version: str = Field(pattern=r"^[0-9]+\.[0-9]+$", description="Version of the toolkit.")
    driver: str = Field(pattern=r"^[0-9.]+$", description="The oldest driver that can run it.")
    machines: Mapping[MachineName, MachineName] = Field(
        min_length=1,
        description="Machine, as `uname -m` says, and the value of `$machine` in its addresses there.",
    )
    repository: Repository = Field(description="Repository of its packages on systems of rpm.")
    key: Download = Field(description="The public key of that repository.")
    levels: Mapping[CudaName, CudaLevel] = Field(min_length=1)
    only: tuple[Only, ...] = Field((), description="Recipes that it goes with; empty: with everything.")

    @model_validator(mode="after")
    def _grounded(self) -> CudaConfig:
        """Each level stands on one that was named before it."""
        before: set[str] = {""}
        for name, level in self.levels.items():
            if level.above not in before:
                raise ValueError(f"the level {name} stands on {level.above!r}, which isn't named before it")
            before.add(name)
        return self

    def on(self, machine: str) -> CudaConfig:
        """The same with the addresses for a machine."""
        word = self.machines.get(machine, machine)
        baseurl, url = (text.replace("$machine", word) for text in (self.repository.baseurl, self.key.url))
        repository = self.repository.model_copy(update={"baseurl": baseurl})
        return self.model_copy(update={"repository": repository, "key": self.key.model_copy(update={"url": url})})

    def below(self, level: str) -> tuple[str, ...]:
        """A level and all that it stands on, lowest first."""
        return (*(self.below(self.levels[level].above)), level) if level else ()


class Only(Document):
    """Recipes that a recipe goes with: of each kind that is named, one of these, and nothing else; for a reason."""

    ide: tuple[Name, ...] = ()
    bundle: tuple[Name, ...] = ()
    os: tuple[Name, ...] = ()
    python: tuple[PythonName, ...] = ()
    cuda: tuple[CudaName | Literal[""], ...] = Field((), description="Levels of CUDA; the empty one: none of it.")
    because: str = Field(min_length=1, description="Reason, told to people who choose something else.")


class BundleConfig(Document):
    """`bundles/<n>-<name>/bundle.yaml`, which a bundle needs only if it has something to say there."""

    only: tuple[Only, ...] = Field((), description="Recipes that it goes with; empty: with everything.")
    extends: Name | None = Field(None, description="Bundle whose packages it has, too, and all that goes with them.")


@dataclass(frozen=True)
class Bundle:
    """A set of libraries: `bundles/<n>-<name>/`.

    Everything from the bundles that it extends is part of it: `packages` are the system packages of all of them,
    `lineage` their folders, farthest first and its own last. `pythons` maps `py311` to the folder with its Pipfile and
    exports, `categories` to the sections of that Pipfile and of the others'. `compilers` are the system packages with
    which those of its Python packages are made that have no wheel; they are in no image. `only` says what it goes with.
    `owner` is the person whose own it is, and for which nobody vouches; empty: it is of the catalog.
    """

    name: str
    folder: Path
    display: str
    packages: tuple[str, ...]
    pythons: Mapping[str, Path]
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lineage: tuple[Path, ...] = ()
    compilers: tuple[str, ...] = ()
    only: tuple[Only, ...] = ()
    owner: str = ""


class IdeConfig(Document):
    """`ides/<n>-<name>/ide.yaml`."""

    category: str = Field("", pattern="^[a-z]*$", description="Pipfile category of its packages; empty: none.")
    only: tuple[Only, ...] = Field((), description="Recipes that it goes with; empty: with everything.")
    keep_node: bool = Field(False, description="Whether the Node that installs its npm packages stays, to run them.")
    downloads: Mapping[Name, Download] = Field({}, description="Files that its snippet takes from the internet.")
    access: Access = Access()


@dataclass(frozen=True)
class Ide:
    """The program that opens: `ides/<n>-<name>/`; `packages` are its system packages."""

    name: str
    folder: Path
    display: str
    config: IdeConfig
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """One image of a release, and its configuration.

    `stem` is the part of its tag before the first underscore, e.g. `jupyter-minimal-deb12-py311`; `cuda_level` is empty
    without CUDA; `size_budget` is how many bytes (compressed) its image may have, `migration` how its sessions are
    moved, `resources` what each of them may take, `volumes` what they have beside their homes (NAME:/path), `secrets`
    what in their homes is one session's alone, beside that of its IDE.
    """

    stem: str
    release: str
    ide: Ide
    bundle: Bundle
    base: Base
    python: str
    cuda_level: str = ""
    size_budget: int | None = None
    migration: SessionPolicy = field(default_factory=SessionPolicy)
    resources: Resources = field(default_factory=Resources)
    volumes: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    @property
    def access(self) -> Access:
        """How its IDE is reached, with all that is one session's alone in a home."""
        access = self.ide.config.access
        if not self.secrets:
            return access
        return access.model_copy(update={"secrets": tuple(sorted({*access.secrets, *self.secrets}))})

    @property
    def cuda(self) -> bool:
        """Whether its image has CUDA."""
        return bool(self.cuda_level)


@dataclass(frozen=True)
class Release:
    """`releases/<name>.yaml`.

    `nightly` is the schedule (cron, UTC) on which its images are brought up to date, empty: none; `supported_until` the
    last day (UTC) on which they are, none: for ever; `pins` how far its packages may move; `cutoff` the day (UTC)
    before which what is locked was uploaded, none: whenever; `retired` the stems of profiles that it has no more, and
    those of their successors.
    """

    name: str
    profiles: tuple[Profile, ...]
    nightly: str = ""
    supported_until: date | None = None
    pins: Pins = field(default_factory=Pins)
    cutoff: date | None = None
    retired: Mapping[str, str] = field(default_factory=dict)

    def is_supported(self, on: date) -> bool:
        """Whether its images are to be kept up to date on that day (UTC)."""
        return self.supported_until is None or on <= self.supported_until


@dataclass(frozen=True)
class Catalog:
    """All recipes below one folder; the mappings are by name, in the order of menus."""

    root: Path
    bases: Mapping[str, Base]
    bundles: Mapping[str, Bundle]
    ides: Mapping[str, Ide]
    releases: Mapping[str, Release]
    cuda: CudaConfig | None = None
