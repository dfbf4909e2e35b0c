"""Servers of the Hub as sessions: which there are, how they begin and end. JupyterHub itself is not needed for that.

A call takes as long as a container needs to start or to stop; the Hub makes it in a thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flows.catalog import load, successors
from flows.catalog.model import Profile
from flows.core.database import DataVersion, now, open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.leases import held
from flows.core.settings import Settings
from flows.migrations.journal import Journal
from flows.migrations.snapshots.clone_session import Wish, clone
from flows.migrations.start_sessions import described, fetch_for_start, make_session, newest_image, start_session
from flows.publishing.own_profiles import OwnProfiles
from flows.sessions.homes.volumes import read_wanted
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.sessions.overview import Status
from flows.sessions.wishes import PreferenceStore
from flows.web.people import names
from flows.web.people.action_records import ActionRecords, Service
from flows.web.people.own_offers import has
from flows.web.people.person_limits import Allowance

# Seconds. The Hub asks for each server by itself, and Podman answers for all at once.
_FRESH = 2.0
# The option by which the authorizer tells the Hub that the session of a server runs.
RUNS = "runs"


@dataclass(frozen=True)
class Wanted:
    """A person's choice on the form: a profile of a release, and their session whose home is copied; empty: none."""

    profile: str
    release: str
    copy_of: str = ""


def choice_of(options: Mapping[str, object]) -> Wanted | None:
    """The choice in the options of a server; none: nothing in particular. Pure.

    Raises:
        RefitError: they aren't those of the form.
    """
    release, profile, copy_of = options.get("release"), options.get("profile"), options.get("copy_of", "")
    if release is None and profile is None:
        return None
    if not (isinstance(release, str) and isinstance(profile, str) and isinstance(copy_of, str)):
        raise RefitError("The options of the server name no profile.", hint='send {"release": …, "profile": …}.')
    return Wanted(profile, release, copy_of)


class NothingChosen(RefitError):
    """A server without a session is to start, and nobody has said from which profile."""

    def __init__(self) -> None:
        super().__init__("No profile was chosen.", hint="choose one on the form.")


def is_up(status: Status | None, *, busy: bool, moving: bool) -> bool:
    """Whether a server counts as running. One that moves or starts does, though its container may be away. Pure.

    Args:
        status: of its session; none: there is no session.
        busy: somebody acts on it now.
        moving: a move of it has not ended.
    """
    return bool(status and status.should_run and (status.running is Running.running or busy or moving))


