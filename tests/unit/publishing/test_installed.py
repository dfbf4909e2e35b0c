"""Packages in an image beside those of its locks: named, and in its evidence."""

from __future__ import annotations

import json

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from flows.images.manifests import canonical
from flows.images.stages import Kind, Stage
from flows.publishing import installed
from flows.publishing.evidence import PACKAGES, SBOM, of_stages

STAGES = (
    Stage("base", Kind.bootstrap, None, "", system=("libc6=2.36-9", "tmux=3.3a-3"), suite="bookworm"),
    Stage("libraries", Kind.closed, "base", "", requirements=("Rich==15.0", "torch==2.7.0+cpu")),
)
FILES = of_stages(STAGES)
LOCKED = {"deb/libc6": "2.36-9", "deb/tmux": "3.3a-3", "pypi/rich": "15.0", "pypi/torch": "2.7.0+cpu"}


def test_what_is_as_locked_leaves_the_evidence_as_it_is() -> None:
    versions = {**LOCKED, "pypi/rich": "15.0.0"}  # two ways to write one version
    assert installed.completed(FILES, versions) == FILES
    assert installed.finding(FILES, versions).seen == "4 packages, all as locked"


def test_what_a_recipe_installs_by_itself_is_named_and_stated() -> None:
    versions = {**LOCKED, "deb/rstudio-server": "2026.09.1+401", "deb/tmux": "3.4-1", "pypi/six": "1.17.0"}
    del versions["pypi/rich"]
    told = installed.finding(FILES, versions)
    assert told.passed and told.seen.splitlines() == [
        "deb/rstudio-server 2026.09.1+401 is in no lock",
        "deb/tmux is 3.4-1, and locked as 3.3a-3",
        "pypi/six 1.17.0 is in no lock",
        "pypi/rich is locked, and not there",
    ]
    files = installed.completed(FILES, versions)
    assert json.loads(files[PACKAGES]) == LOCKED | versions
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(files[SBOM].decode()) is None
    system, *parts = json.loads(files[SBOM])["components"]
    assert system["name"] == "debian"
    assert [(part["name"], part["version"], part["properties"][0]["name"]) for part in parts] == [
        ("libc6", "2.36-9", "io.refit.stage"),
        ("rstudio-server", "2026.09.1+401", "io.refit.found"),
        ("tmux", "3.4-1", "io.refit.found"),
        ("rich", "15.0", "io.refit.stage"),
        ("six", "1.17.0", "io.refit.found"),
        ("torch", "2.7.0+cpu", "io.refit.stage"),
    ]
    assert parts[1]["purl"].startswith("pkg:deb/debian/rstudio-server@2026.09.1%2B401?arch=")
    assert {name: files[name] for name in files if name not in (PACKAGES, SBOM)} == {
        name: FILES[name] for name in FILES if name not in (PACKAGES, SBOM)
    }


def test_what_nobody_looks_for_is_not_missed() -> None:
    files = {PACKAGES: canonical({"npm/code-server": "4.105.1", "rpm/git": "1:2.43-2.el9.x86_64"})}
    assert installed.finding(files, {}).seen == "rpm/git is locked, and not there"
