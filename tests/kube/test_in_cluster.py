"""Refit itself in the cluster, by `deploy/` and the image of `deploy/build-image`: it moves a session from there.

Its gateway leads people to Pods, and to a Hub, by a Service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import cluster_images
from tests.support.own_pod import (
    apply,
    in_session,
    is_ready,
    kubectl,
    namespaces,
    objects,
    refit,
    restart,
    through_the_service,
)
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(6 * PATIENCE)]

PROFILE, RELEASE = "jupyter-minimal-deb12-py311", "2026a"
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


@pytest.fixture(scope="module")
def deployment(own_image: str) -> Iterator[None]:
    with namespaces():
        apply(*objects(own_image))
        wait_until(is_ready)
        yield


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
    # With the volume nothing of what it knew is gone.
    restart()
    (told,) = json.loads(refit("session", "list", "--json"))
    assert told["running"] == "running" and told["session"]["image"] == second
    wait_until(lambda: through_the_service("/session/ada/api").startswith("200 SimpleHTTP"))
    assert "written before the move" in refit("session", "exec", "ada", "--", "cat", "/home/dev/notes")


@pytest.mark.usefixtures("deployment")
def test_people_log_in_to_a_hub_there(own_image: str, tmp_path: Path) -> None:
    publish("inside-hub", tmp_path)
    refit("session", "create", "bea", PROFILE)
    apply(*objects(own_image, hub=True))
    restart()
    wait_until(lambda: through_the_service("/hub/login").startswith("200"))
    # Nobody is let into a session who hasn't logged in.
    assert not through_the_service("/session/bea/api").startswith("200 SimpleHTTP")
