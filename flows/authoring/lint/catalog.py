"""Lint a whole catalog: everything that can be seen without a build, with file and line, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from flows.authoring.lint import rules, shell, templates
from flows.authoring.lint.shell import Script
from flows.catalog import choices, load, tree
from flows.catalog.model import Base, Catalog
from flows.catalog.pins import expired
from flows.catalog.release import ReleaseFile, assemble
from flows.core import documents
from flows.core.documents import Mistake, Mistakes
from flows.core.errors import RefitError
from flows.core.programs.command import ProgramMissing
from flows.images.recipe import Assembler
from flows.images.rendering.templates import Templates, read_templates
from flows.images.stages import Stage

_BELOW = ("base/", "snippets/base/")  # whose layers have nothing under them


@dataclass(frozen=True)
class Report:
    """The files that were checked, their mistakes, and the files that couldn't be checked."""

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
    tree.require(root)
    mistakes: list[Mistake] = []
    whole = read_templates(root)
    texts = whole.texts
    files = {path: text for path in _files(root) if (text := _text(path)) is not None}
    for path, text in files.items():
        mistakes.extend(rules.secrets(path, text))
        mistakes.extend(rules.script(path, text) if shell.script(path, text) else ())
    for name, text in texts.items():
        upper, shared = not name.startswith(_BELOW), name.startswith("snippets/")
        mistakes.extend(rules.instructions(root / name, text, upper=upper, shared=shared))
    given, stages, left_out = dict[str, set[str]](), dict[str, Stage](), tuple[str, ...]()
    try:
        catalog = load.load_catalog(root)
        mistakes.extend(_overdue(catalog, on))
        given, stages, left_out = _rendered(catalog, texts, mistakes)
    except Mistakes as error:
        mistakes.extend(error.mistakes)
    mistakes.extend(templates.mistakes(whole, given))
    scripts = [script for path, text in files.items() if (script := shell.script(path, text))]
    scripts += _bodies(stages, {root / name: text for name, text in texts.items()})
    looked_at = len(scripts)
    try:
        mistakes.extend(shell.mistakes(scripts))
    except ProgramMissing:
        left_out, looked_at = (*left_out, "shellcheck is not installed: no script was looked at."), 0
    return Report(len(texts), looked_at, tuple(sorted(set(mistakes))), left_out)


def _rendered(
    catalog: Catalog, texts: Mapping[str, str], mistakes: list[Mistake]
) -> tuple[dict[str, set[str]], dict[str, Stage], tuple[str, ...]]:
    """All stages of all profiles that the catalog could make; mistakes on the way are added to `mistakes`.

    Returns what templates were given, the stages by their texts, and what can't be of what no release has.
    """
    recorder = _Recorder(catalog.root, texts)
    assembler = Assembler(catalog, _unresolved, templates=recorder)
    stages: dict[str, Stage] = {}
    impossible: dict[tuple[str, str], RefitError] = {}
    for answers in choices.possible(catalog):
        chosen = choices.choice(answers)
        file = ReleaseFile(release="2000a", profiles=(chosen,))
        try:
            chain = assembler.chain(assemble(file, catalog).profiles[0])
        except Mistakes as error:
            mistakes.extend(error.mistakes)
        except RefitError as error:
            impossible[chosen.stem, chosen.cuda] = error
        else:
            stages |= {stage.text: stage for stage in chain}
    mistakes.extend(_shipped(catalog, impossible))
    others = impossible.keys() - {
        (profile.stem, profile.cuda_level) for r in catalog.releases.values() for profile in r.profiles
    }
    # The levels of CUDA of one profile are mostly impossible for the same reason.
    left_out = {f"No release has {stem}, which can't be assembled: {impossible[stem, level]}" for stem, level in others}
    return recorder.given, stages, tuple(sorted(left_out))


def _shipped(catalog: Catalog, impossible: Mapping[tuple[str, str], RefitError]) -> Iterator[Mistake]:
    """The profiles of releases that can't be assembled, each at its line."""
    for name, release in catalog.releases.items():
        file = catalog.root / "releases" / f"{name}.yaml"
        node = documents.compose(documents.text_of(file, documents.bounds.YAML), file)
        for number, profile in enumerate(release.profiles):
            if error := impossible.get((profile.stem, profile.cuda_level)):
                line = documents.line_of(node, ("profiles", number))
                yield Mistake(file, line, " ".join(filter(None, (error.what, error.why))), error.hint)


def _unresolved(base: Base) -> tuple[str, ...]:
    """Stands for the exact packages: no mirror is asked."""
    return tuple(f"{name}=0" for name in base.packages)


def _bodies(stages: Mapping[str, Stage], texts: Mapping[Path, str]) -> list[Script]:
    scripts = {script.text: script for stage in stages.values() for script in shell.bodies(stage.text, texts)}
    return list(scripts.values())


def _overdue(catalog: Catalog, on: date) -> Iterator[Mistake]:
    for name, release in catalog.releases.items():
        file = catalog.root / "releases" / f"{name}.yaml"
        yield from expired(file, documents.text_of(file, documents.bounds.YAML), release.pins.waivers, on)


def _files(root: Path) -> Iterator[Path]:
    for part in tree.PARTS:
        yield from (path for path in sorted((root / part).rglob("*")) if path.is_file() and path.suffix != ".lock")


def _text(path: Path) -> str | None:
    try:
        return documents.bounds.read_text(path)
    except (OSError, UnicodeDecodeError):
        return None
