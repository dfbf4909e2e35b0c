"""The doctor's finding on whether nodes get images: it lets one ask the registry, by a Pod that goes at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.formatting import clipped, exact_duration, short
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.services.doctor_findings import Finding

with lazily(globals()):
    from flows.images.registry import Registry
    from flows.publishing.signatures import Publications
    from flows.sessions.kubernetes import manifests, ownership, pull_trial, records
    from flows.sessions.kubernetes.cluster import Cluster
    from flows.sessions.kubernetes.pull_trial import PullTrial
    from flows.sessions.kubernetes.refusals import Right

_THING = "pull on a node"
_SECONDS = 30.0
# Of so many images that were published last, the smallest one is pulled: the node may have nothing of it.
_MOST_IMAGES, _MOST_NODES = 20, 5
_LONGEST = 1000  # characters of what kubelet says


def pull(settings: Settings) -> Iterable[Finding]:
    """Whether a node gets an image from the registry; nothing is said where sessions run on this machine."""
    if not settings.in_cluster:
        return
    cluster = Cluster(ownership.looking(settings))
    try:
        image, nodes, why_not = _chosen(settings, cluster)
    except RefitError as error:  # other findings say what is wrong with it
        cluster.close()
        yield _unknown(error.what)
        return
    if why_not:
        cluster.close()
        yield _unknown(why_not)
        return
    try:
        yield judge(pull_trial.try_pull(cluster, image, nodes, _SECONDS), image, cluster.options.registry)
    except RefitError as error:
        yield Finding(_THING, False, f"{error.what} {error.why}".strip(), error.hint)
    finally:
        cluster.close()


def _chosen(settings: Settings, cluster: Cluster) -> tuple[str, Sequence[str], str]:
    """The image to be pulled, the nodes that have it, and why none is: then this isn't empty.

    Raises:
        RefitError: cluster, registry or database don't answer.
    """
    there, own = cluster.find("configmaps", manifests.OWNER), manifests.owner(ownership.options(settings))
    if there and there.get("data") != own["data"]:
        return "", (), f"the namespace {cluster.options.namespace} has the sessions of another Refit"
    if not all(cluster.may(Right("pods", verb)) for verb in ("get", "list", "watch", "create", "delete")):
        return "", (), "rights for Pods are missing"
    if in_use := _in_use(cluster):
        return *in_use, ""
    if image := _smallest(settings):
        return image, (), ""
    return "", (), "there is no image yet that could be pulled"


def _in_use(cluster: Cluster) -> tuple[str, Sequence[str]] | None:
    """The image that most sessions have, and nodes that have it; none: no session runs."""
    nodes = dict[str, list[str]]()
    for pod in cluster.each("pods", records.pod, **{manifests.SESSION: "", manifests.KIND: "session"}):
        for image in {slot.asked for slot in pod.slots if slot.opened}:
            nodes.setdefault(image, []).append(pod.node)
    if not nodes:
        return None
    image = max(sorted(nodes), key=lambda each: len(nodes[each]))
    return image, sorted(set(nodes[image]))[:_MOST_NODES]


def _smallest(settings: Settings) -> str:
    """The smallest of the images that were published last; empty: the registry has none of them."""
    if not (settings.database_url or (settings.home / "refit.db").exists()):
        return ""
    registry = Registry(settings)
    digests = Publications(settings, open_database(settings.database), registry).newest_here(_MOST_IMAGES)
    images = [image for digest in digests if (image := registry.find(registry.repository, digest))]
    smallest = min(images, key=lambda each: each.size, default=None)
    return smallest.digest if smallest else ""


def judge(trial: PullTrial, image: str, registry: str) -> Finding:
    """The finding on a trial."""
    what, seconds = f"the image {short(image)} from {registry}", exact_duration(trial.seconds)
    if trial.has_image:
        return Finding(_THING, True, f"{trial.node} has asked for {what}, and got it: {seconds}")
    if not trial.trouble:
        so_far = f"{trial.node} had no answer" if trial.node else "no node had taken a Pod"
        return _unknown(f"{so_far} after {seconds}; asked for was {what}")
    trouble = clipped(trial.trouble, _LONGEST)
    if not trial.node:
        hint = "nodes on which sessions run have the labels of `kubernetes.node_selector`, and no other taints than "
        return Finding(_THING, False, f"no node takes a Pod: {trouble}", f"{hint}`kubernetes.tolerations` names.")
    hint = (
        "`kubernetes.registry` is the name by which nodes reach the registry, `kubernetes.pull_secret` has the login "
        "for it. Its certificate has to be trusted by the nodes' container runtime."
    )
    return Finding(_THING, False, f"{trial.node} can't get {what}: {trouble}", hint)


def _unknown(why: str) -> Finding:
    """Nobody knows; other findings say what is missing, if anything is."""
    return Finding(_THING, True, f"not known: {why}")
