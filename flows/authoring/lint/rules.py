"""Rules for a catalog's texts, whatever they are rendered to. Pure: texts in, mistakes out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.core.documents import Mistake
from flows.images.containerfile import is_aside, is_continued, parts

_RECURSIVE = re.compile(r"\b(chmod|chown|chgrp)\s+(-\w*R|--recursive)|\bfix-permissions\b")
_DATED = re.compile(r"\bdate\b|\brelease\b|(?<!\d)20\d{2}-?\d{2}-?\d{2}(?!\d)", re.IGNORECASE)
_ELSEWHERE = r"\bhttps?://(?!localhost\b|127\.0\.0\.1\b|\[::1\])"
_FETCHES = re.compile(
    rf"\b(curl|wget|aria2c)\b[^;|&]*?{_ELSEWHERE}|\b(curl|wget|aria2c)\s+[^;|&]*?(\"?\$|\{{\{{)"
    rf"|\b(rpm|dnf|yum|apt|apt-get|dpkg)\b[^;|&]*?{_ELSEWHERE}"
    r"|\b(urlopen|urlretrieve|requests\.get|httpx\.(get|stream)|download\.file)\s*\("
)
_CHECKED = re.compile(
    r"\bsha(256|384|512)sum\b|\bgpg\s+(--\S+\s+)*--verify\b|\bopenssl\s+dgst\b|\bhashlib\.(sha(256|384|512)|file_digest)\b"
)
_INSTALLS = (
    (
        re.compile(r"\bpip[\d.]*\s+(-\S+\s+)*install\b(?![^;|&]*--require-hashes)"),
        "put the package into the Pipfile",
    ),
    (re.compile(r"\bnpm\s+(install|i|add)\b|\bnpx\b|\byarn\s+add\b"), "lock it, and take `npm ci`"),
    (re.compile(r"\bgit\s+(clone|submodule\s+update)\b"), "take an archive of one commit, and check its sha256sum"),
    (
        re.compile(
            r"\b(install\.packages|install_(github|gitlab|bitbucket|git|url|version|cran|bioc)|BiocManager::install"
            r"|pak::\w+)\s*\(|\b(go|cargo|gem|conda|mamba|pipx|uv\s+tool)\s+install\b"
        ),
        "take a package whose hash is known",
    ),
)
_IN_CONFIGURATION = re.compile(
    r"^\s*(ENV|ARG)\s.*(PASSWORD|PASSWD|TOKEN|SECRET|API_?KEY)\w*[= ]\s*[\"']?[^\s\"'{$]{4,}", re.IGNORECASE
)
_SYSTEM = re.compile(r"\b(dnf|yum|microdnf|apt|apt-get|apk)\s+(-\S+\s+)*install\b(?![^;|&]*https?://)")
_SECRETS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"), "a private key"),
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), "a key of Amazon's"),
    (re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,})"), "a token of a git server"),
    (re.compile(r"\b(xox[abprs]-[\w-]{10,}|sk-[A-Za-z0-9_-]{20,}|pypi-[\w-]{30,}|npm_[A-Za-z0-9]{30,})"), "a token"),
    (re.compile(r"://[^\s/:@\"'{}$]+:[^\s/@\"'{}$]+@"), "a password in an address"),
    (_IN_CONFIGURATION, "a secret in the image's configuration"),
)


@dataclass(frozen=True)
class Step:
    """One instruction of a Containerfile's template: its name in capitals, the lines that it has, and its first."""

    name: str
    line: int
    text: str

    def line_of(self, match: re.Match[str]) -> int:
        """The line, from 1, on which a match in its text begins."""
        return self.line + self.text.count("\n", 0, match.start())


def secrets(file: Path, text: str) -> Iterator[Mistake]:
    """Texts that look like a secret; they are in no message."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in _SECRETS:
            if pattern.search(line):
                yield Mistake(file, number, f"this looks like {what}", "everybody can read an image: take it out")


def instructions(file: Path, text: str, *, upper: bool, shared: bool = False) -> Iterator[Mistake]:
    """Instructions that break a rule.

    Args:
        file: the template.
        text: its content.
        upper: whether it makes layers above a base, which would carry a copy of all files that they touch.
        shared: whether it is one of the snippets that install what was locked.
    """
    steps = list(_steps(text))
    last_run = max((number for number, step in enumerate(steps) if step.name == "RUN"), default=-1)
    for number, step in enumerate(steps):
        for match in _RECURSIVE.finditer(step.text) if upper else ():
            what = f"{match[0]!r} copies all files below into this layer, changed or not"
            yield Mistake(file, step.line_of(match), what, "change only those that need it: find … ! -perm … -exec …")
        if step.name == "LABEL" and number < last_run and _DATED.search(step.text):
            what = "with this label, all that follows is built again each time it changes"
            yield Mistake(file, step.line, what, "Refit labels images itself; put other labels last")
        yield from _downloads(file, step)
        for match in _SYSTEM.finditer(step.text) if not shared and step.name in ("RUN", "") else ():
            what = f"no lock covers {match[0]!r}"
            yield Mistake(file, step.line_of(match), what, "name the packages in os/os-packages.txt")


def script(file: Path, text: str) -> Iterator[Mistake]:
    """Lines of a shell script that break a rule, wherever it runs; `file` has that text."""
    text = "\n".join("" if line.lstrip().startswith("#") else line for line in text.splitlines())
    yield from _downloads(file, Step("RUN", 1, text))
    for match in _SYSTEM.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Mistake(file, line, f"no lock covers {match[0]!r}", "name it in os/os-packages.txt")


def _downloads(file: Path, step: Step) -> Iterator[Mistake]:
    if step.name == "ADD" and (address := re.search(r"https?://", step.text)):
        what = "this download isn't verified"
        yield Mistake(file, step.line_of(address), what, "download it in a RUN, and check its sha256sum there")
    if step.name not in ("RUN", ""):
        return
    for address in _unchecked(step.text):
        what = "this download isn't verified"
        yield Mistake(file, step.line_of(address), what, "check its sha256sum right there, each one's by itself")
    for pattern, hint in _INSTALLS:
        for address in pattern.finditer(step.text):
            yield Mistake(file, step.line_of(address), f"no lock covers {address[0].strip()!r}", hint)


def _unchecked(text: str) -> list[re.Match[str]]:
    """The downloads that no check follows which isn't that of an earlier one."""
    matches = [*_FETCHES.finditer(text), *_CHECKED.finditer(text)]
    waiting: list[re.Match[str]] = []
    # Stable: of what stands in one line, the downloads come first, as in `sha256(urlopen(…))`.
    for match in sorted(matches, key=lambda match: text.count("\n", 0, match.start())):
        if match.re is _FETCHES:
            waiting.append(match)
        elif waiting:
            waiting.pop(0)
    return waiting


def _steps(text: str) -> Iterator[Step]:
    """The instructions of a template; text of a macro outside of any has no name. Comments are left out."""
    text = re.sub(r"\{#.*?#\}", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    for part in parts(text, lambda line: is_continued(line) or _is_tag(line)):
        if not part.is_aside:
            first = next((line for line in part.own_lines if not _is_tag(line)), "")
            name = re.match(r"\s*([A-Z]+)\s", first)
            lines = ["" if is_aside(line) else line for line in part.lines]
            yield Step(name[1] if name else "", part.number, "\n".join(lines))


def _is_tag(line: str) -> bool:
    return line.lstrip().startswith("{%")
