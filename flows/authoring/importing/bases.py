"""Their bases, CUDA layers and shared snippets, in whose place Refit's own are, and the things that these may lack."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from flows.authoring.importing.checkout import Checkout, names_in
from flows.authoring.importing.containerfile import instructions, reads, variables
from flows.authoring.importing.report import Adoption
from flows.authoring.importing.template import HELPERS, HOME, programs
from flows.catalog.model import Catalog
from flows.core.formatting import some

# Variables that Refit's stages set, and those that their builder puts in.
_GIVEN = {"HOME", "LANG", "PATH", "CUDA", "RELEASE", "PYTHON_FOLDER"}
_REPOSITORY = re.compile(
    r"--(?:set-)?enabled?\s+[\w-]+|(?<!\S)\S+\.rpm\b|--enablerepo=(?!'?\*)\S+|--add-repo[= ]\S+"
    r"|/etc/(?:yum\.repos|apt/sources\.list)\.d/[^\s\"']+|add-apt-repository\s+(?:-\S+\s+)*\S+"
)
_PACKAGES = re.compile(r"\b(?:yum|dnf|rpm|yum-config-manager|add-apt-repository)\b|/etc/(?:yum|apt)[./]")


@dataclass
class Surroundings:
    """The bases of images there.

    Attributes:
        variables: that a base sets → its value and the place.
        repositories: of packages that a base takes, each with its place.
    """

    variables: dict[str, tuple[str, str]] = field(default_factory=dict)
    repositories: list[str] = field(default_factory=list)


def tell_of_bases(checkout: Checkout, adoption: Adoption, own: Catalog) -> None:
    """Note what stands in their bases, CUDA layers and shared snippets."""
    for folder, what in (
        ("base", "Refit's own bases take its place; add packages that you miss to base/<os>/os-packages.txt"),
        ("cuda-layer", "was left out: images with CUDA stand on Refit's own layers"),
    ):
        if checkout.below(folder):
            adoption.note(folder, what)
    if checkout.below("base"):
        adoption.note(
            "base", f"there, a person may write to /opt/app-root; here, what they install goes to {HOME}/.local"
        )
    for name in checkout.folders("base"):
        _base(checkout, f"base/{name}", name, own, adoption)
    _others(checkout, checkout.below("cuda-layer"), "was left out", adoption)
    for folder in ("snippets/base", "snippets/bundles", "snippets/ides"):
        shared = [path for path in checkout.within(folder) if path.endswith(".snippet")]
        _others(checkout, shared, "Refit does it its own way", adoption)


def tell_of_instructions(checkout: Checkout, paths: Iterable[str], what: str, adoption: Adoption) -> None:
    """A note of each part of each instruction of some snippets and Containerfiles."""
    for path in paths:
        checkout.account(path)
        for step in instructions(checkout.text(path)):
            for line, part in step.parts():
                adoption.note(f"{path}:{line}", f"{what}: {part}")


def _others(checkout: Checkout, paths: Collection[str], what: str, adoption: Adoption) -> None:
    """A note of each instruction of some files, and of each other file of them."""
    rendered = [path for path in paths if path.endswith(".snippet") or path in checkout.containerfiles("cuda-layer")]
    tell_of_instructions(checkout, rendered, what, adoption)
    for path in sorted(set(paths) - set(rendered)):
        checkout.account(path)
        adoption.note(path, what)


def _base(checkout: Checkout, place: str, name: str, own: Catalog, adoption: Adoption) -> None:
    """Note each package, instruction and file that Refit's base of that name may lack."""
    base, listed = own.bases.get(name), f"{place}/os-packages.txt"
    where = f"Refit's {name}" if base else f"Refit, which has no base {name}"
    checkout.account(listed)
    for package, line in names_in(checkout.text(listed)).items():
        if not base or package not in base.packages:
            adoption.note(f"{listed}:{line}", f"is not in {where}: {package}")
    own_files = checkout.containerfiles(place)
    tell_of_instructions(checkout, own_files, f"may not be in {where}", adoption)
    for path in checkout.below(place):
        if path != listed and path not in own_files:
            checkout.account(path)
            adoption.note(path, "was left out: Refit's own bases are there")


@lru_cache(maxsize=1)
def surroundings(checkout: Checkout) -> Surroundings:
    """The variables that their bases set, and the sources of their packages."""
    around = Surroundings()
    for path in checkout.containerfiles("base"):
        text = checkout.text(path)
        lines = {name: line for line, name in _set_at(text)}
        for name, value in variables(text).items():
            around.variables.setdefault(name, (value, f"{path}:{lines.get(name, 1)}"))
        for step in instructions(text):
            for line, part in step.parts():
                names = _REPOSITORY.findall(part) if _PACKAGES.search(part) else ()
                around.repositories += [f"{_short(name)} ({path}:{line})" for name in names]
    return around


def _short(repository: str) -> str:
    word = re.split(r"[=\s]", repository)[-1]
    return word if word.startswith("ppa:") else word.rstrip("/").rpartition("/")[2] or word


def _set_at(text: str) -> Iterator[tuple[int, str]]:
    for step in instructions(text):
        if step.name == "ENV":
            yield from ((line, re.split(r"[= ]", part.partition(" ")[2], maxsplit=1)[0]) for line, part in step.parts())


def tell_of_surroundings(
    checkout: Checkout, path: str, packages: Collection[str], adoption: Adoption, text: str = ""
) -> None:
    """Note what a list of packages or a snippet that came over needs of their base, and Refit's may lack."""
    around = surroundings(checkout)
    if packages and around.repositories:
        taken = some(around.repositories)
        what = f"came over, but not the repositories that their base takes packages from: {taken}"
        adoption.note(
            path, f"{what}; where `refit plan` misses a package, add one to `repositories` of base/<os>/base.yaml"
        )
    own = variables(text).keys() | _GIVEN
    for name, line in reads(text).items():
        if name in around.variables and name not in own:
            value, place = around.variables[name]
            adoption.note(
                f"{path}:{line}", f"reads ${name}, which is set in no image of Refit's: there it is {value} ({place})"
            )
    for line, name in programs(text, HELPERS):
        adoption.note(
            f"{path}:{line}", f"calls {name}, a program of the image that their bases stand on: here, `true` is called"
        )
