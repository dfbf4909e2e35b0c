"""The objects of a session in Kubernetes: its Pod, its record, its claims. Pure.

Pods meet the level *restricted* of the Pod Security Standards. The parts that a Pod can't change while it lives are the
same for all generations that share one: user, claims, limits. The parts that differ from one to the next, program and
variables, reach a slot as a file.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.core.settings import Settings
from flows.core.settings.cluster import Snapshots, Toleration
from flows.sessions.kubernetes import resources, ssh_mounts, volume_mounts
from flows.sessions.model import HOME, Session

SLOTS = resources.SLOTS
LABEL = "io.refit."
SESSION, GENERATION, KIND = f"{LABEL}session", f"{LABEL}generation", f"{LABEL}kind"
# Annotations of a record: when its generation was started and has ended, and that its session ran before it was made.
SPEC, STARTED, ENDED, RAN = "spec", f"{LABEL}started", f"{LABEL}ended", f"{LABEL}ran"
# Of a Pod: its shape, and for each slot the generation that it has, and the one that it runs, from when until when.
SHAPE, PLACED, OPENED = f"{LABEL}shape", f"{LABEL}placed-", f"{LABEL}opened-"
# Of a claim: the uid of the session whose it is, and its name where it is a volume.
UID, VOLUME = f"{LABEL}uid", f"{LABEL}volume"
SCRIPTS, SCRIPT = "refit-slot", "slot"
ONE_NODE, MANY_NODES, MANY_READERS = "ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"
BUDGET, OWNER = "refit-sessions", "refit-owner"
_ALL = 2**31 - 1
_TOKEN = "/run/refit/token"
_SLOT_FILES = "/run/refit/slots"
_HOMES = "/run/refit/home"
_TOOLS = "/run/refit/bin"
# Bytes: programs and variables of two slots, and what says which of them runs.
_SLOT_ROOM = "1Mi"


@dataclass(frozen=True)
class ClusterOptions:
    """Where and how sessions run in a cluster.

    Attributes:
        context: of the kubeconfig; empty: its current one, or the service account inside a cluster.
        namespace: in which all sessions are.
        registry: host and port at which the nodes reach the registry, e.g. `registry.example.com`.
        repository: of the images there.
        pull_secret: name of the Secret with the registry's login; empty: none is needed.
        storage_class: of homes and volumes; empty: the cluster's default.
        shared_class: of volumes that sessions share; empty: that of homes.
        node_selector: labels that a node of sessions has.
        priority_class: of sessions; empty: the cluster's default.
        tolerations: taints of nodes on which sessions may run, as Pods have them.
        home_size: bytes that the claim of a home asks for.
        memory: bytes of a session that says nothing of them; 0: no limit.
        cpus: cores of a session that says nothing of them; 0: no limit.
        start_seconds: in which a Pod gets its node, its volumes and its image.
        owner: the Refit whose namespace this is; empty: nobody asks.
        gateways: CIDRs from which a gateway outside of the cluster comes.
        snapshots: whether homes have any.
        inside: whether Refit is a Pod of the cluster.
    """

    registry: str
    repository: str
    context: str = ""
    namespace: str = "refit"
    pull_secret: str = ""
    storage_class: str = ""
    shared_class: str = ""
    node_selector: Mapping[str, str] | None = None
    priority_class: str = ""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    home_size: int = 10 * 10**9
    memory: int = 0
    cpus: float = 0.0
    start_seconds: float = 600.0
    owner: str = ""
    gateways: tuple[str, ...] = ()
    snapshots: Snapshots = Snapshots.none
    inside: bool = False

    @classmethod
    def of(cls, settings: Settings) -> ClusterOptions:
        """The options of these settings."""
        told = settings.kubernetes
        return cls(
            registry=told.registry or settings.registry_host,
            repository=settings.repository,
            context=told.context,
            namespace=told.namespace,
            pull_secret=told.pull_secret,
            storage_class=told.storage_class,
            shared_class=told.shared_storage_class or told.storage_class,
            node_selector=told.node_selector,
            priority_class=told.priority_class,
            tolerations=tuple(map(_toleration, told.tolerations)),
            home_size=round(told.home_gb * 1e9),
            memory=round(told.memory_gb * 1e9),
            cpus=told.cpus,
            start_seconds=told.start_minutes * 60,
            gateways=told.gateway_addresses,
            snapshots=told.snapshots,
        )

    def reference(self, image: str) -> str:
        """The name by which nodes pull the image with this digest."""
        return f"{self.registry}/{self.repository}@{image}"


def owner(options: ClusterOptions) -> dict[str, Any]:
    """The ConfigMap that says whose namespace this is."""
    metadata = {"name": OWNER, "namespace": options.namespace, "labels": {KIND: "owner"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"refit": options.owner}}


def _toleration(told: Toleration) -> dict[str, Any]:
    """A toleration as Pods have it."""
    return {
        "key": told.key,
        **({"operator": "Exists"} if told.value is None else {"operator": "Equal", "value": told.value}),
        **({"effect": str(told.effect)} if told.effect else {}),
        **({} if told.seconds is None else {"tolerationSeconds": told.seconds}),
    }


def claim(session: str) -> str:
    """The name of the claim of a session's home."""
    return f"refit-home-{session}"


