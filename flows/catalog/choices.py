"""Which profiles a catalog could make, question by question: what is possible after what was answered. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from flows.catalog.model import Catalog
from flows.catalog.release import Choice, nearest_possible, why_not
from flows.core.errors import RefitError, UnknownName

# In this order; each is a key of a profile in a release file.
QUESTIONS = {"os": "operating system", "python": "Python", "cuda": "CUDA", "bundle": "bundle", "ide": "IDE"}
NONE = "none"  # the answer of whom wants no CUDA; in a release file it isn't written at all

Answers = Mapping[str, str]


class Impossible(RefitError):
    """A profile that the catalog can't make."""


@dataclass(frozen=True)
class Option:
    """A possible answer, what a menu shows for it, and how large the image would be (bytes, compressed) if known."""

    name: str
    display: str
    size: int | None = None


def options(catalog: Catalog, question: str, answers: Answers) -> tuple[Option, ...]:
    """The possible answers to a question, given earlier answers, in the order of menus.

    Raises:
        UnknownName: one of these names isn't in the catalog.
        Impossible: with them, no profile can be made.
    """
    displays = _displays(catalog)
    if missing := [QUESTIONS[key] for key, texts in displays.items() if not texts]:
        raise Impossible(f"{catalog.root} can make no profile at all: it has no {' and no '.join(missing)}.")
    for key, name in answers.items():
        if name not in displays[key]:
            raise UnknownName(QUESTIONS[key], name, displays[key])
    whole = list(possible(catalog, answers))
    if not whole:
        raise _impossible(catalog, answers)
    names = {choice[question] for choice in whole}
    return tuple(Option(name, text) for name, text in displays[question].items() if name in names)


def choice(answers: Answers) -> Choice:
    """The profile of a release file that all answers together describe."""
    return Choice.model_validate(written(answers))


def written(answers: Answers) -> dict[str, str]:
    """The keys of that profile, in the order in which people write them."""
    keys = ("ide", "bundle", "os", "python", "cuda")
    return {key: answers[key] for key in keys if key != "cuda" or answers[key] != NONE}


def possible(catalog: Catalog, answers: Answers = MappingProxyType({})) -> Iterator[dict[str, str]]:
    """All profiles that the catalog could make, of those with these answers."""
    names = [[answers[key]] if key in answers else list(texts) for key, texts in _displays(catalog).items()]
    for chosen in product(*names):
        whole = dict(zip(QUESTIONS, chosen, strict=True))
        if not why_not(choice(whole), catalog):
            yield whole


def _impossible(catalog: Catalog, answers: Answers) -> Impossible:
    whole = {key: answers.get(key, next(iter(texts))) for key, texts in _displays(catalog).items()}
    reasons = why_not(choice(whole), catalog) if len(answers) == len(QUESTIONS) else []
    near = nearest_possible(choice(whole), catalog)
    return Impossible(
        f"There can't be a profile with {_words(answers)}.",
        why="\n".join(f"  {reason}" for reason in reasons),
        hint=f"the nearest that can be: {near.stem}." if near else "the catalog can make none at all.",
    )


def _words(answers: Answers) -> str:
    return ", ".join(f"{QUESTIONS[key]} {name}" for key, name in answers.items())


def _displays(catalog: Catalog) -> dict[str, dict[str, str]]:
    """For each question: name → what a menu shows, in the order of menus."""
    pythons = {python: "" for base in catalog.bases.values() for python in base.config.pythons}
    return {
        "os": {name: base.display for name, base in catalog.bases.items()},
        "python": {name: f"Python 3.{name.removeprefix('py3')}" for name in pythons},
        "cuda": {NONE: "no CUDA", **_levels(catalog)},
        "bundle": {name: bundle.display for name, bundle in catalog.bundles.items()},
        "ide": {name: ide.display for name, ide in catalog.ides.items()},
    }


def _levels(catalog: Catalog) -> dict[str, str]:
    cuda = catalog.cuda
    return {name: f"CUDA {cuda.version}: {level.display}" for name, level in cuda.levels.items()} if cuda else {}
