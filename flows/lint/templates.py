"""Templates: whether they can be read, what they name that nobody gives them, and what they give to nobody. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from jinja2 import Environment, TemplateSyntaxError, meta, nodes

from flows.catalog.release import nearest
from flows.documents import Mistake

_ENVIRONMENT = Environment()


def mistakes(root: Path, texts: Mapping[str, str], known: Mapping[str, Collection[str]]) -> Iterator[Mistake]:
    """The mistakes of all templates.

    Args:
        root: the catalog.
        texts: path below it → what stands there.
        known: path → the variables that a template is given. What it includes has them, too; of a template that was
            neither rendered nor included, it can't be said what is undefined in it.
    """
    known = _with_included(texts, known)
    for path, text in texts.items():
        try:
            tree = _ENVIRONMENT.parse(text)
        except TemplateSyntaxError as error:
            yield Mistake(root / path, error.lineno, str(error.message))
            continue
        if path in known:
            yield from _undefined(root / path, tree, known[path])
        yield from _unused(root / path, tree)


def _with_included(texts: Mapping[str, str], known: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    whole = {path: set(names) for path, names in known.items()}
    pending = list(whole)
    while pending:
        path = pending.pop()
        with suppress(TemplateSyntaxError):
            for other in meta.find_referenced_templates(_ENVIRONMENT.parse(texts[path])):
                if other is not None and other in texts and not whole[path] <= whole.setdefault(other, set()):
                    whole[other] |= whole[path]
                    pending.append(other)
    return whole


def _undefined(file: Path, tree: nodes.Template, known: Collection[str]) -> Iterator[Mistake]:
    unknown = meta.find_undeclared_variables(tree) - set(known)
    for name in tree.find_all(nodes.Name):
        if name.name in unknown:
            yield Mistake(file, name.lineno, f"{name.name!r} is not defined", nearest(name.name, sorted(known)))


def _unused(file: Path, tree: nodes.Template) -> Iterator[Mistake]:
    used = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}
    for node in tree.find_all(nodes.Import):
        if node.target not in used:
            yield Mistake(file, node.lineno, f"{node.target!r} is imported and not used", "take it out")
    for name in tree.find_all(nodes.Name):
        if name.ctx == "store" and name.name not in used:
            yield Mistake(file, name.lineno, f"{name.name!r} is set and not used", "take it out")
