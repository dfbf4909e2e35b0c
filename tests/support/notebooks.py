"""Notebooks of Kubeflow on a real API server, with a stand-in for their controller, which isn't at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from subprocess import CalledProcessError
from typing import Any

import yaml

from tests.support.background import repeated
from tests.support.cluster import kubectl
from tests.support.processes import between_forks

_CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: notebooks.kubeflow.org}
spec:
  group: kubeflow.org
  names: {kind: Notebook, listKind: NotebookList, plural: notebooks, singular: notebook}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              template:
                type: object
                properties:
                  spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
STOPPED = "kubeflow-resource-stopped"


@contextmanager
def controller() -> Iterator[None]:
    """The kind `Notebook`, and what makes StatefulSets of them, as Kubeflow's controller does."""
    kubectl("apply", "-f", "-", stdin=_CRD)
    kubectl("wait", "--for=condition=established", "--timeout=60s", "crd/notebooks.kubeflow.org")
    try:
        with repeated(between_forks(_reconcile), 0.3):
            yield
    finally:
        kubectl("delete", "crd", "notebooks.kubeflow.org", "--timeout=60s")


def _reconcile() -> None:
    with suppress(CalledProcessError, json.JSONDecodeError):
        _bring_in_line()


def _bring_in_line() -> None:
    """Bring all StatefulSets in line with their Notebooks, where they aren't."""
    listed = json.loads(kubectl("get", "notebooks,statefulsets", "-o", "json"))["items"]
    there = {one["metadata"]["name"]: one for one in listed if one["kind"] == "StatefulSet"}
    for one in listed:
        if one["kind"] != "Notebook":
            continue
        made, name = _stateful_set(one), one["metadata"]["name"]
        with suppress(CalledProcessError):  # of one that can't be, nobody else waits for the end
            if name not in there:
                kubectl("create", "-f", "-", stdin=json.dumps(made))
            elif _asked(there[name]) != _asked(made):
                kubectl("replace", "-f", "-", stdin=json.dumps(made))


def _asked(stateful_set: Mapping[str, Any]) -> tuple[object, ...]:
    spec = stateful_set["spec"]
    return spec["replicas"], [(one["name"], one["image"]) for one in spec["template"]["spec"]["containers"]]


def _stateful_set(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """As `generateStatefulSet` of Kubeflow's controller."""
    metadata = notebook["metadata"]
    name, labels = metadata["name"], {"statefulset": metadata["name"], "notebook-name": metadata["name"]}
    spec = json.loads(json.dumps(notebook["spec"]["template"]["spec"]))
    for container in spec["containers"]:
        if container["name"] == name or len(spec["containers"]) == 1:
            prefix = {"name": "NB_PREFIX", "value": f"/notebook/{metadata['namespace']}/{name}"}
            container.setdefault("env", []).append(prefix)
    owner = {"apiVersion": notebook["apiVersion"], "kind": "Notebook", "name": name, "uid": metadata["uid"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "ownerReferences": [{**owner, "controller": True}]},
        "spec": {
            "replicas": 0 if STOPPED in (metadata.get("annotations") or {}) else 1,
            "serviceName": name,
            "selector": {"matchLabels": {"statefulset": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def notebook(
    name: str,
    image: str,
    *,
    sidecars: Mapping[str, str] = {},
    claim: str = "",
    annotations: Mapping[str, str] = {},
) -> None:
    """Make a Notebook, as a person does in a dashboard."""
    home = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    own = {
        "name": name,
        "image": image,
        "env": [{"name": "HOME", "value": "/home/dev"}],
        "volumeMounts": [{"name": "home", "mountPath": "/home/dev"}],
    }
    more = [{"name": other, "image": its} for other, its in sidecars.items()]
    spec = {
        "containers": [*more, own],
        "volumes": [{"name": "home", **home}],
        "terminationGracePeriodSeconds": 2,
        "automountServiceAccountToken": False,
    }
    told = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "Notebook",
        "metadata": {
            "name": name,
            "annotations": dict(annotations),
        },
        "spec": {"template": {"spec": spec}},
    }
    kubectl("create", "-f", "-", stdin=yaml.safe_dump(told))


def image_of(name: str) -> str:
    """The image that a Notebook asks for."""
    path = f'{{.spec.template.spec.containers[?(@.name=="{name}")].image}}'
    return kubectl("get", "notebook", name, "-o", f"jsonpath={path}")
