"""The doctor's findings on the cluster of `engine: kubernetes`: whether it answers, and lets Refit do what it has to.

Nothing is changed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from flows.core.errors import RefitError
from flows.core.formatting import some
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.core.threads import at_once
from flows.host.sockets import why_unreached
from flows.services.doctor_findings import Finding
from flows.sessions.model import SSH_PORT

with lazily(globals()):
    from flows.sessions import engines
    from flows.sessions.kubernetes import (
        builder_job,
        isolation,
        kinds,
        manifests,
        ownership,
        records,
        refusals,
        rights,
    )
    from flows.sessions.kubernetes.cluster import Cluster
    from flows.sessions.kubernetes.home_snapshots import ClusterSnapshots
    from flows.sessions.kubernetes.manifests import ClusterOptions
    from flows.sessions.kubernetes.records import SessionPod
    from flows.sessions.kubernetes.refusals import ClusterError, NotServed, Right

# Pods that are tried, and seconds for each.
_TRIED, _REACHED_SECONDS = 4, 1.5
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def cluster(settings: Settings) -> Iterable[Finding]:
    """Whether the cluster answers, and has what sessions need; nothing is said where sessions run on this machine."""
    if not settings.in_cluster:
        return
    options = ownership.looking(settings)
    yield judge_registry(options.registry)
    cluster = Cluster(options)
    try:
        version = cluster.of_all("version", "") or {}
        yield Finding("cluster", True, f"Kubernetes {version.get('gitVersion', '')}")
        device_class = settings.kubernetes.gpu_device_class
        needed = rights.NEEDED + (rights.CLAIMS if device_class else ())
        yield judge_rights(rights.lacking(cluster, needed), options.namespace)
        sees_nodes = cluster.may(rights.NODES)
        yield judge_drains(sees_nodes, cluster.may(rights.BUDGET))
        if device_class:
            yield judge_class(cluster, device_class)
        elif sees_nodes:
            nodes = (cluster.of_all("api/v1", "nodes") or {}).get("items") or []
            yield judge_gpus(nodes, settings.kubernetes.gpu_resource)
        yield judge_isolation(options, all(map(cluster.may, rights.ISOLATION)), ssh=settings.jump_wanted)
        if cluster.may(Right("pods", "list")):
            yield judge_reach(_reached(cluster))
        yield from _objects(cluster, options)
        yield judge_snapshots(ClusterSnapshots(cluster).how())
    except RefitError as error:
        yield Finding("cluster", False, f"{error.what} {error.why}".strip(), error.hint)
    finally:
        cluster.close()


def builds(settings: Settings) -> Iterable[Finding]:
    """Whether Jobs of the cluster can build, where the settings or a Refit without rights of its own want that."""
    if settings.kubernetes.builder_job is None:
        if engines.is_pod(settings):
            yield Finding("builders", True, "none: no stage is built from here; `kubernetes.builder_job` changes that")
        return
    try:
        namespace = str(builder_job.template(settings.kubernetes.builder_job)["metadata"]["namespace"])
        builder_job.check_shared(settings)
        cluster = Cluster(replace(ClusterOptions.of(settings), namespace=namespace))
        try:
            yield judge_builders(rights.lacking(cluster, rights.OF_BUILDERS), namespace, settings.builders)
        finally:
            cluster.close()
    except RefitError as error:
        yield Finding("builders", False, f"{error.what} {error.why}".strip(), error.hint)


def judge_builders(lacking: Sequence[Right], namespace: str, count: int) -> Finding:
    """The finding on the rights that Refit lacks in the namespace of builders, and on how many Jobs a build has."""
    if lacking:
        role = refusals.role(rights.OF_BUILDERS, namespace)
        hint = f"`kubectl apply -k deploy/builder`, or apply this role, and bind it to the user that Refit is:\n{role}"
        return Finding("builders", False, f"missing in {namespace}: {', '.join(map(str, lacking))}", hint)
    if not count:
        return Finding("builders", True, "none, because `builders` is 0")
    return Finding("builders", True, f"{count} for each build, as Jobs in the namespace {namespace}")


def _objects(cluster: Cluster, options: ClusterOptions) -> Iterable[Finding]:
    """Whether namespace, pull secret, storage class and priority class are there, as far as Refit may know that."""
    if cluster.may(Right("secrets", "get")) and options.pull_secret:
        exists = cluster.find("secrets", options.pull_secret) is not None
        hint = (
            f"`kubectl --namespace {options.namespace} create secret docker-registry {options.pull_secret} "
            f"--docker-server={options.registry} …`"
        )
        yield Finding("pull secret", exists, f"{options.pull_secret} is {'' if exists else 'not '}there", hint)
    yield from _of_all(cluster, "api/v1", "namespaces", options.namespace)
    yield from _of_all(cluster, "apis/scheduling.k8s.io/v1", "priorityclasses", options.priority_class)
    try:
        classes = (cluster.of_all("apis/storage.k8s.io/v1", "storageclasses") or {}).get("items") or []
    except RefitError as error:
        yield _unknown("storage class", error)
        return
    yield judge_storage(classes, options.storage_class)
    if options.shared_class != options.storage_class:
        yield judge_storage(classes, options.shared_class, " of shared volumes", "shared_storage_class")


def _of_all(cluster: Cluster, group: str, resource: str, name: str) -> Iterable[Finding]:
    thing = {"namespaces": "namespace", "priorityclasses": "priority class"}[resource]
    if not name:
        return
    try:
        objects = cluster.of_all(group, resource, name)
    except RefitError as error:
        yield _unknown(thing, error)
        return
    ends = bool(objects and "deletionTimestamp" in objects.get("metadata", {}))
    seen = f"{name} is {'being deleted' if ends else 'there' if objects else 'not there'}"
    setting = "kubernetes.namespace" if resource == "namespaces" else "kubernetes.priority_class"
    hint = (
        f"make it (`kubectl create {resource.rstrip('s') if resource == 'namespaces' else 'priorityclass'} {name} …`)"
    )
    yield Finding(thing, bool(objects) and not ends, seen, f"{hint}, or let `{setting}` name another one.")


def _unknown(thing: str, error: RefitError) -> Finding:
    """Refit may not know about objects that belong to no namespace: it can do without."""
    return Finding(thing, True, f"not looked at: {error.why or error.what}")


def judge_rights(lacking: Sequence[Right], namespace: str) -> Finding:
    """The finding on the rights that Refit lacks in its namespace, with the role that grants all it needs."""
    if not lacking:
        return Finding("rights", True, f"all that Refit needs in the namespace {namespace}")
    role = refusals.role(rights.NEEDED + rights.USEFUL, namespace)
    hint = f"let an administrator apply this role, and bind it to the user that Refit is there:\n{role}"
    return Finding("rights", False, f"missing in {namespace}: {', '.join(map(str, lacking))}", hint)


def judge_drains(sees_nodes: bool, holds_back: bool) -> Finding:
    """Whether sessions leave nodes before these go down; Refit can do without."""
    if not sees_nodes:
        command = "kubectl create clusterrole refit-nodes --verb=list --resource=nodes"
        return Finding("drains", True, f"not seen, for Refit may not list nodes; `{command}` and a binding grant that")
    if not holds_back:
        return Finding(
            "drains", True, "seen; they evict sessions at once, for Refit may not make budgets of disruption"
        )
    return Finding("drains", True, "seen; they wait until Refit has moved the sessions")


def judge_gpus(nodes: Iterable[Mapping[str, Any]], resource: str) -> Finding:
    """Which nodes offer GPUs to sessions; a cluster can do without."""
    offered = [node for node in nodes if (node.get("status") or {}).get("allocatable", {}).get(resource, "0") != "0"]
    names = some(sorted(str(node["metadata"]["name"]) for node in offered))
    none = f"no node offers {resource}, which `kubernetes.gpu_resource` names: a session with GPUs waits for one"
    return Finding("GPUs", True, f"{resource} on {names}" if offered else none)


def judge_class(cluster: Cluster, name: str) -> Finding:
    """Whether the cluster has dynamic resource allocation, and the class of devices that the settings name."""
    try:
        there = cluster.of_all(f"apis/{cluster.version(kinds.TEMPLATES)}", kinds.CLASSES, name)
    except RefitError as error:
        if isinstance(error, NotServed):
            return Finding("GPUs", False, f"{error.what} {error.why}", error.hint)
        if isinstance(error, ClusterError) and error.status == HTTPStatus.FORBIDDEN:
            command = "kubectl create clusterrole refit-classes --verb=get --resource=deviceclasses.resource.k8s.io"
            seen = f"devices of the class {name}, at which Refit may not look; `{command}` and a binding grant that"
            return Finding("GPUs", True, seen)
        return _unknown("GPUs", error)
    hint = "install the driver that makes it, or let `kubernetes.gpu_device_class` name another one: `kubectl get "
    seen = f"devices of the class {name}, which is {'' if there else 'not '}there"
    seen += "; whether a node has any isn't looked at" if there else ""
    return Finding("GPUs", bool(there), seen, f"{hint}deviceclasses`.")


def _reached(cluster: Cluster) -> dict[str, str]:
    """Pod → why this machine doesn't reach it; empty: it does. Those of some sessions that run are tried."""
    pods = cluster.each("pods", records.pod, **{manifests.KIND: "session"})
    running = [pod for pod in pods if pod.address and not (pod.idle or pod.ending or pod.over)]

    def reach(pod: SessionPod) -> tuple[str, str]:
        return f"{pod.name} ({pod.address})", why_unreached(pod.address, SSH_PORT, _REACHED_SECONDS)

    return dict(at_once(reach, running[:_TRIED]))


