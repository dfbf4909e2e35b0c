"""Python locks: what they say, whether they fit their Pipfile, and how two differ. `make_python_lock` makes them.

All sections of a Pipfile are locked together, so that an IDE never changes a version of the bundle's. The exports
(`requirements.txt`, `requirements-<category>.txt`) are what gets installed; they are made from the lock here, in the
format of `pipenv requirements --hash --exclude-index`, sorted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import yaml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field

from flows.core.documents import Mistake, Mistakes, bounds, compose, line_of, parse_json, text_of, unreadable
from flows.core.errors import UnknownName
from flows.locks.pipfile import FIRST_CATEGORY, LOCK_KEYS, Pipfile, read_pipfile
from flows.locks.source_builds import BUILDER, Built

RELOCK = "run `refit lock`"
_COMPILE = "make it with `uv pip compile --generate-hashes`"
_LOCKED = re.compile(r"^[^ ]+==[^ ,;]+( ?;.*?)?( --hash=sha256:[0-9a-f]{64})+$")
_REMEMBERED = 16  # locks
_UNWANTED = "take it out, or let the Pipfile ask for it and run `refit lock`"


class _Entry(BaseModel):
    """A lock's entry of a package."""

    model_config = ConfigDict(strict=True)

    version: str = ""
    hashes: list[Annotated[str, Field(pattern=r"^sha(256|384|512):[0-9a-f]+$")]] = []
    extras: list[str] = []
    markers: str = ""
    index: str | None = None


class _Meta(BaseModel):
    """A lock's section about itself."""

    hash: dict[str, str]
    sources: list[dict[str, Any]]


