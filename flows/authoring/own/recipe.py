"""Rules for a bundle of a person's own: the parts that it may have, and those that would reach too far. Pure.

Everything is named by its path in the person's folder, with its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from flows.core.documents import Mistake

CUSTOM = "custom/custom.snippet.j2"
PIPFILE = re.compile(r"(py3[0-9]+)/Pipfile")
PACKAGES = "os/os-packages.txt"
_ALLOWED = ("display.txt", "bundle.yaml", PACKAGES, CUSTOM)
_ELSE = "a bundle of one's own has display.txt, bundle.yaml, os/os-packages.txt, py311/Pipfile and custom/ alone"
_WHY = {
    "Pipfile.lock": "Refit locks it by itself",
    "builder": "packages of one's own come as wheels",
    "releases": "a person's profile is in no release until an operator adopts it",
}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_SECTIONS = ("packages", "requires")
_EXTENDS = re.compile(r"extends:[ \t]*[a-z0-9]{1,30}[ \t]*")
_INSTRUCTION = re.compile(r"[ \t]*(RUN|ENV)[ \t]+(?!--)\S", re.IGNORECASE)
_TEXT_BYTES = 100_000
_TEMPLATE = ("{{", "{%", "{#")


def mistakes(files: Mapping[str, bytes]) -> Iterator[Mistake]:
    """The mistakes in a bundle's files; `files`: path below its folder → content."""
    for path, content in sorted(files.items()):
        if path not in _ALLOWED and not PIPFILE.fullmatch(path):
            part = next((part for part in Path(path).parts if part in _WHY), "")
            yield Mistake(Path(path), 0, "nothing like this may be here", _WHY.get(part, _ELSE))
            continue
        text = _text(content)
        if text is None:
            yield Mistake(Path(path), 0, f"it is no text in UTF-8, or has more than {_TEXT_BYTES:,} bytes")
        elif path == "bundle.yaml":
            yield from _config(path, text)
        elif PIPFILE.fullmatch(path):
            yield from _pipfile(path, text)
        elif path == CUSTOM and not any(mark in text for mark in _TEMPLATE):
            yield from instructions(text)  # of a template they are known once it is rendered
    for needed in ("display.txt", "bundle.yaml"):
        if needed not in files:
            yield Mistake(Path(needed), 0, "this file is missing")
    if not any(map(PIPFILE.fullmatch, files)):
        yield Mistake(Path("py311/Pipfile"), 0, "this file is missing", "an empty [packages] will do")


def _text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8") if len(content) <= _TEXT_BYTES else None
    except UnicodeDecodeError:
        return None


def _config(path: str, text: str) -> Iterator[Mistake]:
    """It says which bundle it extends, and nothing else."""
    reported = False
    for number, line in enumerate(text.splitlines(), start=1):
        written = line.partition("#")[0].rstrip()
        if written and (reported or not _EXTENDS.fullmatch(written)):
            yield Mistake(Path(path), number, "it may say `extends: BUNDLE`, once, and nothing else")
        reported = reported or bool(written)
    if not reported:
        yield Mistake(Path(path), 1, "it says nothing", "write `extends: minimal`, for instance")


def _pipfile(path: str, text: str) -> Iterator[Mistake]:
    """Names and versions of packages: no index, no address, no file, no source that would run before it is built."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        yield Mistake(Path(path), 0, f"it is no TOML: {error}")
        return
    for section, entries in content.items():
        if section not in _SECTIONS or not isinstance(entries, dict):
            hint = "packages come from the indexes of the bundle that it extends"
            yield Mistake(Path(path), _line(text, f"[{section}", f"[[{section}"), f"[{section}] may not be here", hint)
        elif section == "packages":
            for name, requirement in entries.items():
                if not _NAME.fullmatch(name) or not _is_version(requirement):
                    hint = 'write it like `six = "~=1.16"`: no address, index, git or file'
                    yield Mistake(Path(path), _line(text, name, f'"{name}'), f"{name[:60]}: this is no version", hint)


def _is_version(requirement: object) -> bool:
    extras = False
    if isinstance(requirement, dict):
        listed = requirement.get("extras", [])
        extras = isinstance(listed, list) and all(isinstance(extra, str) and _NAME.fullmatch(extra) for extra in listed)
        if not extras or requirement.keys() - {"version", "extras"}:
            return False
        requirement = requirement.get("version")
    if not isinstance(requirement, str):
        return False
    try:
        return requirement == "*" or bool(requirement and SpecifierSet(requirement))
    except InvalidSpecifier:
        return False


def _line(text: str, *starts: str) -> int:
    return next((number for number, line in enumerate(text.split("\n"), 1) if line.lstrip().startswith(starts)), 1)


def instructions(text: str) -> Iterator[Mistake]:
    """Mistakes in the instructions that its snippet gives: RUN and ENV alone, without options.

    COPY and ADD would be done by root outside of the walls, and so would a mount of RUN. A line goes on in the next one
    only where that is beyond doubt, so that no parser sees an instruction where this one sees none.
    """
    goes_on = False
    for number, line in enumerate(text.split("\n"), start=1):
        if any(ord(character) < 32 and character != "\t" for character in line):
            yield Mistake(Path(CUSTOM), number, "it has a control character")
        if "<<" in line:
            yield Mistake(Path(CUSTOM), number, "no here-document may be here", "write the text with printf")
        aside = not line.strip() or line.lstrip().startswith("#")
        if not aside and not goes_on and not _INSTRUCTION.match(line):
            yield Mistake(Path(CUSTOM), number, f"{line.strip()[:60]!r} is no RUN or ENV without options")
        if not aside and goes_on and line.lstrip().startswith("--"):
            yield Mistake(Path(CUSTOM), number, "no line may begin with an option")
        goes_on = not aside and line.endswith("\\")
