"""`deploy/`: the real API server takes it, and it grants all that Refit needs, and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from flows.sessions.kubernetes import rights
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


def test_the_api_server_takes_all_of_it(cluster: Lab) -> None:
    kubectl = [f"{FOLDER}/bin/kubectl", f"--kubeconfig={FOLDER}/run/admin.kubeconfig"]
    # A dry run keeps nothing, so that what is in a namespace needs one that is there.
    subprocess.run([*kubectl, "create", "namespace", "refit"], check=True)
    try:
        call = [*kubectl, "apply", "--server-side", "--dry-run=server", "-k", BASE]
        told = subprocess.run(call, check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run([*kubectl, "delete", "namespace", "refit", "--timeout=60s"], check=True)
    objects = list(yaml.safe_load_all((BASE / "rights.yaml").read_text()))
    assert told.count("serverside-applied") == len(objects) + 1, told