class _Lock(BaseModel):
    """The shape of a lock of pipenv: all that isn't of itself are categories."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, _Entry]]

    meta: _Meta = Field(alias="_meta")


@dataclass(frozen=True)
class LockChange:
    """The changes of a new lock: package → version, or versions before and after. Nothing in it: nothing moved."""

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


def read(folder: Path, categories: Iterable[str] = (FIRST_CATEGORY,)) -> tuple[str, ...]:
    """The requirements of some categories as they are installed: sorted lines, each with its hashes, each once.

    Raises:
        Mistakes: there is no lock, or it can't be read.
        UnknownName: the lock has no such category.
    """
    lock = _read_lock(folder)
    return tuple(sorted({line for category in categories for line in _lines(lock, category, folder)}))


def require_readable(folder: Path) -> None:
    """Check that the `Pipfile.lock` in a folder is one, whatever it was made of.

    Raises:
        Mistakes: the lines that are not those of a lock.
    """
    _read_lock(folder)


def verify(folder: Path) -> None:
    """Check that `Pipfile.lock` was made of the Pipfile beside it, and the exports of the lock.

    Raises:
        Mistakes: some of it doesn't match; all mistakes are named, file by file.
    """
    pipfile, lock = read_pipfile(folder / "Pipfile"), _read_lock(folder)
    if lock["_meta"]["hash"].get("sha256") != pipfile.digest:
        raise Mistakes(_in_lock(folder, {"it was made of another Pipfile": ("_meta", "hash", "sha256")}))
    mistakes = [*_in_lock(folder, problems(lock, pipfile)), *unlocked(lock, pipfile)]
    for name, content in exports(lock, pipfile).items():
        file = folder / name
        try:
            line = _first_difference(bounds.read_bytes(file, bounds.TEXT), content.encode())
        except FileNotFoundError:
            mistakes.append(Mistake(file, 0, "this file is missing", RELOCK))
        except OSError as error:
            mistakes.append(unreadable(file, error, RELOCK))
        else:
            mistakes += [Mistake(file, line, "it doesn't say what Pipfile.lock says", RELOCK)] if line else []
    if mistakes:
        raise Mistakes(mistakes)


def _first_difference(present: bytes, expected: bytes) -> int:
    """The first line, from 1, in which two texts differ; 0: none."""
    pairs = enumerate(zip_longest(present.splitlines(keepends=True), expected.splitlines(keepends=True)), 1)
    return next((number for number, (one, other) in pairs if one != other), 0)


def lines(text: str) -> tuple[str, ...]:
    """The requirements of a file that uv or pip wrote: one line each, with its hashes, without comments."""
    whole = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return tuple(" ".join(line.split()) for line in whole.splitlines() if line.strip())


def exact(file: Path) -> tuple[str, ...]:
    """The requirements of a file that uv or pip wrote, each of one version with hashes.

    Raises:
        Mistakes: it can't be read, or says something else.
    """
    try:
        listed = lines(bounds.read_text(file))
    except (OSError, UnicodeDecodeError) as error:
        raise Mistakes([unreadable(file, error, _COMPILE)]) from None
    if wrong := [line for line in listed if not _is_locked(line)]:
        what = f"{wrong[0][:60]!r} is no package in one version with its hashes"
        raise Mistakes([Mistake(file, _line(file, wrong[0]), what, _COMPILE)])
    return listed


def _is_locked(line: str) -> bool:
    try:
        return _LOCKED.search(line) is not None and _exact(line) is not None
    except InvalidRequirement:
        return False


def _line(file: Path, requirement: str) -> int:
    """The line on which a requirement begins, from 1."""
    first = requirement.split(maxsplit=1)[0]
    rows = enumerate(text_of(file).splitlines(), 1)
    return next((number for number, row in rows if row.lstrip().startswith(first)), 1)


def versions(lines: Iterable[str]) -> dict[str, str]:
    """Package → version of requirement lines, names normalised."""
    return dict(requirement for line in lines if (requirement := _exact(line)))


@cache
def _exact(line: str) -> tuple[str, str] | None:
    """The package and version that a line names; none: it names no version."""
    requirement = Requirement(line.partition(" --hash")[0])
    version = next(iter(requirement.specifier), None)
    return (canonicalize_name(requirement.name), version.version) if version else None


def exports(lock: Mapping[str, Any], pipfile: Pipfile) -> dict[str, str]:
    """File name → content of the requirements of each category."""
    return {
        "requirements.txt" if category == FIRST_CATEGORY else f"requirements-{category}.txt": "".join(
            f"{line}\n" for line in _lines(lock, category, pipfile.path.parent)
        )
        for category in pipfile.categories
    }


def problems(lock: Mapping[str, Any], pipfile: Pipfile) -> dict[str, tuple[str, ...]]:
    """Why a lock can't be used, in words, and the keys under which that stands in it; empty: it can."""
    problems: dict[str, tuple[str, ...]] = {}
    first: dict[str, tuple[str, str]] = {}
    for category in pipfile.categories:
        key = LOCK_KEYS.get(category, category)
        for name, entry in lock.get(key, {}).items():
            version = entry.get("version", "")
            if not re.fullmatch(r"==\S+", version) or not entry.get("hashes"):
                problems[f"{name} of [{category}] has no exact version with hashes"] = (key, name)
            other, first_category = first.setdefault(name, (version, category))
            if other != version:
                problems[f"{name} is {other[2:]} in [{first_category}] but {version[2:]} in [{category}]"] = (key, name)
            expected, index = pipfile.index_of(category, name), entry.get("index")
            if index not in (None, expected):
                what = f"{name} of [{category}] comes from the source {index!r}, and not from {expected!r}"
                problems[what] = (key, name)
    if [source.get("url") for source in lock["_meta"]["sources"]] != [source["url"] for source in pipfile.sources]:
        problems["its sources are not those of the Pipfile"] = ("_meta", "sources")
    return problems


