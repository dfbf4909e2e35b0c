"""A cluster that isn't there, webhooks that refuse, images that nodes can't pull, another Refit in the namespace."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml

from flows.core.errors import RefitError
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from tests.support import cluster_images, variants
from tests.support.certificates import make_authority
from tests.support.cluster import REGISTRY, REPOSITORY, Lab, kubectl
from tests.support.cluster_moves import NAME, ClusterScene, cluster_scene, settings_for_cluster
from tests.support.moving import to
from tests.support.waiting import free_port

pytestmark = [pytest.mark.long]
REFUSES = "all Pods need a cost centre"


@pytest.fixture(scope="module")
def scene(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with cluster_scene(tmp_path_factory.mktemp("refusals"), late=False) as scene:
        yield scene


def causes(error: BaseException | None) -> str:
    """All that an error and its causes say, with their hints."""
    told = ""
    while error:
        told += f"{error}\n"
        error = error.__cause__
    return told


@contextmanager
def webhook(url: str, bundle: bytes) -> Iterator[None]:
    """A webhook that is asked before a session's Pod is made."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    told = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "refit-tests"},
        "webhooks": [
            {
                "name": "costs.example.com",
                "rules": [rule],
                "objectSelector": {"matchLabels": {"io.refit.kind": "session"}},
                "clientConfig": {"url": url, "caBundle": base64.b64encode(bundle).decode()},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 5,
            }
        ],
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(told))
    try:
        yield
    finally:
        kubectl("delete", "validatingwebhookconfiguration", "refit-tests")


class Refusing(BaseHTTPRequestHandler):
    """Refuses each object that it is asked about."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response = {"uid": asked["request"]["uid"], "allowed": False, "status": {"message": REFUSES, "code": 403}}
        content = json.dumps({"apiVersion": asked["apiVersion"], "kind": asked["kind"], "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def refusing(folder: Path) -> Iterator[tuple[str, bytes]]:
    """A server of webhooks that refuses all; its URL and the certificate of its authority."""
    made = make_authority(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/", made.bundle.read_bytes()
    finally:
        server.shutdown()
        server.server_close()


def refused(scene: ClusterScene) -> str:
    """The words of Refit where a session can't be started again."""
    scene.sessions.stop(NAME)
    kubectl("delete", "pods", "-l", f"io.refit.session={NAME}", "--grace-period=1")
    with pytest.raises(RefitError, match="didn't start") as error:
        scene.sessions.start(NAME)
    return causes(error.value)


def test_a_webhook_that_refuses_is_no_missing_right(scene: ClusterScene, tmp_path: Path) -> None:
    with refusing(tmp_path) as (url, bundle), webhook(url, bundle):
        said = refused(scene)
    assert REFUSES in said and "the cluster's own rules refuse" in said and "kind: Role" not in said
    scene.sessions.start(NAME)
    assert scene.sessions.show(NAME).running is Running.running


def test_a_webhook_that_is_away_is_named(scene: ClusterScene, tmp_path: Path) -> None:
    bundle = make_authority(tmp_path).bundle.read_bytes()
    with webhook(f"https://127.0.0.1:{free_port()}/", bundle):
        said = refused(scene)
    assert "costs.example.com" in said and "validatingwebhookconfigurations" in said
    scene.sessions.start(NAME)
    assert scene.sessions.show(NAME).running is Running.running


def test_an_image_that_nodes_can_t_pull_stops_nobody(scene: ClusterScene, tmp_path: Path) -> None:
    files, image = scene.files(), scene.sessions.store.session(NAME).image
    digest = cluster_images.push("no-layers", ":", tmp_path)
    registry = Registry(scene.settings)
    manifest = registry.manifest(REPOSITORY, digest)
    variants.sign(scene.settings, registry, manifest, {})
    layer = manifest.document["layers"][-1]["digest"]  # its own: the other is that of all images here
    httpx.delete(f"http://{REGISTRY}/v2/{REPOSITORY}/blobs/{layer}").raise_for_status()
    result = MoveExecutor.open(scene.settings).carry_out(to(scene.sessions, NAME, digest))
    assert result.state in (State.rolled_back, State.deferred) and "can't pull an image" in result.reason, result
    assert "ErrImagePull" in result.reason or "ImagePullBackOff" in result.reason
    assert result.downtime is None
    scene.check(result.state, image, files)


def test_another_refit_leaves_the_sessions_of_this_one_alone(scene: ClusterScene, tmp_path: Path) -> None:
    session = scene.sessions.store.session(NAME)
    pods = scene.pods()
    other = settings_for_cluster(tmp_path / "other")
    registry = Registry(other)
    variants.sign(other, registry, registry.manifest(REPOSITORY, session.image), {})
    for name in (NAME, "ben"):
        with pytest.raises(RefitError, match="has the sessions of another Refit") as error:
            Sessions.open(other).create(name, session.profile, session.release, session.image, session.access)
        assert "delete configmap refit-owner" in causes(error.value)
    assert scene.pods() == pods and scene.sessions.show(NAME).running is Running.running
    assert kubectl("get", "pvc", "refit-home-ben", "--ignore-not-found") == ""


def test_no_cluster_is_told_at_once(scene: ClusterScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(RefitError, match="No cluster is known here") as error:
        Sessions.open(scene.settings).all()
    assert "set KUBECONFIG" in error.value.hint
    cluster = {"name": "c", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {"token": "t"}}]}
    (tmp_path / "none").write_text(yaml.safe_dump({**config, "current-context": "c"}))
    with pytest.raises(RefitError, match="The cluster doesn't answer") as error:
        Sessions.open(scene.settings).all()
    assert "kubectl cluster-info" in error.value.hint
