"""Giving a session another profile, or the image that it had: moves like every other, for which a person asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Engine

from flows.catalog.model import Profile
from flows.compatibility.obstacles import obstacle
from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.core.settings.policy import Mode
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.move_steps import State
from flows.migrations.results import Result
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.start_sessions import named, newest_image
from flows.publishing import evidence, image_comparison
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.wishes import PreferenceStore, caller

with lazily(globals()):
    from flows.migrations.executor import MoveExecutor


def switch_session(settings: Settings, name: str, profile: str, release: str, *, force: bool = False) -> Result:
    """Move a session that runs to another profile at once: the person who asks for it agrees to be interrupted.

    Address, token, home and volumes stay; GPUs, memory and cores are what the other profile says. A failed change is
    undone.

    Args:
        settings: those in force.
        name: the session.
        profile: stem of the other profile, e.g. `runtime-minimal-deb12-py311`.
        release: its release.
        force: whether it moves where something in its home would stop working.

    Raises:
        RefitError: there is no such session, profile or image, it can't be moved, or its home doesn't fit.
    """
    planning = SessionPlanner(settings)
    chosen = named(settings, release, profile)
    session = planning.sessions.store.session(name)
    image = newest_image(settings, chosen)
    return _move(settings, planning, session, image, force, lambda after: of_profile(after, chosen))


def fetch_for_switch(settings: Settings, profile: str, release: str) -> None:
    """Bring the newest image of a profile to this machine, which may take minutes; `switch_session` needs it.

    Raises:
        RefitError: there is no such profile or image, or the registry doesn't answer.
    """
    chosen = named(settings, release, profile)
    Sessions.open(settings).engine.pull(newest_image(settings, chosen))


def go_back(settings: Settings, name: str, *, force: bool = False) -> Result:
    """Move a session that runs back to the image and the profile that it had before its last move.

    Its home stays as it is now. From then on it isn't moved again before its owner is asked.

    Args:
        settings: those in force.
        name: the session.
        force: whether it moves where something in its home would stop working.

    Raises:
        RefitError: there is no such session, it was never moved, or its image of then is gone; or as `switch_session`.
    """
    planning = SessionPlanner(settings)
    session = planning.sessions.store.session(name)
    moves = Journal(planning.database).history(name)
    had = [
        move.before
        for move in moves
        if move.state is State.cleaned and move.after.image == session.image != move.before.image
    ]
    if not had:
        raise RefitError(
            f"The session {name!r} has the image that it was made with.",
            hint=f"`refit session change-profile {name} PROFILE` gives it another profile.",
        )
    result = _move(settings, planning, session, had[-1].image, force, lambda after: as_before(after, had[-1]))
    if result.moved:
        leave_alone(planning.database, session, caller())
    return result


def _move(
    settings: Settings,
    planning: SessionPlanner,
    session: Session,
    image: str,
    force: bool,
    becomes: Callable[[Session], Session],
) -> Result:
    name, registry = session.name, Registry(settings)
    engine = planning.sessions.engine
    if not force and (why := obstacle(settings, engine, session, image)):
        raise RefitError(
            f"Files in the home of {name!r} don't go together with the image {image}.",
            why=why,
            hint="mend it first, or say `--force`.",
        )
    decision = planning.to_image(name, image)
    changes = image_comparison.changes(evidence.packages(registry, session.image), evidence.packages(registry, image))
    return MoveExecutor.open(settings).carry_out(decision, str(changes), becomes)


def leave_alone(database: Engine, session: Session, by: str) -> None:
    """Let a session that went back from an image be moved there only if its owner says so, or a new deadline comes."""
    wishes = PreferenceStore(database)
    History(database).add(Kind.withdrawn, session=session.name, image=session.image, by=by, what="it went back")
    if wishes.of(session.name).mode in (None, Mode.when_idle):
        wishes.change(session.name, by, mode=Mode.ask, agreed="")


def as_before(session: Session, before: Session) -> Session:
    """A session with the profile that it had, and what that may take of the machine. Pure."""
    same = ("profile", "release", "gpus", "memory", "cpus")
    return replace(session, **{name: getattr(before, name) for name in same})


def of_profile(session: Session, profile: Profile) -> Session:
    """A session as one of this profile. Pure."""
    resources = profile.resources
    return replace(
        session,
        profile=profile.stem,
        release=profile.release,
        gpus=resources.gpus,
        memory=resources.memory or 0,
        cpus=resources.cpus or 0.0,
    )