def unlocked(lock: Mapping[str, Any], pipfile: Pipfile) -> list[Mistake]:
    """The packages that are to be taken as source, but that a lock has not."""
    categories = [LOCK_KEYS.get(category, category) for category in pipfile.categories if category != BUILDER]
    locked = {canonicalize_name(name) for key in categories for name in lock.get(key, {})}
    return [
        Mistake(file, line, f"{name} is not in {pipfile.path.parent.name}/Pipfile.lock", _UNWANTED)
        for name, (file, line) in pipfile.built.items()
        if name not in locked
    ]


def split(lines: Iterable[str], built: Built) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Requirement lines: those that are installed from the index's wheels, and those that are taken as source."""
    lines = tuple(lines)
    of_source = tuple(line for line in lines if built and versions([line]).keys() & built.keys())
    return tuple(line for line in lines if line not in of_source), of_source


def locked(folder: Path) -> dict[str, str]:
    """Package → version over all categories of the lock in a folder; empty: there is none that can be read."""
    try:
        lock = _read_lock(folder)
    except Mistakes:
        return {}
    return versions(line for key in lock if key != "_meta" for line in _lines(lock, key, folder))


def by_category(folder: Path) -> dict[str, dict[str, str]]:
    """Category → package → version of the lock in a folder.

    Raises:
        Mistakes: there is no lock, or it can't be read.
    """
    return {name: versions(read(folder, [name])) for name in read_pipfile(folder / "Pipfile").categories}


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
        text = bounds.read_text(file, bounds.JSON)
    except FileNotFoundError:
        raise Mistakes([Mistake(file, 0, "this file is missing", RELOCK)]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Mistakes([unreadable(file, error, RELOCK)]) from None
    return _understood(text, file)


@lru_cache(_REMEMBERED)
def _understood(text: str, file: Path) -> dict[str, Any]:
    """The parsed content of a lock, not to be changed: parsing takes longer than all that is done with it."""
    lock = parse_json(text, file, _Lock, RELOCK)
    if wrong := {what: place for key in lock if key != "_meta" for what, place in _unreadable(key, lock[key])}:
        raise Mistakes(_in_lock(file.parent, wrong))
    return lock


def _unreadable(key: str, entries: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The mistakes in entries of a category that are no requirements, and their keys in the lock."""
    for name, entry in entries.items():
        try:
            requirement = _exact(_requirement(name, entry))
            Version(requirement[1] if requirement else "0")
        except (InvalidRequirement, InvalidVersion) as error:
            yield f"{name} of [{key}]: {str(error).splitlines()[0]}", (key, name)


def _in_lock(folder: Path, packages: Mapping[str, Sequence[str]]) -> list[Mistake]:
    """The mistakes in the lock in a folder → the keys under which it stands there, with its lines.

    They are counted in what YAML makes of its JSON: nothing else tells of lines.
    """
    file = folder / "Pipfile.lock"
    node: yaml.Node | None = None
    with suppress(Mistakes):
        node = compose(text_of(file, bounds.JSON), file) if packages else None
    return [Mistake(file, line_of(node, keys), what, RELOCK) for what, keys in packages.items()]


def _lines(lock: Mapping[str, Any], category: str, folder: Path) -> list[str]:
    key = LOCK_KEYS.get(category, category)
    if key not in lock or key == "_meta":
        names = {lock_key: name for name, lock_key in LOCK_KEYS.items()}
        raise UnknownName(
            "category", category, (names.get(k, k) for k in lock if k != "_meta"), where=str(folder / "Pipfile.lock")
        )
    return sorted(_requirement(name, entry) for name, entry in lock[key].items())


def _requirement(name: str, entry: Mapping[str, Any]) -> str:
    extras = f"[{','.join(sorted(entry['extras']))}]" if entry.get("extras") else ""
    markers = f"; {entry['markers']}" if entry.get("markers") else ""
    hashes = "".join(f" --hash={value}" for value in sorted(entry.get("hashes", ())))
    return f"{name}{extras}{entry.get('version', '')}{markers}{hashes}"
