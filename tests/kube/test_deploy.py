"""`deploy/`: the real API server takes it, and it grants all that Refit needs, and no more."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from flows.sessions.kubernetes import builder_job, rights
from flows.sessions.kubernetes.refusals import Right
from tests.support.cluster import FOLDER, Lab

pytestmark = [pytest.mark.long]
BASE = Path(__file__).parents[2] / "deploy"


def granted(kind: str) -> set[Right]:
    """The rights of the one role of this kind."""
    documents = yaml.safe_load_all((BASE / "rights.yaml").read_text())
    (role,) = (each for each in documents if each["kind"] == kind)
    return {
        Right(resource, verb, group)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_it_grants_what_refit_needs_and_no_more() -> None:
    assert granted("Role") == {*rights.NEEDED, *rights.USEFUL}
    assert granted("ClusterRole") == {rights.NODES, *rights.CLASSES}


def granted_for_builders() -> set[Right]:
    """The rights of the role in the namespace of builders."""
    documents = yaml.safe_load_all((BASE / "builder" / "builder.yaml").read_text())
    (role,) = (each for each in documents if each["kind"] == "Role")
    return {Right(*pair, "batch") for rule in role["rules"] for pair in product(rule["resources"], rule["verbs"])}


def test_jobs_of_builders_need_these_rights() -> None:
    assert granted_for_builders() == {*rights.OF_BUILDERS}


@pytest.mark.parametrize(
    ("folder", "files", "namespaces"),
    [
        (".", ["namespace.yaml", "rights.yaml"], ["refit"]),
        ("refit", ["refit.yaml"], ["refit"]),
        ("builder", ["builder.yaml"], ["refit", "refit-builds"]),
    ],
)
def test_the_api_server_takes_all_of_it(cluster: Lab, folder: str, files: list[str], namespaces: list[str]) -> None:
    kubectl = [f"{FOLDER}/bin/kubectl", f"--kubeconfig={FOLDER}/run/admin.kubeconfig"]
    # A dry run keeps nothing, so that what is in a namespace needs one that is there.
    for namespace in namespaces:
        subprocess.run([*kubectl, "create", "namespace", namespace], check=True)
    try:
        told = applied([*kubectl, "apply", "--server-side", "--dry-run=server", "-k", BASE / folder])
        if folder == "builder":
            job = json.dumps(builder_job.manifest(builder_job.template(BASE / folder / "job.yaml"), uuid4()))
            # kubectl knows the fields of 1.20 alone; a server drops those that it doesn't know.
            told += applied([*kubectl, "create", "--dry-run=server", "--validate=false", "-f", "-"], job)
    finally:
        subprocess.run([*kubectl, "delete", "namespace", *namespaces, "--timeout=60s"], check=True)
    objects = [each for file in files for each in yaml.safe_load_all((BASE / folder / file).read_text())]
    assert told.count("serverside-applied") == len(objects), told
    assert ("job.batch" in told) == (folder == "builder")


def applied(call: Sequence[str | Path], stdin: str = "") -> str:
    """The words of the API server about a call that it takes."""
    return subprocess.run(call, check=True, input=stdin, capture_output=True, text=True).stdout