def judge_reach(tried: Mapping[str, str]) -> Finding:
    """Whether the gateway, the forwarder and the jump host get to the Pods of sessions from this machine."""
    if not tried:
        return Finding("network of Pods", True, "not tried, for no session runs")
    hint = (
        "let Refit run where Pods are reached: on a node, inside the cluster, or with a route to the network of Pods. "
        "A NetworkPolicy of the cluster may keep it out, too."
    )
    missed = [f"{pod}: {why}" for pod, why in tried.items() if why]
    return Finding("network of Pods", not missed, f"not reached: {some(missed)}" if missed else "reached", hint)


def judge_isolation(options: ClusterOptions, allowed: bool, *, ssh: bool = False) -> Finding:
    """Whether sessions are kept apart by a NetworkPolicy; nobody can ask a cluster whether it enforces one.

    Args:
        options: of the cluster.
        allowed: Refit may make it.
        ssh: people are to come in by ssh, which nobody does without it.
    """
    if isolation.policy(options) is None:
        seen = (
            "not asked for: Pods of the cluster reach each other's ports"
            f"{', and so nobody comes in by ssh' if ssh else ''}; `kubernetes.gateway_addresses` changes that"
        )
        return Finding("sessions apart", True, seen)
    seen = "by a NetworkPolicy, if the cluster's network enforces it"
    role = refusals.role(rights.ISOLATION, options.namespace)
    return Finding("sessions apart", allowed, seen if allowed else "the rights for it are missing", f"apply:\n{role}")


