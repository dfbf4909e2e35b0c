"""An API server in memory, with the Pods, records and templates of claims of one session, and a kubelet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from flows.sessions.kubernetes import engine, manifests, records
from flows.sessions.kubernetes.cluster import Conflict, ProgramEnded, StillWaiting
from flows.sessions.kubernetes.kinds import TEMPLATES
from flows.sessions.model import Running, Session
from tests.support.pods import OPTIONS, SESSION

SCRIPT = manifests.scripts_name(Path(engine.__file__).with_name("slot.sh").read_text(encoding="utf-8"))


class Memory:
    """An API server with Pods whose containers run at once, unless another Pod holds the volume of their home."""

    def __init__(self, *sessions: Any) -> None:
        self.follower = SimpleNamespace(
            of=lambda *_: None,
            settled=lambda *_: None,
            own_change=lambda *_: 0,
            changed=lambda *_: None,
            removed=lambda *_: None,
        )
        self.records = {each.container: manifests.record(each, OPTIONS, ran=True) for each in sessions}
        self.pods: dict[str, dict[str, Any]] = {}
        self.begun = list[list[str]]()
        self.refuses, self.ended, self.listed = "", "", 0
        self.code = -1  # of the call in whose middle a container ends
        self.is_full, self.options = False, OPTIONS
        self.templates: dict[str, dict[str, Any]] = {}
        self.drops_claims, self.claims_are_made, self.events = False, True, list[dict[str, Any]]()
        self.rewritten = ""  # the slot whose resources a webhook writes anew
        self.ids, self.restarted = dict[str, str](), dict[str, str]()

    def pod(self, name: str, node: str, annotations: Mapping[str, str], session: Session = SESSION) -> None:
        made = manifests.pod(session, OPTIONS, SCRIPT)
        made["metadata"] |= {"name": name, "resourceVersion": "7"}
        made["metadata"]["annotations"] = {manifests.SHAPE: made["metadata"]["annotations"][manifests.SHAPE]}
        made["metadata"]["annotations"] |= annotations
        made["spec"]["nodeName"] = node
        self.pods[name] = made
        self.tend()

    def tend(self) -> None:
        """Be kubelet: a volume is on one node alone."""
        holder = next(iter(self.pods.values()))["spec"]["nodeName"] if self.pods else ""
        for pod in self.pods.values():
            if pod["spec"].get("nodeName") == holder:
                pod["status"] = {
                    "podIP": "10.0.0.9",
                    "containerStatuses": [
                        {
                            "name": each["name"],
                            "state": {"running": {}},
                            "containerID": self.ids.get(each["name"], each["image"]),
                            "imageID": each["image"],
                        }
                        for each in pod["spec"]["containers"]
                    ],
                }

    def ensure(self, resource: str, manifest: Mapping[str, Any]) -> None:
        if resource == "pods":
            made = deepcopy({**manifest, "metadata": {**manifest["metadata"], "resourceVersion": "8"}})
            why = {"type": "PodScheduled", "reason": "Unschedulable", "message": "Insufficient example.com/gpu"}
            made |= {"status": {"conditions": [why], **self._claimed(made)}} if self.is_full else {}
            made["spec"] |= {} if self.is_full else {"nodeName": "n"}
            if self.drops_claims:
                made["spec"].pop("resourceClaims")
                for container in made["spec"]["containers"]:
                    container["resources"].pop("claims")
            for container in made["spec"]["containers"]:
                if container["name"] == self.rewritten:
                    container["resources"] = {}
            self.pods[made["metadata"]["name"]] = made

    def _claimed(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """The status of a Pod's claims, as the controller of Kubernetes writes it."""
        claims = [
            {"name": each["name"], "resourceClaimName": "claim"} for each in pod["spec"].get("resourceClaims", ())
        ]
        return {"resourceClaimStatuses": claims} if claims and self.claims_are_made else {}

    def version(self, resource: str) -> str:
        return "resource.k8s.io/v1"

    def create(self, resource: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        name = manifest["metadata"]["name"]
        if name in self.templates:
            raise Conflict("It is there.")
        self.templates[name] = as_kept(manifest)
        return self.templates[name]

    def of_all(self, group: str, resource: str) -> dict[str, Any]:
        return {}

    def list(self, resource: str, **labels: str) -> list[dict[str, Any]]:
        self.listed += 1
        if resource == "events":
            return self.events
        return deepcopy([*(self.pods if resource == "pods" else self.records).values()])

    def each(self, resource: str, read: Callable[[dict[str, Any]], Any], **labels: str) -> Sequence[Any]:
        return tuple(map(read, self.list(resource)))

    def of_session(
        self, resource: str, session: str, kind: str, read: Callable[[dict[str, Any]], Any]
    ) -> Sequence[Any]:
        followed = self.follower.of(resource, session)
        return self.each(resource, read) if followed is None else followed

    def find(self, resource: str, name: str) -> dict[str, Any] | None:
        return deepcopy((self.templates if resource == TEMPLATES else self.pods).get(name))

    def patch(self, resource: str, name: str, change: Mapping[str, Any], kind: str = "") -> Mapping[str, Any]:
        there = (self.pods if resource == "pods" else self.records)[name]
        annotations = there["metadata"].setdefault("annotations", {})
        for key, value in change["metadata"]["annotations"].items():
            annotations.pop(key, None)
            annotations |= {} if value is None else {key: value}
        for new in change.get("spec", {}).get("containers", ()):
            (old,) = (each for each in there["spec"]["containers"] if each["name"] == new["name"])
            old |= new
        return deepcopy(there)

    def delete(self, resource: str, name: str, grace: int = 0) -> None:
        (self.pods if resource == "pods" else self.records).pop(name)

    def wait(
        self, resource: str, name: str, until: Callable[[Any], bool], seconds: float, told: str, begin: Any = None
    ) -> None:
        if not until(begin() if begin else self.find(resource, name)):
            self.tend()
            if not until(self.find(resource, name)):
                raise StillWaiting(told)

    @contextmanager
    def program(self, pod: str, slot: str, argv: Sequence[str], stdin: bytes = b"") -> Iterator[Any]:
        words = [*argv[2:]]
        if words[0] == self.refuses:
            raise ProgramEnded("It doesn't.", why="", code=75)
        if words[0] == self.ended:
            self.ended, self.ids = "", self.restarted
            raise ProgramEnded("It could not be run.", why="no running task found", code=self.code)
        if words[0] == "run-next" and self.restarted and words[5] == "ask":
            self.ids, self.restarted = self.restarted, {}  # kubelet tells of it a moment later
            yield SimpleNamespace(output=lambda limit, most: iter([b"7\n"]))
            return
        self.begun.append(words)
        yield SimpleNamespace(output=lambda limit, most: iter(()))

    def seen(self) -> dict[int, tuple[Running, bool]]:
        pods = [records.pod(each) for each in self.pods.values()]
        made = records.containers([*self.records.values()], pods)
        return {each.generation: (each.running, each.warm) for each in made}


def as_kept(template: Mapping[str, Any], metadata: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """A template of claims as an API server keeps and tells it: with metadata of the claims, whatever was sent."""
    return deepcopy({**template, "spec": {"metadata": dict(metadata), **template["spec"]}})


def slot(name: str, generation: int, container: str, *, late: bool = False) -> dict[str, str]:
    """The annotations of a Pod whose slot runs a generation in this container."""
    told = records.opened(generation, container, late=late)
    return {f"{manifests.PLACED}{name}": str(generation), f"{manifests.OPENED}{name}": told}
