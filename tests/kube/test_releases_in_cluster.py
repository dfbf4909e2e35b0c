"""A release whose parts are all in the cluster: Refit is a Pod, builders are Jobs, images are checked in Pods.

It is planned, built, checked, published and signed there, and a session moves onto it. A step of it tries to see what
its builder knows.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from flows.locks.pipfile import read_pipfile
from flows.locks.python_lockfile import exports
from tests.support import own_pod, prying
from tests.support.cluster import REGISTRY, REPOSITORY
from tests.support.machine import ROOT
from tests.support.mirror import way_to_debian
from tests.support.own_pod import BUILDS, DEPLOY, in_session, kubectl, secret, through_the_service
from tests.support.postgresql import postgresql
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(10 * PATIENCE)]

BRIDGE = REGISTRY.partition(":")[0]
PROFILE, RELEASE, AUTH = "web-small-deb12-py311", "2001a", "refit:of all in the cluster"
CATALOG = "/var/lib/refit/catalog"
# The name of Prefect for builders: the cluster of these tests has no DNS, so that their Pods are told its address.
PREFECT = "refit-prefect.refit.svc"
PIPFILE = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"
verify_ssl = true

[packages]

[requires]
python_version = "3.11"
"""
LOOK = "python3 -I -B /mnt/files/files/prying.py /etc/processes REFIT_ PREFECT_"
SERVE = "mkdir -p /tmp/www$NB_PREFIX && cd /tmp/www && : >.$NB_PREFIX/api && exec python3 -m http.server 8000"
IDE = f"""\
{{% import "snippets/shell.j2" as shell with context %}}
RUN {{{{ shell.begin() }}}} {LOOK}; cp /mnt/files/files/news /etc/news
USER 1001:0
CMD ["/bin/sh", "-c", "{SERVE}"]
"""
ACCESS = {"access": {"port": 8000, "health": "/api", "protocol": "none"}}


def write_catalog(folder: Path) -> None:
    """A catalog of one profile: a base with Python, a bundle without packages, and a web server for an IDE."""
    for part in ("base/deb12", "snippets"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "base/deb12/os-packages.txt").write_text("ca-certificates\nprocps\npython3\npython3-venv\n")
    # Packages come from an index, which no Pod of these tests reaches.
    environment = '{% import "snippets/packages.j2" as packages with context %}\n{{ packages.environment() }}\n'
    (folder / "snippets/environment.snippet.j2").write_text(environment)
    locks, ide = folder / "bundles/1-small/py311", folder / "ides/1-web"
    for each in (locks, ide / "files", folder / "releases"):
        each.mkdir(parents=True)
    (locks.parent / "display.txt").write_text("Small\n")
    (locks / "Pipfile").write_text(PIPFILE)
    pipfile = read_pipfile(locks / "Pipfile")
    source = {"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": True}
    meta = {"hash": {"sha256": pipfile.digest}, "sources": [source]}
    lock: dict[str, Any] = {"_meta": meta, "default": {}, "develop": {}}
    for name, content in {**exports(lock, pipfile), "Pipfile.lock": json.dumps(lock)}.items():
        (locks / name).write_text(content)
    (ide / "display.txt").write_text("Web\n")
    (ide / "ide.yaml").write_text(yaml.safe_dump(ACCESS))
    (ide / "web.snippet.j2").write_text(IDE)
    shutil.copy(prying.__file__, ide / "files" / "prying.py")
    (ide / "files" / "news").write_text("first\n")
    chosen = {"ide": "web", "bundle": "small", "os": "deb12", "python": "py311"}
    (folder / "releases" / f"{RELEASE}.yaml").write_text(yaml.safe_dump({"release": RELEASE, "profiles": [chosen]}))


