"""Cut a release: its branch, its release file, and the lock from which only patches lead away."""

import datetime
from pathlib import Path

from prefect import flow

from flows.catalog import edit, tag
from flows.catalog.pins import first_lock_file
from flows.core.atomic_files import write_whole
from flows.core.documents import text_of
from flows.core.errors import RefitError
from flows.core.settings import load as load_settings
from flows.lock_requirements import Lock, lock_requirements
from flows.locks import policy
from flows.locks.python_lockfile import locked
from flows.releases import branches

_NOTHING_YET = '{"bundles": {}}\n'


@flow(name="cut-release", flow_run_name="cut {release}")
def cut_release(
    release: str, start: str = "HEAD", until: datetime.date | None = None, catalog: Path | None = None
) -> tuple[Lock, ...]:
    """Make the branch of a new release, with its release file and its first lock.

    Args:
        release: Name of the new release, e.g. 2026b.
        start: Branch, tag or commit of the catalog's repository that it begins with.
        until: Last day on which it is supported. Empty means what its file says, else for ever.
        catalog: Folder of the catalog. Empty means the one of the settings.
    """
    if not tag.is_release(release):
        raise RefitError(f"{release!r} can't be a release.", hint="its name is a year and a letter, e.g. 2026b.")
    settings = load_settings()
    root = catalog or settings.catalog
    folder = settings.folder("worktrees") / release
    place = branches.create(root, release, start, folder)
    try:
        begin(place, release, until)
        locks = lock_requirements(release, catalog=place)
        let_calendars_move(place, release)
        branches.commit(place, message(release, locks))
    except BaseException:
        branches.drop(root, release, folder)
        raise
    return locks


def begin(catalog: Path, release: str, until: datetime.date | None) -> None:
    """Leave one release file in a catalog, the new release's: its own if it has one, else a copy of the newest.

    Raises:
        RefitError: there is no release file at all.
    """
    files = {file.stem: file for file in sorted((catalog / "releases").glob("*.yaml"))}
    own = catalog / "releases" / f"{release}.yaml"
    if release in files:
        text = text_of(own)
        text = edit.supported(text, until) if until else text
    elif files:
        text = edit.for_release(text_of(files[max(files)]), release, until)
    else:
        raise RefitError(f"{catalog} has no release file to begin with.", hint=f"write releases/{release}.yaml first.")
    # A branch speaks for its own release; its files about another would soon be wrong.
    for file in (*files.values(), *(catalog / "releases").glob("*.lock")):
        file.unlink()
    write_whole(own, text)
    write_whole(first_lock_file(catalog, release), _NOTHING_YET)
    branches.regenerate_in_merges(catalog)


def let_calendars_move(catalog: Path, release: str) -> None:
    """A date for a version says nothing of what has changed, so those packages can't be held to patches."""
    folders = [file.parent for file in (catalog / "bundles").glob("*/py*/Pipfile.lock")]
    versions = {name: version for folder in folders for name, version in locked(folder).items()}
    file = catalog / "releases" / f"{release}.yaml"
    dated = sorted(name for name, version in versions.items() if policy.is_calendar(version))
    write_whole(file, edit.with_reach(text_of(file), dated))


def message(release: str, locks: tuple[Lock, ...]) -> str:
    """The message of the first commit of a release's branch."""
    lines = [f"{lock.bundle} {lock.python}: {lock.change}" for lock in locks]
    return "\n".join([f"Cut release {release}", "", *lines]) + "\n"
