"""Python locks: a Pipfile is resolved to exact versions with hashes, inside a container of the target base.

All sections of a Pipfile are locked together, so that an IDE never changes a version of the bundle's. The exports
(`requirements.txt`, `requirements-<category>.txt`) are what gets installed; they are made from the lock here, in the
format of `pipenv requirements --hash --exclude-index`, sorted.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from flows import containers
from flows.command import ProgramFailed
from flows.containers import Mount
from flows.documents import Mistake, Mistakes
from flows.errors import RefitError, UnknownName
from flows.settings import Settings

FIRST_CATEGORY = "packages"
LOCK_SECONDS = 1800.0
RELOCK = "run `refit lock`"

# Sections of a Pipfile that hold no packages; every other one is a category.
_OTHER_SECTIONS = frozenset({"source", "requires", "scripts", "pipenv", "pipfile"})
_LOCK_KEYS = {FIRST_CATEGORY: "default", "dev-packages": "develop"}
_PYPI = {"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": True}
_CA_BUNDLE = "/run/refit/ca.pem"

# An environment of its own makes pipenv resolve for the base's Python, and write nothing beside it.
_SCRIPT = """
set -eu
cd "$(mktemp -d)"
export HOME="$PWD" VIRTUAL_ENV="$PWD/env"
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
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # Building from source runs code of strangers, and its result has another hash each time.
    "PIP_ONLY_BINARY": ":all:",
}


@dataclass(frozen=True)
class Pipfile:
    """What a Pipfile asks for: its categories, its Python (empty: any), pipenv's hash of it, its sources."""

    path: Path
    categories: tuple[str, ...]
    python: str
    digest: str
    sources: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class LockChange:
    """What a new lock changed: package → version, or versions before and after. Nothing in it: nothing moved."""

    moved: Mapping[str, tuple[str, str]]
    added: Mapping[str, str]
    removed: Mapping[str, str]

    def __bool__(self) -> bool:
        return bool(self.moved or self.added or self.removed)

    def __str__(self) -> str:
        moved = [f"{name} {before} → {after}" for name, (before, after) in self.moved.items()]
        added = [f"+{name} {version}" for name, version in self.added.items()]
        removed = [f"-{name} {version}" for name, version in self.removed.items()]
        return ", ".join([*moved, *added, *removed]) or "nothing moved"


class Unresolvable(RefitError):
    """A Pipfile for which no set of packages exists."""


# --- The Pipfile ----------------------------------------------------------------------------------------------------


