"""The image of Refit itself, by `deploy/build-image`, in the registry that the cluster's nodes pull from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from flows.images.build import Builder
from flows.images.stages import Stage
from tests.support.cluster import REGISTRY, REPOSITORY, Lab, copy_image
from tests.support.machine import RegistryServer, build_all

SCRIPT = Path(__file__).parents[2] / "deploy" / "build-image"


@pytest.fixture(scope="session")
def own_image(cluster: Lab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    """Its name for nodes; `REFIT_TEST_OWN_IMAGE` names one that is built already.

    It stands on the catalog's own base, which Refit has built.
    """
    if built := os.environ.get("REFIT_TEST_OWN_IMAGE"):
        return f"{REGISTRY}/refit@{copy_image(f'docker://{built}', 'test', tmp_path_factory.mktemp('own'), 'refit')}"
    builder: Builder = request.getfixturevalue("builder")
    jupyter_chain: tuple[Stage, ...] = request.getfixturevalue("jupyter_chain")
    registry_server: RegistryServer = request.getfixturevalue("registry_server")
    base, stages = build_all(builder, jupyter_chain)[0].digest, f"{REPOSITORY}/stages"
    chosen = {"REFIT_BASE": f"docker://127.0.0.1:{registry_server.port}/{stages}@{base}"}
    call = [SCRIPT, f"{REGISTRY}/refit:test", "--tls-verify=false"]
    done = subprocess.run(call, check=True, env={**os.environ, **chosen}, stdout=subprocess.PIPE, text=True)
    return f"{REGISTRY}/refit@{done.stdout.strip()}"
