"""Pods and records of the API server, read as Refit's own data. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flows.sessions.kubernetes.manifests import (
    ENDED,
    GENERATION,
    OPENED,
    PLACED,
    RAN,
    SESSION,
    SHAPE,
    SLOTS,
    SPEC,
    STARTED,
    fingerprint,
)
from flows.sessions.kubernetes.resources import devices_of
from flows.sessions.kubernetes.ssh_mounts import ACCOUNTS, TOLD
from flows.sessions.model import Container, Running, Session


@dataclass(frozen=True)
class Slot:
    """A container of a session's Pod, which has two, or one where it has devices of a plugin.

    Attributes:
        generation: that has this slot; 0: none.
        opened: the generation whose program runs here; 0: none does, as far as the API server can tell.
        late: that program waits for its home.
        container: the id of the container, which is another one after each restart; empty: there is none yet.
        image: digest of the image that it really runs; empty: it doesn't.
        tried: digest of the image of its last container, whether or not that runs.
        trouble: why the container can't run, in Kubernetes' words; empty: nothing is wrong, or only that kubelet waits
            for minutes before it begins one again that has ended often.
        asked: digest of the image that its specification asks for.
        reference: that image, as its specification names it.
        had: the generation whose program ended with its container, and which nobody has stopped; 0: none.
        code: exit code of that container; -1: nobody knows.
        last: the generation that runs here, or was the last to; 0: none.
        started: when that got its home; none: it didn't.
        ended: when it was stopped; none: it wasn't.
    """

    name: str
    generation: int = 0
    opened: int = 0
    late: bool = False
    container: str = ""
    image: str = ""
    tried: str = ""
    trouble: str = ""
    asked: str = ""
    had: int = 0
    code: int = -1
    last: int = 0
    started: datetime | None = None
    ended: datetime | None = None
    reference: str = ""

    def was_taken(self, image: str) -> bool:
        """Whether the program that it had didn't end by itself: it was killed, or somebody has put in another image.

        Args:
            image: digest of the image that it was given.
        """
        return bool(self.had) and (self.code != 0 or self.asked != image)


@dataclass(frozen=True)
class SessionPod:
    """A Pod of a session.

    Attributes:
        version: `resourceVersion`, with which a change says what it has seen.
        claim: that its home is on.
        ending: it was told to end. Until Kubernetes has let go of it, its programs may still write, on a node that
            nobody hears of, for instance.
        over: it has ended for good: evicted, for instance. Nothing of it runs, and nothing will.
        devices: resources of device plugins, or a class of devices (DRA), that it asks for, each with its amount.
        made: when the API server got it; none: it doesn't say.
        fingerprint: of its specification.
        ssh: the state of its keys of which kubelet was told; none: it was made without what an sshd needs.
    """

    name: str
    session: str
    version: str
    shape: str
    claim: str
    node: str
    address: str
    ending: bool
    over: bool
    slots: tuple[Slot, ...]
    devices: tuple[tuple[str, str], ...] = ()
    made: datetime | None = None
    fingerprint: str = ""
    ssh: str | None = None

    def slot_of(self, generation: int) -> Slot | None:
        """The slot that a generation has."""
        return next((slot for slot in self.slots if slot.generation == generation), None)

    @property
    def idle(self) -> bool:
        """Whether nothing runs in it, as far as the API server can tell."""
        return not any(slot.opened for slot in self.slots)

    @property
    def keeps_devices(self) -> bool:
        """Whether it has devices that nothing uses, until somebody ends it."""
        return bool(self.devices) and self.idle and not self.ending


def pod(told: Mapping[str, Any]) -> SessionPod:
    """A Pod, as the API server tells of it."""
    metadata, spec, status = told["metadata"], told["spec"], told.get("status") or {}
    annotations = metadata.get("annotations") or {}
    seen = {each["name"]: each for each in status.get("containerStatuses") or ()}
    images = {each["name"]: each["image"] for each in spec["containers"]}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    return SessionPod(
        name=metadata["name"],
        session=metadata["labels"][SESSION],
        version=metadata["resourceVersion"],
        shape=annotations.get(SHAPE, ""),
        claim=claims.get("home", ""),
        node=spec.get("nodeName", ""),
        address=status.get("podIP", ""),
        ending="deletionTimestamp" in metadata,
        over=status.get("phase") in ("Failed", "Succeeded"),
        slots=tuple(
            _slot(name, annotations, seen.get(name, {}), images.get(name, "")) for name in SLOTS if name in images
        ),
        devices=tuple(sorted(devices_of(spec))),
        made=_moment(metadata.get("creationTimestamp", "")),
        fingerprint=fingerprint(spec),
        ssh=annotations.get(TOLD, "") if ACCOUNTS in annotations else None,
    )


def _slot(name: str, annotations: Mapping[str, str], seen: Mapping[str, Any], reference: str) -> Slot:
    asked = reference.rpartition("@")[2]
    state = seen.get("state") or {}
    runs = "running" in state
    container = seen.get("containerID", "") if runs else ""
    opened = json.loads(annotations.get(f"{OPENED}{name}", "{}"))
    tried = seen.get("imageID", "").rpartition("@")[2]
    over = (seen.get("lastState") or {}).get("terminated") or state.get("terminated") or {}
    started, ended = (_moment(opened.get(key, "")) for key in ("started", "ended"))
    # The id of a container that is only to come isn't known yet: it is the one with the image that is asked for.
    its_own = opened.get("container") in (container, "" if tried == asked else container)
    is_open = bool(container and opened and its_own and not ended)
    late = bool(opened.get("late"))
    return Slot(
        name=name,
        generation=int(annotations.get(f"{PLACED}{name}", 0)),
        opened=int(opened["generation"]) if is_open else 0,
        late=is_open and late,
        container=container,
        image=tried if runs else "",
        tried=tried,
        trouble="" if _begins_again(state, over, opened.get("container", "")) else trouble(state),
        asked=asked,
        had=int(opened.get("generation", 0)) if seen and not (is_open or late or ended) else 0,
        code=int(over.get("exitCode", -1)) if over.get("containerID") == opened.get("container") else -1,
        last=int(opened.get("generation", 0)),
        started=started,
        ended=ended,
        reference=reference,
    )


def opened(
    generation: int,
    container: str = "",
    *,
    late: bool = False,
    started: datetime | None = None,
    ended: datetime | None = None,
) -> str:
    """The annotation of a slot that says which generation it runs.

    Args:
        generation: that it runs, or has run.
        container: the id of its container; empty: the next one, with the image that the slot is asked to have.
        late: the program waits for its home.
        started: when it got its home.
        ended: when it was stopped; none: it wasn't.
    """
    moments = {"started": started, "ended": ended}
    told = {name: moment.isoformat() for name, moment in moments.items() if moment}
    return json.dumps({"generation": generation, "container": container, "late": late, **told})


ENDS_AGAIN = "CrashLoopBackOff"
# Exit codes by which runtimes and shells say that a program could not be begun.
_NEVER_BEGUN = (126, 127, 128)
# The process 1 of a slot that has lived for so long has waited for a program, as it ought to.
_HAS_RUN = timedelta(seconds=5)
# Kubernetes' own reasons of a container that waits and will go on waiting.
_TROUBLES = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", ENDS_AGAIN),
)


def trouble(state: Mapping[str, Any]) -> str:
    """Why a container waits that will go on waiting, in Kubernetes' words; empty: it doesn't."""
    waiting = state.get("waiting") or {}
    return f"{waiting['reason']}: {waiting.get('message', '')}" if waiting.get("reason") in _TROUBLES else ""


def _begins_again(state: Mapping[str, Any], over: Mapping[str, Any], had: str) -> bool:
    """Whether a slot's container has run and will run again: its process 1 ends only with what was begun in it.

    One whose process 1 ends at once can't run on this node: it is for another architecture, for instance.

    Args:
        state: of the container, as the API server tells of it.
        over: the end of the one before.
        had: the id of the container in which the program of the slot ran; empty: none did.
    """
    waits = (state.get("waiting") or {}).get("reason") == ENDS_AGAIN
    if not waits or over.get("exitCode") in (None, *_NEVER_BEGUN):
        return False
    began, ended = (_moment(str(over.get(key) or "")) for key in ("startedAt", "finishedAt"))
    ran = ended - began if began and ended else timedelta()
    return bool(had and over.get("containerID") == had) or ran >= _HAS_RUN


def back_offs(told: Mapping[str, Any]) -> Iterator[str]:
    """The slots of a Pod that kubelet doesn't begin just now, each in its words."""
    for seen in (told.get("status") or {}).get("containerStatuses") or ():
        if why := trouble(seen.get("state") or {}):
            yield f"{seen['name']}: {why}"


