"""A double of a storage class with snapshots: its provisioner, and the snapshot controller, on the real API server.

Volumes are folders of this machine, which both nodes see; a snapshot is a copy of one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.background import repeated
from tests.support.cluster import kubectl
from tests.support.processes import between_forks

CLASS = "copying"
_DRIVER = "copying.tests.refit.io"
_GROUP = "snapshot.storage.k8s.io"
_VOLUMES = Path("/tmp/hostpath_pv")


def _crd(kind: str, plural: str, scope: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{_GROUP}",
            # Only with this, an API server takes definitions in groups of Kubernetes itself.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter"},
        },
        "spec": {"group": _GROUP, "names": names, "scope": scope, "versions": [version]},
    }


_CRDS = (
    _crd("VolumeSnapshot", "volumesnapshots", "Namespaced"),
    _crd("VolumeSnapshotClass", "volumesnapshotclasses", "Cluster"),
)
_CLASSES = (
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": CLASS},
        "provisioner": _DRIVER,
        "volumeBindingMode": "Immediate",
    },
    {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": "copying-snapshots"},
        "driver": _DRIVER,
        "deletionPolicy": "Delete",
    },
)


@contextmanager
def storage_with_snapshots(folder: Path) -> Iterator[None]:
    """The storage class `CLASS` and its class of snapshots, for the `with` block; `folder` keeps the snapshots."""
    for made in _CRDS:
        kubectl("apply", "-f", "-", stdin=json.dumps(made))
    kubectl(
        "wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{each['metadata']['name']}" for each in _CRDS)
    )
    for made in _CLASSES:
        kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        with repeated(between_forks(_Double(folder).look), 0.1):
            yield
    finally:
        kubectl("delete", "pvc,pv", "-l", f"made-by={CLASS}", "--ignore-not-found", "--wait=false")
        kubectl("delete", "storageclass", CLASS)
        kubectl("delete", "crd", *(each["metadata"]["name"] for each in _CRDS))


class _Double:
    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, set[str]()

    def look(self) -> None:
        """Make the volumes of new claims, and take new snapshots."""
        try:
            told = json.loads(kubectl("get", "persistentvolumeclaims,volumesnapshots", "-o", "json"))["items"]
        except subprocess.CalledProcessError:
            return
        for each in told:
            uid = each["metadata"]["uid"]
            if each["kind"] == "VolumeSnapshot":
                if not each.get("status"):
                    self._take(each)
            elif each["spec"].get("storageClassName") == CLASS and uid not in self._made:
                self._made.add(uid)
                self._provision(each)

    def _provision(self, claim: Mapping[str, Any]) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        folder = _VOLUMES / f"double-{metadata['uid']}"
        folder.mkdir(parents=True)
        if source := spec.get("dataSource"):
            subprocess.run(["cp", "--archive", f"{self._folder / source['name']}/.", folder], check=True)
        folder.chmod(0o777)
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"double-{metadata['uid']}", "labels": {"made-by": CLASS}},
            "spec": {
                "accessModes": spec["accessModes"],
                "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                "claimRef": {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]},
                "hostPath": {"path": str(folder)},
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": CLASS,
            },
        }
        kubectl("apply", "-f", "-", stdin=json.dumps(volume))

    def _take(self, snapshot: Mapping[str, Any]) -> None:
        name = snapshot["metadata"]["name"]
        subprocess.run(
            [
                "cp",
                "--archive",
                folder_of(snapshot["spec"]["source"]["persistentVolumeClaimName"]),
                self._folder / name,
            ],
            check=True,
        )
        status = {"creationTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "readyToUse": True}
        kubectl("patch", "volumesnapshot", name, "--type=merge", "-p", json.dumps({"status": status}))


def folder_of(claim: str) -> Path:
    """The folder of this machine that the volume of a claim is."""
    volume = kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
    return Path(kubectl("get", "pv", volume, "-o", "jsonpath={.spec.hostPath.path}"))