def read_pipfile(path: Path) -> Pipfile:
    """Read and check a Pipfile.

    Raises:
        Mistakes: it is missing, is not TOML, holds a credential, or asks for what can't be locked with hashes.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise Mistakes([Mistake(path, 0, f"this file can't be read: {error}")]) from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        line = int(place[1]) if place else len(text.splitlines())
        problem = str(error).removesuffix(place[0]) if place else str(error)
        raise Mistakes([Mistake(path, line, f"this is not valid TOML: {problem}")]) from None
    if mistakes := [*_source_mistakes(path, text, data), *_category_mistakes(path, text, data)]:
        raise Mistakes(mistakes)
    categories = tuple(name for name in data if name not in _OTHER_SECTIONS)
    python = str(data.get("requires", {}).get("python_version", ""))
    return Pipfile(path, categories, python, _digest(data), tuple(data.get("source", [_PYPI])))


def _digest(data: Mapping[str, Any]) -> str:
    """The hash that pipenv writes into a lock (`plette.Pipfile.get_hash`)."""
    content = {
        "_meta": {"sources": data.get("source", [_PYPI]), "requires": data.get("requires", {})},
        "default": data.get(FIRST_CATEGORY, {}),
        "develop": data.get("dev-packages", {}),
        **{name: value for name, value in data.items() if name not in {*_OTHER_SECTIONS, *_LOCK_KEYS}},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _source_mistakes(path: Path, text: str, data: Mapping[str, Any]) -> Iterable[Mistake]:
    sources = data.get("source", [])
    if not isinstance(sources, list) or not all(isinstance(source, dict) and "url" in source for source in sources):
        yield Mistake(path, _line(text, "source"), "source: each needs a url", "write `[[source]]` with name and url")
        return
    for source in sources:
        url = urlsplit(str(source["url"]))
        if url.username or url.password or "$" in url.netloc:
            line = next(number for number, line in enumerate(text.splitlines(), 1) if url.netloc in line)
            yield Mistake(path, line, "source: a credential stands in this URL", "put it into REFIT_PIP_INDEX_URL")


def _category_mistakes(path: Path, text: str, data: Mapping[str, Any]) -> Iterable[Mistake]:
    for category, packages in data.items():
        if category in _OTHER_SECTIONS:
            continue
        line = _line(text, category)
        if not isinstance(packages, dict):
            yield Mistake(path, line, f"{category}: this is not a table of packages", f"write it below `[{category}]`")
        elif not re.fullmatch(r"[a-z][a-z0-9-]*", category):
            yield Mistake(path, line, f"{category}: not a name for a category", "use small letters, digits and `-`")
        else:
            for name, asked in packages.items():
                yield from _package_mistakes(path, _line(text, category, name), name, asked)


def _package_mistakes(path: Path, line: int, name: str, asked: object) -> Iterable[Mistake]:
    version = asked.get("version", "*") if isinstance(asked, dict) else asked
    if isinstance(asked, dict) and (other := sorted({"git", "path", "file", "editable"} & set(asked))):
        what = f"{name}: {other[0]!r} has no hash, so it can't be locked"
        yield Mistake(path, line, what, "name a version, and put its wheel into a folder of the setting wheel_folders")
        return
    try:
        Requirement(name if version == "*" else f"{name} {version}")
    except InvalidRequirement as error:
        yield Mistake(path, line, f"{name}: {str(error).splitlines()[0]}", 'write it like `six = "~=1.16"`')


def _line(text: str, section: str, key: str = "") -> int:
    """The line of a section or of a key in it; tomllib tells no places. 0: not found."""
    found, inside = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line):
            inside = header[1].strip("\"'") == section
            found = number if inside and not found else found
        elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
        elif not found and re.match(rf"\s*[\"']?{re.escape(section)}[\"']?\s*=", line):
            found = number
    return found


# --- The lock and its exports ---------------------------------------------------------------------------------------


def read(folder: Path, categories: Iterable[str] = (FIRST_CATEGORY,)) -> tuple[str, ...]:
    """The requirements of some categories as they are installed: sorted lines, each with its hashes, each once.

    Raises:
        Mistakes: there is no lock, or it can't be read.
        UnknownName: the lock has no such category.
    """
    lock = _read_lock(folder)
    return tuple(sorted({line for category in categories for line in _lines(lock, category, folder)}))


def verify(folder: Path) -> None:
    """Check that `Pipfile.lock` was made of the Pipfile beside it, and the exports of the lock.

    Raises:
        Mistakes: what doesn't match, file by file.
    """
    pipfile, lock = read_pipfile(folder / "Pipfile"), _read_lock(folder)
    if lock["_meta"]["hash"].get("sha256") != pipfile.digest:
        raise Mistakes([Mistake(folder / "Pipfile.lock", 0, "it was made of another Pipfile", RELOCK)])
    mistakes = [Mistake(folder / "Pipfile.lock", 0, problem, RELOCK) for problem in problems(lock, pipfile)]
    for name, content in exports(lock, pipfile).items():
        file = folder / name
        if not file.exists():
            mistakes.append(Mistake(file, 0, "this file is missing", RELOCK))
        elif file.read_text(encoding="utf-8") != content:
            mistakes.append(Mistake(file, 0, "it doesn't say what Pipfile.lock says", RELOCK))
    if mistakes:
        raise Mistakes(mistakes)


def versions(lines: Iterable[str]) -> dict[str, str]:
    """Package → version of requirement lines, names normalised."""
    found = (Requirement(line.partition(" --hash")[0]) for line in lines)
    return {canonicalize_name(r.name): next(iter(r.specifier)).version for r in found if r.specifier}


def exports(lock: Mapping[str, Any], pipfile: Pipfile) -> dict[str, str]:
    """File name → content of the requirements of each category."""
    return {
        "requirements.txt" if category == FIRST_CATEGORY else f"requirements-{category}.txt": "".join(
            f"{line}\n" for line in _lines(lock, category, pipfile.path.parent)
        )
        for category in pipfile.categories
    }


def problems(lock: Mapping[str, Any], pipfile: Pipfile) -> list[str]:
    """Why a lock can't be used, in words; empty: it can."""
    found: list[str] = []
    first: dict[str, tuple[str, str]] = {}
    for category in pipfile.categories:
        for name, entry in lock.get(_LOCK_KEYS.get(category, category), {}).items():
            version = entry.get("version", "")
            if not re.fullmatch(r"==\S+", version) or not entry.get("hashes"):
                found.append(f"{name} of [{category}] has no exact version with hashes")
            other, there = first.setdefault(name, (version, category))
            if other != version:
                found.append(f"{name} is {other[2:]} in [{there}] but {version[2:]} in [{category}]")
    if [source.get("url") for source in lock["_meta"]["sources"]] != [source["url"] for source in pipfile.sources]:
        found.append("its sources are not those of the Pipfile")
    return found


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