def volume_claim(session: str, volume: str) -> str:
    """The name of the claim of a session's own volume."""
    return f"refit-volume-{session}.{volume}"


def record(session: Session, options: ClusterOptions, *, ran: bool = False) -> dict[str, Any]:
    """The ConfigMap that says what a generation is made from, and whether its session ran before."""
    metadata = {"name": session.container, "namespace": options.namespace, "labels": labels(session, "record")}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, **({"annotations": {RAN: "true"}} if ran else {})},
        "data": {SPEC: session.to_json()},
    }


def labels(session: Session, kind: str) -> dict[str, str]:
    """The labels of what belongs to a generation."""
    return {SESSION: session.name, GENERATION: str(session.generation), KIND: kind}


def home_claim(
    name: str, options: ClusterOptions, labels: Mapping[str, str] | None = None, uid: int = 0
) -> dict[str, Any]:
    """A claim for one home; several Pods of one node may write to it, and the gates see to it that one program does."""
    return claim_for(name, options, {KIND: "home", **(labels or {})}, uid, ONE_NODE, options.storage_class)


def claim_for(
    name: str, options: ClusterOptions, labels: Mapping[str, str], uid: int, mode: str, storage_class: str
) -> dict[str, Any]:
    """A claim of the size of a home, for the user `uid`; `mode` says how many nodes may have it at a time."""
    size = str(options.home_size)
    spec: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    if storage_class:
        spec["storageClassName"] = storage_class
    metadata = {
        "name": name,
        "namespace": options.namespace,
        "labels": dict(labels),
        "annotations": {UID: str(uid)},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def scripts(options: ClusterOptions, text: str) -> dict[str, Any]:
    """The ConfigMap with the program of slots; a text of its own has a name of its own."""
    metadata = {"name": scripts_name(text), "namespace": options.namespace, "labels": {KIND: "slot"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {SCRIPT: text}, "immutable": True}


def scripts_name(text: str) -> str:
    """The name of the ConfigMap with this text."""
    return f"{SCRIPTS}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def pod(session: Session, options: ClusterOptions, script: str) -> dict[str, Any]:
    """The Pod of a session, with the image of this generation in both slots."""
    spec = pod_spec(session, options, script)
    annotations = {SHAPE: shape(session, options, script), ssh_mounts.ACCOUNTS: ssh_mounts.accounts(session.uid)}
    annotations[f"{PLACED}{SLOTS[0]}"] = str(session.generation)
    metadata = {
        "name": session.container,
        "namespace": options.namespace,
        "labels": labels(session, "session"),
        "annotations": annotations,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def shape(session: Session, options: ClusterOptions, script: str) -> str:
    """The same for all generations that can share a Pod."""
    told = pod_spec(session, options, script)
    for container in told["containers"]:
        del container["image"]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def pod_spec(session: Session, options: ClusterOptions, script: str) -> dict[str, Any]:
    """The specification of a Pod of this session, without the fields that Kubernetes adds."""
    spec: dict[str, Any] = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": session.name,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": session.uid,
            "runAsGroup": 0,
            "fsGroup": volume_mounts.group(session),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_slot(slot, session, options) for slot in _slots(session)],
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": session.home}},
            *({"name": f"home-{slot}", "emptyDir": {"sizeLimit": _SLOT_ROOM}} for slot in _slots(session)),
            {"name": "slots", "emptyDir": {"medium": "Memory", "sizeLimit": _SLOT_ROOM}},
            {"name": "bin", "configMap": {"name": script, "defaultMode": 0o555}},
            {"name": "token", "secret": {"secretName": secret(session.name), "defaultMode": 0o440}},
            *ssh_mounts.volumes(secret(session.name)),
            *volume_mounts.volumes(session),
        ],
        **resources.claims(session),
    }
    if options.pull_secret:
        spec["imagePullSecrets"] = [{"name": options.pull_secret}]
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    if options.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in options.tolerations]
    return spec


