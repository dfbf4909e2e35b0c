"""Pipfiles: what a bundle asks for, its mistakes, and the hash that a lock knows it by. Nothing is resolved here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from flows.catalog.lineage import CONFIG, lineage
from flows.core.documents import Mistake, Mistakes, bounds, parse_toml, text_of
from flows.locks import source_builds
from flows.locks.source_builds import Built

FIRST_CATEGORY = "packages"
# Category → what a lock calls it; every other has its own name there.
LOCK_KEYS = {FIRST_CATEGORY: "default", "dev-packages": "develop"}

# Sections of a Pipfile that hold no packages; every other one is a category.
_OTHER_SECTIONS = frozenset({"source", "requires", "scripts", "pipenv", "pipfile"})
_UNCONDITIONAL = {"version", "extras", "index", "ref", "skip_resolver"}
_TEXTS = {"version", "index", "markers", "git", "path", "file", "ref"}
_WRITE = 'write it like `six = "~=1.16"`'
# The setting with which pipenv would look for every package on every index.
_ANY_INDEX = "install_search_all_sources"
_PYPI = {"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": True}


@dataclass(frozen=True)
class Pipfile:
    """Requirements of a bundle's Pipfile and those of the bundles that it extends, which are locked as one.

    Attributes:
        path: its own.
        categories: the sections that hold packages.
        python: the Python that it is for; empty: any.
        digest: pipenv's hash of it.
        sources: where packages come from.
        packages: category → package → what is asked of it.
        built: the packages that are taken as source.
        environment: the variables with which these are locked and built.
        data: all of it, as the one Pipfile that pipenv is given.
    """

    path: Path
    categories: tuple[str, ...]
    python: str
    digest: str
    sources: tuple[Mapping[str, Any], ...]
    packages: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    built: Built = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    def index_of(self, category: str, name: str) -> str:
        """The source that a package comes from, and from no other: the one that it names, else the first."""
        requirements = {canonicalize_name(key): how for key, how in self.packages.get(category, {}).items()}
        how = requirements.get(canonicalize_name(name))
        return str((how.get("index") if isinstance(how, dict) else None) or self.sources[0]["name"])

    def further(self, category: str) -> tuple[str, ...]:
        """The URLs of the sources beside the first that packages of a category name."""
        named = {self.index_of(category, name) for name in self.packages.get(category, ())}
        return tuple(str(source["url"]) for source in self.sources[1:] if source["name"] in named)

    def elsewhere(self) -> dict[str, str]:
        """Package → its page, of those that come from another source than the first."""
        urls = {str(source["name"]): str(source["url"]).rstrip("/") for source in self.sources[1:]}
        return {
            canonicalize_name(name): f"{urls[index]}/{canonicalize_name(name)}/"
            for category in self.categories
            for name in self.packages.get(category, ())
            if (index := self.index_of(category, name)) in urls
        }

    def everywhere(self, categories: Iterable[str]) -> tuple[str, ...]:
        """The packages that these categories ask for on any machine: those without a marker."""
        requirements = {name: how for category in categories for name, how in self.packages.get(category, {}).items()}
        return tuple(
            sorted(
                name for name, how in requirements.items() if not isinstance(how, dict) or how.keys() <= _UNCONDITIONAL
            )
        )


def read_pipfile(path: Path) -> Pipfile:
    """Read and check a Pipfile, together with those of the bundles that its bundle extends.

    Raises:
        Mistakes: one is missing, is not TOML, holds a credential, asks for what can't be locked with hashes, or for
            what another one has asked for already.
    """
    texts = {file: text_of(file, bounds.TOML) for file in _with_ancestors(path)}
    parts = {file: parse_toml(text, file) for file, text in texts.items()}
    mistakes = [mistake for file, part in parts.items() for mistake in _mistakes(file, texts[file], part)]
    if mistakes := mistakes or list(_mistakes_together(texts, parts)):
        raise Mistakes(mistakes)
    data = _together(parts.values())
    categories = tuple(name for name in data if name not in _OTHER_SECTIONS)
    python = str(data.get("requires", {}).get("python_version", ""))
    packages = {name: data[name] for name in categories}
    bundles = [file.parent.parent for file in texts]
    taken, environment = source_builds.read(bundles, path, packages), source_builds.environment(bundles)
    sources = tuple(data.get("source", [_PYPI]))
    return Pipfile(path, categories, python, digest(data), sources, packages, taken, environment, data)


def as_text(data: Mapping[str, Any]) -> str:
    """A Pipfile's text. JSON writes texts, numbers and lists of them as TOML does."""
    return "\n".join(_sections(data))


