"""How Refit is configured: `settings.yaml` in its home, overridden by `REFIT_…` variables.

A relative path in `settings.yaml` starts at that file. Settings are what a person chose; facts of a run (the
container runtime that works here) are in `host`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from flows.core import documents
from flows.core.documents import Mistake, Mistakes
from flows.core.lazily import lazily
from flows.core.programs import program_output
from flows.core.settings import hosts
from flows.core.settings.cluster import ClusterSettings, SessionEngine
from flows.core.settings.default_folders import default_catalog, default_home
from flows.core.settings.hub_login import LoginPolicy, OtherHub
from flows.core.settings.others import OthersSettings
from flows.core.settings.person_limits import PersonLimits
from flows.core.settings.personal_builds import PersonalBuilds
from flows.core.settings.policy import RolloutPolicy, SnapshotPolicy
from flows.core.settings.relative import relative
from flows.core.settings.spans import Span

with lazily(globals()):
    from flows.core.settings.sources import gathered  # 0.1 s

Port = Annotated[int, Field(ge=1, le=65535)]
# The login of the embedded registry that is made up where nobody chose one; the password's file is below the home.
REGISTRY_USER, REGISTRY_PASSWORD = "refit", Path("services", "registry", "password")


class Settings(documents.Document, defer_build=True):  # `load` builds a model of its own from it
    """All settings. Each can be a key in `settings.yaml` or a variable: `registry_port` is `REFIT_REGISTRY_PORT`.

    The home itself is `REFIT_HOME`: the folder in which `settings.yaml` lies can't stand in it.
    """

    home: Path = Field(default_factory=default_home, exclude=True)
    catalog: Path = Field(
        default_factory=default_catalog,
        description="The folder with base/, bundles/, ides/, snippets/ and releases/.",
    )

    registry: str = Field("", description="host[:port] of the image registry; empty: the embedded one.")
    registry_port: Port = Field(5000, description="Loopback port of the embedded registry.")
    registry_user: str = Field("", description="User name at the registry; empty: made up for the embedded registry.")
    registry_password: SecretStr = Field(
        SecretStr(""), description="The password of `registry_user`; empty: made up for the embedded registry."
    )
    registry_read_port: int = Field(
        0, ge=0, le=65535, description="Loopback port at which all may read the embedded registry; 0: there is none."
    )
    registry_tls: bool | None = Field(None, description="Speak https to the registry; unset: unless it is on loopback.")
    registry_realms: tuple[Annotated[str, Field(pattern=r"^https?://[^/@\s]+$")], ...] = Field(
        (),
        description="Token services beside the registry itself that may be told its password: https://auth.docker.io.",
    )
    registry_wait_seconds: float = Field(180.0, ge=0, description="Seconds for which a busy registry is waited for.")
    registry_rate: float = Field(
        0.25, gt=0, description="MB a second: a transfer that is slower is given up in the end."
    )
    repository: str = Field(
        "workbench-images",
        pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$",
        description="Name of the repository in the registry that holds all images.",
    )

    signing_key: str = Field(
        "", description="PEM file of the key that signs what was tested, or its PKCS#11 URI; empty: one is made up."
    )
    trusted_keys: tuple[str, ...] = Field(
        (), description="Public keys, PEM or files of it, of other Refits whose images and stages count here."
    )

    database_url: str = Field("", description="SQLAlchemy URL; empty: SQLite in the home.")

    prefect_port: Port = Field(4200, description="Loopback port of the embedded Prefect server.")
    prefect_server: str = Field(
        "", pattern="^(|https?://.*[^/])$", description="URL of a Prefect server elsewhere; empty: the embedded one."
    )
    bind_address: hosts.Address = Field("127.0.0.1", description="Address that the embedded services listen on.")
    auth: SecretStr = Field(
        SecretStr(""), description="user:password of the Prefect server; empty: made up, unless it is elsewhere."
    )
    host_names: tuple[str, ...] = Field(
        (), description="Names besides its host name by which others call this machine; Prefect answers to no others."
    )

    gateway: bool = Field(
        True,
        description="Let `refit up` start the gateway; without it, sessions are reached from this machine alone, and a "
        "session has another address after each start.",
    )
    gateway_port: Port = Field(17_900, description="Port of the gateway, at the address of `bind_address`.")
    gateway_api_port: Port = Field(
        17_901, description="Loopback port of the gateway's API, by which Refit sets its routes."
    )

    hub: bool | None = Field(
        None,
        description="Let `refit up` start JupyterHub behind the gateway, where people log in and start sessions. "
        "Unset: where sessions run with Podman. Without `gateway`, or with `prefect_server`, there is none.",
    )
    hub_port: Port = Field(17_902, description="Loopback port of the Hub; people reach it through the gateway.")
    subdomain_host: str = Field(
        "",
        pattern=r"^(|none|https?://[a-z0-9.-]+(:[0-9]+)?)$",
        description="The gateway's address where each person's sessions have a host below it: https://hub.example.org "
        "(with *.hub.example.org). none: all sessions are one origin. Empty: http://localhost:17900 for people who "
        "come to a gateway on loopback by a name of this machine, else none.",
    )
    other_hub: OtherHub = Field(OtherHub(), description="A JupyterHub of your own, in the place of Refit's.")
    hub_login: LoginPolicy = Field(LoginPolicy(), description="How people log in to the Hub.")
    hub_client_secret: SecretStr = Field(SecretStr(""), description="The Hub's secret at the provider of `hub_login`.")

    metrics_port: int = Field(
        0, ge=0, le=65535, description="Loopback port on which `refit up` answers Prometheus; 0: it doesn't."
    )

    metrics_token: SecretStr = Field(
        SecretStr(""), description="Bearer token for the metrics; empty: every user of this machine may read them."
    )

    engine: SessionEngine = Field(
        SessionEngine.podman, description="Where sessions run: podman, on this machine, or kubernetes (experimental)."
    )
    kubernetes: ClusterSettings = Field(ClusterSettings(), description="The cluster of `engine: kubernetes`.")
    others: OthersSettings = Field(
        OthersSettings(), description="Notebooks and servers of Hubs that others own and Refit moves (experimental)."
    )

    session_uids: Span = Field(
        Span(first=200_000, last=265_535), description="Uids of this machine that sessions run with, one each."
    )
    jump_port: int = Field(
        17_903,
        ge=0,
        le=65535,
        description="Port, at the address of `bind_address`, at which people come in by ssh from their own machines "
        "where there is a Hub; 0: there is none.",
    )
    jump_uid: int = Field(199_999, ge=1, description="Uid of that sshd where Refit is root, and of nobody else.")
    ssh_ports: Span = Field(Span(first=19_000, last=19_999), description="Loopback ports for ssh into sessions.")
    stop_grace_seconds: float = Field(20.0, gt=0, description="Seconds between SIGTERM and SIGKILL for a session.")
    lease_seconds: float = Field(
        60.0,
        gt=0,
        description="Seconds without renewal after which a run loses its lease on a session.",
    )
    ready_timeout_seconds: float = Field(60.0, gt=0, description="Seconds in which an IDE answers after its start.")
    idle_minutes: float = Field(
        15.0, ge=0, description="Minutes without input by a person after which a session may count as idle."
    )
    idle_state_hours: float = Field(
        8.0, ge=0, description="Hours for which an idle session with state that a stop would lose isn't moved."
    )

    copy_timeout_minutes: float = Field(60.0, gt=0, description="Minutes for a copy of a home, or its way back.")
    compare_timeout_minutes: float = Field(
        15.0, gt=0, description="Minutes in which a home is compared with its snapshot; after that nobody knows."
    )
    home_files: int = Field(
        3_000_000, gt=0, description="Files that a home outside the pool may have, with its volumes, to be moved."
    )
    session_memory: Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^[1-9][0-9]?%$")] = Field(
        "50%",
        description="Memory (swap included) that a session may take whose profile has no `resources.memory`: GB, "
        "or a share of the machine's, like 50%; 0: as much as there is.",
    )
    session_cpu_shares: int = Field(
        512,
        ge=0,
        description="Weight of a session among containers where cores are short; others have 1024. 0: Podman's own.",
    )
    person_limits: PersonLimits = Field(PersonLimits(), description="The most that a person may have, at the Hub.")
    session_home: Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^[1-9][0-9]?%$")] = Field(
        "25%",
        description="Room that a home in the pool may take, and each volume of its session: GB, or a share of the "
        "pool, like 25%; 0: as much as there is.",
    )
    personal_builds: PersonalBuilds = Field(PersonalBuilds(), description="Limits of builds of people's own profiles.")
    walls: bool = Field(
        True,
        description="Sessions reach neither each other nor this machine, except for the `machine_ports` of their "
        "profile; false: they have Podman's default network.",
    )
    session_subnet: str = Field(
        "",
        pattern=r"^([0-9.]+/[0-9]+)?$",
        description="IPv4 subnet of the network of sessions; empty: one that is free.",
    )

    rehearsal_copy: float = Field(10.0, ge=0, description="GB that a rehearsal's copy of a home may take on the disk.")
    rehearsal_memory: float = Field(2.0, gt=0, description="GB of memory that a rehearsal may take.")
    rehearsal_cpus: float = Field(1.0, gt=0, description="Cores that a rehearsal may take.")

    warm_containers: int = Field(
        8, ge=0, description="Containers that may wait, with their IDE imported, until the old ones stop; 0: none."
    )
    warm_memory: float = Field(0.5, ge=0, description="GB of memory that has to be free for each of them.")

    cdi_folders: tuple[Path, ...] = Field(
        (Path("/etc/cdi"), Path("/run/cdi")), description="Where CDI specifications name this machine's GPUs."
    )
    gpu_kinds: tuple[str, ...] = Field((), description="Which devices there are GPUs; empty: all like nvidia.com/gpu.")
    gpu_share: int = Field(1, ge=1, description="Sessions that may have the same GPU; 1: each has its own.")
    gpu_timeout_seconds: float = Field(
        0.0, ge=0, description="Seconds for which a session that starts waits for a GPU."
    )

    snapshots: SnapshotPolicy = Field(SnapshotPolicy(), description="When snapshots are taken, and how long they stay.")
    migration: RolloutPolicy = Field(RolloutPolicy(), description="How sessions are moved: waves, caps, hours.")

    ca_bundle: Path | None = Field(None, description="PEM file of the authorities that TLS is checked against.")
    pip_index_url: SecretStr = Field(SecretStr(""), description="Index to use in the place of PyPI.")
    wheel_folders: tuple[Path, ...] = Field((), description="Folders of further wheels (pip's find-links).")
    osv_file: Path | None = Field(None, description="Known vulnerabilities of PyPI, as OSV publishes them (all.zip).")
    osv_service: str = Field(
        "https://api.osv.dev",
        pattern="^(|https?://.*[^/])$",
        description="Service that is asked for them where there is no such file; empty: none.",
    )
    installer: str = Field("uv", pattern="^(uv|pip)$", description="Program that installs Python packages into images.")
    npm_registry: str = Field("", description="Registry of npm packages to use in the place of npm's own.")
    apt_proxy: str = Field("", description="HTTP proxy through which apt downloads packages; empty: none.")
    debian_mirror: str = Field("http://deb.debian.org", description="Mirror that bases are bootstrapped from.")

    machine: str = Field("", pattern=r"^[A-Za-z0-9._-]*$", description="This machine's name; empty: its host name.")
    builders: int = Field(
        0, ge=0, description="Machines that share a build, for each operating system; 0: the run builds by itself."
    )
    builder_timeout_seconds: float = Field(300.0, gt=0, description="Seconds that a stage waits for a builder.")
    builds_at_once: int = Field(0, ge=0, description="Stages built at once; 0: as the machine lets.")
    build_targets: tuple[str, ...] = Field(
        (), description="Systems that builds are made for here; empty: all that can."
    )
    capabilities: tuple[str, ...] = Field((), description="Capabilities of this machine that bases need, e.g. gpu.")
    build_timeout_seconds: float = Field(10_800.0, gt=0, description="Seconds for a program of a stage's build.")
    keep_images: int = Field(3, ge=1, description="Newest images of each profile and release that a prune leaves.")
    keep_images_of_snapshots: int = Field(
        5, ge=0, description="Images that a prune leaves because the newest snapshots of sessions name them."
    )
    keep_days: float = Field(7.0, ge=0, description="Days in which a prune removes no image and no stage.")
    keep_logs: float = Field(30.0, ge=0, description="Days after which a prune removes a log.")

    notify: tuple[SecretStr, ...] = Field((), description="Apprise URLs to which bad news of nights and rollouts go.")
    notify_owners: dict[str, tuple[SecretStr, ...]] = Field(
        {}, description="Session or owner, or * for all → Apprise URLs at which they are told that it is to move."
    )

    cache_gb: float = Field(5.0, ge=0, description="GB that each cache of downloads may take; 0: no caches.")

    oci_runtime: str = Field("", description="runc or crun; empty: the first that works on this machine.")
    isolation: str = Field("", pattern="^(|chroot|oci)$", description="buildah's isolation; empty: one that works.")

    @property
    def registry_host(self) -> str:
        """host:port of the registry in use."""
        return self.registry or f"127.0.0.1:{self.registry_port}"

    @property
    def registry_is_secure(self) -> bool:
        """Whether the registry is spoken to by https."""
        if self.registry_tls is not None:
            return self.registry_tls
        return self.registry_host.rpartition(":")[0] not in ("127.0.0.1", "localhost", "[::1]")

    @property
    def registry_login(self) -> tuple[str, str]:
        """User and password for the registry in use; both empty where there are none."""
        if self.registry_user:
            return self.registry_user, self.registry_password.get_secret_value()
        made_up = self.home / REGISTRY_PASSWORD
        return (REGISTRY_USER, made_up.read_text()) if not self.registry and made_up.is_file() else ("", "")

    @property
    def database(self) -> str:
        """SQLAlchemy URL of Refit's database."""
        return self.database_url or f"sqlite:///{self.home / 'refit.db'}"

    @property
    def machine_name(self) -> str:
        """The name of this machine among those that share a Prefect server."""
        return self.machine or socket.gethostname()

    @property
    def prefect_url(self) -> str:
        """URL of the Prefect server's UI."""
        if self.prefect_server:
            return self.prefect_server
        return f"http://{self.seen_from_here}:{self.prefect_port}"

    @property
    def prefect_api(self) -> str:
        """URL of the Prefect server's API."""
        return f"{self.prefect_url}/api"

    @property
    def gateway_url(self) -> str:
        """URL of the gateway in front of sessions."""
        return f"http://{self.seen_from_here}:{self.gateway_port}"

    @property
    def public_url(self) -> str:
        """URL of the gateway in links that people are given."""
        return self.people_host or self.other_hub.public or self.gateway_url

    @property
    def people_host(self) -> str:
        """The gateway's address below whose host each person has one; empty: all sessions are one origin."""
        if self.subdomain_host:
            return "" if self.subdomain_host == "none" else hosts.as_browsers_say(self.subdomain_host)
        is_here = self.bind_address in hosts.LOOPBACK and self.hub_wanted and not self.other_hub.api
        return hosts.as_browsers_say(f"http://localhost:{self.gateway_port}") if is_here else ""

    @property
    def second_loopback(self) -> str:
        """The other address at which browsers look for `people_host`: the gateway has its port there, too; or empty."""
        return hosts.second_loopback(self.people_host, self.bind_address)

    @property
    def in_cluster(self) -> bool:
        """Whether sessions run on Kubernetes."""
        return self.engine is SessionEngine.kubernetes

    @property
    def hub_wanted(self) -> bool:
        """Whether people log in here, at Refit's Hub or at another: that needs the gateway."""
        is_wanted = not self.in_cluster if self.hub is None else self.hub
        return is_wanted and self.gateway and not self.prefect_server

    @property
    def jump_wanted(self) -> bool:
        """Whether people come in by ssh from their own machines."""
        return self.hub_wanted and bool(self.jump_port)

    @property
    def hub_url(self) -> str:
        """Where the gateway and Refit itself reach the Hub, without its path."""
        return self.other_hub.api or f"http://127.0.0.1:{self.hub_port}"

    @property
    def seen_from_here(self) -> str:
        """The host in URLs of the embedded services, as this machine reaches them."""
        return hosts.seen_from_here(self.bind_address)

    def folder(self, *names: str) -> Path:
        """A folder inside the home, made if need be: its owner's alone, and so is the home."""
        path = self.home.joinpath(*names)
        if not path.is_dir():
            self.home.parent.mkdir(parents=True, exist_ok=True)
            for depth in range(len(names) + 1):  # `parents` would make those in between as the umask lets
                self.home.joinpath(*names[:depth]).mkdir(exist_ok=True, mode=0o700)
        return path


