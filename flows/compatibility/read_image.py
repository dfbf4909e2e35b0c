"""Reads what homes can depend on in an image: runs in a container of it, with the Python that people get there.

It prints JSON with the attributes of `facts.Image`.
"""

from __future__ import annotations

import glob
import importlib.metadata
import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/usr/local/cuda/lib64")
PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/cuda/bin", "/opt/*/bin")
INTERFACES = (b"GLIBCXX", b"CXXABI")

_STATUS = Path("/var/lib/dpkg/status")
_KEY = "gpg-pubkey"  # rpm lists the keys that it trusts as packages of this name, which no repository has
_PYTHON = re.compile(r"python(3(\.\d+)?)?$")
_SONAME = re.compile(r".+\.so(\.[\d.]+)?$")


def facts() -> dict[str, object]:
    """Everything that is asked for."""
    path = os.environ.get("PATH", os.defpath).split(":")
    folders = [*path, *(program for pattern in PROGRAMS for program in sorted(glob.glob(pattern)))]  # noqa: PTH207
    files = {str(file): file for folder in dict.fromkeys(folders) for file in _programs(Path(folder))}
    programs: dict[str, str] = {}
    for folder in path:
        for file in _programs(Path(folder)):
            programs.setdefault(file.name, str(file))
    libraries = {file.name: file for folder in _library_folders() for file in _files(folder, _SONAME)}
    return {
        "home": os.environ["HOME"],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "interpreters": {name: minor for name, file in files.items() if (minor := _minor(file))},
        "user_site": bool(site.ENABLE_USER_SITE),
        "user_wins": sys.prefix == sys.base_prefix,  # a virtual environment's own packages come before those of a home
        "distributions": _distributions(),
        "system": dict(_system(_STATUS) if _STATUS.is_file() else _rpms()),
        "manager": "apt-get" if _STATUS.is_file() else "dnf",
        "path": path,
        "programs": programs,
        "files": sorted(files),
        "libraries": sorted(libraries),
        "interfaces": {"GLIBC": _glibc(), **_interfaces(libraries.get("libstdc++.so.6"))},
    }


def _distributions() -> dict[str, str]:
    """Distributions that Python finds outside the home."""
    path = [folder for folder in sys.path if not Path(folder).is_relative_to(os.environ["HOME"])]
    return {
        distribution.metadata["Name"]: distribution.version
        for distribution in importlib.metadata.distributions(path=path)
    }


def _files(folder: Path, named: re.Pattern[str]) -> Iterator[Path]:
    try:
        yield from (file for file in sorted(folder.iterdir()) if named.match(file.name))
    except OSError:
        return


def _programs(folder: Path) -> Iterator[Path]:
    yield from (file for file in _files(folder, re.compile("")) if file.is_file() and os.access(file, os.X_OK))


def _minor(file: Path) -> str:
    """The version of the Python that a path leads to; empty: it is another program."""
    if not _PYTHON.fullmatch(file.name):
        return ""
    match = re.search(r"python(3\.\d+)$", str(file.resolve()))
    return match[1] if match else ""


def _library_folders() -> list[Path]:
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        named += [line.strip() for line in file.read_text(errors="replace").splitlines()]
    return [Path(folder) for folder in (*LIBRARIES, *named) if folder.startswith("/")]


def _glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
    except ValueError:  # another C library
        return ""


def _interfaces(library: Path | None) -> dict[str, str]:
    content = library.read_bytes() if library else b""
    numbers = {name: re.findall(name + rb"_(\d+(?:\.\d+)+)\0", content) for name in INTERFACES}
    return {
        name.decode(): max(versions, key=lambda v: [int(part) for part in v.split(b".")]).decode()
        for name, versions in numbers.items()
        if versions
    }


def _system(status: Path) -> Iterator[tuple[str, str]]:
    for entry in status.read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], fields["Version"]


def _rpms() -> Iterator[tuple[str, str]]:
    """Packages that rpm has installed; of a package that is there in several versions, the last."""
    if rpm := shutil.which("rpm"):
        query = [rpm, "--query", "--all", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\n"]
        for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, version = line.partition(" ")
            if name != _KEY:
                yield name, version


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
