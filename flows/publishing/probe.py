"""Looks at an image from inside: runs in a container of it, with nothing but the image's own Python.

`probe.py modules` reads names of distributions, and imports what each of them brings along.
`probe.py files` reads name → value of what must not be in any file, and walks all files of the image.
Both read JSON from their input and print JSON. Nothing that they print holds a secret.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import json
import mmap
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

IMPORT_SECONDS = 120
_HASHED = 0b01  # PEP 552: the compiled file records a hash of its source, not time and size
_COMPILED = re.compile(r"\.[a-z]+-?[0-9]+[^.]*(\.opt-[0-9a-z]+)?\.pyc$")
# Packages bring others along in folders of their own, which their own record has already.
_RECORD = re.compile(r"/(site|dist)-packages/[^/]+\.dist-info/RECORD$")
_RPM_DATABASE = "/var/lib/rpm"
_RPM_PACKAGE = r"%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}.%{ARCH}\t%{SIZE}\n"
_ANY = ""
# Path → what a line there may not say; most of these files may say nothing at all.
_FORBIDDEN = (
    (r"/\.(netrc|git-credentials|pgpass|pypirc)$", _ANY),
    (r"/(\.docker/config|containers/auth)\.json$|/\.aws/credentials$|/etc/apt/auth\.conf(\.d/[^/]+)?$", _ANY),
    (r"/\.ssh/id_[a-z0-9]+$|/etc/ssh/ssh_host_[a-z0-9]+_key$", _ANY),
    (r"/\.([a-z]*sh|python|node_repl|psql|less)_?(history|hst)$", _ANY),
    (
        r"/etc/(environment|profile|bash\.bashrc|profile\.d/[^/]+)$|/\.(bashrc|profile)$",
        r"(https?|ftp|all)_proxy\s*=\s*(?=\S)",
    ),
    (r"/etc/apt/apt\.conf(\.d/[^/]+)?$", r"^\s*Acquire::.*(Proxy|CaInfo)"),
    (
        r"/\.?pip/pip\.conf$|/etc/pip\.conf$|/app-root/pip\.conf$",
        r"^\s*(extra-)?index-url|^\s*(proxy|find-links|cert)\b",
    ),
    (r"/\.?npmrc$", r"^\s*(registry|(https-)?proxy|cafile)\s*=|_(authToken|auth|password)\s*="),
)
FORBIDDEN = tuple((re.compile(path), re.compile(pattern, re.MULTILINE | re.IGNORECASE)) for path, pattern in _FORBIDDEN)


# --- Modules --------------------------------------------------------------------------------------------------------


def modules(names: list[str]) -> dict[str, str]:
    """Distribution → why it can't be imported; those that can, or have no module (data, programs), aren't there."""
    brought: dict[str, set[str]] = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            brought.setdefault(normal(distribution), set()).add(module)
    installed = {normal(d.metadata["Name"]) for d in importlib.metadata.distributions() if d.metadata["Name"]}
    failures = {name: "it is not installed" for name in names if normal(name) not in installed}
    imports = [(name, module) for name in names for module in sorted(_public(brought.get(normal(name), set())))]
    with ThreadPoolExecutor(4) as pool:
        for name, problem in pool.map(_import, imports):
            if problem:
                failures[name] = problem
    return failures


def _public(brought: set[str]) -> set[str]:
    """The modules that people import; a distribution that has private modules alone is known by these."""
    importable = {module for module in brought if module.isidentifier()}
    return {module for module in importable if not module.startswith("_")} or importable


def _import(import_of: tuple[str, str]) -> tuple[str, str]:
    """Distribution, and why its module can't be imported; in a process of its own, because compiled ones can end it."""
    name, module = import_of
    argv = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return name, f"import {module}: not done after {IMPORT_SECONDS} s"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    problem = lines[-1] if lines else f"ended with {done.returncode}"
    return name, f"import {module}: {problem}" if done.returncode else ""


# --- Files ----------------------------------------------------------------------------------------------------------


