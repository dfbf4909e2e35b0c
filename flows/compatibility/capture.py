"""Captures what was installed by hand in a session as a bundle of a catalog: looks at the session, and writes files.

All that is read was written by others, and is read in the session's container by a program of its user's.
"""

from __future__ import annotations

import binascii
import shutil
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from packaging.utils import canonicalize_name
from pydantic import TypeAdapter, ValidationError

from flows.authoring.capture.bundle import texts
from flows.authoring.capture.decide import MOST_FILE, decide, is_file_name, without
from flows.authoring.capture.facts import Capture, Choice, Given, Installed, Left, Reason, Source
from flows.catalog import choices, edit, load, skeletons, tag
from flows.catalog.model import Catalog, Profile
from flows.compatibility import read_installed
from flows.compatibility.changes import hand_made
from flows.compatibility.scan import of_image
from flows.core.atomic_files import write_whole
from flows.core.documents import text_of
from flows.core.errors import RefitError
from flows.core.formatting import on_a_line, some
from flows.core.programs import command
from flows.core.settings import Settings
from flows.locks import make_python_lock, simple_index
from flows.locks.pipfile import Pipfile, read_pipfile
from flows.locks.simple_index import ABSENT, Page
from flows.sessions.engine import Engine
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.podman_only import only_on_podman

LOOK_SECONDS = 150.0
MOST_TOLD = 16 << 20  # bytes
MOST_FILES = 20
_INSTALLED = TypeAdapter(Installed)
_PYTHON = ("python3", "-I", "-B", "-")
_SCRIPT = Path(read_installed.__file__)
_CONTENT = f"""\
import base64, os, stat, sys
file = os.open(sys.argv[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
if not stat.S_ISREG(os.fstat(file).st_mode): sys.exit("it is no plain file")
print(base64.b64encode(os.read(file, {MOST_FILE + 1})).decode())
"""


@dataclass(frozen=True)
class Wish:
    """A capture as a person asks for it.

    Attributes:
        name: of the new bundle.
        environments: paths of environments of the home that are taken.
        files: paths of files below /etc and /usr/local that are taken.
        into: the catalog; none: that of the settings.
    """

    name: str
    environments: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    into: Path | None = None


@dataclass(frozen=True)
class Captured:
    """The outcome of a capture.

    Attributes:
        capture: the contents of the bundle, and the packages that it lacks with reasons.
        files: its files: path below the catalog → text.
        profile: stem of the profile that starts from it.
        release: the release of that.
        catalog: folder of the catalog.
        line: that profile as the release's file names it.
    """

    capture: Capture
    files: Mapping[str, str]
    profile: str
    release: str
    catalog: Path
    line: Mapping[str, str]


def capture(settings: Settings, name: str, wish: Wish) -> Captured:
    """Look at a session that runs, and decide on its bundle; nothing is written.

    Args:
        settings: those in force.
        name: the session.
        wish: the bundle.

    Raises:
        RefitError: the session doesn't run, its profile isn't in the catalog, there is a bundle of that name, or a file
            or environment that is asked for isn't there.
    """
    only_on_podman(settings, "Captures of what was installed by hand")
    recipes = load.load_catalog((wish.into or settings.catalog).absolute())
    sessions = Sessions.open(settings)
    session = sessions.that_runs(name)
    profile = load.profile(recipes, session.release, session.profile)
    _check_name(wish.name, recipes)
    seen = installed(sessions.engine, session)
    pipfile = read_pipfile(profile.bundle.pythons[profile.python] / "Pipfile")
    _check_environments(wish, seen)
    image, by_hand = of_image(settings, session.image), hand_made(settings, sessions.engine, session)
    names_of_bundle = frozenset(str(canonicalize_name(name)) for names in pipfile.packages.values() for name in names)
    given = Given(profile.bundle.name, profile.python, image.distributions, image.system, names_of_bundle)
    contents = {path: content(sessions.engine, session, path) for path in wish.files}
    choice = Choice(wish.name, wish.environments, contents)
    decided = decide(seen, given, choice, by_hand.files)
    gone = (Left(Source.system, name, Reason.removed, "a bundle removes nothing") for name in by_hand.system.removed)
    decided = _in_an_index(settings, pipfile, replace(decided, left=(*decided.left, *gone)))
    return _captured(recipes, profile, decided, name)


def installed(engine: Engine, session: Session) -> Installed:
    """The facts about what a person installed in a session that runs.

    Raises:
        RefitError: the answer of its container can't be understood.
    """
    script = _SCRIPT.read_text(encoding="utf-8")
    try:
        output = engine.execute(session.container, _PYTHON, stdin=script, limit=LOOK_SECONDS, most=MOST_TOLD)
        return _INSTALLED.validate_json(output)
    except (command.ProgramFailed, ValidationError) as error:
        message = error.tail if isinstance(error, command.ProgramFailed) else str(error)
        raise RefitError(
            f"The session {session.name!r} gave no report of what is installed in it.",
            why=on_a_line(message.strip().partition("\n")[0]),
            hint=f"its Python may be broken: `refit session exec {session.name} -- python3 --version` tells.",
        ) from None


