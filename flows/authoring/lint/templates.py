"""Templates: whether they can be read, what they name that nobody gives them, and what they give to nobody."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from flows.catalog.release import nearest
from flows.core.documents import Mistake, Mistakes
from flows.images.rendering.templates import Facts, Templates


def mistakes(templates: Templates, names: Mapping[str, Collection[str]]) -> Iterator[Mistake]:
    """The mistakes of all templates.

    Args:
        templates: those of a catalog.
        names: path → the variables that a template is given. Templates that it includes have them, too. A template
            that was neither rendered nor included isn't looked at for undefined names.
    """
    seen = {path: _seen(templates, path) for path in templates.texts}
    facts = {path: answer for path, answer in seen.items() if isinstance(answer, Facts)}
    names = _with_included(facts, names)
    for path, read in seen.items():
        if isinstance(read, Mistakes):
            yield from read.mistakes
            continue
        if path in names:
            yield from _undefined(templates.root / path, read, names[path])
        yield from _unused(templates.root / path, read)


def _seen(templates: Templates, path: str) -> Facts | Mistakes:
    try:
        return templates.facts(path)
    except Mistakes as mistakes:
        return mistakes


def _with_included(facts: Mapping[str, Facts], passed: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    whole = {path: set(names) for path, names in passed.items()}
    pending = [path for path in whole if path in facts]
    while pending:
        path = pending.pop()
        for other in facts[path].references:
            if other in facts and not whole[path] <= whole.setdefault(other, set()):
                whole[other] |= whole[path]
                pending.append(other)
    return whole


def _undefined(file: Path, facts: Facts, names: Collection[str]) -> Iterator[Mistake]:
    unknown = facts.undeclared - set(names)
    for name, line, _ in facts.names:
        if name in unknown:
            yield Mistake(file, line, f"{name!r} is not defined", nearest(name, sorted(names)))


def _unused(file: Path, facts: Facts) -> Iterator[Mistake]:
    used = {name for name, _, how in facts.names if how == "load"}
    for target, line in facts.imports:
        if target not in used:
            yield Mistake(file, line, f"{target!r} is imported and not used", "take it out")
    for name, line, how in facts.names:
        if how == "store" and name not in used:
            yield Mistake(file, line, f"{name!r} is set and not used", "take it out")
