"""Observing the sessions of this machine for a plan: the engine, the journal, the homes, what their owners wish."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from types import MappingProxyType
from typing import Any

from sqlalchemy import Engine

from flows.compatibility.obstacles import AT_ONCE, PLAN_SECONDS, Scans, obstacles
from flows.core.database import now
from flows.core.leases import held
from flows.core.settings import Settings
from flows.migrations.journal import Journal
from flows.migrations.move import Past
from flows.migrations.move_steps import FINAL, State
from flows.migrations.notifications.notice import first_told
from flows.migrations.planning import wave_gates
from flows.migrations.planning.observed import Observed
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import Candidate, Host, ImageKey, PlanInput, Reason
from flows.migrations.planning.rollout_state import RolloutState
from flows.migrations.rollouts.foreign_builds import NOBODYS, Foreign, ForeignBuilds
from flows.migrations.rollouts.image_pulls import ImagePulls, room_for_images
from flows.migrations.rollouts.store import Rollouts
from flows.migrations.rollouts.targets import has_other_image, image_key
from flows.sessions.activity.probes import elsewhere_at_once, look_at
from flows.sessions.activity.seen import Seen
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from flows.sessions.others.all_others import Others, look_at_others
from flows.sessions.overview import Status
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore

# By how much the clocks of those who write into one journal may differ.
_CLOCKS = timedelta(minutes=10)


class Observer:
    """Looks at sessions again and again; one that was seen a moment ago isn't looked at again.

    Args:
        settings: those in force.
        sessions: those of this machine.
        database: the journal, the rollouts and the history of notices.
        pulls: the images that have to be pulled before a session can be moved.

    Attributes:
        others: sessions that others own.
        foreign: judges images that were made by people's own recipes.
        scans: the results of the last scans of homes.
    """

    def __init__(self, settings: Settings, sessions: Sessions, database: Engine, pulls: ImagePulls) -> None:
        self._settings, self._policy, self._sessions = settings, settings.migration, sessions
        self._database, self._journal, self._rollouts = database, Journal(database), Rollouts(database)
        self._pulls, self.others = pulls, Others(settings)
        self.foreign, self.scans = ForeignBuilds(settings, database), Scans()
        self._scan_until, self._scanned = 0.0, set[str]()
        self._read: datetime | None = None
        self._moves: dict[str, Past] = {}
        self._looks: dict[tuple[str, int], tuple[datetime, Seen]] = {}

    def observe(
        self,
        statuses: Sequence[Status],
        asked: Sequence[Status],
        images: Mapping[ImageKey, str],
        *,
        look: bool = True,
        pull: bool = True,
        scan: bool = True,
        spared: Collection[str] = (),
    ) -> Observed:
        """The facts on which a plan for some of all sessions depends.

        Args:
            statuses: all sessions.
            asked: those that may be moved.
            images: their targets.
            look: whether anybody works in those that would be moved.
            pull: ask what has to be pulled for them.
            scan: whether the homes of those that would be moved are scanned.
            spared: those that aren't looked at.
        """
        moves = self.moves()
        foreign = self.foreign.judge((status.session for status in asked), images)
        candidates = self.candidates(statuses, moves, images if look else {}, spared, foreign, scan=scan)
        sizes = self._to_pull(asked, images) if pull else {}
        rollouts = self._rollouts.all()
        homes = self._sessions.store.homes().keys()
        return Observed(
            candidates,
            self._rollout(asked, images, rollouts, sizes),
            moves,
            rollouts,
            self.fallen(statuses),
            frozenset(homes - {status.session.name for status in statuses}),
        )

    def moves(self) -> tuple[Past, ...]:
        """All moves, oldest first; those that had ended when it was asked before aren't read again."""
        began = now()
        self._moves |= {move.id: move for move in self._journal.since(self._read)}
        self._read = began - _CLOCKS
        return tuple(sorted(self._moves.values(), key=lambda move: (move.created, move.id)))

    def fallen(self, statuses: Iterable[Status]) -> frozenset[tuple[str, str]]:
        """Sessions that ought to run and don't, with their images; not those that somebody starts or moves just now."""
        away = [status.session for status in statuses if status.should_run and status.running is not Running.running]
        at_work = held(self._database, "session ") if away else ()
        return frozenset((session.name, session.image) for session in away if f"session {session.name}" not in at_work)

    def _to_pull(self, statuses: Iterable[Status], images: Mapping[ImageKey, str]) -> dict[str, int]:
        """Image → bytes that have to be pulled before anybody can move to it."""
        running = [
            status.session for status in statuses if status.running is Running.running and not status.session.owned_by
        ]
        return self._pulls.sizes(
            {images[image_key(session)] for session in running if has_other_image(session, images)}
        )

    def _rollout(
        self,
        statuses: Sequence[Status],
        images: Mapping[ImageKey, str],
        rollouts: Mapping[str, RolloutState],
        pulls: Mapping[str, int],
    ) -> PlanInput:
        begun = {image: rollouts[image] for image in images.values() if image in rollouts}
        foreseen = canaries(statuses, images, self._policy.waves, besides=begun.keys())
        return PlanInput(
            now(),
            images,
            self._policy,
            self._settings.idle_state_hours,
            ways={image: rollout.way for image, rollout in begun.items()},
            canaries=frozenset({*foreseen.values(), *(rollout.canary for rollout in begun.values())}),
            hosts=self._hosts(statuses, pulls),
        )

    def _hosts(self, statuses: Iterable[Status], pulls: Mapping[str, int]) -> dict[str, Host]:
        """The room on this machine; a session that wants no GPU has enough of them."""
        room = room_for_images(self._settings) if pulls else None
        if not any(status.session.gpus for status in statuses):
            return {platform.node(): Host(pulls, room=room)} if pulls else {}
        free, returned = self._sessions.gpus.free()
        return {platform.node(): Host(pulls, room=room, gpus=free, gpus_from=returned)}

    def candidates(
        self,
        statuses: Sequence[Status],
        moves: Sequence[Past],
        images: Mapping[ImageKey, str],
        spared: Collection[str] = (),
        foreign: Mapping[str, Foreign] = MappingProxyType({}),
        *,
        scan: bool = True,
    ) -> tuple[Candidate, ...]:
        """The facts about each session; those that run and are to be on another image are looked at, unless spared."""
        last, rest = {move.session: move for move in moves}, timedelta(minutes=self._policy.poll_minutes)
        wishes, no_wish = PreferenceStore(self._database).all(), UpdatePreferences()
        events = History(self._database).events(kinds=(Kind.noticed, Kind.seen, Kind.withdrawn))
        notified, noticed = first_told(events, Kind.noticed), first_told(events, Kind.seen)
        rules = policies(self._settings) if statuses else {}
        moving = [s.session for s in statuses if s.running is Running.running and has_other_image(s.session, images)]
        seen = self._seen(session for session in moving if session.name not in spared)
        blocked = self.blocked(moving, images, self._not_read(seen, spared)) if scan else {}
        has = Counter(taken.session for taken in self._sessions.gpus.taken())
        goes_on = any(move.state not in FINAL for move in moves)
        at_work = held(self._database, "session ") if goes_on else ()
        return tuple(
            Candidate(
                session=status.session,
                running=status.running is Running.running,
                host=platform.node(),
                policy=rules.get(image_key(status.session), self._policy.sessions),
                owner=wishes.get(status.session.name, no_wish).owner,
                by=foreign.get(status.session.name, NOBODYS).by,
                wish=wishes.get(status.session.name, no_wish),
                seen=seen.get(status.session.name),
                notified=notified.get((status.session.name, status.session.image)),
                noticed=noticed.get((status.session.name, status.session.image)),
                blocked=blocked.get(status.session.name, ""),
                gpus=max(0, status.session.gpus - has[status.session.name]),
                **_left_behind(last.get(status.session.name), rest, at_work, foreign.get(status.session.name, NOBODYS)),
            )
            for status in statuses
        )

    def _seen(self, sessions: Iterable[Session]) -> dict[str, Seen]:
        """The looks at sessions, taken not longer ago than `poll_minutes`."""
        keyed = {(session.name, session.generation): session for session in sessions}
        oldest = now() - timedelta(minutes=self._policy.poll_minutes)
        self._looks = {key: look for key, look in self._looks.items() if key in keyed and look[0] > oldest}
        again = [key for key in keyed if key not in self._looks]
        looks = look_at(self._settings, self._sessions.engine, [keyed[key] for key in again if not keyed[key].owned_by])
        of_others = look_at_others(self._settings, self.others, [keyed[key] for key in again if keyed[key].owned_by])
        by_name = {seen.session: seen for seen in (*looks, *of_others)}
        self._looks |= {key: (now(), by_name[key[0]]) for key in again}
        return {name: seen for (name, _), (_, seen) in self._looks.items()}

    def _not_read(self, seen: Mapping[str, Seen], spared: Collection[str]) -> dict[str, str]:
        """Sessions whose homes aren't read now → why, in words."""
        why = dict.fromkeys(spared, "its wave isn't open")
        if not self._sessions.engine.on_this_machine:  # a program would be brought there, as that of the look was
            why |= {name: "nobody could look into it" for name, look in seen.items() if look.failed}
        return why

    def begin_scans(self, seconds: float = PLAN_SECONDS) -> None:
        """Let homes be scanned once until this is called again, and for so long; 0: what is kept counts alone."""
        self.scans, self._scan_until, self._scanned = Scans(), monotonic() + seconds, set()

    def blocked(
        self,
        sessions: Iterable[Session],
        images: Mapping[ImageKey, str],
        not_read: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, str]:
        """Obstacles in homes that don't go together with their new images, of those that were read since `begin_scans`.

        Args:
            sessions: they, each once.
            images: their targets.
            not_read: session → why its home isn't read now.
        """
        if not self._policy.scan:
            return {}
        engine, own = self._sessions.engine, [session for session in sessions if not session.owned_by]
        moving = {
            session.name: (session, images[image_key(session)]) for session in own if session.name not in self._scanned
        }
        many = AT_ONCE if engine.on_this_machine else elsewhere_at_once(len(moving))
        seconds = max(0.0, self._scan_until - monotonic())
        new = obstacles(self._settings, engine, moving, many, seconds=seconds, spared=not_read)
        self.scans = _added(self.scans, new, moving)
        self._scanned |= moving.keys() - not_read.keys()
        return {session.name: why for session in own if (why := self.scans.blocked.get(session.name))}


