"""Release branches: one of the catalog's git repository for each release, each with a worktree of Refit's own.

A branch is called like its release, and supplies recipes, release file and locks; the installed Refit has the code.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from flows.catalog import tag
from flows.catalog.model import Catalog, Release
from flows.catalog.release import ReleaseFile
from flows.core import documents
from flows.core.atomic_files import write_whole
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.programs.command import Completed, ProgramFailed, ProgramMissing

REMOTE = "origin"
# The night commits, and no person.
_AUTHOR = ("-c", "user.name=Refit", "-c", "user.email=refit@localhost", "-c", "commit.gpgsign=false")
# Locks are made anew after a merge: which of the two texts stays until then is all the same.
_ATTRIBUTES = ".gitattributes"
_REGENERATED = ("Pipfile.lock", "requirements*.txt")
_DRIVER = "merge.refit-lock.driver"


@dataclass(frozen=True)
class ReleaseBranch:
    """The state of a release on its branch.

    Attributes:
        release: its name, and the branch's.
        file: its release file; none: it has mistakes.
        problem: which; empty: none.
        branch: whether it has one; a release without lies in the catalog alone.
    """

    release: str
    file: ReleaseFile | None
    problem: str = ""
    branch: bool = True

    def is_supported(self, on: date) -> bool:
        """Whether its images are to be kept up to date on that day (UTC); of a file with mistakes, nobody knows."""
        return self.file is None or self.file.supported_until is None or on <= self.file.supported_until


def is_repository(catalog: Path) -> bool:
    """Whether a catalog lies in a git repository that has a commit."""
    if not any((folder / ".git").exists() for folder in (catalog, *catalog.absolute().parents)):
        return False  # the usual reason, found without starting anything
    try:
        return bool(_commit(catalog, "HEAD"))
    except ProgramMissing:
        return False


def branches(catalog: Path) -> tuple[ReleaseBranch, ...]:
    """The release branches of a catalog's repository, here or at its remote, by name; none where it lies in none."""
    if not is_repository(catalog):
        return ()
    refs = _git(catalog, "for-each-ref", "--format=%(refname)", "refs/heads", f"refs/remotes/{REMOTE}").stdout.split()
    # The local one comes later, and has the say.
    names = {ref.rpartition("/")[2]: ref for ref in reversed(refs) if tag.is_release(ref.rpartition("/")[2])}
    return tuple(_look(catalog, name, ref) for name, ref in sorted(names.items()))


def releases(catalog: Path) -> tuple[ReleaseBranch, ...]:
    """All releases, newest first: those that have a branch, and those that only a file of the catalog names."""
    branched = {branch.release: branch for branch in branches(catalog)}
    files = {file.stem: file for file in (catalog / "releases").glob("*.yaml")}
    alone = {name: _read(file) for name, file in files.items() if name not in branched}
    return tuple(branch for _, branch in sorted({**alone, **branched}.items(), reverse=True))


def nights(catalog: Catalog) -> tuple[Release, ...]:
    """The releases that have nights, without their profiles: the catalog's, and the branches', which have the say."""
    releases = {name: replace(release, profiles=()) for name, release in catalog.releases.items()}
    for branch in branches(catalog.root):
        if file := branch.file:
            releases[branch.release] = Release(branch.release, (), file.nightly or "", file.supported_until)
    return tuple(releases.values())


def _read(file: Path) -> ReleaseBranch:
    try:
        return ReleaseBranch(file.stem, documents.read(file, ReleaseFile), branch=False)
    except Mistakes as mistakes:
        return ReleaseBranch(file.stem, None, str(mistakes), branch=False)


def _look(catalog: Path, release: str, ref: str) -> ReleaseBranch:
    path = f"releases/{release}.yaml"
    shown = _git(catalog, "show", f"{ref}:./{path}", accepted=(0, 128))
    if shown.exit_code:
        return ReleaseBranch(release, None, f"the branch has no {path}")
    try:
        return ReleaseBranch(release, documents.parse(shown.stdout, Path(f"{release}:{path}"), ReleaseFile))
    except Mistakes as mistakes:
        return ReleaseBranch(release, None, str(mistakes))


def check_out(catalog: Path, release: str, folder: Path) -> Path:
    """Bring the worktree of a release to the newest state of its branch; returns the catalog in it.

    Args:
        catalog: the catalog of the repository.
        release: the release.
        folder: where its worktree is or will be. Uncommitted changes there are given up: a killed run has left it.

    Raises:
        RefitError: the branch is checked out elsewhere, or it and the remote's have gone different ways.
    """
    with suppress(ProgramFailed):  # the night goes on without: if it's still away in the end, the push tells
        _fetch(catalog)
    if not _is_worktree(catalog, folder):
        _git(catalog, "worktree", "prune")
        _add(catalog, release, folder)
    _git(folder, "reset", "--hard", "--quiet")
    _git(folder, "clean", "-fdq")
    _git(catalog, "config", _DRIVER, "true")
    if _commit(folder, f"{REMOTE}/{release}"):
        try:
            _git(folder, "merge", "--ff-only", "--quiet", f"{REMOTE}/{release}")
        except ProgramFailed as error:
            raise RefitError(
                f"The branch {release} and the one of {REMOTE} have gone different ways.",
                why=error.tail,
                hint=f"`git -C {folder} rebase {REMOTE}/{release}`, then `refit lock {release}` there.",
            ) from None
    return folder / _below(catalog)


