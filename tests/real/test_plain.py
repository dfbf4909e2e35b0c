"""Plain Containerfiles, built by buildah alone with a storage of its own, against the images that Refit builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.model import Catalog
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from flows.images import containerfile_export
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage
from tests.support.machine import ROOT, build_all
from tests.support.plain_builds import Build, build, differing

__all__ = ["build"]


REFIT = Path(sys.executable).parent / "refit"
# With Python packages; with those of an IDE; with npm's; with a bundle's own system packages, wheels and instructions.
PROFILES = ("runtime-minimal", "jupyter-minimal", "vscode-minimal", "runtime-r")
TOOLS = Stage(
    "tools",
    Kind.instructions,
    "base",
    """\
RUN . /mnt/env.sh; set -eu; umask 027; export DEBIAN_FRONTEND=noninteractive; apt-get update -q; \\
    apt-get install -q -y --no-install-recommends tree; cp /mnt/files/data /opt/tools-data; \\
    find /var/log /var/lib/apt/lists /var/cache/apt /var/cache/ldconfig -type f -delete; \\
    rm -f /var/cache/debconf/*-old /var/lib/dpkg/*-old
COPY --chown=1001:0 some /opt/tools/deep/some
COPY --chmod=0750 ["some/a file", "data", "/opt/tools/more/"]
ENV PATH=/opt/tools/bin:$PATH
USER 1001:0
RUN . /mnt/env.sh; set -eu; id > /home/dev/id; test -r /mnt/files/data
CMD ["tree"]
""",
    files={"data": bytes(range(256)) * 300, "some/a file": b"it's\t$HOME\n", "some/empty": b""},
    suite="bookworm",
)


def refit_show(stem: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more, "REFIT_CATALOG": str(ROOT)}
    return subprocess.run([REFIT, "containerfile", stem], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_what_the_machine_gave_comes_from_the_text_itself(
    builder: Builder, base: Built, base_stage: Stage, build: Build, shared: Settings, registry: Registry
) -> None:
    built = builder.build(TOOLS, base)
    image = f"{registry.host}/{registry.stages}@{base.digest}"
    text = containerfile_export.containerfile("tools", "2026a", (base_stage, TOOLS), image, secure=registry.secure)
    assert differing(shared, registry, built.digest, build(text)) == set()
    assert differing(shared, registry, base.digest, built.digest)


@pytest.mark.long
@pytest.mark.parametrize("stem", [f"{name}-deb12-py311" for name in PROFILES])
def test_a_profile_s_text_gives_the_files_of_its_image(
    stem: str,
    catalog: Catalog,
    assembler: Assembler,
    builder: Builder,
    build: Build,
    shared: Settings,
    registry: Registry,
) -> None:
    top = build_all(builder, assembler.chain(load.profile(catalog, "2026a", stem)))[-1]
    shown = refit_show(stem, **variables(shared))
    assert shown.returncode == 0, shown.stderr
    assert differing(shared, registry, top.digest, build(shown.stdout)) == set()


def test_a_base_that_was_never_built_is_named(tmp_path: Path, shared: Settings) -> None:
    home = {**variables(shared), "REFIT_HOME": str(tmp_path), "REFIT_REPOSITORY": "never/built"}
    shown = refit_show("runtime-minimal-deb12-py311", **home)
    assert shown.returncode == 1
    said = " ".join(shown.stderr.split())
    assert "its base 'base-deb12-py311' is not in the registry" in said
    assert "refit build 2026a --profile runtime-minimal-deb12-py311" in said
