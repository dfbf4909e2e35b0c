"""The packages that an image has, and the files that are attached to it."""

from __future__ import annotations

import json

from flows.images.stages import Kind, Stage
from flows.publishing.evidence import PACKAGES, SBOM, of_stages, packages_of

STAGES = (
    Stage("base", Kind.bootstrap, None, "", system=("tzdata=2026a-0+deb12u1", "libc6=2.36-9+deb12u14")),
    Stage(
        "libraries",
        Kind.instructions,
        "base",
        "",
        requirements=("-i https://pypi.org/simple", "Tz_Data[x]==2026.1; python_version >= '3.9' --hash=sha256:00", ""),
    ),
)


def test_both_worlds_may_use_one_name() -> None:
    assert packages_of(STAGES) == {
        "deb/tzdata": "2026a-0+deb12u1",
        "deb/libc6": "2.36-9+deb12u14",
        "pypi/tz-data": "2026.1",
    }


def test_evidence_holds_the_packages_and_each_lock() -> None:
    files = of_stages(STAGES)
    assert sorted(files) == ["base.system.txt", "libraries.requirements.txt", PACKAGES, SBOM]
    assert json.loads(files[PACKAGES]) == packages_of(STAGES)
    assert b"libc6=2.36-9+deb12u14\n" in files["base.system.txt"]
