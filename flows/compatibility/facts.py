"""Facts about a home and about an image before they are brought together: plain data, no effects.

Paths in a home are relative to it; those that begin with a slash are the image's, as programs in a container see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a group of files in a home."""

    user = "user packages"
    venv = "virtual environment"
    conda = "conda environment"
    editor = "editor extension"
    loose = "own files"


@dataclass(frozen=True)
class Distribution:
    """An installed Python package; `elsewhere`: it came from a folder or a repository, not from an index."""

    name: str
    version: str
    elsewhere: bool = False


@dataclass(frozen=True)
class Native:
    """Requirements of the compiled files of a group, each with one file as an example.

    Attributes:
        tags: ABI tags of Python, e.g. `cpython-311`.
        versions: interface → highest version (`GLIBC` → `2.34`) and the file.
        libraries: sonames, e.g. `libcudart.so.12`.
    """

    tags: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Files in a home that belong together, and are made anew together.

    Attributes:
        path: their folder.
        kind: the kind of files.
        python: minor version of their Python, e.g. `3.11`; empty: none, or unknown.
        interpreter: the end of all links from an environment's `python`; empty: it leads nowhere, or there is none.
        distributions: the Python packages among them.
        native: the libraries that their compiled files need.
        source: the file by which they are made (`setup.py`, `pyproject.toml`, `Makefile`), if there is one.
    """

    path: str
    kind: Kind
    python: str = ""
    interpreter: str = ""
    distributions: tuple[Distribution, ...] = ()
    native: Native = Native()
    source: str = ""


@dataclass(frozen=True)
class Starter:
    """Something in a home that names a program by its path: a Jupyter kernel, or a script with its first line.

    Attributes:
        path: the file.
        name: of the kernel, or of the script.
        program: the path or name of the program; a bare name is looked up in PATH.
        leads_to: where that path leads, all links followed; empty: nowhere, or it is a bare name.
    """

    path: str
    name: str
    program: str
    leads_to: str


@dataclass(frozen=True)
class Home:
    """Facts about a home.

    Attributes:
        groups: environments, packages, and folders with compiled files.
        kernels: kernels for Jupyter.
        scripts: scripts in folders of programs that name an interpreter of the image.
        programs: name → file, of the folders that are in PATH.
        first: folders that a startup file of a shell puts into PATH, thus before those of the image.
        libraries: names of the shared libraries that are in the home itself.
        files: how many files and folders were seen.
        missed: why not everything was looked at; empty: it was.
    """

    groups: tuple[Group, ...] = ()
    kernels: tuple[Starter, ...] = ()
    scripts: tuple[Starter, ...] = ()
    programs: Mapping[str, str] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    files: int = 0
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """Facts about an image.

    Attributes:
        home: where the home is in a container.
        python: minor version of the Python that people get, e.g. `3.11`.
        interpreters: path → minor version, of every Python.
        user_site: whether that Python finds packages in the home.
        user_wins: whether it finds those before its own.
        distributions: name → version of the Python packages that it has.
        system: the same of the packages of the operating system.
        manager: the package manager that installs those, `apt-get` or `dnf`.
        path: folders of PATH, in their order.
        programs: name → path of the one that PATH finds.
        files: every path of a program that PATH or the usual folders have.
        libraries: sonames of the shared libraries that the loader finds.
        interfaces: interface → highest version that there is (`GLIBC` → `2.36`).
    """

    home: str
    python: str
    interpreters: Mapping[str, str]
    user_site: bool
    user_wins: bool
    distributions: Mapping[str, str]
    system: Mapping[str, str]
    path: tuple[str, ...]
    programs: Mapping[str, str]
    files: frozenset[str]
    libraries: frozenset[str]
    interfaces: Mapping[str, str]
    manager: str = "apt-get"
