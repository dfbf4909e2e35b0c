"""Their Pipfiles and locks, in words that Refit takes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.authoring.importing.checkout import Checkout
from flows.authoring.importing.report import Adoption
from flows.catalog.model import python_version
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistake, Mistakes, bounds, parse_plain_json, parse_toml
from flows.core.errors import RefitError
from flows.locks import python_lockfile
from flows.locks.pipfile import as_text, digest, read_pipfile

# pipenv takes `six = "1.16"` for `==1.16`.
_BARE_VERSION = re.compile(r"""(^\s*+[^={#]++=\s*["']|[{,]\s*version\s*=\s*["'])(\d[^"',]*(?=["']))""")
_SECTION = re.compile(r"\s*+(\[\[?)([^\]#]++)\]")
_SAYS_NOTHING = re.compile(
    r"\s*(?:#|\[\[?\s*(?:source|packages|dev-packages|requires|scripts|pipenv)\s*\]\]?\s*(?:#|$))"
)
_OTHER_SECTIONS = ("source", "requires", "pipenv", "scripts")


def take_pipfile(checkout: Checkout, place: str, target: Path, theirs: str, adoption: Adoption) -> None:
    """Take a Pipfile with its comments, and its lock if that still fits; entries for pipenv alone are taken out."""
    path, version = f"{place}/Pipfile", target.name
    exports = [each for each in checkout.within(place) if re.fullmatch(r"requirements.*\.txt", each.rpartition("/")[2])]
    checkout.account(path, f"{path}.lock", *exports)
    text = checkout.text(path, bounds.TOML)
    try:
        data = parse_toml(text, checkout.root / path)
        accepted = _in_our_words(data, version)
        target.mkdir()
        write_whole(target / "Pipfile", _rewritten(text, accepted, version, path, adoption))
        pipfile = read_pipfile(target / "Pipfile")
    except Mistakes as mistakes:
        leave_out(checkout, place, target, theirs, adoption, mistakes.mistakes)
        return
    if not (text.strip() and checkout.readable(path)):
        leave_out(checkout, place, target, theirs, adoption)
    elif not checkout.has(f"{path}.lock"):
        adoption.note(place, "has to be locked: it has no lock")
    else:
        _take_lock(checkout, f"{path}.lock", data, pipfile.digest, target, adoption)


def leave_out(
    checkout: Checkout, place: str, target: Path, theirs: str, adoption: Adoption, mistakes: Iterable[Mistake] = ()
) -> None:
    """Leave a Pipfile out, and note why, and each line of it that asks for something."""
    path = f"{place}/Pipfile"
    for file in (path, f"{path}.lock"):
        adoption.forget(file)
    if text := checkout.text(path, bounds.TOML).strip("\n"):
        adoption.note(place, "was left out: its Pipfile can't be taken as it is, and nothing of it is in the catalog")
    else:
        adoption.note(place, "was left out: it has no Pipfile, or one that says nothing")
    for mistake in mistakes if text else ():
        adoption.note(f"{place}/{mistake.file.name}:{mistake.line}", f"was left out: {mistake.what}")
    for number, row in enumerate(checkout.text(path, bounds.TOML).split("\n"), 1):
        if row.strip() and not _SAYS_NOTHING.match(row):
            adoption.note(f"{path}:{number}", f"was left out with it: {row.strip()}")
    adoption.lacks(f"bundle/{theirs}/{target.name}", place)
    shutil.rmtree(target, ignore_errors=True)


def _take_lock(
    checkout: Checkout, path: str, theirs: Mapping[str, Any], ours: str, target: Path, adoption: Adoption
) -> None:
    text, lines_hold = checkout.text(path, bounds.JSON), False
    try:
        lock = parse_plain_json(text, checkout.root / path)
        lines_hold = _as_pipenv_writes(lock).strip() == text.strip()
        write_whole(target / "Pipfile.lock", _as_pipenv_writes(lock))
        python_lockfile.require_readable(target)
        _know_again(lock, theirs, ours, python_version(target.name))
        write_whole(target / "Pipfile.lock", _as_pipenv_writes(lock))
        for name, content in python_lockfile.exports(lock, read_pipfile(target / "Pipfile")).items():
            write_whole(target / name, content)
        python_lockfile.verify(target)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RefitError) as error:
        mistakes = error.mistakes if isinstance(error, Mistakes) else ()
        for mistake in mistakes:
            place = f"{path}:{mistake.line}" if lines_hold and mistake.line else path
            adoption.note(place, f"has to be locked again: {mistake.what}")
        if not mistakes:
            adoption.note(path, f"has to be locked again: its lock can't be used ({error})")
        unlock(target)


def _as_pipenv_writes(lock: object) -> str:
    return json.dumps(lock, indent=4, sort_keys=True) + "\n"


def unlock(folder: Path) -> None:
    """Remove a lock, and what was exported of it."""
    for file in (folder / "Pipfile.lock", *folder.glob("requirements*.txt")):
        file.unlink(missing_ok=True)


def _know_again(lock: Any, theirs: Mapping[str, Any], ours: str, python: str) -> None:
    """Let a lock that was made of their Pipfile fit ours, which asks for the same versions in other words."""
    locked, required = lock["_meta"]["hash"], theirs.get("requires", {}).get("python_version", python)
    if locked.get("sha256") == digest(theirs) and required == python:
        locked["sha256"] = ours
        for source in lock["_meta"]["sources"]:
            source["verify_ssl"] = True


def _in_our_words(data: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A Pipfile as Refit takes it: no [dev-packages], exact versions as such, indexes that are checked."""
    sections = {name: part for name, part in data.items() if name != "dev-packages"}
    sections |= {name: _exact(part) for name, part in sections.items() if _holds_packages(name, part)}
    if isinstance(sources := data.get("source"), list):
        sections["source"] = [_checked(each) for each in sources]
    if isinstance(requires := data.get("requires"), dict):
        ours = {"python_version": python_version(version)} if "python_version" in requires else {}
        sections["requires"] = {name: word for name, word in requires.items() if not name.startswith("python_")} | ours
    return sections


def _checked(source: Any) -> Any:
    return {**source, "verify_ssl": True} if isinstance(source, dict) and "verify_ssl" in source else source


def _holds_packages(name: str, part: object) -> bool:
    return isinstance(part, dict) and name not in _OTHER_SECTIONS


def _exact(packages: Mapping[str, Any]) -> dict[str, Any]:
    """The packages that are asked for, with `==` before versions without an operator."""

    def exact(version: object) -> object:
        return f"=={version}" if isinstance(version, str) and version[:1].isdigit() else version

    return {
        name: {**requirement, "version": exact(requirement["version"])}
        if isinstance(requirement, dict) and "version" in requirement
        else exact(requirement)
        for name, requirement in packages.items()
    }


def _rewritten(text: str, accepted: Mapping[str, Any], version: str, path: str, adoption: Adoption) -> str:
    """The text of a Pipfile that says what Refit takes, with its comments if they can stay where they are."""
    rows, notes = list[str](), list[tuple[str, str]]()
    for number, row in enumerate(_rows(text, version), 1):
        rows.append(row)
        before = text.split("\n")[number - 1]
        if row.strip() == before.strip() or (not row.strip() and not _asks(before)):
            continue
        what = f"is now: {row}" if row.strip() else f"was left out of it: {before.strip()}"
        notes.append((f"{path}:{number}", what))
    written = "\n".join(rows).rstrip() + "\n"
    if _said(written, path) != accepted:
        adoption.note(path, "was written anew, without its comments: they stand between what had to change")
        return as_text(accepted)
    for place, what in notes:
        adoption.note(place, what)
    return written


def _said(text: str, path: str) -> object:
    try:
        return {name: part for name, part in parse_toml(text, Path(path)).items() if name != "dev-packages" or part}
    except Mistakes:
        return None


def _asks(row: str) -> bool:
    """Whether a line that goes said something of an image; a header alone doesn't."""
    return bool(row.strip()) and not row.lstrip().startswith(("#", "["))


def _rows(text: str, version: str) -> Iterator[str]:
    """The lines of a Pipfile, each as Refit takes it; empty: it doesn't."""
    section = ""
    for line in text.split("\n"):
        if header := _SECTION.match(line):
            section = header[2].strip().strip("\"'")
        if section == "dev-packages":
            yield ""
        elif section == "source":
            yield re.sub(r"(verify_ssl\s*=\s*)false", r"\g<1>true", line)
        elif section == "requires":
            yield _required(line, version)
        elif section in _OTHER_SECTIONS or line.lstrip().startswith("#"):
            yield line
        else:
            yield _BARE_VERSION.sub(r"\g<1>==\g<2>", line)


def _required(line: str, version: str) -> str:
    if re.match(r"\s*python_version", line):
        return f'python_version = "{python_version(version)}"'
    return "" if re.match(r"\s*python_", line) else line
