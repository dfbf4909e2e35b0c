"""The Pods of trials, and how they are. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.core.settings import Settings
from flows.sessions.kubernetes import manifests, volume_mounts
from flows.sessions.kubernetes.manifests import KIND, LABEL, SESSION, ClusterOptions
from flows.sessions.kubernetes.records import trouble
from flows.sessions.kubernetes.refusals import never_runs
from flows.sessions.model import HOME, Session
from flows.sessions.trial import REHEARSAL, NoTrial

TRIAL = "trial"
NAME = f"{LABEL}{TRIAL}"  # annotation: the name that is locked
_TOKEN_FOLDER = "/run/refit/trial"
_MOST_PREFERRED = 10  # nodes
_CORES_ASKED = "100m"
_AS_SESSIONS = (
    *("automountServiceAccountToken", "enableServiceLinks", "hostname", "securityContext"),
    *("imagePullSecrets", "nodeSelector", "tolerations"),
)
# The token is made there: nobody but the trial's own checks needs it, and it stands in no manifest. To Jupyter, the end
# of a line would be a part of it.
BEGIN = (
    "umask 77; read -r token </proc/sys/kernel/random/uuid; "
    'printf %s "$token" >"$REFIT_TOKEN_FILE"; unset token; umask 22'
)


@dataclass(frozen=True)
class PodTerms:
    """How long the Pod of a trial is waited for, and how long it may live.

    Attributes:
        start_seconds: until it runs; 0: as long as a session may take.
        seconds: in which Kubernetes ends one that nobody has removed.
        by_image: it goes to a node with its image, if it can.
    """

    start_seconds: float = 0.0
    seconds: int = 3600
    by_image: bool = False


TERMS = PodTerms()


def pod(
    session: Session,
    id: str,
    node: str,
    configuration: Mapping[str, Any],
    options: ClusterOptions,
    settings: Settings,
    *,
    with_home: bool = False,
    terms: PodTerms = TERMS,
    preferred: Sequence[str] = (),
) -> dict[str, Any]:
    """The Pod of a trial.

    Args:
        session: as it shall be, on its new image.
        id: the name of the trial.
        node: on which it is to run; empty: on any.
        configuration: of the image.
        options: where sessions run.
        settings: bounds in CPU and memory.
        with_home: whether home and volumes of the session are copies, for the trial to have; else it has empty ones.
        terms: how long it may live.
        preferred: nodes that are better than others, the best first, where it may run on any.
    """
    own = manifests.pod_spec(session, options, "")
    volumes, mounts = _volumes(session, with_home=with_home), _mounts(session, with_home=with_home)
    spec = {
        **{key: own[key] for key in _AS_SESSIONS if key in own},
        "restartPolicy": "Never",
        "activeDeadlineSeconds": terms.seconds,
        "terminationGracePeriodSeconds": 1,
        "volumes": volumes,
        "containers": [_container(session, configuration, options, settings, mounts)],
        **({"affinity": affinity} if (affinity := on_node(node) if node else rather_on(preferred)) else {}),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(session, id, options), "spec": spec}


def _metadata(session: Session, id: str, options: ClusterOptions) -> dict[str, Any]:
    return {
        "name": name(id),
        "namespace": options.namespace,
        "labels": {SESSION: session.name, KIND: TRIAL},
        "annotations": {NAME: id},
    }


def own(id: str) -> str:
    """The part of a trial's name that no other trial has."""
    return id.rpartition(".")[2]


def name(id: str) -> str:
    """The name of the Pod of a trial."""
    return f"refit-{TRIAL}-{own(id)}"


def _volumes(session: Session, *, with_home: bool) -> list[dict[str, Any]]:
    """The claims of home and volumes, or empty folders in their places."""
    names = ("home", *map(volume_mounts.name_of, session.volumes))
    token: dict[str, Any] = {"name": "token", "emptyDir": {}}
    if not with_home:
        return [token, *({"name": name, "emptyDir": {}} for name in names)]
    home = {"name": "home", "persistentVolumeClaim": {"claimName": session.home}}
    return [token, home, *volume_mounts.volumes(session)]


def _mounts(session: Session, *, with_home: bool) -> list[dict[str, Any]]:
    own = [{"name": "home", "mountPath": HOME.rpartition("/")[0]}, {"name": "token", "mountPath": _TOKEN_FOLDER}]
    if with_home:
        return [*own, *volume_mounts.mounts(session)]
    return [*own, *({"name": volume_mounts.name_of(each), "mountPath": each.path} for each in session.volumes)]


def on_node(node: str) -> dict[str, Any]:
    """The scheduler takes this node alone, and only if it has room."""
    on = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on]}}}


def rather_on(nodes: Sequence[str]) -> dict[str, Any]:
    """The scheduler rather takes these nodes, if they have room."""
    terms = [
        {
            "weight": 100 - rank,
            "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
        }
        for rank, node in enumerate(nodes[:_MOST_PREFERRED])
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}} if terms else {}


def _container(
    session: Session,
    configuration: Mapping[str, Any],
    options: ClusterOptions,
    settings: Settings,
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    token = f"{_TOKEN_FOLDER}/token"
    own = {"REFIT_SESSION": session.name, "REFIT_TOKEN_FILE": token, REHEARSAL: "1", "HOME": HOME, "USER": "dev"}
    program = shlex.join(manifests.image_program(configuration))
    memory = round(settings.rehearsal_memory * 1e9)
    return {
        "name": TRIAL,
        "image": options.reference(session.image),
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c", f"{BEGIN}; mkdir -p {HOME} && cd {HOME} && exec {program}"],
        "workingDir": "/",
        "env": [{"name": name, "value": value} for name, value in {**session.environment, **own}.items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {
            "limits": {"memory": str(memory), "cpu": f"{settings.rehearsal_cpus:g}"},
            "requests": {"memory": str(memory // 2), "cpu": _CORES_ASKED},
        },
        "volumeMounts": [*mounts],
    }


def has_begun(told: Mapping[str, Any] | None) -> bool:
    """Whether the container of a trial runs, or has run.

    Raises:
        NoTrial: its node doesn't take it, or somebody has removed it.
        ClusterError: it will never run.
    """
    if told is None:
        raise NoTrial("the Pod of the rehearsal was removed by somebody else")
    status = told.get("status") or {}
    for seen in status.get("containerStatuses") or ():
        state = seen.get("state") or {}
        if "running" in state or "terminated" in state:
            return True
        if why := trouble(state):
            raise never_runs("The new image doesn't start in its Pod.", why)
    if status.get("phase") == "Failed":
        raise NoTrial(f"{told['spec'].get('nodeName', 'its node')}: {status.get('reason')}: {status.get('message')}")
    return False


def end_of(told: Mapping[str, Any] | None) -> str:
    """Why the container of a trial doesn't run any more; empty: it does."""
    if told is None:
        return "Its Pod was removed by somebody else."
    status = told.get("status") or {}
    for seen in status.get("containerStatuses") or ():
        if ended := (seen.get("state") or {}).get("terminated"):
            return f"It has ended: {ended.get('reason', '')}, exit code {ended.get('exitCode')}."
    return "" if status.get("phase") == "Running" else f"Its Pod is {status.get('phase')}: {status.get('reason', '')}."
