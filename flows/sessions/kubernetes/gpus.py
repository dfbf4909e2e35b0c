"""GPUs of sessions in a cluster: a resource of a device plugin, or a class of devices (DRA). The scheduler counts them,
and Refit keeps no record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NoReturn

from flows.sessions.gpus.gpu import Gpu, Taken
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.placement import Placement
from flows.sessions.kubernetes.resources import is_of_plugin
from flows.sessions.podman_only import NotOnKubernetes
from flows.sessions.store import Store


class ClusterGpus:
    """Implements `gpu.Gpus` in one namespace of a cluster: a session has them as long as its Pod is there."""

    def __init__(self, cluster: Cluster, name: str, store: Store) -> None:
        """Nothing is asked of the cluster yet.

        Args:
            cluster: where sessions run.
            name: of the resource by which a device plugin offers GPUs, e.g. `nvidia.com/gpu`, or of their class (DRA).
            store: the records of sessions, which say who has any: for others, the cluster isn't asked.
        """
        self._placement, self._name, self._store = Placement(cluster, cluster.options), name, store
        self.shareable = not is_of_plugin(name)

    def gpus(self) -> tuple[Gpu, ...]:
        """Nobody tells of them one by one."""
        _refuse("A list of GPUs")

    def free(self) -> tuple[None, None]:
        """Nobody knows but the scheduler: other Pods have them, too."""
        return None, None

    def taken(self) -> tuple[Taken, ...]:
        """None that Refit knows of."""
        return ()

    def take(
        self, session: str, number: int, had: Collection[str] = (), *, by: str, wait: float = 0.0
    ) -> tuple[str, ...]:
        """So many of them, as the Pod of the session will ask for them."""
        return (self._name,) * number

    def hold(self, gpu: str, *, by: str, why: str = "", until: datetime | None = None) -> None:
        """Only a Pod takes a GPU there."""
        _refuse(f"Holding the GPU {gpu!r}")

    def keep(self, session: str, gpus: Collection[str]) -> tuple[str, ...]:
        """Without any to keep, end the Pods of a session that have some, if nothing runs in them."""
        record = None if gpus else self._store.find(session)
        return self._placement.give_back(session) if record and record[0].devices else ()

    def let_go(self, gpu: str) -> bool:
        """Nobody holds one."""
        return False

    def nodes(self, names: Collection[str]) -> Mapping[str, str]:
        """The affair of the device plugin, or of the driver."""
        return {}

    def users(self, names: Collection[str], since: datetime) -> tuple[str, ...]:
        """None: its Pod alone has it."""
        return ()


def _refuse(thing: str) -> NoReturn:
    raise NotOnKubernetes(
        thing,
        "`kubectl describe nodes` says how many each node has, and how many are taken; of a class of devices, "
        "`kubectl get resourceslices,resourceclaims`.",
    )
