"""Where sessions run in a cluster, as people write it: `engine:` and `kubernetes:` in settings.yaml."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from flows.core.documents import Document

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# A label of DNS, and names of objects, as Kubernetes checks them.
Label = Annotated[str, Field(pattern=rf"^{_NAME}$", max_length=63)]
NameOrNone = Annotated[str, Field(pattern=rf"^({_NAME}(\.{_NAME})*)?$", max_length=253)]

# The name of a template of claims is the class, with a beginning.
_LONGEST_CLASS = 230
# A domain, and a name in it: resources without a domain are Kubernetes' own.
_RESOURCE = rf"^{_NAME}(\.{_NAME})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
_NVIDIA = "nvidia.com/gpu"


def _cidr(text: str) -> str:
    """A range of addresses as NetworkPolicies take it.

    Raises:
        ValueError: it is none.
    """
    return str(ip_network(text))


Cidr = Annotated[str, AfterValidator(_cidr)]


class SessionEngine(StrEnum):
    """Where sessions run."""

    podman = "podman"
    kubernetes = "kubernetes"


class Snapshots(StrEnum):
    """Whether snapshots of homes are taken there."""

    none = "none"
    auto = "auto"


class Effect(StrEnum):
    """The effect of a node's taint on Pods that don't tolerate it."""

    no_schedule = "NoSchedule"
    prefer_no_schedule = "PreferNoSchedule"
    no_execute = "NoExecute"


class Toleration(Document):
    """A taint of nodes on which sessions may run all the same."""

    key: str = Field(min_length=1, description="Key of the taint.")
    value: str | None = Field(None, description="Its value; unset: any.")
    effect: Effect | None = Field(None, description="Its effect; unset: any.")
    seconds: int | None = Field(
        None, ge=0, description="Seconds for which a session stays on a node with a taint of NoExecute; unset: always."
    )

    @model_validator(mode="after")
    def _seconds_need_their_effect(self) -> Self:
        if self.seconds is not None and self.effect is not Effect.no_execute:
            raise ValueError("`seconds` needs `effect: NoExecute`")
        return self


class ClusterSettings(Document):
    """`kubernetes:` in settings.yaml: the cluster of `engine: kubernetes`, and how sessions run there."""

    context: str = Field(
        "", description="Context of the kubeconfig; empty: its current one, or the service account of Refit's own Pod."
    )
    namespace: Label = Field("refit", description="Namespace of all sessions; it has to be there.")
    registry: str = Field(
        "",
        pattern=r"^(|[A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9a-f:]+\](:[0-9]+)?)$",
        description="host[:port] at which nodes reach the registry; empty: as Refit reaches it.",
    )
    pull_secret: NameOrNone = Field(
        "", description="Secret in the namespace with the registry's login; empty: nodes need none."
    )
    storage_class: NameOrNone = Field(
        "", description="Storage class of homes and of volumes of one session; empty: the cluster's own."
    )
    shared_storage_class: NameOrNone = Field(
        "",
        description="Storage class of volumes that sessions share, which many nodes have to be able to write to at a "
        "time (ReadWriteMany); empty: that of homes.",
    )
    home_gb: float = Field(10.0, gt=0, description="GB that the claim of a home, or of a volume, asks for.")
    snapshots: Snapshots = Field(
        Snapshots.auto,
        description="Whether homes have snapshots, in moves, too: auto takes VolumeSnapshots where the storage class "
        "can, and else copies each home by a Pod beside its session, into a claim of the same size; or none.",
    )
    node_selector: dict[str, str] = Field({}, description="Labels that a node has to have to run sessions.")
    tolerations: tuple[Toleration, ...] = Field((), description="Taints of nodes on which sessions may run.")
    priority_class: NameOrNone = Field("", description="Priority class of sessions; empty: the cluster's own.")
    memory_gb: float = Field(
        0.0, ge=0, description="GB of memory of a session whose profile has no `resources.memory`; 0: no limit."
    )
    cpus: float = Field(0.0, ge=0, description="Cores of a session whose profile has no `resources.cpus`; 0: no limit.")
    gpu_resource: str = Field(
        _NVIDIA,
        pattern=_RESOURCE,
        max_length=317,
        description="Resource by which a device plugin offers GPUs: `resources.gpus` of a profile counts it.",
    )
    gpu_device_class: str = Field(
        "",
        pattern=rf"^({_NAME}(\.{_NAME})*)?$",
        max_length=_LONGEST_CLASS,
        description="Class of devices (DeviceClass) by whose driver a cluster offers GPUs (Kubernetes 1.34 or later; "
        "1.32 and 1.33 where DRA is on), in the place of `gpu_resource`: `resources.gpus` of a profile counts them; "
        "empty: a device plugin does.",
    )
    gateway_addresses: tuple[Cidr, ...] = Field(
        (),
        description="Addresses, as CIDRs, from which a gateway outside of the cluster comes: it and Refit's own Pods "
        "reach sessions, and nobody else does. Empty: with Refit in the cluster, its Pods alone; else all do.",
    )
    drain_minutes: float = Field(
        30.0,
        ge=0,
        description="Minutes for which people are waited for on a node that was closed (`kubectl cordon`, `drain`); "
        "then their sessions move off it all the same. 0: sessions stay, and nothing holds evictions back.",
    )
    builder_job: Path | None = Field(
        None,
        description="File with the Job by which a builder runs in the cluster (deploy/builder/job.yaml): `builders` "
        "says how many of them a build has, in the place of machines; unset: machines are called (experimental).",
    )
    start_minutes: float = Field(
        10.0, gt=0, description="Minutes in which a Pod gets its node, its volumes and its image."
    )

    @field_validator("gpu_device_class")
    @classmethod
    def _one_of_them_offers_gpus(cls, name: str, info: ValidationInfo) -> str:
        if name and info.data.get("gpu_resource", _NVIDIA) != _NVIDIA:
            raise ValueError("`gpu_device_class` and `gpu_resource` exclude each other: take one of them out")
        return name