def bring(catalog: Path) -> None:
    """Bring a catalog to Refit's own Pod, in the place of the one that is there."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(catalog, ".")
    script = f"rm -rf {CATALOG}; mkdir {CATALOG}; base64 -d | tar -xz -C {CATALOG} --no-same-owner"
    kubectl("exec", "-i", "deploy/refit", "--", "sh", "-c", script, stdin=base64.b64encode(content.getvalue()).decode())


@pytest.fixture(scope="module")
def deployment(own_image: str) -> Iterator[None]:
    """`deploy/`, `deploy/refit` and `deploy/builder` as a person adapts them, with a database and a way to packages."""
    with postgresql(BRIDGE) as server, way_to_debian(address=BRIDGE) as way, own_pod.namespaces():
        shared = {"REFIT_DATABASE_URL": server.add_database(), "REFIT_AUTH": AUTH}
        of_builders = {
            **{"REFIT_REGISTRY": REGISTRY, "REFIT_REGISTRY_TLS": "false", "REFIT_APT_PROXY": way.url},
            **{"REFIT_PREFECT_SERVER": f"http://{PREFECT}:4200"},
        }
        kubectl("apply", "-k", str(DEPLOY / "builder"), namespace=BUILDS)
        own_pod.apply(secret("refit-builder", **shared, **of_builders), namespace=BUILDS)
        own_pod.apply(secret("refit", **shared))
        builds = {"builder_job": "/etc/refit/job.yaml"}
        # A node may take a while for the image of a builder.
        chosen = {"builders": 1, "builder_timeout_seconds": 1800, "apt_proxy": way.url, "kubernetes": builds}
        own = own_pod.objects(own_image, **chosen)
        own_pod.apply(*(each for each in own if each["kind"] == "Service"))
        job = own_pod.builder_job(own_image)
        address = {"ip": own_pod.address_of("refit-prefect"), "hostnames": [PREFECT]}
        job["spec"]["template"]["spec"]["hostAliases"] = [address]
        file = {"metadata": {"name": "refit-builder"}, "data": {"job.yaml": yaml.safe_dump(job)}}
        own_pod.apply({"apiVersion": "v1", "kind": "ConfigMap", **file}, *own)
        wait_until(own_pod.is_ready)
        yield


def refit(*words: str) -> str:
    """Call `refit` in its own Pod with the catalog of this test."""
    return kubectl("exec", "deploy/refit", "--", "env", f"REFIT_CATALOG={CATALOG}", "refit", *words)


def build() -> tuple[str, dict[str, str]]:
    """Build the release; the digest of its image, and how each stage came to be."""
    report = json.loads(refit("build", RELEASE, "--json"))
    (image,) = report["images"]
    assert image["new"] and not report["failures"], report
    return image["digest"], {stage["stage"]: how(stage) for stage in report["stages"]}


def how(stage: dict[str, Any]) -> str:
    """`reused`, `grafted` or `built`."""
    return "reused" if stage["reused"] else "built" if stage["log"] else "grafted"


def published() -> str:
    """The digest that the alias in the registry points at."""
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    address = f"http://{REGISTRY}/v2/{REPOSITORY}/manifests/{PROFILE}_{RELEASE}"
    return httpx.head(address, headers=accept).raise_for_status().headers["Docker-Content-Digest"]


def nothing_is_left() -> bool:
    """Whether no Job of a builder, and no Pod of a check, is in the cluster."""
    jobs = kubectl("get", "jobs,pods", "-o", "name", namespace=BUILDS)
    return not jobs + kubectl("get", "pods", "-l", "io.refit.kind=trial", "-o", "name")


@pytest.mark.usefixtures("deployment")
def test_a_release_is_built_checked_and_published_inside_and_a_session_moves_onto_it(tmp_path: Path) -> None:
    write_catalog(tmp_path / "catalog")
    bring(tmp_path / "catalog")
    first, stages = build()
    assert {*stages.values()} == {"built"} and published() == first
    evidence = json.loads(refit("evidence", f"{PROFILE}_{RELEASE}", "--json"))
    assert evidence["digest"] == first
    assert {"provenance.json", "checks.json", "sbom.cdx.json"} <= {file["name"] for file in evidence["files"]}
    checks = {finding["check"]: finding for finding in evidence["checks"]}
    assert all(finding["passed"] for finding in checks.values()) and {"ide", "pip", "secrets"} <= {*checks}
    # By this its checks are known to have been made in Pods.
    assert "in the configuration alone" in checks["secrets"]["seen"]

    refit("session", "create", "ada", PROFILE)  # it refuses images that nobody has signed
    wait_until(lambda: through_the_service("/session/ada/api").startswith("200 SimpleHTTP"))
    # The step that looked for secrets could have found some: it saw the processes of its builder.
    assert int(in_session("cat /etc/processes")) > 0
    in_session("echo written before the move >notes")

    (tmp_path / "catalog" / "ides/1-web/files/news").write_text("second\n")
    bring(tmp_path / "catalog")
    second, stages = build()
    assert stages.pop(PROFILE) == "built" and {*stages.values()} == {"reused"}
    assert published() == second != first
    refit("migrate", "run")
    (moved,) = json.loads(refit("migrate", "history", "--json"))
    assert moved["state"] == "cleaned"
    assert (moved["before"]["image"], moved["after"]["image"]) == (first, second)
    assert in_session("cat notes /etc/news").split("\n")[:2] == ["written before the move", "second"]
    wait_until(lambda: through_the_service("/session/ada/api").startswith("200 SimpleHTTP"))
    wait_until(nothing_is_left)


@pytest.mark.usefixtures("deployment")
def test_the_doctor_finds_nothing_missing_in_its_pod() -> None:
    told = json.loads(kubectl("exec", "deploy/refit", "--", "sh", "-c", "refit doctor --json || true"))
    found = {finding["thing"]: finding for finding in told}
    assert found["rights"]["ok"] and found["cluster"]["ok"]
    assert found["builders"]["seen"] == "1 for each build, as Jobs in the namespace refit-builds"
    # Nodes of these tests reach no index of packages.
    assert {thing for thing, finding in found.items() if not finding["ok"]} == {"package index pypi.org"}
