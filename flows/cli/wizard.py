"""The questions that lead to a profile, and what becomes of the answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from flows.catalog import choices, edit, load
from flows.catalog import release as releases
from flows.catalog.choices import QUESTIONS, Option
from flows.catalog.model import Catalog, Profile, Release
from flows.catalog.release import ReleaseFile
from flows.core import documents
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.registry import Registry

# Given a question and its possible answers, the name of one of them.
Pick = Callable[[str, Sequence[Option]], str]
# Stem of a profile → size of its newest image in bytes (compressed), of those that have one.
Sizes = Mapping[str, int]


def answer(
    recipes: Catalog, given: Mapping[str, str], pick: Pick | None, sizes: Sizes = MappingProxyType({})
) -> dict[str, str]:
    """All answers: those that were given, those that leave no choice, and those that are picked.

    Args:
        recipes: the recipes that there are.
        given: question → answer.
        pick: asks a person; none: nobody is there.
        sizes: how large images are; with each possible answer, the smallest of those that it leaves is shown.

    Raises:
        UnknownName: a given name isn't in the catalog.
        Impossible: no profile has the answers that were given.
        RefitError: nobody is there to answer.
    """
    answers = dict(given)
    for question, title in QUESTIONS.items():
        possible = choices.options(recipes, question, answers)
        if question in answers:
            continue
        if sizes and pick and len(possible) > 1:
            smallest = _smallest(recipes, answers, question, sizes)
            possible = tuple(replace(choice, size=smallest.get(choice.name)) for choice in possible)
        answers[question] = possible[0].name if len(possible) == 1 else _picked(question, title, possible, pick)
    return answers


def _smallest(recipes: Catalog, answers: Mapping[str, str], question: str, sizes: Sizes) -> dict[str, int]:
    """Possible answer → how large the smallest image is that it leaves (bytes), of those of which that is known."""
    measured = [
        (choice[question], sizes[stem])
        for choice in choices.possible(recipes, answers)
        if (stem := choices.choice(choice).stem) in sizes
    ]
    return dict(sorted(measured, key=lambda pair: pair[1], reverse=True))


def sizes(release: Release, settings: Settings) -> Sizes:
    """How large the newest images of a release's profiles are; of what isn't there, nothing is known."""
    registry = Registry(settings)
    try:
        registry.ping()
    except RefitError:
        return {}
    sizes = {
        profile.stem: registry.find(registry.repository, f"{profile.stem}_{release.name}")
        for profile in release.profiles
    }
    return {stem: image.size for stem, image in sizes.items() if image}


def choose_release(recipes: Catalog, pick: Pick | None) -> str:
    """The release that a profile belongs to: the only one, or the one that is picked.

    Raises:
        RefitError: there is none, or nobody to answer.
    """
    possible = [Option(name, f"{len(release.profiles)} profiles") for name, release in recipes.releases.items()]
    if not possible:
        raise RefitError(f"{recipes.root} has no release yet.", hint="write releases/2026a.yaml, for instance.")
    return possible[0].name if len(possible) == 1 else _picked("release", "release", possible, pick)


def _picked(question: str, title: str, possible: Sequence[Option], pick: Pick | None) -> str:
    if pick is None:
        raise RefitError(
            f"Which {title}? Nobody can be asked: this is no terminal.",
            why=f"Possible: {', '.join(option.name for option in possible)}.",
            hint=f"say --{question} NAME.",
        )
    return pick(title, possible)


def profile(recipes: Catalog, release: str, answers: Mapping[str, str]) -> Profile:
    """The profile that the answers describe, as the release would ship it, whether its file names it or not."""
    file = documents.read(_file(recipes.root, release), ReleaseFile)
    alone = file.model_copy(update={"profiles": (choices.choice(answers),)})
    return releases.assemble(alone, recipes).profiles[0]


def stands_in(release: Release, profile: Profile) -> bool:
    """Whether a release has this profile.

    Raises:
        RefitError: it has the same one with another level of CUDA, and an image's tag doesn't tell levels apart.
    """
    existing = next((shipped for shipped in release.profiles if shipped.stem == profile.stem), None)
    if existing and existing.cuda_level != profile.cuda_level:
        raise RefitError(
            f"Release {release.name} has {existing.stem} already, with CUDA {existing.cuda_level}.",
            why=f"An image with CUDA {profile.cuda_level} would have the same tag.",
            hint=f"choose --cuda {existing.cuda_level}, or change that line of releases/{release.name}.yaml.",
        )
    return existing is not None


def write(recipes: Catalog, release: str, answers: Mapping[str, str]) -> Path:
    """Add the profile to the release's file; everything else in it stays.

    Raises:
        RefitError: its profiles aren't written one below the other, or with it the catalog would have mistakes.
    """
    file = _file(recipes.root, release)
    before = documents.text_of(file)
    write_whole(file, edit.with_profile(before, choices.written(answers)))
    try:
        load.load_catalog(recipes.root)
    except Mistakes:
        write_whole(file, before)
        raise
    return file


def command_line(release: str, answers: Mapping[str, str], *, writing: bool, building: bool) -> str:
    """The one line that does the same without asking."""
    flags = [word for question in QUESTIONS for word in (f"--{question}", answers[question])]
    what = ["--write" if writing else "--no-write", "--build" if building else "--no-build"]
    return shlex.join(["refit", "wizard", "--release", release, *flags, *what])


def _file(root: Path, release: str) -> Path:
    return root / "releases" / f"{release}.yaml"
