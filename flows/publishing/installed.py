"""Packages of an image beside those of its locks: a recipe's own instructions may install, too."""

from __future__ import annotations

import json
from collections.abc import Mapping

from packaging.utils import canonicalize_version

from flows.core.formatting import some
from flows.images.manifests import canonical
from flows.publishing import sbom
from flows.publishing.checks import Finding
from flows.publishing.evidence import PACKAGES, SBOM

LOOKED_FOR = ("deb/", "rpm/", "pypi/")  # inside of images; packages of other kinds in a lock are taken for granted
MOST_NAMED = 20


def unlocked(locked: Mapping[str, str], installed: Mapping[str, str]) -> dict[str, str]:
    """The packages that are in an image and in no lock, or in another version than locked: `deb/rstudio` → version.

    Args:
        locked: all packages of the image's locks: `deb/tmux` → version.
        installed: those that are installed in it.
    """
    return {name: installed[name] for name in sorted(installed) if not _same(name, installed[name], locked.get(name))}


def finding(files: Mapping[str, bytes], installed: Mapping[str, str]) -> Finding:
    """The check of an image's packages against its locks. That stops none: its evidence says what is there."""
    locked = locks(files)
    absent = sorted(name for name in locked.keys() - installed.keys() if name.startswith(LOOKED_FOR))
    words = [
        *(_description(name, version, locked.get(name)) for name, version in unlocked(locked, installed).items()),
        *(f"{name} is locked, and not there" for name in absent),
    ]
    return Finding("packages", True, some(words, MOST_NAMED, "\n") or f"{len(installed)} packages, all as locked")


def _description(name: str, version: str, locked: str | None) -> str:
    return f"{name} is {version}, and locked as {locked}" if locked else f"{name} {version} is in no lock"


def completed(files: Mapping[str, bytes], installed: Mapping[str, str]) -> dict[str, bytes]:
    """An image's evidence, whose packages and bill of materials also have what is in no lock."""
    locked = locks(files)
    if not (more := unlocked(locked, installed)):
        return {**files}
    changed = {PACKAGES: canonical({**locked, **more})}
    if SBOM in files:
        changed[SBOM] = canonical(sbom.with_found(json.loads(files[SBOM]), more))
    return {**files, **changed}


def locks(files: Mapping[str, bytes]) -> dict[str, str]:
    """The packages that the locks name, by an image's evidence (see `evidence.of_stages`)."""
    return dict(json.loads(files[PACKAGES]))


def _same(name: str, version: str, locked: str | None) -> bool:
    if locked is None or not name.startswith("pypi/"):
        return version == locked
    return canonicalize_version(version) == canonicalize_version(locked)
