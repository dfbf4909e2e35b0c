"""A real Kubernetes cluster with two nodes for tests, and a registry that its nodes reach."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from filelock import FileLock

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.cluster import Cluster, ClusterOptions
from tests.support.background import repeated
from tests.support.guard import GUARDED
from tests.support.tiny import tree
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "scripts" / "kube"
FOLDER = Path(os.environ.get("KUBELAB_DIR") or Path.home() / ".cache" / "kubelab")
# The address of the bridge between this machine and the nodes, and the port that the nodes pull from without TLS.
REGISTRY = "10.99.0.1:5000"
REPOSITORY = "workbench-images"
NAMESPACE = "refit-tests"
# Where the cluster's own provisioner makes volumes.
_VOLUMES = Path("/tmp/hostpath_pv")
_NAMES = ("sh", "cat", "chmod", "head", "id", "ln", "ls", "mkdir", "mkfifo", "mv", "rm", "sleep", "true", "touch")
PROGRAMS = tuple(f"/bin/{name}" for name in _NAMES)


@dataclass(frozen=True)
class Lab:
    """The cluster of this run of tests: `images` are digests by the word that they say."""

    options: ClusterOptions
    images: Mapping[str, str]

    def claim(self, name: str) -> None:
        """Make a claim that the user of a session may write to."""
        claim_home(name, self.options)

    def configuration(self, digest: str) -> Mapping[str, Any]:
        """An image's configuration, as `Registry.config` gives it."""
        accept = {"Accept": "application/vnd.docker.distribution.manifest.v2+json"}
        base = f"http://{REGISTRY}/v2/{REPOSITORY}"
        answer = httpx.get(f"{base}/manifests/{digest}", headers=accept)
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise RefitError(f"The registry has no image {digest}.")
        config = answer.raise_for_status().json()["config"]["digest"]
        return dict(httpx.get(f"{base}/blobs/{config}").raise_for_status().json())


def kube(*words: str) -> str:
    """Call `scripts/kube`."""
    return subprocess.run([SCRIPT, *words], check=True, stdout=subprocess.PIPE, text=True, env=variables()).stdout


def variables() -> dict[str, str]:
    """The variables for a process that belongs to the cluster.

    However this run of tests ends, its guard ends all that has its PREFECT_HOME: a cluster that this run brought up,
    and no part of one that was up before.
    """
    home, etcd = os.environ.get(GUARDED, ""), FOLDER / "run" / "etcd.pid"
    try:
        is_older = f"{GUARDED}={home}".encode() not in Path(f"/proc/{etcd.read_text().strip()}/environ").read_bytes()
    except OSError:  # there is none
        is_older = False
    return {name: value for name, value in os.environ.items() if name != GUARDED or not is_older}


def kubectl(*words: str, stdin: str = "") -> str:
    """Call the cluster's own kubectl as its administrator."""
    call = [FOLDER / "bin" / "kubectl", f"--kubeconfig={FOLDER}/run/admin.kubeconfig", f"--namespace={NAMESPACE}"]
    return subprocess.run([*call, *words], check=True, input=stdin, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def running() -> Iterator[None]:
    """The cluster, for one process at a time, as that of `KUBECONFIG`; one that was up before stays up."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with FileLock(FOLDER / "tests.lock"):
        was_up = _is_up()
        kube("up", "2")
        os.environ["KUBECONFIG"] = str(FOLDER / "run" / "admin.kubeconfig")
        _delete_namespace()  # of a run that was killed
        kubectl("create", "namespace", NAMESPACE)
        try:
            with repeated(_open_volumes, 0.05):
                yield
        finally:
            _delete_namespace()
            if not was_up:
                kube("down")


def _delete_namespace() -> None:
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


def _is_up() -> bool:
    """Whether there is a cluster already; one whose API server somebody has killed is ended."""
    pid = FOLDER / "run" / "kube-apiserver.pid"
    if pid.exists() and not Path(f"/proc/{pid.read_text().strip()}").exists():
        kube("down")
    return pid.exists()


@contextmanager
def registry(folder: Path) -> Iterator[None]:
    """docker-registry at the address that nodes pull from, which keeps its images below `folder`."""
    config = folder / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(folder / "images")}, "delete": {"enabled": True}}
    config.write_text(yaml.safe_dump({"version": 0.1, "storage": storage, "http": {"addr": REGISTRY}}))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(["docker-registry", "serve", config], **quiet)
    try:
        wait_until(_answers)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def api_server() -> Iterator[None]:
    """The API server of the cluster, for this run of tests: for those that bring their own nodes and images."""
    with running():
        yield


@pytest.fixture(scope="session")
def cluster(api_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The cluster with two small images, for this run of tests."""
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder):
        images = {word: _push(word, folder) for word in ("one", "two")}
        yield Lab(ClusterOptions(REGISTRY, REPOSITORY, namespace=NAMESPACE, home_size=1 << 30), images)


def _push(word: str, folder: Path) -> str:
    """Push a small image that says this word; returns its digest."""
    archive = folder / f"{word}.tar"
    archive.write_bytes(_docker_archive(word))
    return copy_image(f"docker-archive:{archive}", word, folder)


def copy_image(source: str, tag: str, folder: Path, repository: str = REPOSITORY) -> str:
    """Copy an image into the registry of the cluster by skopeo; returns its digest."""
    digest = folder / f"{tag}.digest"
    options = ["--src-tls-verify=false", "--dest-tls-verify=false", f"--digestfile={digest}"]
    target = f"docker://{REGISTRY}/{repository}:{tag}"
    subprocess.run(["skopeo", "copy", "--quiet", *options, source, target], check=True)
    return digest.read_text().strip()


def claim_home(name: str, options: ClusterOptions) -> None:
    """Make a claim, and wait until it has its volume."""
    Cluster(options).create("persistentvolumeclaims", manifests.home_claim(name, options))
    wait_until(lambda: kubectl("get", "pvc", name, "-o", "jsonpath={.status.phase}") == "Bound")


def _open_volumes() -> None:
    """Let Pods write into volumes as soon as they are made: hostPath, unlike CSI drivers, heeds no fsGroup."""
    for folder in _VOLUMES.glob("*-*"):
        with suppress(FileNotFoundError):
            folder.chmod(0o777)


def _answers() -> bool:
    try:
        return httpx.get(f"http://{REGISTRY}/v2/", timeout=1).is_success
    except httpx.TransportError:
        return False


def _docker_archive(word: str) -> bytes:
    """An image whose program says a word, works for ever and ends half a second after SIGTERM, as an IDE does."""
    layer = tree(PROGRAMS, extra={"etc/word": f"{word}\n"})
    said = f'echo {word} is running; trap "sleep 0.2; exit 0" TERM; while :; do sleep 0.05; done'
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Cmd": ["/bin/sh", "-c", said],
            "Env": ["PATH=/bin"],
            "Labels": {"io.refit.access": Access(late_home=True).model_dump_json()},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [f"localhost/tests:{word}"], "Layers": ["layer.tar"]}]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in (
            ("layer.tar", layer),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()
