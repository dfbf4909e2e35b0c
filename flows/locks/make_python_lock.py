"""Makes Python locks: pipenv resolves a Pipfile to exact versions with hashes, in a container of the base it is for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from flows.core.atomic_files import write_together
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import containers
from flows.host.containers import Mount
from flows.locks import cutoff, policy
from flows.locks.pipfile import FIRST_CATEGORY, Pipfile, as_text, read_pipfile
from flows.locks.policy import Bounds
from flows.locks.python_lockfile import LockChange, change, exports, locked, problems, read, unlocked, versions
from flows.locks.source_builds import sources_file

LOCK_SECONDS = 1800.0

_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

_CA_BUNDLE = "/run/refit/ca.pem"

# An environment of its own makes pipenv resolve for the base's Python, and write nothing beside it.
# Taking a source runs code of strangers: only that of the packages which the bundle names. pip keeps to the order of
# its file; of two variables, the one would end the other.
_SCRIPT = """
set -eu
cd "$(mktemp -d)"
export HOME="$PWD" VIRTUAL_ENV="$PWD/env"
printf '[global]\\nonly-binary = :all:\\nno-binary = %s\\n' "$SOURCES" > pip.conf
export PIP_CONFIG_FILE="$PWD/pip.conf"
/opt/locker/bin/python -m venv --without-pip env
mkdir project
cd project
cat > Pipfile
/opt/locker/bin/pipenv lock >&2
../env/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'
cat Pipfile.lock
"""
_ENVIRONMENT = {
    "COLUMNS": "1000",
    "NO_COLOR": "1",
    "PIPENV_NOSPIN": "1",
    "PIPENV_VERBOSITY": "-1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


class Unresolvable(RefitError):
    """A Pipfile for which no set of packages exists."""


def lock(
    folder: Path, image: str, settings: Settings, bounds: Bounds | None = None, until: date | None = None
) -> LockChange:
    """Lock the Pipfile in `folder` and write `Pipfile.lock` and the exports beside it, all or none.

    Args:
        folder: a bundle's folder for one Python.
        image: digest of the `locker` stage in the registry, or the name of a local image.
        settings: where the registry is, and what locks need.
        bounds: how far the packages may move; none: as far as the Pipfile lets them.
        until: only what was uploaded before that day (UTC) counts; none: all that is there.

    Raises:
        Mistakes: the Pipfile has mistakes.
        Unresolvable: no set of packages satisfies it, or a package has no wheel for this Python.
        Forbidden: a version in the new lock is out of its bounds.
    """
    pipfile = read_pipfile(folder / "Pipfile")
    python, text = _resolve(pipfile, _asked(pipfile, bounds), image, settings, until)
    if bounds and (astray := policy.astray(bounds, _by_category(text, pipfile))):
        python, text = _resolve(pipfile, _asked(pipfile, bounds, astray), image, settings, until)
    if pipfile.python not in ("", python):
        raise RefitError(
            f"{pipfile.path} is for Python {pipfile.python}, but the base has Python {python}.",
            hint="set python_version in its [requires], or move it to the folder of the other Python.",
        )
    lock = with_wheels(cutoff.settle(json.loads(text), pipfile, until, settings), _wheels(settings.wheel_folders))
    _check(lock, pipfile)
    files = exports(lock, pipfile)
    if bounds:
        policy.check(bounds, versions(line for file in files.values() for line in file.splitlines()))
        lock["_meta"]["hash"]["sha256"] = pipfile.digest  # of the bundle's own, not of the one that was made of it
    before = locked(folder)
    _write(folder, {**files, "Pipfile.lock": _dump(lock)})
    return change(before, locked(folder))


def _check(lock: Mapping[str, Any], pipfile: Pipfile) -> None:
    if wrong := problems(lock, pipfile):
        raise RefitError(
            f"The lock of {pipfile.path} can't be used.",
            why="\n".join(f"  {line}" for line in wrong),
            hint="remove the package that this base can't install (a marker is false here), or change its version.",
        )
    if missing := unlocked(lock, pipfile):
        raise Mistakes(missing)


def without_bounds(folder: Path, image: str, settings: Settings, until: date | None = None) -> dict[str, str]:
    """Package → version that the Pipfile in `folder` alone would be locked to; nothing is written. Raises as `lock`."""
    pipfile = read_pipfile(folder / "Pipfile")
    _, text = _resolve(pipfile, _asked(pipfile, None), image, settings, until)
    return {name: version for packages in _by_category(text, pipfile).values() for name, version in packages.items()}


def _by_category(text: str, pipfile: Pipfile) -> dict[str, dict[str, str]]:
    """Category → package → version of a lock's text."""
    files = exports(json.loads(text), pipfile).values()
    return {name: versions(file.splitlines()) for name, file in zip(pipfile.categories, files, strict=True)}