def change(before: Mapping[str, str], after: Mapping[str, str]) -> LockChange:
    """The difference of two sets of packages (name → version)."""
    return LockChange(
        {name: (before[name], after[name]) for name in sorted(before.keys() & after) if before[name] != after[name]},
        {name: after[name] for name in sorted(after.keys() - before)},
        {name: before[name] for name in sorted(before.keys() - after)},
    )


def _read_lock(folder: Path) -> dict[str, Any]:
    file = folder / "Pipfile.lock"
    try:
        lock = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Mistakes([Mistake(file, 0, "this file is missing", RELOCK)]) from None
    except (OSError, ValueError) as error:
        raise Mistakes([Mistake(file, getattr(error, "lineno", 0), f"not a lock: {error}", RELOCK)]) from None
    if not isinstance(lock, dict) or not {"hash", "sources"} <= set(lock.get("_meta", {})):
        raise Mistakes([Mistake(file, 0, "not a lock of pipenv", RELOCK)])
    return lock


def _lines(lock: Mapping[str, Any], category: str, folder: Path) -> list[str]:
    key = _LOCK_KEYS.get(category, category)
    if key not in lock or key == "_meta":
        names = {lock_key: name for name, lock_key in _LOCK_KEYS.items()}
        raise UnknownName(
            "category", category, (names.get(k, k) for k in lock if k != "_meta"), where=str(folder / "Pipfile.lock")
        )
    return sorted(_requirement(name, entry) for name, entry in lock[key].items())


def _requirement(name: str, entry: Mapping[str, Any]) -> str:
    extras = f"[{','.join(sorted(entry['extras']))}]" if entry.get("extras") else ""
    markers = f"; {entry['markers']}" if entry.get("markers") else ""
    hashes = "".join(f" --hash={value}" for value in sorted(entry.get("hashes", ())))
    return f"{name}{extras}{entry.get('version', '')}{markers}{hashes}"


# --- Locking --------------------------------------------------------------------------------------------------------


def lock(folder: Path, image: str, settings: Settings) -> LockChange:
    """Lock the Pipfile in `folder` and write `Pipfile.lock` and the exports beside it, all or none.

    Args:
        folder: a bundle's folder for one Python.
        image: digest of the `locker` stage in the registry, or the name of a local image.

    Raises:
        Mistakes: the Pipfile has mistakes.
        Unresolvable: no set of packages satisfies it, or a package has no wheel for this Python.
    """
    pipfile = read_pipfile(folder / "Pipfile")
    python, text = _resolve(pipfile, image, settings)
    if pipfile.python not in ("", python):
        raise RefitError(
            f"{pipfile.path} is for Python {pipfile.python}, but the base has Python {python}.",
            fix="set python_version in its [requires], or move it to the folder of the other Python.",
        )
    made = with_wheels(json.loads(text), _wheels(settings.wheel_folders))
    if wrong := problems(made, pipfile):
        raise RefitError(
            f"The lock of {pipfile.path} can't be used.",
            why="\n".join(f"  {line}" for line in wrong),
            fix="take out what this base can't install (a marker that is false here), or give it another version.",
        )
    before = _locked(folder)
    _write(folder, {**exports(made, pipfile), "Pipfile.lock": _dump(made)})
    return change(before, _locked(folder))