def _added(scans: Scans, new: Scans, read: Collection[str]) -> Scans:
    """The results of scans with new ones, of these sessions."""
    blocked = {name: why for name, why in scans.blocked.items() if name not in read}
    unread = {name: why for name, why in scans.unread.items() if name not in read}
    return Scans({**blocked, **new.blocked}, {**unread, **new.unread})


def canaries(
    statuses: Iterable[Status], images: Mapping[ImageKey, str], percents: Sequence[float], besides: Iterable[str] = ()
) -> dict[str, str]:
    """Image → the session that goes first to it if its first wave would be empty; `besides`: not for these images."""
    running = [status.session for status in statuses if status.running is Running.running]
    going = [(session.name, images[image_key(session)]) for session in running if has_other_image(session, images)]
    pending = {*images.values()} - {*besides}
    return {image: wave_gates.canary([each for each in going if each[1] == image], percents) for image in pending}


def _left_behind(move: Past | None, rest: timedelta, at_work: Collection[str], foreign: Foreign) -> dict[str, Any]:
    """The consequences of a session's last move for the next.

    Args:
        move: the last one.
        rest: for how long a session is left alone whose move was put off.
        at_work: the leases of sessions that are worked on now.
        foreign: the judgement on builds of other people.
    """
    other = foreign.obstacle
    if move is None:
        return {"obstacle": other}
    if move.state is State.deferred:
        return {"rests_until": move.ended and move.ended + rest, "obstacle": other}
    if move.state is State.rolled_back:
        return {"failed": move.image, "obstacle": other}
    if move.state not in FINAL:
        return {
            "obstacle": Reason.moving if f"session {move.session}" in at_work else Reason.unfinished,
            "away_since": move.created,
        }
    return {"obstacle": Reason.held if move.state is State.held else other}
