"""Their Pipfiles and locks, in words that Refit takes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.authoring.importing.checkout import lines_in
from flows.authoring.importing.report import Adoption
from flows.catalog.model import python_version
from flows.core.documents import Mistakes, bounds, parse_plain_json, parse_toml, text_of
from flows.core.errors import RefitError
from flows.locks import python
from flows.locks.pipfile import Pipfile, digest, read_pipfile

_NO_PACKAGES = ("", "[[source]]", "[requires]", "[pipenv]", "[scripts]")


# pipenv takes `six = "1.16"` for `==1.16`.
_BARE_VERSION = re.compile(r"""((?:=|\bversion\s*=)\s*["'])(\d[^"',]*(?=["']))""")


def take_pipfile(folder: Path, target: Path, place: str, made: Adoption) -> None:
    """A Pipfile with its comments, and its lock if that still fits; what only pipenv takes is taken out."""
    text = "".join(f"{line}\n" for line in _accepted(lines_in(folder / "Pipfile"), folder.name, place, made))
    target.mkdir()
    (target / "Pipfile").write_text(text, encoding="utf-8")
    try:
        pipfile = read_pipfile(target / "Pipfile")
    except Mistakes as mistakes:
        made.note(place, f"was left out: {mistakes.mistakes[0].what}")
        shutil.rmtree(target)
        return
    if not (folder / "Pipfile.lock").is_file():
        made.note(place, "has to be locked: it has no lock")
        return
    try:
        lock = parse_plain_json(text_of(folder / "Pipfile.lock", bounds.JSON), folder / "Pipfile.lock")
        _know_again(lock, folder / "Pipfile", pipfile)
        (target / "Pipfile.lock").write_text(json.dumps(lock, indent=4, sort_keys=True) + "\n", encoding="utf-8")
        for name, content in python.exports(lock, pipfile).items():
            (target / name).write_text(content, encoding="utf-8")
        python.verify(target)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RefitError) as error:
        why = error.mistakes[0].what if isinstance(error, Mistakes) else f"its lock can't be used ({error})"
        made.note(place, f"has to be locked again: {why}")
        unlock(target)


def unlock(folder: Path) -> None:
    """Remove a lock, and what was exported of it."""
    for file in (folder / "Pipfile.lock", *folder.glob("requirements*.txt")):
        file.unlink(missing_ok=True)


def _know_again(lock: Any, theirs: Path, pipfile: Pipfile) -> None:
    """Let a lock fit a Pipfile that says the same as theirs, which it was made of, in other words."""
    before = parse_toml(text_of(theirs, bounds.TOML), theirs)
    same = {name: _exact(part) if isinstance(part, dict) else part for name, part in before.items()}
    known = lock["_meta"]["hash"]
    if (
        known.get("sha256") == digest(before)
        and digest(same | {"requires": before.get("requires", {})}) == pipfile.digest
    ):
        known["sha256"] = pipfile.digest


def _exact(packages: Mapping[str, Any]) -> dict[str, Any]:
    """The packages that are asked for, with `==` before versions without an operator."""

    def exact(version: object) -> object:
        return f"=={version}" if isinstance(version, str) and version[:1].isdigit() else version

    return {
        name: {**asked, "version": exact(asked["version"])}
        if isinstance(asked, dict) and "version" in asked
        else exact(asked)
        for name, asked in packages.items()
    }


def _accepted(lines: Iterable[str], folder: str, place: str, made: Adoption) -> Iterator[str]:
    """The lines of a Pipfile that Refit takes."""
    section = ""
    for line in lines:
        section = line.strip() if line.lstrip().startswith("[") else section
        if section == "[dev-packages]":
            if line.strip() not in ("", section):
                made.note(place, f"was left out of it, because [dev-packages] is in no image: {line.strip()}")
        elif section not in _NO_PACKAGES and (exact := _BARE_VERSION.sub(r"\g<1>==\g<2>", line)) != line:
            yield exact
        elif section == "[[source]]" and re.match(r"\s*verify_ssl\s*=\s*false", line):
            made.note(place, "its indexes are checked now: verify_ssl was false")
            yield "verify_ssl = true"
        elif section == "[requires]" and re.match(r"\s*python_", line):
            if line.lstrip().startswith("python_version"):
                yield f'python_version = "{python_version(folder)}"'
        else:
            yield line
