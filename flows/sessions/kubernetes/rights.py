"""The rights that Refit needs in the namespace of its sessions, and those that it lacks there."""

from __future__ import annotations

from collections.abc import Iterable

from flows.sessions.kubernetes import kinds
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.kinds import BUDGETS, GROUPS, NOTEBOOKS, POLICIES, SNAPSHOTS, TEMPLATES
from flows.sessions.kubernetes.refusals import Right

_VERBS = {
    "configmaps": ("get", "list", "create", "patch", "delete"),
    "persistentvolumeclaims": ("get", "list", "watch", "create", "patch", "delete"),
    "pods": ("get", "list", "watch", "create", "patch", "delete"),
    # A connection begins as a GET; from 1.35 on, `create` is asked for as well.
    "pods/exec": ("get", "create"),
    "pods/log": ("get",),
    "secrets": ("get", "create", "patch", "delete"),
}
NEEDED = tuple(Right(resource, verb) for resource, verbs in _VERBS.items() for verb in verbs)
BUDGET = Right(BUDGETS, "create", GROUPS[BUDGETS])
# To keep sessions apart, where the settings say from where the gateway comes, or Refit is in the cluster.
ISOLATION = tuple(Right(POLICIES, verb, GROUPS[POLICIES]) for verb in ("get", "create", "patch"))
# For snapshots of homes by the storage class; without them, and without its classes, homes are copied. Whether there is
# the class of devices that the settings name, the doctor alone asks.
SNAPSHOT = tuple(Right(SNAPSHOTS, verb, GROUPS[SNAPSHOTS]) for verb in ("get", "list", "watch", "create", "delete"))
CLASSES = (
    Right("storageclasses", "list", "storage.k8s.io"),
    Right("volumesnapshotclasses", "list", GROUPS[SNAPSHOTS]),
    Right(kinds.CLASSES, "get", GROUPS[kinds.CLASSES]),
)
# For GPUs by dynamic resource allocation, where the settings name a class of devices.
CLAIMS = tuple(Right(TEMPLATES, verb, GROUPS[TEMPLATES]) for verb in ("get", "create"))
# Without the one, a Pod that doesn't start says less of the reason; without the other, drains evict sessions at once.
USEFUL = (Right("events", "list"), BUDGET, *ISOLATION, *SNAPSHOT, *CLAIMS)
# In a namespace whose Notebooks others own.
OF_NOTEBOOKS = (
    *(Right(NOTEBOOKS, verb, GROUPS[NOTEBOOKS]) for verb in ("get", "list", "patch")),
    *(Right("pods", verb) for verb in ("get", "list", "watch", "delete")),
    *(Right("pods/exec", verb) for verb in ("get", "create")),
)
# In the namespace of builders.
OF_BUILDERS = tuple(Right(kinds.JOBS, verb, GROUPS[kinds.JOBS]) for verb in ("get", "list", "create", "delete"))
# Of no namespace: without it, Refit sees no drain coming.
NODES = Right("nodes", "list")


def lacking(cluster: Cluster, needed: Iterable[Right] = NEEDED) -> tuple[Right, ...]:
    """The rights that Refit needs and doesn't have, by what the API server says of each.

    Raises:
        ClusterError: the API server doesn't answer, or refuses.
    """
    return tuple(right for right in needed if not cluster.may(right))