def _asked(pipfile: Pipfile, bounds: Bounds | None, astray: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """The Pipfile that pipenv is given."""
    return policy.bounded(pipfile.data, pipfile.categories, bounds, astray) if bounds else as_text(pipfile.data)


def with_wheels(lock: Mapping[str, Any], wheels: Mapping[tuple[str, str], Sequence[str]]) -> dict[str, Any]:
    """A lock that also accepts these wheels: (name, version) → `sha256:…` of each.

    pipenv finds wheels in folders, but where the index knows the version too, it writes down the index's hashes only.
    """

    def accepting(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        further = wheels.get((canonicalize_name(name), entry.get("version", "").removeprefix("==")), ())
        return {**entry, "hashes": sorted({*entry["hashes"], *further})} if further else dict(entry)

    return {
        key: value if key == "_meta" else {name: accepting(name, entry) for name, entry in value.items()}
        for key, value in lock.items()
    }


def _resolve(
    pipfile: Pipfile, pipfile_text: str, image: str, settings: Settings, until: date | None
) -> tuple[str, str]:
    """Run pipenv on a text in the place of a Pipfile; returns the Python that it ran with, and the text of the lock."""
    if image.startswith("sha256:"):
        image = f"docker://{settings.registry_host}/{settings.repository}/stages@{image}"
    mounts, env = _belongings(settings)
    output: list[str] = []
    try:
        done = containers.run_once(
            settings,
            image,
            ["/bin/sh", "-c", _SCRIPT],
            mounts=mounts,
            env={
                **pipfile.environment,
                **_ENVIRONMENT,
                **env,
                **cutoff.environment(until),
                "SOURCES": ",".join(pipfile.built),
            },
            network="host",  # as in builds: the index may be on loopback
            stdin=pipfile_text,
            limit=LOCK_SECONDS,
            on_line=output.append,
        )
    except ProgramFailed as error:
        raise explain(pipfile, output) or error from None
    python, _, text = done.stdout.partition("\n")
    return python, text


def _belongings(settings: Settings) -> tuple[list[Mount], dict[str, str]]:
    """The host's authorities, index and wheels, as mounts and variables."""
    mounts: list[Mount] = []
    env: dict[str, str] = {}
    if settings.ca_bundle:
        mounts.append(Mount(settings.ca_bundle, _CA_BUNDLE))
        env |= dict.fromkeys(("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), _CA_BUNDLE)
    if index := settings.pip_index_url.get_secret_value():
        env["PIPENV_PYPI_MIRROR"] = index
    targets = [f"/run/refit/wheels/{number}" for number, _ in enumerate(settings.wheel_folders)]
    mounts += [Mount(folder, target) for folder, target in zip(settings.wheel_folders, targets, strict=True)]
    if targets:
        env["PIP_FIND_LINKS"] = " ".join(targets)
    return mounts, env


def explain(pipfile: Pipfile, output: Sequence[str]) -> Unresolvable | None:
    """The conflict in a Pipfile by pipenv's output, without its traceback; none: something else failed."""
    conflict = _conflict(output)
    if conflict and any("Success" in line for line in output):
        conflict.append(f"  The versions to which [{FIRST_CATEGORY}] was resolved hold for the other sections, too.")
    missing = sorted({m[1] for line in output if (m := re.search(r"No matching distribution found for (.+)", line))})
    if missing:
        return Unresolvable(
            f"{pipfile.path} can't be locked: the index has no wheel of {', '.join(missing)} for this Python.",
            why="\n".join(conflict),
            hint="check name and version; let a package that is published as source only stand in "
            f"{sources_file(pipfile.path.parents[1])}, and Refit makes its wheel.",
        )
    if failed := [m for line in output if (m := re.match(r"ERROR: (Failed to build '?([\w.-]+).*)", line))]:
        return Unresolvable(
            f"{pipfile.path} can't be locked: the source of {failed[0][2]} doesn't tell what it depends on.",
            why=f"{failed[0][1]}. Locks are made in the base, which has no compilers.",
            hint="take another version, or build its wheel and put that into a folder of the setting wheel_folders.",
        )
    if conflict:
        return Unresolvable(
            f"{pipfile.path} can't be locked: its requirements contradict each other.",
            why="\n".join(conflict),
            hint="loosen or change one of these versions in the Pipfile.",
        )
    return None


def _conflict(output: Sequence[str]) -> list[str]:
    """The lines below the last "The conflict is caused by"."""
    starts = [number for number, line in enumerate(output) if line.startswith("The conflict is caused by")]
    lines: list[str] = []
    for line in output[starts[-1] + 1 :] if starts else ():
        if not line.startswith("    "):
            break
        lines.append(f"  {line.strip()}")
    return lines


def in_folders(folders: Iterable[Path]) -> dict[tuple[str, str], list[Path]]:
    """Name and version of a package → its wheels in these folders."""
    wheels: dict[tuple[str, str], list[Path]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.whl"))):
        with suppress(InvalidWheelFilename):  # pip doesn't see it either
            name, version, *_ = parse_wheel_filename(file.name)
            wheels.setdefault((name, str(version)), []).append(file)
    return wheels


def from_folders_alone(folder: Path, folders: Iterable[Path]) -> tuple[str, ...]:
    """The packages of the lock in `folder` that no index was known to have, only these folders of wheels.

    Raises:
        Mistakes: there is no lock, or it can't be read.
    """
    wheels = in_folders(folders)
    names = set[str]()
    for line in read(folder, read_pipfile(folder / "Pipfile").categories) if wheels else ():
        for of in versions([line]).items():
            if of in wheels and set(_HASH.findall(line)) <= {_sha256(file) for file in wheels[of]}:
                names.add(" ".join(of))
    return tuple(sorted(names))


def _wheels(folders: Iterable[Path]) -> dict[tuple[str, str], list[str]]:
    return {of: [f"sha256:{_sha256(file)}" for file in files] for of, files in in_folders(folders).items()}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _dump(lock: Mapping[str, Any]) -> str:
    """As pipenv writes it."""
    return json.dumps(lock, indent=4, separators=(",", ": "), sort_keys=True) + "\n"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files or none, the lock last; requirements of categories that are gone go."""
    write_together(folder, files)
    for old in folder.glob("requirements-*.txt"):
        if old.name not in files:
            old.unlink()
