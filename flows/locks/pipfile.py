"""Pipfiles: what a bundle asks for, its mistakes, and the hash that a lock knows it by. Nothing is resolved here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from flows.documents import Mistake, Mistakes, parse_toml

FIRST_CATEGORY = "packages"
# Category → what a lock calls it; every other has its own name there.
LOCK_KEYS = {FIRST_CATEGORY: "default", "dev-packages": "develop"}

# Sections of a Pipfile that hold no packages; every other one is a category.
_OTHER_SECTIONS = frozenset({"source", "requires", "scripts", "pipenv", "pipfile"})
_UNCONDITIONAL = {"version", "extras", "index", "ref", "skip_resolver"}
_PYPI = {"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": True}


@dataclass(frozen=True)
class Pipfile:
    """What a Pipfile asks for: its categories, its Python (empty: any), pipenv's hash of it, its sources.

    `packages` maps each category to its packages, with what is asked of them.
    """

    path: Path
    categories: tuple[str, ...]
    python: str
    digest: str
    sources: tuple[Mapping[str, Any], ...]
    packages: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def everywhere(self, categories: Iterable[str]) -> tuple[str, ...]:
        """The packages that these categories ask for on any machine: those without a marker."""
        asked = {name: how for category in categories for name, how in self.packages.get(category, {}).items()}
        return tuple(
            sorted(name for name, how in asked.items() if not isinstance(how, dict) or how.keys() <= _UNCONDITIONAL)
        )


def read_pipfile(path: Path) -> Pipfile:
    """Read and check a Pipfile.

    Raises:
        Mistakes: it is missing, is not TOML, holds a credential, or asks for what can't be locked with hashes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Mistakes([Mistake(path, 0, f"this file can't be read: {error}")]) from None
    data = parse_toml(text, path)
    if mistakes := [*_source_mistakes(path, text, data), *_category_mistakes(path, text, data)]:
        raise Mistakes(mistakes)
    categories = tuple(name for name in data if name not in _OTHER_SECTIONS)
    python = str(data.get("requires", {}).get("python_version", ""))
    packages = {name: data[name] for name in categories}
    return Pipfile(path, categories, python, _digest(data), tuple(data.get("source", [_PYPI])), packages)


def _digest(data: Mapping[str, Any]) -> str:
    """The hash that pipenv writes into a lock (`plette.Pipfile.get_hash`)."""
    content = {
        "_meta": {"sources": data.get("source", [_PYPI]), "requires": data.get("requires", {})},
        "default": data.get(FIRST_CATEGORY, {}),
        "develop": data.get("dev-packages", {}),
        **{name: value for name, value in data.items() if name not in {*_OTHER_SECTIONS, *LOCK_KEYS}},
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
                for mistake in _package_mistakes(path, name, asked):
                    yield replace(mistake, line=_line(text, category, name))


def _package_mistakes(path: Path, name: str, asked: object) -> Iterable[Mistake]:
    version = asked.get("version", "*") if isinstance(asked, dict) else asked
    if isinstance(asked, dict) and (other := sorted({"git", "path", "file", "editable"} & set(asked))):
        what = f"{name}: {other[0]!r} has no hash, so it can't be locked"
        yield Mistake(path, 0, what, "name a version, and put its wheel into a folder of the setting wheel_folders")
        return
    try:
        Requirement(name if version == "*" else f"{name} {version}")
    except InvalidRequirement as error:
        yield Mistake(path, 0, f"{name}: {str(error).splitlines()[0]}", 'write it like `six = "~=1.16"`')


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
