"""`refit` with `engine: kubernetes`, called as people call it, against a real cluster."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flows.core.errors import RefitError
from flows.images.registry import Registry
from flows.publishing.publish import access_of
from flows.sessions.lifecycle import Sessions
from tests.support import variants
from tests.support.cluster import FOLDER, NAMESPACE, REGISTRY, Lab, kubectl
from tests.support.cluster_moves import give_up_namespace
from tests.support.desk import Desk
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
NAME = "ada"


@pytest.fixture
def desk(cluster: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    home = tmp_path / "refit"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("REFIT_HOME", str(home))
    desk = Desk(home, dict(cluster.images))
    desk.write()
    registry = Registry(desk.settings)
    for digest in cluster.images.values():
        variants.sign(desk.settings, registry, registry.manifest(desk.settings.repository, digest), {})
    yield desk
    desk.write()
    for status in (sessions := Sessions.open(desk.settings)).all():
        sessions.remove(status.session.name, purge=True)
    give_up_namespace()


@pytest.fixture
def running(desk: Desk) -> Desk:
    """A session that runs the first image."""
    create(desk, NAME)
    return desk


def create(desk: Desk, name: str, word: str = "one") -> None:
    image = desk.images[word]
    access = access_of(image, Registry(desk.settings))
    assert access
    Sessions.open(desk.settings).create(name, "jupyter-minimal-deb12-py311", "2026a", image, access)


def listed(desk: Desk) -> dict[str, str]:
    return {each["session"]["name"]: each["running"] for each in json.loads(desk.refit("session", "list", "--json"))}


def test_a_session_lives_by_commands(running: Desk) -> None:
    assert listed(running) == {NAME: "running"}
    assert "running" in running.refit("session", "show", NAME)
    assert running.refit("session", "exec", NAME, "--", "sh", "-c", "echo kept >/home/dev/notes") == ""
    assert "one is running" in running.refit("session", "logs", NAME)
    running.refit("session", "stop", NAME)
    assert listed(running) == {NAME: "stopped"}
    running.refit("session", "start", NAME)
    assert running.refit("session", "exec", NAME, "cat", "/home/dev/notes") == "kept\n"
    running.refit("session", "rm", NAME)
    assert listed(running) == {}
    left = kubectl("get", "pods,configmaps,secrets,pvc", "-l", f"io.refit.session={NAME}", "-o", "name")
    assert left.split() == [f"persistentvolumeclaim/refit-home-{NAME}"]
    create(running, NAME)
    assert running.refit("session", "exec", NAME, "cat", "/home/dev/notes") == "kept\n"
    running.refit("session", "rm", NAME, "--purge", "--yes")
    assert kubectl("get", "pvc", "-l", f"io.refit.session={NAME}", "-o", "name") == ""


@pytest.mark.parametrize(
    "words",
    [
        ("session", "snapshot", NAME),
        ("session", "clone", NAME, "ben"),
        ("session", "drift", NAME, "--replay"),
        ("home", "list"),
    ],
    ids=" ".join,
)
def test_what_is_not_there_yet_says_so_and_does_nothing(running: Desk, words: tuple[str, ...]) -> None:
    if "snapshot" in words:  # it is there, unless the settings want none
        running.write(snapshots="none")
    said = running.refit(*words, code=1)
    assert "sessions on Kubernetes don't have that yet" in said and "Hint:" in said
    assert listed(running) == {NAME: "running"}
    assert kubectl("get", "pvc", "-o", "name").split() == [f"persistentvolumeclaim/refit-home-{NAME}"]


def test_no_key_is_taken_before_a_policy_can_keep_others_from_the_sshd(running: Desk, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    said = running.refit("session", "ssh-keys", NAME, "--add", f"{key}.pub", code=1)
    assert "Nobody is let into sessions on Kubernetes by ssh." in said and "kubernetes.gateway_addresses" in said
    assert listed(running) == {NAME: "running"}


def test_a_shared_volume_lives_by_commands(desk: Desk) -> None:
    assert "The volume scratch is refit-shared-scratch/all." in desk.refit("volume", "create", "scratch", "--shared")
    (listed,) = json.loads(desk.refit("volume", "list", "--json"))
    assert listed == {"name": "scratch", "sessions": [], "shared": True, "folder": "refit-shared-scratch/all"}
    assert "There is a volume 'scratch' already" in desk.refit("volume", "create", "scratch", "--shared", code=1)
    desk.refit("volume", "rm", "scratch", "--yes")
    assert json.loads(desk.refit("volume", "list", "--json")) == []
    assert not kubectl("get", "pvc", "-l", "io.refit.kind=shared", "-o", "name")


def test_the_doctor_knows_the_cluster(desk: Desk) -> None:
    said = desk.refit("doctor")
    assert "[ok] cluster: Kubernetes v1.20.2" in said and "[ok] rights: all that Refit needs" in said
    assert "[ok] storage class: the cluster's own: hostpath" in said
    assert re.search(rf"\[ok\] pull on a node: n\d has asked for the image \w{{12}} from {REGISTRY}, and got it", said)
    desk.write(storage_class="nowhere", pull_secret="none", registry="127.0.0.1:5000", priority_class="vip")
    said = desk.refit("doctor", code=1)
    for todo in ("storage class: nowhere is not there", "pull secret: none is not there", "priority class: vip is not"):
        assert f"[todo] {todo}" in said
    assert "[todo] registry of nodes: nodes pull from 127.0.0.1:5000, which is the node itself there" in said
    desk.write(registry="10.99.0.1:5999")  # where nothing listens
    said = desk.refit("doctor", code=1)
    assert re.search(r"\[todo\] pull on a node: n\d can't get the image \w{12} from 10.99.0.1:5999: Err", said), said
    assert kubectl("get", "pods", "-o", "name") == "", "a doctor has left something"


def test_a_quota_that_is_exceeded_is_no_missing_right(desk: Desk) -> None:
    kubectl("create", "quota", "none-more", "--hard=pods=0")
    try:
        wait_until(lambda: kubectl("get", "quota", "none-more", "-o", "jsonpath={.status.hard.pods}") == "0")
        with pytest.raises(RefitError, match="exceeded quota") as error:
            create(desk, NAME)
        assert "describe resourcequota" in str(error.value.__cause__) and "kind: Role" not in str(error.value)
    finally:
        kubectl("delete", "quota", "none-more")


def test_a_claim_that_never_binds_is_told_with_its_reason(desk: Desk) -> None:
    desk.write(storage_class="nowhere", start_minutes=0.05)
    with pytest.raises(RefitError, match="didn't start") as error:
        create(desk, NAME)
    assert f"The claim refit-home-{NAME} is Pending; its storage class: nowhere." in str(error.value)


def test_a_namespace_that_is_gone_is_named(desk: Desk) -> None:
    desk.write(namespace="gone-for-good")
    said = desk.refit("doctor", code=1)
    assert "[todo] namespace: gone-for-good is not there" in said
    with pytest.raises(RefitError, match="didn't start") as error:
        create(desk, NAME)
    assert "kubectl create namespace gone-for-good" in str(error.value.__cause__)


def test_rights_that_lack_are_named_with_the_role_that_grants_them(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    user = "weak"
    kubectl("create", "role", user, "--verb=get,list", "--resource=configmaps,pods")
    kubectl("create", "rolebinding", user, f"--role={user}", f"--serviceaccount={NAMESPACE}:{user}")
    kubectl("create", "serviceaccount", user)
    weak = _kubeconfig_of(desk, user)
    monkeypatch.setenv("KUBECONFIG", str(weak))
    said = desk.refit("doctor", code=1)
    assert f"[todo] rights: missing in {NAMESPACE}: create configmaps" in said
    with pytest.raises(RefitError, match="refuses to list persistentvolumeclaims") as error:
        create(desk, NAME)
    assert "resources: [persistentvolumeclaims], verbs: [list]" in error.value.hint
    weak.write_text(weak.read_text().replace("token: ", "token: x"))
    assert "the credentials have expired or are wrong" in desk.refit("doctor", code=1)
    monkeypatch.setenv("KUBECONFIG", str(FOLDER / "run" / "admin.kubeconfig"))
    # An administrator applies what was printed, and nothing lacks any more.
    role = said[said.index("apiVersion: rbac") :].split("\n[")[0]
    kubectl("apply", "-f", "-", stdin=role)
    kubectl("create", "rolebinding", "refit", "--role=refit", f"--serviceaccount={NAMESPACE}:{user}")
    monkeypatch.setenv("KUBECONFIG", str(_kubeconfig_of(desk, user)))
    assert "[ok] rights" in desk.refit("doctor")
    monkeypatch.setenv("KUBECONFIG", str(FOLDER / "run" / "admin.kubeconfig"))


def _kubeconfig_of(desk: Desk, user: str) -> Path:
    """A kubeconfig for a service account of the namespace."""
    config = yaml.safe_load((FOLDER / "run" / "admin.kubeconfig").read_text())
    wait_until(lambda: bool(kubectl("get", "serviceaccount", user, "-o", "jsonpath={.secrets}")))
    name = kubectl("get", "serviceaccount", user, "-o", "jsonpath={.secrets[0].name}")
    token = json.loads(kubectl("get", "secret", name, "-o", "json"))["data"]["token"]
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": base64.b64decode(token).decode()}}]
    file = desk.home.parent / f"{user}.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file
