"""New sessions that begin as copies of others: beside them, with a user, token, keys and address of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from flows.core.errors import RefitError, UnknownName
from flows.core.lazily import lazily
from flows.core.leases import LeaseTaken
from flows.core.progress import reported
from flows.core.settings import Settings
from flows.gateway import routes
from flows.images.registry import Registry
from flows.migrations.planning.plan import moved
from flows.migrations.start_sessions import named, newest_image
from flows.publishing.publish import access_of
from flows.publishing.signatures import Publications
from flows.sessions.homes.volumes import Wanted, is_own
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import PREFIX, Session, check_name
from flows.sessions.podman_only import only_on_podman
from flows.sessions.snapshots.model import Snapshot
from flows.sessions.store import NameTaken

with lazily(globals()):
    from flows.compatibility.obstacles import obstacle
    from flows.migrations.rehearsals.rehearsal import rehearse
    from flows.migrations.snapshots import snapshot_actions
    from flows.migrations.switch_profile import of_profile

logger = logging.getLogger("refit.migrations")

_CLONES = "Clones of sessions"


@dataclass(frozen=True)
class Wish:
    """A clone as a person asks for it.

    Attributes:
        name: of the new session.
        profile: stem of another profile; empty: that of the session.
        release: the release of that.
        snapshot: name of the snapshot that it begins with; empty: as the session is now.
        force: whether it is made where something in the home would stop working.
        variables: of the environment of its container, besides those that each session has.
    """

    name: str
    profile: str = ""
    release: str = ""
    snapshot: str = ""
    force: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def clone(settings: Settings, name: str, wish: Wish, by: str, *, owner: str = "") -> Session:
    """Make a session that begins with a copy of another one's home and own volumes, and start it.

    The other one may run, and goes on. The new one has a user, a token, host keys and an address of its own; no GPU, no
    ssh keys of the home, no hold, no files by which an IDE takes itself for running. Both have the
    volumes that sessions share.

    Args:
        settings: those in force.
        name: the session that is copied.
        wish: the new one.
        by: the person who wants it.
        owner: the owner of the new one; empty: the owner of the other one.

    Raises:
        NameTaken: there is a session of that name.
        RefitError: there is a home of that name, no such session, snapshot, profile or image, no room, or the home
            doesn't go together with the profile, or the profile doesn't pass its rehearsal on it: nothing is left;
            or the new session doesn't start. On Kubernetes, always, before a snapshot is taken for it.
    """
    only_on_podman(settings, _CLONES)
    sessions = Sessions.open(settings)
    source = sessions.store.session(name)
    _check_free(sessions, wish.name)
    pattern = _pattern(settings, sessions, source, wish)
    with _snapshot(sessions, source, wish, by) as snapshot:
        snapshot_actions.require_whole(source, snapshot)
        with sessions.alone(wish.name), reported(wish.name, f"copying the home of {name}"):
            _check_free(sessions, wish.name)
            session = replace(pattern, name=wish.name, environment=dict(wish.variables))
            whose = owner or sessions.store.owners().get(name, "")
            _make(settings, sessions, source, snapshot, session, whose, force=wish.force)
    return sessions.start(wish.name)


def remove_killed(sessions: Sessions) -> tuple[str, ...]:
    """Remove new sessions whose home isn't whole, for the process that copied it was killed; returns their names.

    Where the home is in its place, the clone is whole: it starts as every other session.
    """
    removed = []
    for name in sessions.homes.drafts():
        with suppress(LeaseTaken), sessions.alone(name, wait=0):
            if name in sessions.homes.drafts() and not sessions.engine.containers(name):
                _remove(sessions, name)
                removed.append(name)
    return tuple(removed)


def fetch(settings: Settings, name: str, wish: Wish) -> None:
    """Bring the image that a clone starts with to this machine, which may take minutes; `clone` needs it.

    Raises:
        RefitError: there is no such session, profile or image, or the registry doesn't answer.
    """
    only_on_podman(settings, _CLONES)
    sessions = Sessions.open(settings)
    sessions.engine.pull(_image(settings, sessions.store.session(name), wish))


def _check_free(sessions: Sessions, name: str) -> None:
    if sessions.store.find(check_name(name)):
        raise NameTaken(name)
    if sessions.store.has_home(name) or name in sessions.homes.owners():
        raise RefitError(
            f"There is a home {name!r} already.",
            why="It was kept when its session was removed.",
            hint=f"choose another name, or remove it for good: `refit session rm {name} --purge`.",
        )


def _pattern(settings: Settings, sessions: Sessions, source: Session, wish: Wish) -> Session:
    """The session as the new one is to be, but for its name, user and folders."""
    publications = Publications(settings)
    if not wish.profile:
        publications.require(source.image)
        return replace(source, generation=1, gpus=0, devices=())
    profile = named(settings, wish.release, wish.profile)
    image = _image(settings, source, wish)
    if not wish.force and (why := obstacle(settings, sessions.engine, source, image)):
        raise RefitError(
            f"Files in the home of {source.name!r} don't go together with {profile.stem}.",
            why=why,
            hint="mend it first, or say `--force`.",
        )
    other = moved(source, image, access_of(image, Registry(settings)) or profile.access)
    return replace(of_profile(other, profile), generation=1, gpus=0, devices=())


def _image(settings: Settings, source: Session, wish: Wish) -> str:
    if not wish.profile:
        return source.image
    return newest_image(settings, named(settings, wish.release, wish.profile))


@contextmanager
def _snapshot(sessions: Sessions, source: Session, wish: Wish, by: str) -> Iterator[Snapshot]:
    """The snapshot that the clone begins with; one that is taken for it alone goes afterwards."""
    if wish.snapshot:
        yield snapshot_actions.find(sessions, source.name, wish.snapshot)
        return
    taken = snapshot_actions.take(sessions, source.name, by, note=f"for {wish.name}, which begins with it")
    try:
        yield taken
    finally:
        try:
            snapshot_actions.remove(sessions, source.name, taken.id, by)
        except RefitError as error:
            # The session moves meanwhile: retention removes it, and the clone is none the worse.
            logger.info("the snapshot %s of %s stays: %s", taken.name, source.name, error)


def _make(
    settings: Settings,
    sessions: Sessions,
    source: Session,
    snapshot: Snapshot,
    pattern: Session,
    owner: str,
    *,
    force: bool,
) -> None:
    """Make home and record of the new session, whole or not at all; `remove_killed` removes a killed attempt."""
    homes, store = sessions.homes, sessions.store

    def make(uid: int) -> Session:
        return _placed(settings, sessions, replace(pattern, uid=uid))

    try:
        homes.draft_clone(source, snapshot.id, _placed(settings, sessions, pattern))
        _check_there(sessions, source, snapshot)
        taken = homes.owners().values()
        session = store.add(pattern.name, make, uids=settings.session_uids, avoid=taken, owner=owner)
        sessions.packages.store.copy(source.name, session.name)
        homes.finish_clone(session, source.uid)  # last: with its home in place it counts as whole
        if session.image != source.image and not force:
            _prove(settings, sessions, session)
    except BaseException:
        _remove(sessions, pattern.name)
        raise


def _check_there(sessions: Sessions, source: Session, snapshot: Snapshot) -> None:
    """Find out after the copy whether it is whole: a removal is on record before a file of the snapshot goes.

    Raises:
        RefitError: somebody, or retention, has removed the snapshot meanwhile.
    """
    try:
        snapshot_actions.find(sessions, source.name, snapshot.id)
    except UnknownName:
        raise RefitError(
            f"The snapshot {snapshot.name!r} of {source.name!r} was removed while it was copied.",
            hint="choose another one, or clone the home as it is now.",
        ) from None


def _remove(sessions: Sessions, name: str) -> None:
    # The record goes first: with neither a home nor the half copy beside it, it would start with an empty home.
    sessions.store.forget(name)
    sessions.homes.remove(name)
    sessions.store.forget_home(name)


def _prove(settings: Settings, sessions: Sessions, clone: Session) -> None:
    """Rehearse the other image on a copy of the new home, as a move to it would.

    Raises:
        RefitError: it doesn't pass.
    """
    if not settings.migration.rehearse:
        return
    rehearsed = rehearse(settings, sessions.homes, clone, sessions.packages.store.names(clone.name))
    if rehearsed.failed:
        seen = "; ".join(f"{finding.check}: {finding.seen}" for finding in rehearsed.findings if not finding.passed)
        raise RefitError(
            f"{clone.profile} didn't pass its rehearsal on a copy of the home.",
            why=seen,
            hint="mend it in the home, choose another profile, or say `--force`.",
        )


def _placed(settings: Settings, sessions: Sessions, session: Session) -> Session:
    """A session with its own folders, address and volumes; volumes that others share it shares, too."""
    name, homes = session.name, sessions.homes
    volumes = tuple(
        homes.mounted(name, Wanted(volume.name, volume.path, volume.read_only)) if is_own(volume) else volume
        for volume in session.volumes
    )
    placed = replace(
        session,
        home=homes.home_of(name),
        token_ref=sessions.tokens.token_of(name),
        environment={**session.environment, **({PREFIX: routes.path(name)} if session.access.port else {})},
        volumes=volumes,
    )
    return replace(placed, late_home=sessions.binds_late(placed))
