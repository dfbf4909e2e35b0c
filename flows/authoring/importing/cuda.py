"""The CUDA that their images have: which version, and which of Refit's levels is its counterpart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.authoring.importing.checkout import Checkout
from flows.authoring.importing.containerfile import instructions, variables
from flows.catalog.model import CudaConfig

_IMAGE = re.compile(
    r"(?:\S*/)?workbench-images:(?:base|cuda)-(?P<os>[a-z0-9]+)-(?P<python>py3[0-9]+)(?:-(?P<level>[a-z-]+))?_\S+"
)
_USUAL = "runtime-cudnn"  # what their builder offers first


@dataclass(frozen=True)
class Origin:
    """The base of a recipe's image.

    Attributes:
        image: as FROM names it; empty: it has no FROM.
        os, python, level: the parts of the name of one of their bases; empty: it isn't one of them, or it has no CUDA.
    """

    image: str = ""
    os: str = ""
    python: str = ""
    level: str = ""


def origin(text: str) -> Origin:
    """The base of a Containerfile's image: the FROM of its last stage."""
    images = [step.rest.split()[0] for step in instructions(text) if step.name == "FROM" and step.rest]
    if not images:
        return Origin()
    match = _IMAGE.fullmatch(images[-1])
    return (
        Origin(images[-1], *(match[part] or "" for part in ("os", "python", "level"))) if match else Origin(images[-1])
    )


def versions(checkout: Checkout, paths: Iterable[str]) -> dict[str, str]:
    """The versions of CUDA that some Containerfiles install, each with a place where it stands."""
    told: dict[str, str] = {}
    for path in paths:
        text = checkout.text(path)
        if version := variables(text).get("CUDA_VERSION"):
            lines = (line for step in instructions(text) for line, part in step.parts() if "CUDA_VERSION" in part)
            told.setdefault(version, f"{path}:{next(lines, 1)}")
    return told


def why_unclear(theirs: Mapping[str, str], ours: CudaConfig | None, chosen: str) -> str:
    """Why a person has to choose a CUDA for images that have these versions; empty: it is clear.

    Args:
        theirs: version → the place where it stands.
        ours: Refit's.
        chosen: the level that a person has chosen; empty: none.
    """
    version = ours.version if ours else "none"
    if chosen or (theirs and {each.partition(".")[0] for each in theirs} == {version.partition(".")[0]}):
        return ""
    levels = ", ".join(ours.levels) if ours else ""
    each = " and ".join(f"{version} ({place})" for version, place in theirs.items())
    had = f"it stands on CUDA {each}" if theirs else "nobody knows which CUDA it stands on"
    return f"{had}, and Refit's is {version}: choose a level by --cuda, of {levels}"


def counterpart(level: str, ours: CudaConfig | None) -> str:
    """The level of Refit's that is nearest to one of theirs, by its name."""
    levels = ours.levels if ours else {}
    return level if level in levels else _USUAL


def brought(versions: Mapping[str, str]) -> str:
    """The Python package that says best which CUDA comes with a lock's packages, and its version; empty: none does."""
    for name, version in versions.items():
        if name.startswith("nvidia-cuda-runtime") or re.search(r"\+cu\d+$", version):
            return f"{name} {version}"
    return ""
