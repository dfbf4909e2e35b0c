"""Statements about an image in formats that others read: CycloneDX (packages), SLSA (how it was made).

Both are the same for the same stages: no serial number, no time. Only what a provenance says of its run may differ.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from flows.catalog import npm
from flows.catalog.model import Profile
from flows.images.build import Built
from flows.images.ledger import Ledger
from flows.images.stages import Inputs, Stage
from flows.signing.trust import statement as said

SBOM_TYPE = "application/vnd.cyclonedx+json"
PROVENANCE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:io.refit:stages:v1"
_BUILDER = "urn:io.refit:builder"
# Images are made for the machine that makes them.
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# Vendors of the distribution of a family of system packages.
_VENDORS = {"deb": "debian", "rpm": "centos"}
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)")


@dataclass(frozen=True)
class Package:
    """A package of an image: `kind` is `deb`, `rpm`, `pypi` or `npm`; `stage` is the one whose lock names it, or ""."""

    kind: str
    name: str
    version: str
    stage: str

    def purl(self, suite: str) -> str:
        """Its package URL; `suite` is the distribution's release."""
        if self.kind == "rpm":
            epoch, _, rest = self.version.partition(":")
            number, _, architecture = rest.rpartition(".")
            where = f"?arch={architecture}&distro={suite}&epoch={epoch}"
        else:
            number, where = self.version, f"?arch={_ARCHITECTURE}&distro={suite}" if self.kind == "deb" else ""
        kind = f"{self.kind}/{_VENDORS[self.kind]}" if self.kind in _VENDORS else self.kind
        return f"pkg:{kind}/{quote(self.name)}@{quote(number, safe=':')}{where}"


@dataclass(frozen=True)
class Made:
    """A stage of an image and how it came about.

    Attributes:
        stage: its name.
        key: its key.
        digest: `sha256:…` of what came out.
        inputs: all that went in.
        how: `built`, `reused` or `grafted`.
        why: in words; empty where nothing more is known.
    """

    stage: str
    key: str
    digest: str
    inputs: Inputs
    how: str
    why: str = ""


def packages_of(stages: Iterable[Stage]) -> tuple[Package, ...]:
    """All packages of an image; one that is installed again by a later stage is that one's."""
    packages: dict[tuple[str, str], Package] = {}
    for stage in stages:
        for package in _packages(stage):
            packages[package.kind, package.name] = package
    return tuple(packages[key] for key in sorted(packages))


def _packages(stage: Stage) -> Iterable[Package]:
    for exact in stage.system:
        name, _, number = exact.partition("=")
        yield Package(stage.family, name, number, stage.name)
    for line in stage.requirements:
        if match := _REQUIREMENT.match(line):
            yield Package("pypi", canonicalize_name(match[1]), match[2], stage.name)
    if lock := stage.files.get(npm.LOCK):
        for name, number in npm.versions(lock.decode()).items():
            yield Package("npm", name, number, stage.name)


def sbom(stages: Iterable[Stage]) -> dict[str, object]:
    """The packages of an image as CycloneDX 1.6."""
    stages = tuple(stages)
    suite = _suite(stages)
    components = [_component(package, package.purl(suite)) for package in packages_of(stages)]
    vendor = next((_VENDORS[stage.family] for stage in stages if stage.suite), "")
    system = [{"type": "operating-system", "bom-ref": "os", "name": vendor, "version": suite}] if suite else []
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": "image", "name": stages[-1].name if stages else "empty"},
            "tools": {"components": [{"type": "application", "name": "refit", "version": version("refit")}]},
        },
        "components": [*system, *components],
    }


def with_found(sbom: Mapping[str, Any], installed: Mapping[str, str]) -> dict[str, object]:
    """A bill of materials with what was found in the image itself, in the place of other versions of the same.

    Args:
        sbom: as made by `sbom`.
        installed: `deb/rstudio` → version.
    """
    suite = next((part["version"] for part in sbom["components"] if part["type"] == "operating-system"), "")
    packages = {name: Package(*_split(name), number, "") for name, number in installed.items()}
    more = {name: _component(package, package.purl(suite)) for name, package in packages.items()}
    parts = {_identity(part): part for part in sbom["components"]} | more
    return {**sbom, "components": [parts[name] for name in sorted(parts)]}


def _split(name: str) -> tuple[str, str]:
    kind, _, bare = name.partition("/")
    return kind, bare


def _identity(component: Mapping[str, Any]) -> str:
    """`deb/tmux`; empty for the operating system, which comes first."""
    kind = component.get("purl", "").removeprefix("pkg:").partition("/")[0]
    return f"{kind}/{component['name']}" if kind else ""


def _suite(stages: Iterable[Stage]) -> str:
    return next((stage.suite for stage in stages if stage.suite), "")


def _component(package: Package, purl: str) -> dict[str, object]:
    origin = ("io.refit.stage", package.stage) if package.stage else ("io.refit.found", "in the image, in no lock")
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "properties": [{"name": origin[0], "value": origin[1]}],
    }


def predicate(profile: Profile, stages: Iterable[Stage], made: Iterable[Made], run: str = "") -> dict[str, object]:
    """How an image was made, as SLSA v1: what was asked, what went in, stage by stage.

    Args:
        profile: what was asked for.
        stages: those of its image.
        made: how each of them came about, base first.
        run: what names this run; nothing else in it is of one run alone but `how` and `why` of the stages.
    """
    stages, made = tuple(stages), tuple(made)
    suite = _suite(stages)
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"profile": profile.stem, "release": profile.release},
            "internalParameters": {
                "stages": [{"name": m.stage, "key": m.key, "inputs": m.inputs} for m in made],
            },
            "resolvedDependencies": [{"uri": package.purl(suite)} for package in packages_of(stages)],
        },
        "runDetails": {
            "builder": {"id": _BUILDER, "version": {"refit": version("refit"), **_tools(made)}},
            "metadata": {"invocationId": run} if run else {},
            "byproducts": [
                {
                    "name": m.stage,
                    "digest": _digest(m.digest),
                    "annotations": {"how": m.how, **({"why": m.why} if m.why else {})},
                }
                for m in made
            ],
        },
    }


def asked(profile: str, release: str) -> dict[str, object]:
    """All that is known of how an image was made whose stages nobody knows: for what."""
    named = {"profile": profile, "release": release}
    return {
        "buildDefinition": {"buildType": BUILD_TYPE, "externalParameters": named},
        "runDetails": {"builder": {"id": _BUILDER, "version": {"refit": version("refit")}}},
    }


def statement(name: str, digest: str, predicate: Mapping[str, object]) -> dict[str, object]:
    """How an image (`sha256:…`) was made, as an in-toto statement."""
    return said(PROVENANCE_TYPE, name, digest, predicate)


def _tools(made: Iterable[Made]) -> dict[str, str]:
    return {name: number for m in made for name, number in sorted(m.inputs.get("tools", {}).items())}


def _digest(digest: str) -> dict[str, str]:
    kind, _, digits = digest.partition(":")
    return {kind: digits}


def made_of(built: Sequence[Built], ledger: Ledger) -> tuple[Made, ...]:
    """How the stages of an image came about, with what went in when they were built."""
    entries = ledger.of([stage.key for stage in built])
    return tuple(
        Made(
            stage=stage.stage,
            key=stage.key,
            digest=stage.digest,
            inputs=entries[stage.key].inputs if stage.key in entries else {},
            how=stage.how,
            why=stage.reason,
        )
        for stage in built
    )