class Servers:
    """The servers of all people."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._database = settings, open_database(settings.database)
        self.allowance = Allowance(settings, self._database)
        self.creations = ActionRecords(self._database, Service.hub)
        self._journal, self._lock = Journal(self._database), threading.Lock()
        self._seen: tuple[float, Mapping[str, Status]] = (-math.inf, {})
        self._version = DataVersion(self._database)
        self._read: tuple[object, Mapping[str, Mapping[str, Session]]] = (None, {})

    @property
    def sessions(self) -> Sessions:
        """The sessions, for one thread."""
        return Sessions.open(self._settings, self._database)

    def all(self) -> Mapping[str, Mapping[str, Session]]:
        """Person → name of the server → its session, whether it runs or not."""
        version = self._version.now()  # asked before, so that a commit meanwhile is read
        before, servers = self._read
        if version != before:
            servers = self._read_all()
            self._read = version, servers
        return servers

    def _read_all(self) -> dict[str, dict[str, Session]]:
        store, owned = self.sessions.store, defaultdict[str, list[Session]](list)
        owners = store.owners()
        for session in store.sessions():
            if session.name in owners:
                owned[owners[session.name]].append(session)
        return {person: names.servers(person, sessions) for person, sessions in owned.items()}

    def session(self, person: str, server: str) -> Session | None:
        """The session of a server; none: there is none."""
        return self.all().get(person, {}).get(server)

    def start(self, person: str, server: str, choice: Wanted | None, groups: Collection[str] | None = None) -> str:
        """Start the session of a server, or make it; one that runs is left alone. Returns the session's name.

        Args:
            person: the owner of the server.
            server: its name for them.
            choice: the profile of a new one.
            groups: those that the person is in; none: as the Hub has said last.

        Raises:
            NothingChosen: there is no session, and no profile was named.
            OverLimit: it is more than the person may have.
            RefitError: it can't be made, or doesn't get ready.
        """
        try:
            if (session := self.session(person, server)) is None:
                if choice is None:
                    raise NothingChosen()
                return self.creations.follow_creation(
                    person, server, lambda: self._make(person, server, choice, groups).name
                )
            if not self.is_up(session.name):
                amounts = self.allowance.of(session.name)
                self.allowance.check(person, amounts, session.name, groups)
                fetch_for_start(self._settings, session.name)
                with self.allowance.within(person, amounts, session.name, groups):
                    self.allowance.bound_home(person, session.name, groups)
                    start_session(self._settings, session.name)
            return session.name
        finally:
            self._forget()

    def stop(self, session: str) -> None:
        """Stop a session.

        Raises:
            RefitError: there is none, or somebody else acts on it.
        """
        self.sessions.stop(session)
        self._forget()

    def remove(self, session: str) -> None:
        """Remove a session; its home stays, and is its owner's.

        Raises:
            RefitError: there is none, or somebody else acts on it.
        """
        self.sessions.remove(session)
        self._forget()

    def is_up(self, session: str) -> bool:
        """Whether a session counts as running."""
        if not (self.sessions.store.intent(session) or (False,))[0]:
            return False
        if is_up(self._statuses(_FRESH).get(session), busy=False, moving=False):
            return True
        lease = f"session {session}"
        busy, moving = lease in held(self._database, lease), bool(self._journal.unfinished(session))
        # The process that has just brought it up held it until then: so it is looked at after the lease was.
        return is_up(self._statuses(_FRESH if busy or moving else 0).get(session), busy=busy, moving=moving)

    def runs(self, session: str) -> bool:
        """Whether the container of a session runs, and ought to."""
        return is_up(self._statuses(_FRESH).get(session), busy=False, moving=False)

    def _statuses(self, seconds: float) -> Mapping[str, Status]:
        """How all sessions are, or were at most so many seconds before this was asked."""
        began = time.monotonic()
        with self._lock:
            at, seen = self._seen
            if at < began - seconds:
                at, seen = time.monotonic(), {status.session.name: status for status in self.sessions.all()}
                self._seen = at, seen
            return seen

    def _forget(self) -> None:
        with self._lock:
            self._seen = (-math.inf, {})

    def _make(self, person: str, server: str, choice: Wanted, groups: Collection[str] | None) -> Session:
        profile = self._profile(person, choice, groups)
        image, volumes = newest_image(self._settings, profile), read_wanted(profile.volumes)
        takes = profile.resources
        amounts = self.allowance.takes(takes.memory or 0, takes.cpus or 0.0, takes.gpus)
        # Others of this person wait under the lease; the image, which may take minutes, comes before that.
        self.allowance.check(person, amounts, groups=groups)
        source = self._source(person, choice)
        self.sessions.engine.pull(image)
        with self.allowance.within(person, amounts, groups=groups):
            name, variables = self.free_name(person, server), names.environment(person, server)
            self.allowance.bound_home(person, name, groups)
            if source:
                wish = Wish(name, choice.profile, choice.release, variables=variables)
                session = clone(self._settings, source, wish, person, owner=person)
            else:
                session = make_session(self._settings, name, profile, image, volumes, variables, owner=person)
        PreferenceStore(self._database).change(name, person, owner=person)
        return session

    def _source(self, person: str, choice: Wanted) -> str:
        """The session whose home is copied; empty: none.

        Raises:
            UnknownName: they have none of that name.
        """
        mine = {session.name for session in self.all().get(person, {}).values()}
        if choice.copy_of and choice.copy_of not in mine:
            raise UnknownName("session of yours", choice.copy_of, mine)
        return choice.copy_of

    def _profile(self, person: str, choice: Wanted, groups: Collection[str] | None) -> Profile:
        """The profile of the catalog, or a person's own that this one may start; others are as if they weren't there.

        Raises:
            UnknownName: there is none.
        """
        catalog = load.load_catalog(self._settings.catalog)
        own = None if has(catalog, choice.profile) else OwnProfiles(self._database).find(choice.profile)
        if own and own.may_be_started_by(person, self.allowance.groups_of(person, groups)):
            return described(self._settings, own)
        return successors.current(catalog, choice.release, choice.profile, now().date())

    def free_name(self, person: str, server: str) -> str:
        """The name of the session of a new server: the first that nobody else has; homes that were kept count, too.

        Raises:
            RefitError: all are taken.
        """
        store = self.sessions.store
        sessions, homes, owners = {session.name for session in store.sessions()}, store.homes(), store.owners()
        for name in names.candidates(person, server):
            if name not in sessions and (name not in homes or owners.get(name) == person):
                return name
        raise RefitError(
            "There is no name left for this session.",
            why=f"{' and '.join(names.candidates(person, server))} are taken by sessions or homes of others.",
            hint="ask the operator of this machine to say whose they are, or choose another name for the server.",
        )
