"""Lint a whole catalog: everything that can be seen without a build, with file and line, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from flows.catalog import choices, load
from flows.catalog.model import Base, Catalog
from flows.catalog.pins import expired
from flows.catalog.release import ReleaseFile, assemble
from flows.command import ProgramMissing
from flows.documents import Mistake, Mistakes
from flows.images.recipe import Assembler, Templates, read_templates
from flows.images.stages import Stage
from flows.lint import rules, shell, templates
from flows.lint.shell import Script

_BELOW = ("base/", "snippets/base/")  # whose layers have nothing under them


@dataclass(frozen=True)
class Report:
    """What was looked at, what is wrong, and what couldn't be looked at."""

    templates: int
    scripts: int
    mistakes: tuple[Mistake, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Recorder(Templates):
    """Templates that remember what they were rendered with; `given` is path → names of variables."""

    given: dict[str, set[str]] = field(default_factory=dict)

    def render(self, name: str, **variables: object) -> str:
        self.given.setdefault(name, set()).update(variables)
        return super().render(name, **variables)


def lint(root: Path, on: date) -> Report:
    """Look at everything in the catalog below `root`; `on` is the day (UTC) on which exceptions must hold."""
    found: list[Mistake] = []
    texts = read_templates(root).texts
    files = {path: text for path in _files(root) if (text := _text(path)) is not None}
    for path, text in files.items():
        found.extend(rules.secrets(path, text))
        found.extend(rules.script(path, text) if shell.script(path, text) else ())
    for name, text in texts.items():
        upper, shared = not name.startswith(_BELOW), name.startswith("snippets/")
        found.extend(rules.instructions(root / name, text, upper=upper, shared=shared))
    given, stages = dict[str, set[str]](), dict[str, Stage]()
    try:
        catalog = load.load_catalog(root)
        found.extend(_overdue(catalog, on))
        given, stages = _rendered(catalog, texts, found)
    except Mistakes as error:
        found.extend(error.mistakes)
    found.extend(templates.mistakes(root, texts, given))
    scripts = [script for path, text in files.items() if (script := shell.script(path, text))]
    scripts += _bodies(stages, {root / name: text for name, text in texts.items()})
    left_out: tuple[str, ...] = ()
    try:
        found.extend(shell.mistakes(scripts))
    except ProgramMissing:
        left_out = ("shellcheck is not installed: no script was looked at.",)
    return Report(len(texts), 0 if left_out else len(scripts), tuple(sorted(set(found))), left_out)


def _rendered(
    catalog: Catalog, texts: Mapping[str, str], found: list[Mistake]
) -> tuple[dict[str, set[str]], dict[str, Stage]]:
    """All stages of all profiles that the catalog could make; mistakes on the way are added to `found`."""
    recorder = _Recorder(catalog.root, texts)
    assembler = Assembler(catalog, _unresolved, templates=recorder)
    stages: dict[str, Stage] = {}
    for answers in choices.possible(catalog):
        file = ReleaseFile(release="2000a", profiles=(choices.choice(answers),))
        try:
            chain = assembler.chain(assemble(file, catalog).profiles[0])
        except Mistakes as error:
            found.extend(error.mistakes)
        else:
            stages |= {stage.text: stage for stage in chain}
    return recorder.given, stages


def _unresolved(base: Base) -> tuple[str, ...]:
    """Stands for the exact packages: no mirror is asked."""
    return tuple(f"{name}=0" for name in base.packages)


def _bodies(stages: Mapping[str, Stage], texts: Mapping[Path, str]) -> list[Script]:
    found = {script.text: script for stage in stages.values() for script in shell.bodies(stage.text, texts)}
    return list(found.values())


def _overdue(catalog: Catalog, on: date) -> Iterator[Mistake]:
    for name, release in catalog.releases.items():
        file = catalog.root / "releases" / f"{name}.yaml"
        yield from expired(file, file.read_text(encoding="utf-8"), release.pins.waivers, on)


def _files(root: Path) -> Iterator[Path]:
    for part in load.PARTS:
        yield from (path for path in sorted((root / part).rglob("*")) if path.is_file() and path.suffix != ".lock")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
