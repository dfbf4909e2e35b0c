"""Refit itself in the cluster, by `deploy/` and the image of `deploy/build-image`: it moves a session from there.

Its gateway leads people to Pods, and to a Hub, by a Service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import cluster_images
from tests.support.cluster import REGISTRY
from tests.support.cluster import kubectl as in_tests
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(6 * PATIENCE)]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
NAMESPACE, PROFILE, RELEASE = "refit", "jupyter-minimal-deb12-py311", "2026a"
# As `refit build` ends: the image counts as published, by this Refit's own key.
_PUBLISH = """
import sys
from flows.core.database import open_database
from flows.core.settings import load
from flows.images.manifests import canonical
from flows.images.registry import Registry
from flows.publishing import provenance
from flows.publishing.signatures import Publications
digest, profile, release = sys.argv[1:]
settings = load()
registry = Registry(settings)
image = registry.manifest(settings.repository, digest)
said = canonical(provenance.statement(settings.repository, digest, provenance.asked(profile, release)))
Publications(settings, open_database(settings.database), registry).sign(image, said, profile, release)
registry.put_manifest(settings.repository, f"{profile}_{release}", image.content, image.media_type)
"""


def kubectl(*words: str, stdin: str = "") -> str:
    """Call kubectl in the namespace of `deploy/`."""
    return in_tests("--namespace", NAMESPACE, *words, stdin=stdin)


def refit(*words: str) -> str:
    """Call `refit` in its own Pod."""
    return kubectl("exec", "deploy/refit", "--", "refit", *words)


# Asks for a path of the gateway, in a Pod; prints the status, and the program that answers.
_ASK = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.headers.get("Server"))
"""


def objects(image: str, **more: object) -> list[dict[str, Any]]:
    """`deploy/refit` as a person adapts it: their image, their registry, and `more` settings."""
    made = list(yaml.safe_load_all((DEPLOY / "refit" / "refit.yaml").read_text()))
    by_kind = {each["kind"]: each for each in made}
    by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    settings = yaml.safe_load(by_kind["ConfigMap"]["data"]["settings.yaml"])
    settings |= {"registry": REGISTRY, "registry_tls": False, "idle_minutes": 0.01, **more}
    settings["kubernetes"]["home_gb"] = 1
    by_kind["ConfigMap"]["data"]["settings.yaml"] = yaml.safe_dump(settings)
    return made


@pytest.fixture(scope="module")
def deployment(own_image: str) -> Iterator[None]:
    try:
        kubectl("apply", "-k", str(DEPLOY))
        kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects(own_image)))
        wait_until(is_ready)
        yield
    finally:
        in_tests("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s")
        in_tests("delete", "clusterrole,clusterrolebinding", "refit-nodes", "--ignore-not-found")


def is_ready() -> bool:
    """Whether Refit's own Pod is, and no other one of it is left."""
    pods = json.loads(kubectl("get", "pods", "-l", "app.kubernetes.io/component=server", "-o", "json"))["items"]
    conditions = [one for pod in pods for one in pod["status"].get("conditions", ()) if one["type"] == "Ready"]
    return [one["status"] for one in conditions] == ["True"] and "deletionTimestamp" not in pods[0]["metadata"]


def through_the_service(path: str) -> str:
    """The answer of the Service of the gateway, asked in a session's Pod."""
    address = kubectl("get", "service", "refit", "-o", "jsonpath={.spec.clusterIP}")
    return in_session(f"python3 -c '{_ASK}' http://{address}{path}")


def in_session(script: str) -> str:
    """Run a script in the home of the first session, in the slot that runs."""
    (pod, *_) = json.loads(kubectl("get", "pods", "-l", "io.refit.kind=session", "-o", "json"))["items"]
    marks = {name: json.loads(text) for name, text in pod["metadata"]["annotations"].items() if "opened-" in name}
    (slot,) = (name[-1] for name, mark in marks.items() if "ended" not in mark and not mark["late"])
    return kubectl("exec", pod["metadata"]["name"], "-c", slot, "--", "sh", "-c", f"cd /home/dev && {script}")


def publish(name: str, folder: Path) -> str:
    """Publish the next image of the profile, a small web server; returns its digest."""
    labels = {"profile": PROFILE, "release": RELEASE}
    digest = cluster_images.push(name, ":", folder, **labels)
    kubectl("exec", "deploy/refit", "--", "python3", "-c", _PUBLISH, digest, PROFILE, RELEASE)
    return digest


@pytest.mark.usefixtures("deployment")
def test_refit_moves_a_session_from_inside_of_the_cluster(tmp_path: Path) -> None:
    assert kubectl("exec", "deploy/refit", "--", "id", "-u").strip() == "10001"
    first = publish("inside-1", tmp_path)
    refit("session", "create", "ada", PROFILE)
    wait_until(lambda: through_the_service("/session/ada/api").startswith("200 SimpleHTTP"))
    in_session("echo written before the move >notes")
    second = publish("inside-2", tmp_path)
    refit("migrate", "run")
    (moved,) = json.loads(refit("migrate", "history", "--json"))
    assert moved["state"] == "cleaned"
    assert (moved["before"]["image"], moved["after"]["image"]) == (first, second)
    assert "written before the move" in in_session("cat notes")
    assert through_the_service("/session/ada/api").startswith("200 SimpleHTTP")
    assert "404" in through_the_service("/session/nobody/api")
    policy = json.loads(kubectl("get", "networkpolicy", "refit-sessions", "-o", "json"))
    (let_in,) = policy["spec"]["ingress"][0]["from"]
    assert let_in["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "refit"}
    # The Pod of Refit is deleted, and with the volume nothing of what it knew is gone.
    kubectl("delete", "pod", "-l", "app.kubernetes.io/component=server", "--timeout=180s")
    wait_until(is_ready)
    (told,) = json.loads(refit("session", "list", "--json"))
    assert told["running"] == "running" and told["session"]["image"] == second
    wait_until(lambda: through_the_service("/session/ada/api").startswith("200 SimpleHTTP"))
    assert "written before the move" in refit("session", "exec", "ada", "--", "cat", "/home/dev/notes")


@pytest.mark.usefixtures("deployment")
def test_people_log_in_to_a_hub_there(own_image: str, tmp_path: Path) -> None:
    publish("inside-hub", tmp_path)
    refit("session", "create", "bea", PROFILE)
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects(own_image, hub=True)))
    kubectl("delete", "pod", "-l", "app.kubernetes.io/component=server", "--timeout=180s")
    wait_until(is_ready)
    wait_until(lambda: through_the_service("/hub/login").startswith("200"))
    # Nobody is let into a session who hasn't logged in.
    assert not through_the_service("/session/bea/api").startswith("200 SimpleHTTP")