def _with_ancestors(path: Path) -> list[Path]:
    """The Pipfile at `path` after those of the bundles that its bundle extends."""
    python = path.parent
    folders = lineage(python.parent) if (python.parent / CONFIG).exists() else (python.parent,)
    return [folder / python.name / path.name for folder in folders]


def _together(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several Pipfiles as one; where two ask for a package, the word of the later one holds."""
    whole: dict[str, Any] = {}
    for part in parts:
        for name, section in part.items():
            if name == "source":
                whole[name] = [*whole.get(name, ()), *(s for s in section if s not in whole.get(name, ()))]
            else:
                whole[name] = {**whole.get(name, {}), **section}
    return whole


def _mistakes_together(texts: Mapping[Path, str], parts: Mapping[Path, Mapping[str, Any]]) -> Iterator[Mistake]:
    """Entries of a Pipfile that those of the bundles before it have already, or have otherwise where that can't be."""
    origins: dict[tuple[str, str], tuple[Path, object]] = {}
    sources: dict[str, tuple[Path, object]] = {}
    for file, part in parts.items():
        for source in part.get("source", []):
            first_file, other = sources.setdefault(source["name"], (file, source))
            if other != source:
                line = _line(texts[file], "source")
                yield Mistake(
                    file, line, f"source: {source['name']!r} is another one in {first_file}", "give it another name"
                )
        for category in part.keys() - _OTHER_SECTIONS:
            for name, requirement in part[category].items():
                first_file, other = origins.get((category, canonicalize_name(name)), (file, None))
                if other == requirement:
                    line = _line(texts[file], category, name)
                    yield Mistake(file, line, f"{name}: {first_file} asks for the same", "take it out here")
                origins[category, canonicalize_name(name)] = file, requirement
                index = requirement.get("index") if isinstance(requirement, dict) else None
                if index and index not in sources:
                    line = _line(texts[file], category, name)
                    yield Mistake(file, line, f"{name}: there is no source {index!r}", f"known: {', '.join(sources)}")


def _sections(data: Mapping[str, Any]) -> Iterator[str]:
    for name, section in data.items():
        for table in section if isinstance(section, list) else [section]:
            yield f"[[{name}]]" if isinstance(section, list) else f"[{name}]"
            yield from _pairs(table.items())
            yield ""


def _pairs(items: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for key, value in items:
        yield f"{json.dumps(key)} = {_value(value)}"


def _value(value: Any) -> str:
    return "{" + ", ".join(_pairs(value.items())) + "}" if isinstance(value, Mapping) else json.dumps(value)


def digest(data: Mapping[str, Any]) -> str:
    """The hash that pipenv writes into a lock (`plette.Pipfile.get_hash`)."""
    content = {
        "_meta": {"sources": data.get("source", [_PYPI]), "requires": data.get("requires", {})},
        "default": data.get(FIRST_CATEGORY, {}),
        "develop": data.get("dev-packages", {}),
        **{name: value for name, value in data.items() if name not in {*_OTHER_SECTIONS, *LOCK_KEYS}},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _mistakes(path: Path, text: str, data: Mapping[str, Any]) -> Iterator[Mistake]:
    if misshapen := list(_misshapen(path, text, data)):
        yield from misshapen
        return
    yield from _source_mistakes(path, text, data)
    yield from _category_mistakes(path, text, data)


def _misshapen(path: Path, text: str, data: Mapping[str, Any]) -> Iterator[Mistake]:
    """Values of another type than pipenv reads there; nothing else can be said of a file that has one."""
    for section, values in data.items():
        if section == "source":
            if not isinstance(values, list) or not all(_is_source(source) for source in values):
                hint = "write `[[source]]` with name and url"
                yield Mistake(path, _line(text, section), "source: each needs a name and a url", hint)
        elif not isinstance(values, dict):
            what = f"{section}: this is not a table{'' if section in _OTHER_SECTIONS else ' of packages'}"
            yield Mistake(path, _line(text, section), what, f"write it below `[{section}]`")
        else:
            for key, value in values.items():
                fits = _is_plain(value) if section in _OTHER_SECTIONS else _is_asked(value)
                if not fits or (section == "requires" and not isinstance(value, str)):
                    hint = 'write it like `python_version = "3.11"`' if section in _OTHER_SECTIONS else _WRITE
                    yield Mistake(path, _line(text, section, key), f"{key}: this has no type that pipenv reads", hint)


def _is_source(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(key), str) for key in ("name", "url"))
        and all(isinstance(said, str | bool) for said in value.values())
    )


def _is_asked(value: object) -> bool:
    """Whether it is what can be asked of a package: a version, or a table of texts, of yes and no, and of extras."""
    if not isinstance(value, dict):
        return isinstance(value, str)
    return all(
        _is_texts(said) if key == "extras" else isinstance(said, str) or (isinstance(said, bool) and key not in _TEXTS)
        for key, said in value.items()
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_plain(value: object) -> bool:
    """Whether JSON and TOML write it alike."""
    if isinstance(value, dict):
        return all(_is_plain(part) for part in value.values())
    return isinstance(value, str | int) or _is_texts(value)


def _source_mistakes(path: Path, text: str, data: Mapping[str, Any]) -> Iterable[Mistake]:
    for source in data.get("source", []):
        rows = enumerate(text.splitlines(), 1)
        line = next((number for number, row in rows if source["url"] in row), _line(text, "source"))
        try:
            url = urlsplit(source["url"])
        except ValueError as error:
            yield Mistake(path, line, f"source: this is not a URL: {error}", "write it like https://pypi.org/simple")
            continue
        if url.username or url.password or url.query or "$" in url.netloc:
            yield Mistake(path, line, "source: a credential stands in this URL", "put it into REFIT_PIP_INDEX_URL")
    if data.get("pipenv", {}).get(_ANY_INDEX):
        what = f"{_ANY_INDEX}: then whoever publishes a name on one index decides for all of them"
        yield Mistake(path, _line(text, "pipenv", _ANY_INDEX), what, "take it out, and give packages their `index`")


def _category_mistakes(path: Path, text: str, data: Mapping[str, Any]) -> Iterable[Mistake]:
    for category, packages in data.items():
        if category in _OTHER_SECTIONS:
            continue
        if not re.fullmatch(r"[a-z][a-z0-9-]*", category):
            what = f"{category}: not a name for a category"
            yield Mistake(path, _line(text, category), what, "use small letters, digits and `-`")
        else:
            for name, requirement in packages.items():
                for mistake in _package_mistakes(path, name, requirement):
                    yield replace(mistake, line=_line(text, category, name))


def _package_mistakes(path: Path, name: str, requirement: object) -> Iterable[Mistake]:
    version, markers = (
        (requirement.get("version", "*"), requirement.get("markers"))
        if isinstance(requirement, dict)
        else (requirement, None)
    )
    if isinstance(requirement, dict) and (other := sorted({"git", "path", "file", "editable"} & set(requirement))):
        what = f"{name}: {other[0]!r} has no hash, so it can't be locked"
        yield Mistake(path, 0, what, "name a version, and put its wheel into a folder of the setting wheel_folders")
        return
    try:
        Requirement(f"{name}{'' if version == '*' else f' {version}'}{f' ; {markers}' if markers else ''}")
    except InvalidRequirement as error:
        yield Mistake(path, 0, f"{name}: {str(error).splitlines()[0]}", _WRITE)


def _line(text: str, section: str, key: str = "") -> int:
    """The line of a section or of a key in it; tomllib tells no places. 1: not found."""
    at, inside = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line):
            inside = header[1].strip("\"'") == section or header[1].startswith(f"{section}.")
            if key and header[1].strip("\"'") == f"{section}.{key}":
                return number
            at = number if inside and not at else at
        elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
        elif not at and re.match(rf"\s*[\"']?{re.escape(section)}[\"']?\s*[=.]", line):
            at = number
    return at or 1
