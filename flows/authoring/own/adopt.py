"""A person's own bundle becomes one of the catalog, with a line in a release; an operator vouches for it then."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.authoring.own import recipe
from flows.authoring.own.catalog import Wish, check_new_name
from flows.catalog import choices, edit, load, skeletons
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes, text_of
from flows.core.errors import RefitError
from flows.core.programs import command


def adopt(wish: Wish, files: Mapping[str, bytes], root: Path, *, commit: bool = False) -> Path:
    """Write the bundle and its profile into the catalog below `root`: all of it, or nothing.

    Args:
        wish: the bundle's name, whose it was, and its profile.
        files: path below the bundle's folder → content.
        root: of the catalog.
        commit: whether these files, and nothing else, become a commit of the catalog's git repository.

    Returns:
        The folder of the bundle.

    Raises:
        Mistakes: the bundle has mistakes, or with it the catalog has.
        RefitError: there is a bundle of that name, the release's profiles aren't a list with one a line, or git doesn't
            take the commit.
    """
    if wrong := list(recipe.mistakes(files)):
        raise Mistakes(wrong)
    check_new_name(wish.name, load.load_catalog(root))
    python = max(match[1] for path in files if (match := recipe.PIPFILE.fullmatch(path)))
    answers = {"ide": wish.ide, "bundle": wish.name, "os": wish.os, "python": python, "cuda": choices.NONE}
    release = root / "releases" / f"{wish.release}.yaml"
    if commit:
        _check_clean(root, release)
    before = text_of(release)
    after = edit.with_profile(before, choices.written(answers))
    folder = root / "bundles" / f"{skeletons.next_number(root / 'bundles')}-{wish.name}"
    _write(folder, files)
    try:
        write_whole(release, after)
        load.load_catalog(root)
        if commit:
            _commit(root, [folder, release], wish)
    except BaseException:
        write_whole(release, before)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder, whole or not at all."""
    with TemporaryDirectory(prefix=".", dir=folder.parent) as draft:
        draft_folder = Path(draft, folder.name)
        for path, content in files.items():
            (draft_folder / path).parent.mkdir(parents=True, exist_ok=True)
            (draft_folder / path).write_bytes(content)
        draft_folder.rename(folder)


def _check_clean(root: Path, release: Path) -> None:
    """Return if the release's file is as it was committed: changes by others are none of this commit."""
    try:
        changed = _git(root, "status", "--porcelain", "--", release).stdout.strip()
    except (command.ProgramFailed, command.ProgramMissing) as error:
        raise RefitError(
            f"The catalog {root} takes no commit.",
            why=error.tail if isinstance(error, command.ProgramFailed) else error.what,
            hint="`--no-commit` writes the files alone.",
        ) from error
    if changed:
        raise RefitError(
            f"{release} has changes that aren't committed.", hint="commit them first, or say `--no-commit`."
        )


def _commit(root: Path, paths: Sequence[Path], wish: Wish) -> None:
    """Commit these files by the name of whoever calls; other staged files stay staged."""
    text = f"Take the bundle {wish.name} of {wish.owner} into the catalog\n\nIt was a profile of a person's own."
    try:
        _git(root, "add", "--", *paths)
        _git(root, "commit", "--quiet", "--message", text, "--", *paths)
    except BaseException as error:
        with suppress(command.ProgramFailed):
            _git(root, "reset", "--quiet", "--", *paths)
        if not isinstance(error, command.ProgramFailed):
            raise
        raise RefitError(
            "git doesn't take the commit; the catalog is as it was.",
            why=error.tail,
            hint="mend that, or say `--no-commit`.",
        ) from error


def _git(root: Path, *words: str | Path) -> command.Completed:
    return command.run(["git", "-C", root, *words])
