"""A person's own bundle becomes one of the catalog, with a line in a release; an operator vouches for it then."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.authoring.own import recipe
from flows.authoring.own.catalog import Wish, check_name
from flows.catalog import choices, edit, load, skeletons
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes, text_of


def adopt(wish: Wish, files: Mapping[str, bytes], root: Path) -> Path:
    """Write the bundle and its profile into the catalog below `root`: all of it, or nothing. Nothing is committed.

    Returns:
        The folder of the bundle.

    Raises:
        Mistakes: the bundle has mistakes, or with it the catalog has.
        RefitError: there is a bundle of that name, or the release's profiles aren't a list with one a line.
    """
    if wrong := list(recipe.mistakes(files)):
        raise Mistakes(wrong)
    check_name(wish.name, load.load_catalog(root))
    python = max(match[1] for path in files if (match := recipe.PIPFILE.fullmatch(path)))
    answers = {"ide": wish.ide, "bundle": wish.name, "os": wish.os, "python": python, "cuda": choices.NONE}
    release = root / "releases" / f"{wish.release}.yaml"
    before = text_of(release)
    after = edit.with_profile(before, choices.written(answers))
    folder = root / "bundles" / f"{skeletons.next_number(root / 'bundles')}-{wish.name}"
    with TemporaryDirectory(prefix=".", dir=folder.parent) as draft:
        made = Path(draft, folder.name)
        for path, content in files.items():
            (made / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).write_bytes(content)
        made.rename(folder)
    try:
        write_whole(release, after)
        load.load_catalog(root)
    except BaseException:
        write_whole(release, before)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
