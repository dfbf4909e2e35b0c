"""The engine that the settings name, the keepers of homes and tokens that belong to it, where it tries images, and how
it looks at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from math import inf
from time import monotonic
from typing import Any

from sqlalchemy import Engine as Database

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.formatting import short
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.sessions import own_folder, trial
from flows.sessions.engine import Engine, Homes, Tokens
from flows.sessions.gpus.gpu import Gpus
from flows.sessions.machines import Machines, ThisMachine
from flows.sessions.model import Session
from flows.sessions.trial import NoTrial, Trials

with lazily(globals()):
    from flows.gateway.proxy import Gateway
    from flows.host import containers
    from flows.images.registry import Registry
    from flows.publishing.checks import Look
    from flows.publishing.container_checks import ContainerLook
    from flows.publishing.makers import Makers
    from flows.publishing.trial_checks import ImageTrial, TrialLook
    from flows.sessions.containers.podman import Podman
    from flows.sessions.containers.trials import PodmanTrials
    from flows.sessions.gpus.gpu_pool import GpuPool
    from flows.sessions.homes.home import LocalHomes
    from flows.sessions.kubernetes import ownership
    from flows.sessions.kubernetes.cluster import Cluster  # 0.3 s
    from flows.sessions.kubernetes.engine import Kubernetes
    from flows.sessions.kubernetes.gpus import ClusterGpus
    from flows.sessions.kubernetes.homes import ClusterHomes
    from flows.sessions.kubernetes.nodes import ClusterNodes
    from flows.sessions.kubernetes.tokens import SecretTokens
    from flows.sessions.kubernetes.trial_pods import PodTerms
    from flows.sessions.kubernetes.trials import ClusterTrials
    from flows.sessions.store import Store
    from flows.sessions.tokens import FileTokens

# Kubernetes ends a Pod that a killed Refit has left: one that reads an image is soon over.
_IMAGE_POD_SECONDS, _TO_START = 600, 2 / 3


def engine(settings: Settings) -> Engine:
    """Where sessions run; nothing is asked of it yet."""
    if settings.in_cluster:
        configuration = cache(partial(_configuration, settings))  # a digest stands for the same for ever
        ssh_folder = partial(own_folder.ssh, settings)
        return Kubernetes(ownership.options(settings), configuration, Gateway(settings), ssh_folder)
    return Podman(settings)


def _configuration(settings: Settings, image: str) -> Mapping[str, Any]:
    """The configuration of the image with this digest."""
    registry = Registry(settings)
    return registry.config(settings.repository, registry.manifest(settings.repository, image))


def homes(settings: Settings) -> Homes:
    """The keeper of the homes of sessions."""
    if settings.in_cluster:
        return ClusterHomes(Cluster(ownership.options(settings)), partial(_maker, settings))
    return LocalHomes(settings)


def _maker(settings: Settings, session: Session) -> str | None:
    """By whom the image of a session was made: as `Makers.of` says it."""
    database = open_database(settings.database)
    try:
        return Makers(settings, database).of({session.image: session.profile})[session.image]
    finally:
        database.dispose()


def machines(settings: Settings) -> Machines:
    """The machines on which sessions run."""
    return ClusterNodes(Cluster(ownership.options(settings))) if settings.in_cluster else ThisMachine()


def gpus(settings: Settings, database: Database) -> Gpus:
    """The GPUs that sessions can have."""
    if settings.in_cluster:
        store = Store(database, settings.lease_seconds)
        name = settings.kubernetes.gpu_device_class or settings.kubernetes.gpu_resource
        return ClusterGpus(Cluster(ownership.options(settings)), name, store)
    return GpuPool(settings, database)


def tokens(settings: Settings) -> Tokens:
    """The keeper of the tokens of sessions."""
    return SecretTokens(Cluster(ownership.options(settings))) if settings.in_cluster else FileTokens(settings)


def is_pod(settings: Settings) -> bool:
    """Whether Refit itself is a Pod of the cluster: it has neither Podman nor the rights to build."""
    return settings.in_cluster and ownership.looking(settings).inside


def image_look(settings: Settings) -> Look:
    """How images are looked at before they are published: in Pods where Refit is one itself."""
    return look_in_pods(settings) if is_pod(settings) else ContainerLook()


def look_in_pods(settings: Settings) -> Look:
    """How images are looked at in the cluster."""
    return TrialLook(partial(_image_trial, settings), Registry(settings))


def run_in_image(
    settings: Settings, digest: str, argv: Sequence[str], stdin: str, limit: float, most: int, in_all: float = 0.0
) -> str:
    """Run a program in a container of the image with this digest, which has no home and goes with it.

    Args:
        settings: those in force.
        digest: of the image.
        argv: the program.
        stdin: its input.
        limit: its seconds at most.
        most: the bytes of its output at most.
        in_all: seconds for all of it, of which a Pod has two thirds to start; 0: it may take as long as a session to
            start.

    Raises:
        RefitError: the image can't be had or started, or the program fails.
    """
    if settings.in_cluster:
        longest, until = settings.kubernetes.start_minutes * 60, monotonic() + (in_all or inf)
        start = min(longest, in_all * _TO_START) if in_all else longest
        terms = PodTerms(start, max(_IMAGE_POD_SECONDS, round(start + limit)), by_image=True)
        try:
            with _image_trial(settings, digest, Access(), idle=True, terms=terms) as once:
                once.start()
                return once.execute(argv, stdin, max(1.0, min(limit, until - monotonic())), most)
        except NoTrial as error:
            raise RefitError(f"No Pod of the image {short(digest)} can be had: {error.brief}.") from error
    image = f"docker://{settings.registry_host}/{settings.repository}@{digest}"
    return containers.run_once(settings, image, argv, stdin=stdin, limit=limit, most=most).stdout


def _image_trial(
    settings: Settings, digest: str, access: Access, *, idle: bool, terms: PodTerms | None = None
) -> AbstractContextManager[ImageTrial]:
    configuration = partial(_idle_configuration if idle else _configuration, settings)
    return ClusterTrials(settings, configuration, copies=False, terms=terms).begin(trial.alone(digest, access))


def _idle_configuration(settings: Settings, image: str) -> Mapping[str, Any]:
    """The configuration of an image whose own program isn't started."""
    config = _configuration(settings, image)
    return {**config, "config": {**config["config"], "Entrypoint": None, "Cmd": ["sleep", "infinity"]}}


def trials(settings: Settings, homes: Homes) -> Trials:
    """Where images are tried beside sessions."""
    if settings.in_cluster:
        return ClusterTrials(settings, partial(_configuration, settings))
    return PodmanTrials(settings, homes)