def content(engine: Engine, session: Session, path: str) -> bytes:
    """The content of a file outside of the home, read as the session's user; of a larger one only the beginning.

    Raises:
        RefitError: its path is none for a bundle, or it can't be read.
    """
    if not is_file_name(path):
        raise RefitError(
            f"{path!r} can't be part of a bundle.",
            hint="take a file below /etc or /usr/local whose path has letters, digits and ._+- alone.",
        )
    call = ("python3", "-I", "-B", "-c", _CONTENT, path)
    output = engine.execute(session.container, call, limit=LOOK_SECONDS, most=2 * MOST_FILE)
    try:
        return b64decode(output)
    except binascii.Error as error:
        raise RefitError(f"{path} can't be read in the session.", why=str(error)) from None


def write(captured: Captured) -> Path:
    """Write the bundle and its profile into the catalog: all of it, or nothing.

    A process that is killed between the two leaves the bundle whole, and no profile of it.

    Returns:
        The folder of the bundle.

    Raises:
        RefitError: there is a bundle of that name by now, a file can't be written, or with it the catalog has mistakes.
    """
    root = captured.catalog
    _check_name(captured.capture.name, load.load_catalog(root))
    folder = root / PurePosixPath(next(iter(captured.files))).parents[0]
    release = root / "releases" / f"{captured.release}.yaml"
    before = text_of(release)
    try:
        _place(captured, folder)
    except OSError as error:
        raise RefitError(f"The bundle {folder} can't be written.", why=str(error)) from None
    try:
        write_whole(release, edit.with_profile(before, captured.line))
        load.load_catalog(root)
    except BaseException:
        if text_of(release) != before:
            write_whole(release, before)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _place(captured: Captured, folder: Path) -> None:
    """Put the bundle's files where they belong, in one instant: no catalog reads a name that begins with a dot."""
    with TemporaryDirectory(prefix=".", dir=folder.parent) as draft:
        draft_folder = Path(draft, folder.name)
        for path, text in captured.files.items():
            file = draft_folder / PurePosixPath(path).relative_to(f"bundles/{folder.name}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        draft_folder.rename(folder)


def _captured(recipes: Catalog, profile: Profile, decided: Capture, session: str) -> Captured:
    """The bundle's files with their place in the catalog, and the profile that starts from it."""
    folder = f"bundles/{skeletons.next_number(recipes.root / 'bundles')}-{decided.name}"
    files = {f"{folder}/{path}": text for path, text in texts(decided, session).items()}
    cuda = profile.cuda_level or choices.NONE
    answers = {"ide": profile.ide.name, "bundle": decided.name, "os": profile.base.name}
    answers |= {"python": profile.python, "cuda": cuda}
    stem = choices.choice(answers).stem
    return Captured(decided, files, stem, profile.release, recipes.root, choices.written(answers))


def _check_name(name: str, recipes: Catalog) -> None:
    if not tag.is_name(name) or name == choices.NONE:
        raise RefitError(f"{name!r} can't be the name of a bundle.", hint="take small letters and digits, 30 at most.")
    if name in recipes.bundles:
        raise RefitError(f"There is a bundle {name!r} already.", hint="take another name, or remove its folder.")


def _check_environments(wish: Wish, seen: Installed) -> None:
    environments = {place.path for place in seen.places[1:]}
    if missing := [path for path in wish.environments if path not in environments]:
        raise RefitError(
            f"There is no environment {', '.join(map(repr, missing))} in the home.",
            why=f"There are: {some(map(on_a_line, sorted(environments))) or 'none'}.",
            hint="give its path below the home, e.g. project/.venv; .local is that of `pip --user`.",
        )
    if len(wish.files) > MOST_FILES:
        raise RefitError(f"A bundle takes {MOST_FILES} files at most.", hint="make a package of them.")


def _in_an_index(settings: Settings, pipfile: Pipfile, decided: Capture) -> Capture:
    """The capture without packages that the index doesn't have; where it doesn't answer, the lock says so."""
    index = simple_index.index(pipfile.sources[0], settings)
    in_folders = {name for name, _ in make_python_lock.in_folders(settings.wheel_folders)}
    urls = simple_index.urls(index, [name for name in decided.packages if name not in in_folders])
    if not urls:
        return decided
    pages = simple_index.fetch(index, dict.fromkeys(urls.values()), settings)
    answers = {name: pages[url] for name, url in urls.items()}
    gone = [name for name, page in answers.items() if isinstance(page, Page) and page.digest == ABSENT]
    return without(decided, gone, Reason.not_in_index, "the index that the bundle locks from doesn't have it")
