"""The SBOM of an image: its packages as CycloneDX, the same for the same stages, without a serial number or a time."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from flows.catalog import npm
from flows.images.stages import Stage

SBOM_TYPE = "application/vnd.cyclonedx+json"
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


def document(stages: Iterable[Stage]) -> dict[str, object]:
    """The packages of an image as CycloneDX 1.6."""
    stages = tuple(stages)
    suite = suite_of(stages)
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
        sbom: as made by `document`.
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


def suite_of(stages: Iterable[Stage]) -> str:
    """The release of the distribution of an image; empty: it has none."""
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