def waits_for(told: Mapping[str, Any]) -> str:
    """Why a Pod has no node yet, in Kubernetes' words: one may come, or a volume; empty: it has one."""
    for condition in (told.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return f"Unschedulable: {condition.get('message', '')}"
    return ""


def closed(nodes: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The nodes that somebody has closed (`kubectl cordon`, as each drain begins), by name."""
    return frozenset(node["metadata"]["name"] for node in nodes if (node.get("spec") or {}).get("unschedulable"))


def leaving(pods: Iterable[SessionPod], nodes: Collection[str]) -> dict[str, str]:
    """Session → the one of these nodes on which it is."""
    return {each.session: each.node for each in pods if each.node in nodes and not (each.ending or each.over)}


def has_run(record: Mapping[str, Any]) -> bool:
    """Whether a record says that its session has run: this generation, or one before it."""
    annotations = record["metadata"].get("annotations") or {}
    return RAN in annotations or STARTED in annotations


def ran(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The sessions that have run, by their records alone: of a Pod that is gone, nothing can be read."""
    return frozenset(each["metadata"]["labels"][SESSION] for each in records if has_run(each))


def lost(made: Iterable[Container], pods: Sequence[SessionPod], ran: Collection[str] = ()) -> frozenset[str]:
    """The sessions that have run and have no Pod any more, or whose program was taken from them or never begun in the
    slot that was made for it; a Pod that ends is still there. `ran`: those of which their records say so.
    """
    alive = [each for each in pods if not each.over]
    there = {each.session for each in alive}
    recorded = {(each.session, each.generation): each for each in made}
    have_run = {each.session for each in made if each.started} | {*ran}
    slots = [(pod.session, slot) for pod in alive if not pod.ending for slot in pod.slots]
    taken = {
        session
        for session, slot in slots
        if (had := recorded.get((session, slot.had))) and had.started and slot.was_taken(had.image)
    }
    # Somebody was killed, or failed, between the change of a slot for a generation and the begin of its program.
    runs = {pod.session for pod in alive if not pod.idle}
    unbegun = {
        session for session, slot in slots if (session, slot.generation) in recorded and slot.last != slot.generation
    }
    return frozenset(have_run - there | taken | (unbegun & have_run - runs))


def unbound(claims: Mapping[str, Mapping[str, Any] | None]) -> Iterator[str]:
    """The claims that have no volume, each in words; none stands for one that is not there."""
    for name, claim in claims.items():
        if claim is None:
            yield f"The claim {name} isn't there."
        elif (phase := (claim.get("status") or {}).get("phase", "Pending")) != "Bound":
            storage = (claim.get("spec") or {}).get("storageClassName") or "none"
            yield f"The claim {name} is {phase}; its storage class: {storage}."


_MOST_WARNINGS = 5


def warnings(events: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """The newest warnings of the cluster about objects of these names, newest first."""
    named = (event for event in events if (event.get("involvedObject") or {}).get("name") in names)
    told = [event for event in named if event.get("type") == "Warning"]
    told.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), reverse=True)
    return list(dict.fromkeys(f"{event.get('reason', '')}: {event.get('message', '')}" for event in told))[
        :_MOST_WARNINGS
    ]


# Several API servers may have clocks of their own.
_CLOCKS_APART = timedelta(minutes=1)


def containers(records: Iterable[Mapping[str, Any]], pods: Sequence[SessionPod]) -> tuple[Container, ...]:
    """All generations that have a record, lowest first, as their Pods say that they are."""
    by_session = defaultdict[str, list[SessionPod]](list)
    for each in pods:
        by_session[each.session].append(each)
    seen = [_container(record, by_session[record["metadata"]["labels"][SESSION]]) for record in records]
    return tuple(sorted(seen, key=lambda container: (container.session, container.generation)))


def _container(record: Mapping[str, Any], pods: Sequence[SessionPod]) -> Container:
    labels, annotations = record["metadata"]["labels"], record["metadata"].get("annotations") or {}
    session, generation = labels[SESSION], int(labels[GENERATION])
    spec = record["data"][SPEC]
    slots = [slot for pod in pods if not pod.ending for slot in pod.slots]
    mine = next((slot for slot in slots if slot.opened == generation), None)
    had = next((slot for slot in slots if slot.last == generation), None)
    started, ended = (_moment(annotations.get(key, "")) for key in (STARTED, ENDED))
    if had and had.started:
        started, ended = had.started, had.ended
    made_from = _session(spec)
    # It may have run in a Pod that is gone, and nobody wrote down when.
    gone = has_run(record) and all(slot.generation != generation for slot in slots)
    gone = gone and not any(_never_had(each, record, generation, made_from) for each in pods)
    running = Running.running if mine else Running.stopped if started or ended or gone else Running.created
    return Container(
        name=record["metadata"]["name"],
        session=session,
        generation=generation,
        image=made_from.image if made_from else "",
        running=running,
        made_from=made_from,
        started=started,
        ended=ended,
        warm=bool(mine and mine.late),
    )


def _never_had(pod: SessionPod, record: Mapping[str, Any], generation: int, session: Session | None) -> bool:
    """Whether a Pod shows by itself that a generation had no slot yet: it is older, and no later one took its slot.

    Another Pod with this home is made, or begins to run, only when such a one is gone.
    """
    made = _moment(record["metadata"].get("creationTimestamp", ""))
    older = bool(pod.made and made and made - pod.made > _CLOCKS_APART)
    has_home = bool(session and pod.claim == session.home and not (pod.ending or pod.over))
    return older and has_home and all(slot.generation < generation for slot in pod.slots)


def _session(spec: str) -> Session | None:
    try:
        return Session.from_json(spec)
    except ValueError:  # written by a Refit that knew other sessions
        return None


def _moment(text: str) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def place(session: Session, pods: Iterable[SessionPod], shape: str) -> tuple[SessionPod, Slot] | None:
    """Where a generation can run: in the slot that it has, else in the one that nobody uses whose generation is the
    oldest, so that the way back to a later one finds its container as it was; none: it needs a Pod.

    Args:
        session: the generation.
        pods: of this session.
        shape: the resources and devices for which a Pod has to be made.
    """
    fitting = [each for each in pods if not each.ending and not each.over and each.shape == shape]
    own = [(each, slot) for each in fitting if (slot := each.slot_of(session.generation))]
    free = [(each, slot) for each in fitting for slot in each.slots if not slot.opened]
    return next(iter([*own, *sorted(free, key=lambda place: place[1].generation)]), None)
