"""The bases of the catalog on which no profile of the release stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.catalog.model import Catalog
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Builder
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from tests.support.machine import private_home

pytestmark = pytest.mark.long


def test_debian_13_is_bootstrapped_and_comes_out_the_same_again(
    catalog: Catalog, assembler: Assembler, builder: Builder, shared: Settings, registry: Registry, tmp_path: Path
) -> None:
    stage = assembler.foundation(catalog.bases["deb13"], "py313")
    built = builder.build(stage, None)
    image = f"docker://{registry.host}/{registry.stages}@{built.digest}"
    script = "import sys; print(*sys.version_info[:2]); print(open('/etc/apt/sources.list.d/debian.sources').read())"
    argv = [*tools.podman(shared), "run", "--rm", "--tls-verify=false", *tools.run_limits(shared), image]
    version, *sources = command.run([*argv, "python3", "-c", script], root=True).stdout.splitlines()
    assert version == "3 13"
    assert "Suites: trixie trixie-updates" in sources
    with private_home(tmp_path / "home", shared.registry_port, repository="again") as settings:
        again = Builder(settings, Registry(settings)).build(stage, None)
    assert not again.reused
    assert again.digest == built.digest
