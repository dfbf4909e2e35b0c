"""A statement about an image is valid, names its inputs, and is the same for the same stages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from packageurl import PackageURL

from flows.catalog.model import Base, BaseConfig, Bundle, Ide, IdeConfig, Profile
from flows.core.database import open_database
from flows.images.build import Built
from flows.images.ledger import Ledger
from flows.images.manifests import canonical
from flows.images.stages import Kind, Stage, inputs, key
from flows.publishing import provenance, sbom
from flows.publishing.provenance import Made

BASE = Stage(
    "base-deb12-py311",
    Kind.bootstrap,
    None,
    "ADD base.tar /",
    system=("git=1:2.39.5-0+deb12u2", "libstdc++6=12.2.0-14", "tzdata=2026a-0+deb12u1"),
    suite="bookworm",
)
TOP = Stage(
    "top", Kind.instructions, BASE.name, "RUN x", requirements=("rich==15.0.1 --hash=sha256:00", "Tz_Data==2026.1")
)
PROFILE = Profile(
    "runtime-minimal-deb12-py311",
    "2026a",
    Ide("runtime", Path(), "", IdeConfig()),
    Bundle("minimal", Path(), "", (), {}),
    Base("deb12", Path(), "", BaseConfig(family="deb", suite="bookworm", pythons=("py311",)), ()),
    "py311",
)
DIGEST = f"sha256:{'a' * 64}"
MADE = tuple(
    Made(stage.name, key(stage, None, {"buildah": "1.28.2"}), DIGEST, inputs(stage, None, {"buildah": "1.28.2"}), how)
    for stage, how in ((BASE, "reused"), (TOP, "built"))
)


def valid(sbom: object) -> bool:
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(sbom)) is None


def test_the_bill_of_materials_is_valid_and_names_every_package() -> None:
    bill = sbom.document((BASE, TOP))
    assert valid(bill)
    components = bill["components"]
    assert isinstance(components, list)
    purls = [PackageURL.from_string(component["purl"]) for component in components if "purl" in component]
    assert [(p.type, p.namespace, p.name, p.version) for p in purls] == [
        ("deb", "debian", "git", "1:2.39.5-0+deb12u2"),
        ("deb", "debian", "libstdc++6", "12.2.0-14"),
        ("deb", "debian", "tzdata", "2026a-0+deb12u1"),
        ("pypi", None, "rich", "15.0.1"),
        ("pypi", None, "tz-data", "2026.1"),
    ]
    assert isinstance(purls[0].qualifiers, dict) and purls[0].qualifiers["distro"] == "bookworm"
    assert [p.to_string() for p in purls] == [c["purl"] for c in components if "purl" in c]
    assert components[-1]["properties"] == [{"name": "io.refit.stage", "value": "top"}]


def test_a_validator_that_finds_mistakes() -> None:
    assert not valid({**sbom.document((BASE,)), "components": [{"name": "without a type"}]})


NAMES = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,12}", fullmatch=True)
VERSIONS = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~-]{0,12}", fullmatch=True)


@pytest.mark.slow
@settings(deadline=None)  # the machine may be busy
@given(st.dictionaries(NAMES, VERSIONS, max_size=4))
def test_any_package_of_debian_can_be_named(packages: dict[str, str]) -> None:
    stage = replace(BASE, system=tuple(f"{name}={version}" for name, version in packages.items()))
    purls = (PackageURL.from_string(package.purl("bookworm")) for package in sbom.packages_of((stage,)))
    assert {p.name: p.version for p in purls} == packages


def test_a_package_of_rpm_is_named_with_its_epoch_and_architecture() -> None:
    base = replace(BASE, system=("git=1:2.43~rc1-2.el9.x86_64",), suite="9-stream", family="rpm")
    bill = sbom.document((base, TOP))
    assert valid(bill)
    system, *_, git = bill["components"]  # type: ignore[misc]
    assert (system["name"], system["version"]) == ("centos", "9-stream")
    package = PackageURL.from_string(git["purl"])
    assert package.to_string() == git["purl"]
    assert (package.type, package.namespace) == ("rpm", "centos")
    assert (package.name, package.version) == ("git", "2.43~rc1-2.el9")
    assert package.qualifiers == {"arch": "x86_64", "distro": "9-stream", "epoch": "1"}


def test_a_later_stage_has_the_say() -> None:
    later = Stage("later", Kind.instructions, TOP.name, "", requirements=("rich==15.1.0",))
    packages = {p.name: p for p in sbom.packages_of((BASE, TOP, later))}
    assert (packages["rich"].version, packages["rich"].stage) == ("15.1.0", "later")


def test_the_provenance_says_what_went_in_and_how_each_stage_came_about() -> None:
    predicate = provenance.predicate(PROFILE, (BASE, TOP), MADE, run="flow-run/1")
    said = json.loads(canonical(provenance.statement("127.0.0.1:5000/workbench-images", DIGEST, predicate)))
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://slsa.dev/provenance/v1"
    assert said["subject"] == [{"name": "127.0.0.1:5000/workbench-images", "digest": {"sha256": "a" * 64}}]
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert definition["externalParameters"] == {"profile": PROFILE.stem, "release": "2026a"}
    first, second = definition["internalParameters"]["stages"]
    assert (first["name"], first["key"]) == (BASE.name, MADE[0].key)
    assert first["inputs"]["system"]["git"] == "1:2.39.5-0+deb12u2"
    assert second["inputs"]["instructions"]["text"] == "RUN x"
    assert {"uri": "pkg:pypi/rich@15.0.1"} in definition["resolvedDependencies"]
    assert [part["annotations"]["how"] for part in details["byproducts"]] == ["reused", "built"]
    assert details["builder"]["version"]["buildah"] == "1.28.2"
    assert details["metadata"] == {"invocationId": "flow-run/1"}


def test_how_each_stage_came_about(tmp_path: Path) -> None:
    ledger = Ledger(open_database(f"sqlite:///{tmp_path}/refit.db"))
    built = (
        Built(stage="base", key="1", layer=None, digest=DIGEST),
        Built(stage="middle", key="2", layer=None, digest=DIGEST, reused=False, log=tmp_path, reason="tmux 3 → 4"),
        Built(stage="top", key="3", layer="4", digest=DIGEST, reused=False, reason="its layer is that of another"),
    )
    assert [(made.how, made.why) for made in provenance.made_of(built, ledger)] == [
        ("reused", ""),
        ("built", "tmux 3 → 4"),
        ("grafted", "its layer is that of another"),
    ]


def test_only_what_names_the_run_differs() -> None:
    first = provenance.predicate(PROFILE, (BASE, TOP), MADE, run="1")
    again = provenance.predicate(
        PROFILE, (BASE, TOP), [replace(made, how="reused", why="it was there") for made in MADE]
    )
    assert canonical(first["buildDefinition"]) == canonical(again["buildDefinition"])
    assert canonical(sbom.document((BASE, TOP))) == canonical(sbom.document((BASE, TOP)))
