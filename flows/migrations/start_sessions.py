"""Making and starting sessions; one that waits for a new image gets it at its start, before anybody is in it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from flows.authoring.own.catalog import Wish, composed
from flows.catalog import load, successors
from flows.catalog.model import Profile
from flows.core.database import now, open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.core.threads import each
from flows.images.registry import Registry
from flows.migrations.move import Move
from flows.migrations.results import Result
from flows.publishing.own_profiles import OwnProfile, OwnProfiles
from flows.publishing.publish import access_of
from flows.publishing.signatures import Publications
from flows.sessions.history import History
from flows.sessions.homes.volumes import Wanted
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session

# Services that start sessions import this long before they carry a move out.
with lazily(globals()):
    from flows.migrations.executor import MoveExecutor
    from flows.migrations.notifications.notifier import remove_called_off
    from flows.migrations.recovery import recover
    from flows.migrations.rollouts.session_planner import SessionPlanner

logger = logging.getLogger("refit.migrations")


def described(settings: Settings, own: OwnProfile) -> Profile:
    """A profile of a person's own, as its recipe describes it now.

    Raises:
        Mistakes: its recipe doesn't fit the catalog any more.
        RefitError: its name is one of the catalog's now, or what it stands on isn't there.
    """
    with composed(wish_of(own), own.files, settings) as (_, profile):
        return profile


def wish_of(own: OwnProfile) -> Wish:
    """The wish that a person's own profile came from. Pure."""
    ide, _, system, _ = own.profile.split("-")
    return Wish(own.bundle, own.owner, ide, system, own.release)


def named(settings: Settings, release: str, profile: str) -> Profile:
    """The profile of the catalog, or of a person's own, with this stem; or the one that has taken its place.

    Raises:
        RefitError: there is none, or the catalog has mistakes.
    """
    recipes = load.load_catalog(settings.catalog)
    chosen = release or load.newest_release(recipes.root)
    try:
        return load.profile(recipes, chosen, profile)
    except UnknownName:
        if own := OwnProfiles(open_database(settings.database)).find(profile):
            return described(settings, own)
        successor = successors.current(recipes, chosen, profile, now().date())
    logger.warning("%s is now %s, of release %s", profile, successor.stem, successor.release)
    return successor


def newest_image(settings: Settings, profile: Profile) -> str:
    """Digest of a profile's newest tested image.

    Raises:
        RefitError: there is none, or it doesn't count.
    """
    digest = Publications(settings).newest(profile.stem, profile.release)
    if digest is None:
        raise RefitError(
            f"There is no image of {profile.stem} in release {profile.release} yet.",
            hint=f"`refit build {profile.release} --profile {profile.stem}` makes it.",
        )
    return digest


def make_session(
    settings: Settings,
    name: str,
    profile: Profile,
    image: str,
    volumes: Sequence[Wanted] = (),
    environment: Mapping[str, str] | None = None,
    owner: str = "",
) -> Session:
    """Make home, volumes, token and container of a new session, and wait until its IDE answers.

    Raises:
        RefitError: as `Sessions.create` does.
    """
    # The image knows how it is reached; the catalog may have changed since it was built.
    access = access_of(image, Registry(settings)) or profile.access
    what = (profile.stem, profile.release, image, access, environment, volumes, profile.resources, owner)
    return Sessions.open(settings).create(name, *what)


def start_session(settings: Settings, name: str) -> tuple[Session, Result | None]:
    """Start a session and wait until it is ready; also what became of its move, if it had to move first.

    If anything keeps it from moving, it starts on the image that it had.

    Raises:
        UnknownName: there is no such session.
        RefitError: it doesn't get ready, or a move of it is not finished.
    """
    executor = MoveExecutor.open(settings)
    result = _moved(settings, executor, name)
    session = executor.sessions.start(name)
    remove_called_off(executor.sessions, History(executor.journal.database), session)
    return session, result


def fetch_for_start(settings: Settings, name: str) -> None:
    """Bring the images that the start of a session may need to this machine, which may take minutes.

    If one can't be had, the start itself says why, or does without it.

    Raises:
        UnknownName: there is no such session.
    """
    planning = SessionPlanner(settings)
    planning.sessions.store.session(name)
    try:
        for image in planning.images_at_start(name):
            planning.sessions.engine.pull(image)
    except RefitError as error:  # of catalog or registry
        logger.warning("not all images of %s are here before its start: %s", name, error)


def start_all(settings: Settings) -> Mapping[str, str]:
    """End the moves that were cut short, and start all sessions that ought to run and don't, as after a reboot.

    They go side by side, each for itself: a move that was cut short has the say of its session, and of no other.

    Returns:
        Why a session can't be started, by its name.
    """
    executor = MoveExecutor.open(settings)
    moves = {move.before.name for move in executor.journal.unfinished()}
    down = {
        status.session.name
        for status in executor.sessions.all()
        if status.should_run and status.running is not Running.running
    }
    problems = bring(settings, executor, sorted(moves | down), within=executor.leaving())
    return {name: problem for name, problem in problems.items() if problem}


def bring(
    settings: Settings,
    executor: MoveExecutor,
    names: Sequence[str],
    within: AbstractContextManager[object] | None = None,
) -> Mapping[str, str]:
    """End the moves of these sessions that were cut short, and start those that ought to run and don't, side by side.

    Args:
        settings: those in force.
        executor: of moves.
        names: of the sessions.
        within: entered while they are started.

    Returns:
        why a session isn't where it ought to be, by its name; empty: it is.
    """
    moves = {move.before.name: move for move in executor.journal.unfinished()} if names else {}
    brought = partial(_brought, settings, executor, moves)
    return each(brought, names, executor.sessions.engine.at_once, within=within)


def _brought(settings: Settings, executor: MoveExecutor, moves: Mapping[str, Move], name: str) -> str:
    """Why a session can't be brought to where it ought to be; empty: it is there."""
    try:
        if name in moves:
            recover(executor, moves[name])
        session, should_run = executor.sessions.store.find(name) or (None, False)
        if session and should_run and executor.sessions.running(session) is not Running.running:
            start_session(settings, name)
    except RefitError as error:
        return str(error)
    except Exception as error:
        logger.exception("%s could not be started", name)
        return f"{type(error).__name__}: {error}"
    return ""


def _moved(settings: Settings, executor: MoveExecutor, name: str) -> Result | None:
    executor.sessions.store.session(name)
    try:
        decision = SessionPlanner(settings).at_start(name)
        if decision is None:
            return None
        executor.sessions.store.want(name, True)
        return executor.carry_out(decision)
    except RefitError as error:
        logger.warning("%s keeps its image: %s", name, error)
        return None