def judge_snapshots(how: str) -> Finding:
    """How homes get their snapshots."""
    return Finding("snapshots of homes", True, how or "none are taken, because `kubernetes.snapshots` is `none`")


def judge_storage(
    classes: Sequence[Mapping[str, Any]], name: str, of: str = "", setting: str = "storage_class"
) -> Finding:
    """Whether homes get their volumes: from the class that the settings name, else from the cluster's own."""
    names = {str(each["metadata"]["name"]): each["metadata"].get("annotations") or {} for each in classes}
    present = f"there are: {', '.join(sorted(names)) or 'none'}"
    if name:
        hint = f"let `kubernetes.{setting}` name one that is there; {present}."
        return Finding(f"storage class{of}", name in names, f"{name} is {'' if name in names else 'not '}there", hint)
    default = [each for each, annotations in names.items() if annotations.get(_DEFAULT_CLASS) == "true"]
    seen = f"the cluster's own: {default[0]}" if default else "the cluster has none of its own"
    return Finding("storage class", bool(default), seen, f"let `kubernetes.storage_class` name one; {present}.")


def judge_registry(registry: str) -> Finding:
    """Whether nodes can reach the registry by this name at all: they can't reach the loopback of this machine."""
    host = urlsplit(f"//{registry}").hostname or ""
    try:
        is_here = ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    seen = f"nodes pull from {registry}"
    hint = (
        "let `kubernetes.registry` say at which host[:port] nodes reach the registry, or `registry` name another one."
    )
    return Finding(
        "registry of nodes", not is_here, f"{seen}, which is the node itself there" if is_here else seen, hint
    )
