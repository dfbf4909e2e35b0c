"""Reads what a person installed in a session: runs in its container, as its user, and prints JSON.

It prints the attributes of `flows.authoring.capture.facts.Installed`. The files belong to somebody who may want to be
read otherwise: no link is followed, nothing but plain files is opened, and time, files and bytes are bounded.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS, ENTRIES, DEPTH = 60.0, 200_000, 6
MOST_TEXT, MOST_PACKAGES, MOST_NAMES = 1 << 16, 5_000, 500
SKIPPED = {".cache", ".git", "node_modules", "__pycache__", "site-packages", "pkgs", "Trash"}
EDITORS = (".local/share/code-server/extensions", ".vscode-server/extensions")
NODE = (".npm-global/lib/node_modules", ".local/lib/node_modules", "/usr/local/lib/node_modules")
KERNELS = ".local/share/jupyter/kernels"
DPKG = Path("/var/lib/dpkg/status")
# Of dnf: why each package was installed. The second one has its work since the last checkpoint.
HISTORY = (Path("/var/lib/dnf/history.sqlite"), Path("/var/lib/dnf/history.sqlite-wal"))
MOST_HISTORY = 64 << 20  # bytes of each

_SITE = re.compile(r"python(\d+\.\d+)")
_EXTENSION = re.compile(r"([\w-]+\.[\w-]+)-(\d[\w.]*)")
_FIELD = re.compile(r"(Name|Version): *(.*?) *$", re.IGNORECASE)
_EXTRA = re.compile(
    r"""Requires-Dist: *([A-Za-z0-9._-]+)[^;]*; *extra *== *["']([A-Za-z0-9._-]+)["'] *""", re.IGNORECASE
)
_NEED = re.compile(r"Requires-Dist: *([A-Za-z0-9._-]+)(?!.*\bextra *==)", re.IGNORECASE)


class Bounds:
    """How much may still be looked at."""

    def __init__(self) -> None:
        self.until, self.entries, self.missed = time.monotonic() + SECONDS, ENTRIES, dict[str, None]()

    def left(self) -> bool:
        """Whether there may be more; if not, that is told."""
        self.entries -= 1
        if self.entries < 0 or time.monotonic() > self.until:
            self.missed[f"only {ENTRIES:,} entries are looked at, {DEPTH} folders deep, for {SECONDS:.0f} s"] = None
            return False
        return True


def main() -> None:
    """Print everything that is asked for."""
    home, bounds = Path(os.environ["HOME"]), Bounds()
    own = [Path(folder) for folder in sys.path if folder.endswith("-packages") and not folder.startswith(f"{home}/")]
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    places: list[dict[str, object]] = [
        {"path": ".", "python": minor, "packages": [p for folder in own for p in packages(folder, bounds)]}
    ]
    places += [place for path in (".local", *environments(home, bounds)) for place in sites(home, path, bounds)]
    others = {
        "VS Code extension": sorted({name for folder in EDITORS for name in extensions(home / folder, bounds)}),
        "R package": sorted(set(libraries(home / "R", bounds))),
        "npm package": sorted({name for folder in NODE for name in names(home / folder, bounds)} - {"npm", "corepack"}),
        "Jupyter kernel": sorted(names(home / KERNELS, bounds)),
    }
    few = {kind: named[:MOST_NAMES] for kind, named in others.items() if named}
    for kind, named in others.items():
        if len(named) > MOST_NAMES:
            bounds.missed[f"of {len(named)} of this kind only {MOST_NAMES} are told: {kind}"] = None
    report = {"python": minor, "places": places, "system": system(), "others": few, "missed": list(bounds.missed)}
    content = json.dumps(report, ensure_ascii=False).encode(errors="replace")  # names of files may be no text
    sys.stdout.buffer.write(content)


def names(folder: Path, bounds: Bounds) -> list[str]:
    """The names in a folder that are folders themselves; none if there is no such folder, or it is a link."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return []
        with os.scandir(folder) as entries:
            return [e.name for e in entries if bounds.left() and e.is_dir(follow_symlinks=False) and e.name[0] != "."]
    except OSError:
        return []


def packages(site: Path, bounds: Bounds) -> Iterator[dict[str, object]]:
    """The Python packages in a folder, each with what its metadata say."""
    folders = [name for name in sorted(names(site, bounds)) if name.endswith(".dist-info")]
    if len(folders) > MOST_PACKAGES:
        bounds.missed[f"of {len(folders)} packages only {MOST_PACKAGES} are looked at"] = None
    for name in folders[:MOST_PACKAGES]:
        yield package(site / name)


def package(info: Path) -> dict[str, object]:
    """A package as its metadata describe it."""
    try:
        fields, needs, extras = dict[str, str](), list[str](), list[tuple[str, str]]()
        for line in text(info / "METADATA").splitlines():
            if not line.strip():
                break
            if match := _FIELD.fullmatch(line):
                fields.setdefault(match[1].lower(), match[2])
            elif match := _NEED.match(line):
                needs.append(match[1])
            elif match := _EXTRA.fullmatch(line):  # one with other conditions may be for another machine
                extras.append((match[2], match[1]))
        if fields.keys() != {"name", "version"}:
            raise ValueError("its METADATA have no name, or no version")
        more = {"installer": installer(info), "needs": needs[:MOST_NAMES], "url": url(info / "direct_url.json")}
        return {**fields, "requested": is_plain(info / "REQUESTED"), "extras": extras[:MOST_NAMES], **more}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return {"name": info.name, "problem": f"its METADATA can't be read: {why}"}


def installer(info: Path) -> str:
    """The program that installed a package; empty: it doesn't say."""
    try:
        return text(info / "INSTALLER").strip()[:50]
    except OSError:
        return ""


