"""Variables that templates of recipes can name, and files made of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from flows.catalog.model import Base, Bundle, Profile, python_version


def lineage(bundle: Bundle) -> tuple[Path, ...]:
    """The folders of a bundle and of those that it extends, farthest first."""
    return bundle.lineage or (bundle.folder,)


def with_python(base: Base, python: str) -> Base:
    """A base together with what one of its Pythons needs."""
    return with_packages(base, base.config.python_packages.get(python, ()))


def with_packages(base: Base, packages: tuple[str, ...]) -> Base:
    """A base that has further packages."""
    return replace(base, packages=(*base.packages, *packages))


def base_variables(base: Base, python: str) -> dict[str, object]:
    """The variables for templates of a base."""
    return {
        "os": base.name,
        "family": base.config.family,
        "suite": base.config.suite,
        "repositories": base.config.repositories,
        "python": python,
        "python_version": python_version(python),
    }


def template_variables(profile: Profile) -> dict[str, object]:
    """The variables for all other templates of a profile."""
    return {**base_variables(profile.base, profile.python), "bundle": profile.bundle.name}


def relative_path(root: Path, file: Path) -> str:
    """The name of a file below the catalog."""
    return file.relative_to(root).as_posix()


def as_file(requirements: tuple[str, ...]) -> bytes:
    """A file of requirements, one a line."""
    return "".join(f"{line}\n" for line in requirements).encode()


def library_name(package: str) -> str:
    """The name of a package of NVIDIA's without its version of CUDA: `nvidia-cudnn` of `nvidia-cudnn-cu13`."""
    return re.sub(r"-cu[0-9]+$", "", package)
