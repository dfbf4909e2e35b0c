"""Refit in a Pod of the cluster of these tests, by `deploy/` as a person adapts it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster import REGISTRY
from tests.support.cluster import kubectl as in_tests
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMESPACE, BUILDS = "refit", "refit-builds"

# Asks for a path of the gateway, in a Pod; prints the status, and the program that answers.
_ASK = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.headers.get("Server"))
"""


def kubectl(*words: str, stdin: str = "", namespace: str = NAMESPACE) -> str:
    """Call kubectl in the namespace of `deploy/`, or in another one."""
    return in_tests("--namespace", namespace, *words, stdin=stdin)


def refit(*words: str) -> str:
    """Call `refit` in its own Pod."""
    return kubectl("exec", "deploy/refit", "--", "refit", *words)


def objects(image: str, **more: Any) -> list[dict[str, Any]]:
    """`deploy/refit` as a person adapts it: their image, their registry, and `more` settings."""
    made = list(yaml.safe_load_all((DEPLOY / "refit" / "refit.yaml").read_text()))
    by_kind = {each["kind"]: each for each in made}
    by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    settings = yaml.safe_load(by_kind["ConfigMap"]["data"]["settings.yaml"])
    cluster = {**settings["kubernetes"], "home_gb": 1, **more.pop("kubernetes", {})}
    settings |= {"registry": REGISTRY, "registry_tls": False, "idle_minutes": 0.01, "kubernetes": cluster, **more}
    by_kind["ConfigMap"]["data"]["settings.yaml"] = yaml.safe_dump(settings)
    return made


def apply(*manifests: dict[str, Any], namespace: str = NAMESPACE) -> None:
    """Apply objects in the namespace of `deploy/`, or in another one."""
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests), namespace=namespace)


@contextmanager
def namespaces() -> Iterator[None]:
    """The namespace of `deploy/` with its rights inside the `with` block; afterwards nothing of it is left."""
    try:
        kubectl("apply", "-k", str(DEPLOY))
        yield
    finally:
        in_tests("delete", "namespace", NAMESPACE, BUILDS, "--ignore-not-found", "--timeout=180s")
        in_tests("delete", "clusterrole,clusterrolebinding", "refit-nodes", "--ignore-not-found")


def is_ready() -> bool:
    """Whether Refit's own Pod is, and no other one of it is left."""
    pods = json.loads(kubectl("get", "pods", "-l", "app.kubernetes.io/component=server", "-o", "json"))["items"]
    conditions = [one for pod in pods for one in pod["status"].get("conditions", ()) if one["type"] == "Ready"]
    return [one["status"] for one in conditions] == ["True"] and "deletionTimestamp" not in pods[0]["metadata"]


def restart() -> None:
    """Delete Refit's own Pod, and wait for the next one."""
    kubectl("delete", "pod", "-l", "app.kubernetes.io/component=server", "--timeout=180s")
    wait_until(is_ready)


def through_the_service(path: str) -> str:
    """The answer of the Service of the gateway, asked in a session's Pod."""
    address = address_of("refit")
    return in_session(f"python3 -c '{_ASK}' http://{address}{path}")


def address_of(service: str) -> str:
    """The address of a Service: the cluster of these tests has no names for them."""
    return kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}")


def in_session(script: str) -> str:
    """Run a script in the home of the first session, in the slot that runs."""
    (pod, *_) = json.loads(kubectl("get", "pods", "-l", "io.refit.kind=session", "-o", "json"))["items"]
    marks = {name: json.loads(text) for name, text in pod["metadata"]["annotations"].items() if "opened-" in name}
    (slot,) = (name[-1] for name, mark in marks.items() if "ended" not in mark and not mark["late"])
    return kubectl("exec", pod["metadata"]["name"], "-c", slot, "--", "sh", "-c", f"cd /home/dev && {script}")


def builder_job(image: str) -> dict[str, Any]:
    """`deploy/builder/job.yaml` as a person adapts it: their image, and what this machine has for two of them."""
    job: dict[str, Any] = yaml.safe_load((DEPLOY / "builder" / "job.yaml").read_text())
    (builder,) = job["spec"]["template"]["spec"]["containers"]
    builder["image"] = image
    builder["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    return job


def secret(name: str, **values: str) -> dict[str, Any]:
    """A Secret with these variables."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}
