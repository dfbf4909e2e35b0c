"""The side stage in which locks are made: pipenv, exactly pinned, on a base with its own Python. In no image."""

from __future__ import annotations

from pathlib import Path

from flows.catalog.model import python_version
from flows.core import documents
from flows.images.rendering.templates import read_templates
from flows.images.stages import Kind, Stage

FOLDER = "snippets/locker"


def stage(foundation: Stage, python: str, root: Path) -> Stage:
    """The stage that `flows.locks.make_python_lock.lock` runs in.

    Args:
        foundation: the base that the lock is for.
        python: its Python, e.g. `py311`.
        root: the catalog's folder.

    Raises:
        Mistakes: the template has a mistake.
    """
    text = read_templates(root).render(
        f"{FOLDER}/locker.snippet.j2", python_version=python_version(python), installer="uv"
    )
    requirements = documents.bounds.read_bytes(root / FOLDER / "requirements.txt", documents.bounds.TEXT)
    name = f"locker-{foundation.name.removeprefix('base-')}"
    return Stage(name, Kind.instructions, foundation.name, text, {"requirements.txt": requirements})
