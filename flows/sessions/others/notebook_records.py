"""Notebooks of Kubeflow and Open Data Hub, read as Refit's own data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flows.sessions.kubernetes.records import trouble

STOPPED = "kubeflow-resource-stopped"
SELECTION = "notebooks.opendatahub.io/last-image-selection"
PENDING = "notebooks.opendatahub.io/update-pending"
# The label that the controller gives to the Pods of a Notebook.
OF_NOTEBOOK = "notebook-name"


@dataclass(frozen=True)
class Notebook:
    """A Notebook.

    Attributes:
        uid: another one for one that is made anew by the same name.
        place: of its container among those of its Pod; -1: nobody can tell which one it is.
        image: the name of its image, as its owner wrote it.
        stopped: since when its owner, or what ends idle ones, wants it to be stopped; empty: they don't.
        selection: the image stream and tag by which Open Data Hub's dashboard chose the image; empty: none.
        pending: the change that Open Data Hub's webhook keeps back until it is started anew; empty: none.
        containers: the names of all containers of its Pod.
    """

    namespace: str
    name: str
    uid: str
    place: int
    image: str
    stopped: str
    selection: str
    pending: str
    containers: tuple[str, ...]

    @property
    def container(self) -> str:
        """The name of its container."""
        return self.containers[self.place]

    @property
    def trouble(self) -> str:
        """Why its image can't be told; empty: it can."""
        return "" if self.place >= 0 else f"nobody can tell which of its containers it is: {', '.join(self.containers)}"


def notebook(document: Mapping[str, Any]) -> Notebook:
    """A Notebook, as the API server tells of it; the schema of many says nothing of what is in it."""
    metadata = document["metadata"]
    annotations = metadata.get("annotations") or {}
    template = ((document.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = [container for container in template.get("containers") or () if isinstance(container, Mapping)]
    names = tuple(str(container.get("name", "")) for container in containers)
    place = names.index(metadata["name"]) if metadata["name"] in names else 0 if len(names) == 1 else -1
    return Notebook(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        place=place,
        image=str(containers[place].get("image", "")) if place >= 0 else "",
        stopped=str(annotations.get(STOPPED, "")),
        selection=str(annotations.get(SELECTION, "")),
        pending=str(annotations.get(PENDING, "")),
        containers=names,
    )


@dataclass(frozen=True)
class NotebookPod:
    """The Pod of a Notebook.

    Attributes:
        asks: the name of the image that its container asks for.
        digest: of the image that its container runs; empty: it doesn't run.
        trouble: why it never will, in Kubernetes' words; empty: nothing is wrong.
        ready: its containers are.
        ending: it was told to end.
        prefix: the path below which its IDE is.
    """

    name: str
    uid: str
    asks: str
    digest: str
    trouble: str
    ready: bool
    ending: bool
    prefix: str


def pod(document: Mapping[str, Any], container: str) -> NotebookPod:
    """A Pod, as the API server tells of it, by one of its containers."""
    metadata, status = document["metadata"], document.get("status") or {}
    spec: Mapping[str, Any] = next(
        (entry for entry in document["spec"]["containers"] if entry["name"] == container), {}
    )
    seen: Mapping[str, Any] = next(
        (entry for entry in status.get("containerStatuses") or () if entry["name"] == container), {}
    )
    state = seen.get("state") or {}
    variables = {variable["name"]: str(variable.get("value", "")) for variable in spec.get("env") or ()}
    return NotebookPod(
        name=metadata["name"],
        uid=metadata["uid"],
        asks=str(spec.get("image", "")),
        digest=str(seen.get("imageID", "")).rpartition("@")[2] if "running" in state else "",
        trouble=trouble(state),
        ready=any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in status.get("conditions") or ()
        ),
        ending="deletionTimestamp" in metadata,
        prefix=variables.get("NB_PREFIX", "").rstrip("/"),
    )


def pod_of(pods: Iterable[Mapping[str, Any]], of: Notebook) -> NotebookPod | None:
    """The Pod of a Notebook, if it has one that wasn't told to end."""
    own = (pod for pod in pods if (pod["metadata"].get("labels") or {}).get(OF_NOTEBOOK) == of.name)
    read = [pod(document, of.container) for document in own]
    return next((record for record in read if not record.ending), None)


def exchange(of: Notebook, image: str) -> list[dict[str, object]]:
    """The patch that gives a Notebook another image, provided it is as it was seen."""
    path = f"/spec/template/spec/containers/{of.place}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": of.uid},
        {"op": "test", "path": f"{path}/name", "value": of.container},
        {"op": "test", "path": f"{path}/image", "value": of.image},
        {"op": "replace", "path": f"{path}/image", "value": image},
    ]