def _slots(session: Session) -> Sequence[str]:
    """The slots of a session's Pod: one where it has devices that a plugin gives to a container."""
    return SLOTS[:1] if any(map(resources.is_of_plugin, session.devices)) else SLOTS


def secret(session: str) -> str:
    """The name of the Secret with a session's token, and with what its sshd reads."""
    return f"refit-token-{session}"


def token(session: Session, options: ClusterOptions, text: str) -> dict[str, Any]:
    """The Secret with a session's token."""
    metadata = {"name": secret(session.name), "namespace": options.namespace, "labels": {SESSION: session.name}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": text}}


def budget(options: ClusterOptions, version: str) -> dict[str, Any]:
    """The budget of disruption by which no drain evicts the Pod of a session: Refit moves it off itself.

    For Pods that no controller has made, a budget can name no share of them, but a number that has to stay.

    Args:
        options: where sessions run.
        version: of the API, e.g. `policy/v1`.
    """
    spec = {"minAvailable": _ALL, "selector": {"matchLabels": {KIND: "session"}}}
    metadata = {"name": BUDGET, "namespace": options.namespace, "labels": {KIND: "budget"}}
    return {"apiVersion": version, "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


def puller(image: str, node: str, options: ClusterOptions) -> dict[str, Any]:
    """A Pod that does nothing on one node, for which the image has to be there."""
    digest = hashlib.sha256(f"{image} {node}".encode()).hexdigest()[:16]
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "pull",
        "image": options.reference(image),
        "imagePullPolicy": "IfNotPresent",
        "command": ["true"],
        "securityContext": security,
    }
    spec: dict[str, Any] = {
        "nodeName": node,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    if options.pull_secret:
        spec["imagePullSecrets"] = [{"name": options.pull_secret}]
    metadata = {"name": f"refit-pull-{digest}", "namespace": options.namespace, "labels": {KIND: "pull"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _slot(slot: str, session: Session, options: ClusterOptions) -> dict[str, Any]:
    mounts = [
        {"name": "home", "mountPath": _HOMES},
        # In it is the way to the home, which each slot has for itself: so it is the same path all the time.
        {"name": f"home-{slot}", "mountPath": HOME.rpartition("/")[0]},
        {"name": "slots", "mountPath": _SLOT_FILES},
        {"name": "bin", "mountPath": _TOOLS, "readOnly": True},
        {"name": "token", "mountPath": _TOKEN, "subPath": "token", "readOnly": True},
        *ssh_mounts.MOUNTS,
        *volume_mounts.mounts(session),
    ]
    memory, cpus = session.memory or options.memory, session.cpus or options.cpus
    return {
        "name": slot,
        "image": options.reference(session.image),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", f"{_TOOLS}/{SCRIPT}"],
        # That of the image is in the home: the runtime would make it there, and it would be root's.
        "workingDir": "/",
        "env": [{"name": "REFIT_SLOT", "value": slot}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": resources.asked(memory, cpus, resources.devices(session), len(_slots(session))),
        "volumeMounts": mounts,
    }


def program(session: Session, argv: Sequence[str]) -> str:
    """The shell script that a slot runs: the variables of the session, then its program, which takes its place.

    Called with `enter` and another program, it runs that one, which comes beside the session's; see `entered`.
    """
    variables = {**session.environment, "REFIT_SESSION": session.name, "REFIT_TOKEN_FILE": _TOKEN, "USER": "dev"}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    late = f'export HOME={HOME}; if [ "${{REFIT_LATE:-}}" = late ]; then export REFIT_LATE_HOME=1; else cd; fi'
    enter = f'if [ "${{1:-}}" = enter ]; then shift; export HOME={HOME}; cd {HOME} || cd /; exec "$@"; fi'
    return "\n".join([*exports, enter, late, "unset REFIT_LATE REFIT_SLOT", f"exec {shlex.join(argv)}", ""])


def entered(slot: str, argv: Sequence[str]) -> list[str]:
    """The call that runs a program beside the one of a slot, with the same variables, in the home."""
    return ["/bin/sh", f"{_SLOT_FILES}/{slot}/program", "enter", *argv]


def image_program(config: Mapping[str, Any]) -> list[str]:
    """The program of an image, by its configuration."""
    own = config.get("config") or {}
    return [*(own.get("Entrypoint") or ()), *(own.get("Cmd") or ())]


def changed_by_hand(live: Mapping[str, Any], expected: Mapping[str, Any], slot: str) -> tuple[str, ...]:
    """The fields of a live Pod's specification that aren't as Refit has made them, each in words. Fields that
    Kubernetes adds don't count.

    Args:
        live: `spec` of the Pod, as the API server has it.
        expected: the result of `pod_spec` for a generation.
        slot: which that generation has; the other slot may have another image.
    """
    differences = [f"{key} of its Pod" for key in _OF_POD if _essence(live.get(key)) != _essence(expected.get(key))]
    by_name = {container["name"]: container for container in live.get("containers", ())}
    slots = {container["name"] for container in expected["containers"]}
    differences += [f"a container {name!r} in its Pod" for name in sorted(by_name.keys() - slots)]
    for asked in expected["containers"]:
        there = dict(by_name.get(asked["name"], {}))
        there["resources"] = resources.part_asked(there.get("resources") or {}, asked["resources"])
        keys = (*_OF_SLOT, "image") if asked["name"] == slot else _OF_SLOT
        differences += [
            f"{key} of slot {asked['name']}" for key in keys if _essence(there.get(key)) != _essence(asked.get(key))
        ]
    return tuple(differences)


def fingerprint(spec: Mapping[str, Any]) -> str:
    """A digest of the fields that `changed_by_hand` compares, but for images: equal ones differ in none of them."""
    parts = {key: _essence(spec.get(key)) for key in _OF_POD}
    slots = {each["name"]: {key: _essence(each.get(key)) for key in _OF_SLOT} for each in spec.get("containers", ())}
    return hashlib.sha256(json.dumps([parts, slots], sort_keys=True).encode()).hexdigest()


_OF_POD = ("hostname", "restartPolicy", "securityContext", "automountServiceAccountToken")
_OF_SLOT = ("command", "workingDir", "env", "securityContext", "resources", "volumeMounts")


def _essence(value: Any) -> Any:
    """A part of a specification without what means nothing: false flags and empty maps."""
    if isinstance(value, Mapping):
        return {key: _essence(part) for key, part in value.items() if part not in (False, None, {}, [])}
    return [_essence(part) for part in value] if isinstance(value, list) else value or None