def files(values: dict[str, str], root: str = "/") -> dict[str, object]:
    """The mistakes in the files below `root`, which packages are installed, and how many bytes each takes.

    Returns:
        `stale`: compiled files that say something else than their source. `secrets`: path and what is there.
        `sizes`: `deb/…`, `rpm/…` and `pypi/…` → bytes. `packages`: the same → version. `unread`: what can't be read.
    """
    stale, secrets = [], []
    unread: list[str] = []
    system = [*_dpkg_packages(Path(root, "var/lib/dpkg/status")), *_rpm_packages(root)]
    sizes = {name: size for name, _, size in system}
    packages = {name: version for name, version, _ in system}
    for path in _walk(root, unread):
        name = f"/{path.relative_to(root)}"
        secrets += [f"{name}: {what}" for what in _leaks(name, path, values)]
        if path.suffix == ".pyc" and (problem := _staleness(path)):
            stale.append(f"{name}: {problem}")
        if _RECORD.search(name):
            distribution, _, version = path.parent.name.removesuffix(".dist-info").partition("-")
            package = f"pypi/{normal(distribution)}"
            sizes[package] = sizes.get(package, 0) + _recorded_bytes(path)
            packages[package] = max(version, packages.get(package, ""))  # of several, in whatever order, one
    mistakes = {"stale": sorted(stale), "secrets": sorted(secrets)}
    return {**mistakes, "unread": sorted(unread), "sizes": sizes, "packages": packages}


def _walk(root: str, unread: list[str]) -> Iterator[Path]:
    """All regular files that can be read, but for those on mounts, which aren't the image's.

    The files and folders that can't be read are added to `unread`, by their path below `root`.
    """
    mounted = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}

    def leave_out(path: Path) -> None:
        unread.append(f"/{path.relative_to(root)}")

    for folder, folders, names in os.walk(root, onerror=lambda error: leave_out(Path(error.filename))):
        folders[:] = [name for name in folders if str(Path(folder, name)) not in mounted]
        for path in (Path(folder, name) for name in names if str(Path(folder, name)) not in mounted):
            try:
                is_file = stat.S_ISREG(path.lstat().st_mode)
            except OSError:  # its folder may be listed, and no more
                leave_out(path)
                continue
            if is_file and os.access(path, os.R_OK):
                yield path
            elif is_file:
                leave_out(path)


def _leaks(name: str, path: Path, values: dict[str, str]) -> Iterator[str]:
    if not path.stat().st_size:
        return
    for where, pattern in FORBIDDEN:
        if where.search(name) and (match := pattern.search(path.read_text(errors="replace"))):
            yield match[0].strip() or "belongs to a person or a machine, not into an image"
    if values:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield from (f"holds {what}" for what, value in values.items() if content.find(value.encode()) >= 0)


def _staleness(path: Path) -> str:
    """Why a compiled file doesn't match its source; one without a source in `__pycache__` is never loaded."""
    source = path.parent.parent / _COMPILED.sub(".py", path.name)
    if path.parent.name != "__pycache__" or not source.is_file():
        return ""
    with path.open("rb") as file:
        header = file.read(16)
    if len(header) < 16:
        return "it is cut short"
    if f".{sys.implementation.cache_tag}." in path.name and header[:4] != importlib.util.MAGIC_NUMBER:
        return "it was compiled by another Python"
    if int.from_bytes(header[4:8], "little") & _HASHED:
        same = header[8:] == importlib.util.source_hash(source.read_bytes())
        return "" if same else "its source has another hash"
    seen = source.stat()
    recorded = tuple(int.from_bytes(header[at : at + 4], "little") for at in (8, 12))
    same = recorded == (int(seen.st_mtime) & 0xFFFFFFFF, seen.st_size & 0xFFFFFFFF)
    return "" if same else "its source has another time or size"


def _dpkg_packages(status: Path) -> Iterator[tuple[str, str, int]]:
    """Name, version and bytes of all that dpkg has installed."""
    entries = status.read_text(errors="replace").split("\n\n") if status.is_file() else []
    for entry in entries:
        fields = dict(re.findall(r"^(Package|Status|Version|Installed-Size): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield f"deb/{fields['Package']}", fields["Version"], int(fields.get("Installed-Size", 0)) * 1024


def _rpm_packages(root: str) -> Iterator[tuple[str, str, int]]:
    """The same of rpm; of a database that can't be read nothing, and then all that is locked counts as missing."""
    if not Path(root, _RPM_DATABASE.lstrip("/")).is_dir() or not shutil.which("rpm"):
        return
    where = ["--root", root, "--dbpath", _RPM_DATABASE]
    argv = ["rpm", *where, "--query", "--all", "--queryformat", _RPM_PACKAGE]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    for name, version, size in (line.split("\t") for line in sorted(done.stdout.splitlines())):
        if name != "gpg-pubkey":  # a key, no package
            yield f"rpm/{name}", version, int(size)


def _recorded_bytes(record: Path) -> int:
    with record.open(newline="", encoding="utf-8") as file:
        return sum(int(row[2]) for row in csv.reader(file) if len(row) == 3 and row[2])


def normal(name: str) -> str:
    """The one way to write the name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    looks = {"modules": modules, "files": files}
    print(json.dumps(looks[sys.argv[1]](json.load(sys.stdin))))  # type: ignore[operator]