def load() -> Settings:
    """The settings in force; their secrets are kept out of logs from now on.

    Raises:
        Mistakes: `settings.yaml` or a `REFIT_…` variable has a value that can't be.
    """
    file, others = default_home() / "settings.yaml", dict[str, object]()
    if bundle := os.environ.get("SSL_CERT_FILE"):
        others["ca_bundle"] = Path(bundle).absolute()
    settings = gathered(Settings, file, partial(_from_folder, folder=file.parent), others, without="home")
    mistakes = [*relative(settings)]
    if settings.ca_bundle and settings.ca_bundle.is_absolute() and not settings.ca_bundle.is_file():
        mistakes.append(Mistake(settings.ca_bundle, 0, "`ca_bundle` names this file, which is not there"))
    if mistakes:
        raise Mistakes(mistakes)
    for secret in _secrets(settings):
        program_output.protect(secret.get_secret_value())
    program_output.protect(settings.registry_login[1])
    for url in (settings.pip_index_url.get_secret_value(), settings.database_url, settings.apt_proxy):
        program_output.protect(urlsplit(url).password or "")
    return settings


def _secrets(settings: Settings) -> Iterator[SecretStr]:
    yield from (settings.registry_password, settings.auth, settings.metrics_token, settings.pip_index_url)
    yield from settings.notify
    yield from (url for urls in settings.notify_owners.values() for url in urls)


def _from_folder(value: object, folder: Path) -> object:
    """A relative path in `settings.yaml` means the same for whoever reads it, wherever they are."""
    if isinstance(value, tuple):
        return tuple(_from_folder(part, folder) for part in value)
    return folder / value if isinstance(value, Path) else value