def url(file: Path) -> str:
    """Where a package came from, if that isn't an index."""
    try:
        document = json.loads(text(file))
        return str(document["url"])[:500]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "a place that its direct_url.json doesn't say"


def is_plain(file: Path) -> bool:
    """Whether there is a plain file."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        return False


def text(file: Path) -> str:
    """The beginning of a plain file."""
    return content(file).decode(errors="replace")


def content(file: Path, most: int = 0) -> bytes:
    """The content of a plain file, which has so many bytes at most; 0: its beginning.

    Raises:
        OSError: it can't be read, or is no plain file.
        ValueError: it has more bytes.
    """
    opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(opened, "rb") as plain:  # noqa: PTH123 - it is open
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(0, "it is no plain file")
        said = plain.read(most + 1 if most else MOST_TEXT)
    if most and len(said) > most:
        raise ValueError("it has too many bytes")
    return said


def environments(home: Path, bounds: Bounds) -> Iterator[str]:
    """The paths of virtual environments below the home."""
    waiting = [("", 0)]
    while waiting:
        path, depth = waiting.pop()
        if path and is_plain(home / path / "pyvenv.cfg"):
            yield path
        elif depth < DEPTH:
            inside = [name for name in names_with_hidden(home / path, bounds) if name not in SKIPPED]
            waiting += [(f"{path}/{name}" if path else name, depth + 1) for name in sorted(inside, reverse=True)]


def names_with_hidden(folder: Path, bounds: Bounds) -> list[str]:
    """As `names`, with those that begin with a dot."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if bounds.left() and entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def sites(home: Path, path: str, bounds: Bounds) -> Iterator[dict[str, object]]:
    """The packages of an environment, or of `pip --user`; of one with several Pythons, those of each."""
    for name in sorted(names(home / path / "lib", bounds)):
        if (match := _SITE.fullmatch(name)) and (
            installed := list(packages(home / path / "lib" / name / "site-packages", bounds))
        ):
            yield {"path": path, "python": match[1], "packages": installed}


def extensions(folder: Path, bounds: Bounds) -> Iterator[str]:
    """Extensions of VS Code, as `publisher.name 1.2.3`."""
    for name in names(folder, bounds):
        if match := _EXTENSION.match(name):
            yield f"{match[1]} {match[2].removesuffix('.')}"


def libraries(folder: Path, bounds: Bounds) -> Iterator[str]:
    """R packages in a home: `R/<platform>/<version>/<package>`."""
    for platform in names(folder, bounds):
        for version in names(folder / platform, bounds):
            yield from names(folder / platform / version, bounds)


def system() -> list[str] | None:
    """The system packages that were installed by name; none: the package manager isn't there, or doesn't tell.

    Without a record of the reason, dnf counts a package as wanted: so it does with those that rpm alone installed. To a
    user who can't read its record it says so of all, and its database can't be read without being written. So it gets
    a copy.
    """
    if DPKG.is_file():
        return by_name("apt-mark", "showmanual")
    try:
        with tempfile.TemporaryDirectory() as records:
            return wanted_by_dnf(Path(records))
    except (OSError, ValueError):
        return None


def wanted_by_dnf(records: Path) -> list[str] | None:
    """As `system`, by a copy of dnf's record in a folder; raises OSError or ValueError if it can't be copied."""
    for file in HISTORY:
        if file.exists():
            (records / file.name).write_bytes(content(file, MOST_HISTORY))
    own = (f"--setopt={kind}={records}" for kind in ("persistdir", "cachedir", "logdir"))
    call = ("repoquery", "--userinstalled", "--queryformat", "%{name}\n")
    return by_name("dnf", "--quiet", "--noplugins", "--disablerepo=*", *own, *call)


def by_name(*argv: str) -> list[str] | None:
    """The names that a package manager prints, a line each; none: it can't say."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=SECONDS, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    lines = (line.partition(":")[0].strip() for line in done.stdout.splitlines())
    return [line for line in lines if line][:MOST_PACKAGES]


if __name__ == "__main__":
    main()
