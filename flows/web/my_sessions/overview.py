"""The overview of a person's sessions, for every page. Answers of others are remembered for seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from threading import RLock
from typing import TypeVar

from cachetools import LRUCache, TTLCache
from sqlalchemy import Engine

from flows.catalog.load import load_catalog
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.leases import held
from flows.core.settings import Settings
from flows.core.settings.policy import SessionPolicy
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.notifications.fleet import Fleet
from flows.migrations.notifications.notice import first_told
from flows.migrations.planning.outlook import Outlook, outlook
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import Candidate, ImageKey, PlanInput
from flows.migrations.rollouts.foreign_builds import Foreign, ForeignBuilds
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.migrations.rollouts.store import Rollouts
from flows.publishing import evidence, image_comparison
from flows.publishing.signatures import Publications
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.homes.volumes import DiskUse
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.sessions.overview import Status
from flows.sessions.people import rights
from flows.sessions.people.entitlements import Access, Role
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore
from flows.web.my_sessions import session_view
from flows.web.my_sessions.problems import unknown_session
from flows.web.my_sessions.session_view import MySession
from flows.web.people import names, offers
from flows.web.people.doing import Doing

logger = logging.getLogger("refit.my-sessions")

Result = TypeVar("Result")
# Seconds for which answers count: of the engine, of the disk, of registry and catalog.
_ENGINE_SECONDS, _DISK_SECONDS, _REGISTRY_SECONDS, _FLEET_SECONDS = 1.0, 5.0, 20.0, 30.0
_MOST_IMAGES = 2000
_MOST_CHANGED = 1000  # characters


class Remembered:
    """The answers to late questions; of those who ask at the same time, one asks and the others wait."""

    def __init__(self, seconds: float) -> None:
        self._known: TTLCache[str, tuple[object]] = TTLCache(64, seconds)
        self._lock = RLock()

    def get(self, name: str, ask: Callable[[], Result]) -> Result:
        """The answer to `ask`, not older than some seconds."""
        with self._lock:
            # It may expire between two looks at it, so there is one.
            kept = self._known.get(name)
            if kept is None:
                kept = self._known[name] = (ask(),)
            answer: Result = kept[0]  # type: ignore[assignment]
            return answer

    def forget(self) -> None:
        """Ask anew from now on."""
        with self._lock:
            self._known.clear()


class Lookout:
    """Says of sessions what their people may know."""

    def __init__(self, settings: Settings, database: Engine | None = None) -> None:
        self.settings, self.database = settings, database or open_database(settings.database)
        self._registry = Registry(settings)
        self._publications = Publications(settings, self.database, self._registry)
        self._foreign = ForeignBuilds(settings, self.database)
        self._engine, self._slow = Remembered(_ENGINE_SECONDS), Remembered(_REGISTRY_SECONDS)
        self._fleet, self._disk = Remembered(_FLEET_SECONDS), Remembered(_DISK_SECONDS)
        self._images: LRUCache[str, session_view.Image] = LRUCache(_MOST_IMAGES)
        self._changes: LRUCache[tuple[str, str], str] = LRUCache(_MOST_IMAGES)
        self._lock = RLock()

    @property
    def sessions(self) -> Sessions:
        """The sessions, for one thread."""
        return Sessions.open(self.settings, self.database)

    def access(self, person: str, name: str) -> Access:
        """As what somebody may use a session.

        Raises:
            Problem: there is none, or not for them.
        """
        if self.sessions.store.find(name) is None:
            raise unknown_session(name)
        if self.sessions.store.owners().get(name) == person:
            return Access(Role.owner)
        if access := rights.entitlements(self.settings, self.database).may_use(person, name):
            return access
        raise unknown_session(name)

    def usable(self, person: str) -> dict[str, Access]:
        """The sessions that somebody may use; those of others only where they are shared with them."""
        owners = self.sessions.store.owners()
        shared = rights.entitlements(self.settings, self.database).usable_by(person)
        mine = {name: Access(Role.owner) for name, owner in owners.items() if owner == person}
        return {**{name: access for name, access in shared.items() if access.role is Role.shared}, **mine}

    def all(self, access: Mapping[str, Access], doing: Mapping[str, Doing]) -> tuple[MySession, ...]:
        """The sessions of these names, by name."""
        statuses = [status for name, status in self._statuses().items() if name in access]
        ahead = self._outlooks(
            [status.session for status in statuses if access[status.session.name].role is Role.owner]
        )
        servers = self._servers()
        return tuple(
            self._session(status, access[status.session.name], ahead, servers, doing.get(status.session.name))
            for status in statuses
        )

    def one(self, person: str, name: str, doing: Doing | None) -> MySession:
        """One session.

        Raises:
            Problem: there is none, or not for them.
        """
        access = self.access(person, name)
        if name not in self._statuses():  # it was created since the engine was asked
            self.forget()
        for session in self.all({name: access}, {name: doing} if doing else {}):
            return session
        raise unknown_session(name)

    def fleet(self) -> tuple[Fleet, datetime]:
        """How rollouts and sessions stand, and when that was seen. To find it out, each session is looked at.

        Raises:
            RefitError: catalog or registry don't do their part.
        """
        return self._fleet.get("fleet", lambda: (SessionPlanner(self.settings).fleet(), now()))

    def forget_fleet(self) -> None:
        """Look at all sessions anew, as after a rollout was steered."""
        self._fleet.forget()

    def forget(self) -> None:
        """Ask the engine anew, as after an action."""
        self._engine.forget()

    def offers(self) -> tuple[offers.Offer, ...]:
        """The profiles that sessions can have.

        Raises:
            RefitError: the catalog has mistakes, or the registry doesn't answer.
        """
        return self._slow.get("offers", lambda: offers.offers(self.settings))

    def _statuses(self) -> Mapping[str, Status]:
        return self._engine.get("all", lambda: {status.session.name: status for status in self.sessions.all()})

    def _servers(self) -> Mapping[str, tuple[str, str]]:
        """Session → its owner and the name of its server."""
        owners = self.sessions.store.owners()
        owned: dict[str, list[Session]] = {}
        for session in self.sessions.store.sessions():
            if owner := owners.get(session.name):
                owned.setdefault(owner, []).append(session)
        return {
            session.name: (person, server)
            for person, sessions in owned.items()
            for server, session in names.servers(person, sessions).items()
        }

    def _session(
        self,
        status: Status,
        access: Access,
        ahead: Mapping[str, tuple[Outlook, UpdatePreferences]],
        servers: Mapping[str, tuple[str, str]],
        doing: Doing | None,
    ) -> MySession:
        session = status.session
        owner, server = servers.get(session.name, ("", ""))
        runs = status.running is Running.running
        lease, moving = f"session {session.name}", bool(Journal(self.database).unfinished(session.name))
        busy = not runs and lease in held(self.database, lease)
        return MySession(
            name=session.name,
            server=server,
            owner=owner,
            role=access.role,
            state=session_view.state(status.running, doing, should_run=status.should_run, moving=moving, busy=busy),
            url=f"{session.path}/" if session.access.port else "",
            profile=session.profile,
            release=session.release,
            title=self._titles().get((session.profile, session.release), session.profile),
            image=self._image(session.image),
            update=self._update(session, *ahead[session.name]) if session.name in ahead else None,
            until=access.until,
            by=access.by,
            memory=session.memory,
            cpus=session.cpus,
            gpus=session.gpus,
            disk=self._disk_use(session) if access.role is not Role.shared else (),
            doing=doing,
        )

    def _disk_use(self, session: Session) -> tuple[DiskUse, ...]:
        return self._disk.get(session.name, lambda: tuple(self.sessions.homes.disk_use(session)))

    def _update(self, session: Session, ahead: Outlook, wish: UpdatePreferences) -> session_view.Update:
        return session_view.Update(
            mode=ahead.mode,
            chosen=wish.mode is not None,
            when=session_view.when(ahead, wish.snoozed_until, now()),
            image=self._image(ahead.newest) if ahead.newest else None,
            changes=self._changed(session.image, ahead.newest) if ahead.newest else "",
            until=str(wish.until or ""),
            snoozed_until=wish.snoozed_until if wish.snoozed_until and wish.snoozed_until > now() else None,
            reason=ahead.reason,
            at=ahead.at,
            deadline=ahead.deadline,
            agreed=ahead.agreed,
            by=ahead.by,
        )

    def _outlooks(self, sessions: Iterable[Session]) -> dict[str, tuple[Outlook, UpdatePreferences]]:
        """Session → what lies ahead of it, and what its owner wants."""
        every = tuple(sessions)
        wishes, notified = PreferenceStore(self.database), self._notified()
        ways = {image: other.way for image, other in Rollouts(self.database).all().items()}
        rollout = PlanInput(now(), self._newest(), self.settings.migration, ways=ways)
        foreign = self._foreign.judge(every, rollout.targets)
        return {
            session.name: (outlook(self._candidate(session, wish, notified, foreign.get(session.name)), rollout), wish)
            for session in every
            for wish in [wishes.of(session.name)]
        }

    def _candidate(
        self,
        session: Session,
        wish: UpdatePreferences,
        notified: Mapping[tuple[str, str], datetime],
        foreign: Foreign | None,
    ) -> Candidate:
        status = self._statuses().get(session.name)
        return Candidate(
            session,
            running=bool(status and status.running is Running.running),
            obstacle=foreign.obstacle if foreign else None,
            by=foreign.by if foreign else "",
            policy=self._policies().get((session.profile, session.release), self.settings.migration.sessions),
            wish=wish,
            notified=notified.get((session.name, session.image)),
        )

    def _notified(self) -> Mapping[tuple[str, str], datetime]:
        kinds = (Kind.noticed, Kind.withdrawn)
        return self._slow.get("notified", lambda: first_told(History(self.database).events(kinds=kinds), Kind.noticed))

    def _policies(self) -> Mapping[ImageKey, SessionPolicy]:
        return self._slow.get("policies", lambda: self._or_nothing(lambda: policies(self.settings)))

    def _titles(self) -> Mapping[ImageKey, str]:
        def titles() -> Mapping[ImageKey, str]:
            releases = load_catalog(self.settings.catalog).releases.values()
            return {
                (
                    profile.stem,
                    profile.release,
                ): f"{profile.ide.display}, {profile.bundle.display}, {profile.base.display}"
                for release in releases
                for profile in release.profiles
            }

        return self._slow.get("titles", lambda: self._or_nothing(titles))

    def _newest(self) -> Mapping[ImageKey, str]:
        """Profile and release → the newest image that counts; those of which nobody knows are missing."""

        def ask() -> Mapping[ImageKey, str]:
            keys = {(session.profile, session.release) for session in self.sessions.store.sessions()}
            return {key: digest for key, digest in self._publications.current(keys).items() if isinstance(digest, str)}

        return self._slow.get("newest", lambda: self._or_nothing(ask))

    def _image(self, digest: str) -> session_view.Image:
        with self._lock:
            if image := self._images.get(digest):
                return image
        try:
            manifest = self._registry.manifest(self._registry.repository, digest, recall=True)
            built = self._publications.dates([digest]).get(digest)
            image = session_view.Image(digest, built, sum(int(layer["size"]) for layer in manifest.document["layers"]))
        except RefitError as error:
            logger.info("nothing is known of the image %s: %s", digest, error)
            return session_view.Image(digest)
        with self._lock:
            self._images[digest] = image
        return image

    def _changed(self, old: str, new: str) -> str:
        """The differences of the newer image, in words; empty: nobody knows."""
        with self._lock:
            if (old, new) in self._changes:
                return self._changes[old, new]
        try:
            before, after = (evidence.packages(self._registry, image) for image in (old, new))
        except RefitError as error:
            logger.info("what changes between %s and %s can't be told: %s", old, new, error)
            return ""
        changes = str(image_comparison.changes(before, after))[:_MOST_CHANGED]
        with self._lock:
            self._changes[old, new] = changes
        return changes

    def _or_nothing(self, ask: Callable[[], Mapping[ImageKey, Result]]) -> Mapping[ImageKey, Result]:
        """The answer of registry or catalog; nothing where they don't answer: the rest is shown without it."""
        try:
            return ask()
        except RefitError as error:
            logger.warning("%s", error)
            return {}
