"""The whole loop, once and for real: build, start a session, change something, build again, move the session.

`make run` is this. Everything it does can be repeated: a second time it finds all of it and builds nothing. Catalog and
release are its own, so that nothing of it shows in a release that people work with.
"""

import hashlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flows.build_profiles import build_profiles
from flows.catalog import load, tree
from flows.core import documents
from flows.core.atomic_files import write_whole
from flows.core.errors import UnknownName
from flows.core.settings import Settings
from flows.create_session import create_session
from flows.lock_requirements import lock_requirements
from flows.migrate_sessions import migrate_sessions
from flows.migrations.results import Result
from flows.releases.report import BuildReport
from flows.sessions import wishes
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.wishes import PreferenceStore

# A year without Refit: a release that nobody ships.
RELEASE = "2000a"
PROFILE = "jupyter-minimal-deb12-py311"
SHIPPED = tuple({"ide": ide, "bundle": "minimal", "os": "deb12", "python": "py311"} for ide in ("jupyter", "runtime"))
SESSION = "demo"
BUNDLE = "minimal"
# The addition of the next build: small, pure Python, and of no use to anything else in the bundle.
ADDITION = ("humanize", "~=4.9")
RECIPES = tuple(part for part in tree.PARTS if part != "releases")
NOTE, NOTEBOOK = "notes.txt", "first.ipynb"

Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Story:
    """Results of the loop: two builds, the moves, the session's address, and whether anything had to be built."""

    first: BuildReport
    second: BuildReport
    moves: tuple[Result, ...]
    address: str
    home_intact: bool

    @property
    def built_nothing(self) -> bool:
        """Whether every stage was there already."""
        return not any(report.built or report.grafted for report in (self.first, self.second))


def play(settings: Settings, step: Step) -> Story:
    """Run the loop; `step` announces each part by its title."""
    here = settings.home / "demo" / "catalog"
    with step(f"Build release {RELEASE}, the demo's own, from a copy of the catalog"):
        copy_catalog(settings.catalog, here)
        first = build_profiles(RELEASE, catalog=here)
    sessions = Sessions.open(settings)
    with step(f"Start the session {SESSION!r} from {PROFILE}, and work in it"):
        _start(sessions, here)
        written = _work(sessions)
    with step(f"Make the next build: {ADDITION[0]} comes into the bundle {BUNDLE!r}"):
        second = build_profiles(RELEASE, catalog=next_catalog(here))
    with step("Migrate the session to it"):
        moves = migrate_sessions([SESSION]) if _is_behind(sessions, second) else ()
    return Story(first, second, moves, sessions.address(SESSION), _read(sessions) == written)


def entry(settings: Settings) -> str:
    """A link that logs `demo` in, once, and opens the session, which is theirs unless it is somebody's."""
    from flows.web.hub import entering  # noqa: PLC0415 - it is an extra
    from flows.web.people.client import HubClient  # noqa: PLC0415

    sessions = Sessions.open(settings)
    session = sessions.store.session(SESSION)
    HubClient(settings).add(SESSION, admin=False)
    if not sessions.store.owners().get(SESSION):
        PreferenceStore(sessions.store.database).change(SESSION, wishes.caller(), owner=SESSION)
    return entering.link(settings, SESSION, f"{session.path}{urlsplit(session.access.page).path}")


def _start(sessions: Sessions, catalog: Path) -> None:
    try:
        session = sessions.show(SESSION)
    except UnknownName:
        create_session(SESSION, PROFILE, RELEASE, catalog)
    else:
        if session.running is not Running.running:
            sessions.start(SESSION)


def _work(sessions: Sessions) -> dict[str, str]:
    """Write a file and a notebook through the session itself, unless they are there."""
    jupyter = sessions.jupyter(sessions.store.session(SESSION))
    if NOTE not in sessions.execute(SESSION, ["ls"]).split():
        jupyter.write_file(NOTE, "Written before the migration.\n")
        jupyter.write_notebook(NOTEBOOK, ["import sys", "print(sys.version)"])
    return _read(sessions)


def _read(sessions: Sessions) -> dict[str, str]:
    return {name: sessions.execute(SESSION, ["cat", name]) for name in (NOTE, NOTEBOOK)}


def copy_catalog(source: Path, copy: Path) -> None:
    """Copy all recipes, and let the demo's release ship two profiles of them."""
    shutil.rmtree(copy, ignore_errors=True)
    for part in RECIPES:
        tree.copy(source / part, copy / part, source)
    (copy / "releases").mkdir()
    write_whole(copy / "releases" / f"{RELEASE}.yaml", documents.dump({"release": RELEASE, "profiles": list(SHIPPED)}))


def next_catalog(catalog: Path) -> Path:
    """A copy in which the bundle has one package more, locked; made once per state of the catalog."""
    copy, mark = catalog.with_name("next"), catalog.with_name("made-from")
    state = _state(catalog)
    if not mark.exists() or mark.read_text() != state:
        copy_catalog(catalog, copy)
        for folder in load.load_catalog(copy).bundles[BUNDLE].pythons.values():
            _add_package(folder / "Pipfile", *ADDITION)
        lock_requirements(RELEASE, [BUNDLE], catalog=copy)
        write_whole(mark, state)
    return copy


def _state(catalog: Path) -> str:
    """A hash of all files of the catalog."""
    files = sorted(file for file in catalog.rglob("*") if file.is_file())
    text = "".join(f"{file.relative_to(catalog)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()


def _add_package(pipfile: Path, name: str, version: str) -> None:
    text = pipfile.read_text()
    if f"\n{name} =" not in text:
        write_whole(pipfile, text.replace("[packages]\n", f'[packages]\n{name} = "{version}"\n', 1))


def _is_behind(sessions: Sessions, report: BuildReport) -> bool:
    newest = {image.profile: image.digest for image in report.images}
    return sessions.store.session(SESSION).image != newest[PROFILE]