def create(catalog: Path, release: str, start: str, folder: Path) -> Path:
    """Make the branch of a new release and its worktree; returns the catalog in it.

    Raises:
        RefitError: there is such a branch, or no such start.
    """
    if release in {branch.release for branch in branches(catalog)}:
        raise RefitError(f"There is a branch {release!r} already.", hint="`refit release list` shows all releases.")
    commit = _commit(catalog, start)
    if not commit:
        raise RefitError(
            f"The repository of {catalog} has no commit {start!r} to begin a release with.",
            hint="a catalog has to lie in a git repository; name a branch, a tag or a commit of it.",
        )
    _git(catalog, "worktree", "prune")
    _git(catalog, "worktree", "add", "--quiet", "-b", release, folder, commit)
    _git(catalog, "config", _DRIVER, "true")
    return folder / _below(catalog)


def drop(catalog: Path, release: str, folder: Path) -> None:
    """Take back what `create` made."""
    _git(catalog, "worktree", "remove", "--force", folder, accepted=(0, 128))
    _git(catalog, "branch", "-D", "--quiet", release, accepted=(0, 1))


def regenerate_in_merges(catalog: Path) -> None:
    """Say in the catalog that a merge never stops at a lock: it is made anew afterwards."""
    file = catalog / _ATTRIBUTES
    text = documents.text_of(file) if file.exists() else ""
    missing = [line for name in _REGENERATED if (line := f"{name} merge=refit-lock") not in text.splitlines()]
    write_whole(file, text + "".join(f"{line}\n" for line in missing))


def commit(catalog: Path, message: str) -> bool:
    """Commit whatever has changed in a worktree's catalog; whether anything has."""
    _git(catalog, "add", "--all", "--", ".")
    if _git(catalog, "diff", "--cached", "--quiet", accepted=(0, 1)).exit_code == 0:
        return False
    _git(catalog, *_AUTHOR, "commit", "--quiet", "--no-verify", "--file=-", stdin=message)
    return True


def ahead(catalog: Path, release: str) -> bool:
    """Whether a worktree has commits that its remote lacks; without a remote there is none to lack them."""
    if REMOTE not in _git(catalog, "remote").stdout.split():
        return False
    return _commit(catalog, f"{REMOTE}/{release}") != _commit(catalog, "HEAD")


def push(catalog: Path, release: str) -> None:
    """Send a release's branch to its remote.

    Raises:
        ProgramFailed: the remote can't be reached, or refuses it; its words are in the error.
    """
    _git(catalog, "push", "--quiet", REMOTE, f"HEAD:refs/heads/{release}")


def _commit(folder: Path, name: str) -> str:
    """The commit that a name stands for; empty: none, or no repository."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    return _git(folder, *words, accepted=(0, 1, 128)).stdout.strip()


def _fetch(catalog: Path) -> None:
    if REMOTE in _git(catalog, "remote").stdout.split():
        _git(catalog, "fetch", "--quiet", REMOTE)


def _add(catalog: Path, release: str, folder: Path) -> None:
    try:
        _git(catalog, "worktree", "add", "--quiet", folder, release)
    except ProgramFailed as error:
        raise RefitError(
            f"The branch {release} can't be checked out into {folder}.",
            why=error.tail,
            hint="if it is checked out elsewhere, check out another branch there, or detach it: `git switch --detach`.",
        ) from None


def _is_worktree(catalog: Path, folder: Path) -> bool:
    listed = _git(catalog, "worktree", "list", "--porcelain").stdout.splitlines()
    return folder.is_dir() and f"worktree {folder.resolve()}" in listed


def _below(catalog: Path) -> str:
    """Where in its repository a catalog lies."""
    return _git(catalog, "rev-parse", "--show-prefix").stdout.strip()


def _git(folder: Path, *words: str | Path, stdin: str | None = None, accepted: tuple[int, ...] = (0,)) -> Completed:
    # Nobody is there to be asked for a password, but an agent or a helper may know it.
    variables = {name: os.environ[name] for name in ("SSH_AUTH_SOCK", "GIT_SSH_COMMAND") if name in os.environ}
    env = {"GIT_TERMINAL_PROMPT": "0", **variables}
    return command.run(["git", "-C", folder, *words], env=env, stdin=stdin, accepted=accepted)