def _locked(folder: Path) -> dict[str, str]:
    """Package → version over all categories of the lock in a folder; empty: there is none that can be read."""
    try:
        made = _read_lock(folder)
    except Mistakes:
        return {}
    return versions(line for key in made if key != "_meta" for line in _lines(made, key, folder))


def _resolve(pipfile: Pipfile, image: str, settings: Settings) -> tuple[str, str]:
    """Run pipenv; returns the Python that it ran with, and the text of the lock."""
    if image.startswith("sha256:"):
        image = f"docker://{settings.registry_host}/{settings.repository}/stages@{image}"
    mounts, env = _belongings(settings)
    said: list[str] = []
    try:
        done = containers.run_once(
            settings,
            image,
            ["/bin/sh", "-c", _SCRIPT],
            mounts=mounts,
            env={**_ENVIRONMENT, **env},
            network="host",  # as in builds: the index may be on loopback
            stdin=pipfile.path.read_text(encoding="utf-8"),
            limit=LOCK_SECONDS,
            on_line=said.append,
        )
    except ProgramFailed as error:
        raise explain(pipfile, said) or error from None
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


def explain(pipfile: Pipfile, said: Sequence[str]) -> Unresolvable | None:
    """What pipenv's output says about a Pipfile that can't be resolved, without its traceback; none: something else."""
    conflict = _conflict(said)
    if conflict and any("Success" in line for line in said):
        conflict.append(f"  What [{FIRST_CATEGORY}] was resolved to holds for the other sections, too.")
    missing = sorted({m[1] for line in said if (m := re.search(r"No matching distribution found for (.+)", line))})
    if missing:
        return Unresolvable(
            f"{pipfile.path} can't be locked: the index has no wheel of {', '.join(missing)} for this Python.",
            why="\n".join(conflict),
            fix="check name and version; of a package that is published as source only, build a wheel "
            "and put it into a folder of the setting wheel_folders.",
        )
    if conflict:
        return Unresolvable(
            f"{pipfile.path} can't be locked: what it asks for contradicts itself.",
            why="\n".join(conflict),
            fix="loosen or change one of these versions in the Pipfile.",
        )
    return None


def _conflict(said: Sequence[str]) -> list[str]:
    """The lines below the last "The conflict is caused by"."""
    starts = [number for number, line in enumerate(said) if line.startswith("The conflict is caused by")]
    lines: list[str] = []
    for line in said[starts[-1] + 1 :] if starts else ():
        if not line.startswith("    "):
            break
        lines.append(f"  {line.strip()}")
    return lines


def _wheels(folders: Iterable[Path]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.whl"))):
        try:
            name, version, *_ = parse_wheel_filename(file.name)
        except InvalidWheelFilename:
            continue  # pip doesn't see it either
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        found.setdefault((name, str(version)), []).append(f"sha256:{digest}")
    return found


def _dump(lock: Mapping[str, Any]) -> str:
    """As pipenv writes it."""
    return json.dumps(lock, indent=4, separators=(",", ": "), sort_keys=True) + "\n"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write all drafts before the first takes its place, so that a full disk changes nothing; the lock comes last."""
    drafts = {folder / f".{name}.new": folder / name for name in files}
    try:
        for (draft, _), content in zip(drafts.items(), files.values(), strict=True):
            draft.write_text(content, encoding="utf-8")
        for draft, file in drafts.items():
            draft.replace(file)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)
    for old in folder.glob("requirements-*.txt"):
        if old.name not in files:
            old.unlink()
