"""Planning a migration of the sessions of this machine: what is known of them, and what they are to be moved to."""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Condition
from typing import Any

from cachetools import TTLCache, cached
from sqlalchemy import Engine

from flows.compatibility.obstacles import obstacles
from flows.core.database import held, now, open_database
from flows.core.errors import RefitError
from flows.core.formatting import short
from flows.core.policy import Mode
from flows.core.settings import Settings
from flows.host import tools
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.move import FINAL, Past, State
from flows.migrations.notifications.fleet import Fleet, fleet
from flows.migrations.notifications.notice import first_told
from flows.migrations.notifications.teller import withdraw
from flows.migrations.planning import waves
from flows.migrations.planning.consent import deadline_if_told, keep_hours, starting
from flows.migrations.planning.plan import plan_after, plan_named
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import (
    Candidate,
    Decision,
    Gate,
    Health,
    Host,
    ImageKey,
    PlanInput,
    Reason,
    RolloutStatus,
)
from flows.migrations.planning.rollout_state import RolloutState
from flows.migrations.planning.waves import Trial
from flows.migrations.reconcile import due
from flows.migrations.rollouts import Rollouts
from flows.publishing import evidence
from flows.publishing.signatures import NotPublished, Publications, Refusal
from flows.sessions.activity.probes import look_at
from flows.sessions.activity.seen import Seen
from flows.sessions.containers.pulls import to_pull
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.lifecycle import Sessions, Status
from flows.sessions.model import Running, Session
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore, caller

# By how much the clocks of those who write into one journal may differ.
_CLOCKS = timedelta(minutes=10)
# Seconds for which it is known what the newest image is, while sessions are moved.
_NEWEST_SECONDS = 10
# How many times as large a layer is when it is unpacked, and bytes that pulls leave to everybody else.
_UNPACKED, _SPARE = 3, 1 << 30
_FAILED = (State.rolled_back, State.held)
Plan = tuple[tuple[Decision, ...], Mapping[tuple[str, int], Gate]]
"""One line for each session, and what is known of the waves."""


def plan_migration(names: Sequence[str], to: str, settings: Settings, origin: str = "") -> tuple[Decision, ...]:
    """One decision per session: what it moves to and when, or why it stays. Nothing is touched; see `Planning.plan`.

    Each says how much of its image has to be pulled first.
    """
    planned = Planning(settings).plan(names, to, origin)
    pulls = to_pull(settings, {line.new for line in planned if line.new not in ("", line.old)})
    return tuple(replace(line, pull=pulls.get(line.new, 0)) for line in planned)


class Planning:
    """Plans again and again; what was seen of a session a moment ago isn't looked at again."""

    def __init__(self, settings: Settings, *, only_begun: bool = False) -> None:
        """What is known; `only_begun`: no other image than those whose rollouts have begun is planned for."""
        self._settings, self._policy, self._only_begun = settings, settings.migration, only_begun
        self.database = open_database(settings.database)
        self.sessions = Sessions.open(settings, self.database)
        self._standings = Rollouts(self.database)
        self._journal = Journal(self.database)
        self._read: datetime | None = None
        self._moves: dict[str, Past] = {}
        self._looks: dict[tuple[str, int], tuple[datetime, Seen]] = {}
        self._known: dict[str, Candidate] = {}
        self._latest: Plan | None = None
        self._publications = Publications(settings, self.database)
        # Of those who move at the same time, one asks the registry for all.
        self._newest = cached(TTLCache[ImageKey, str](1000, _NEWEST_SECONDS), condition=Condition())(self._published)
        self._pulls: TTLCache[str, int] = TTLCache(1000, self._policy.look_minutes * 60)
        self._news: list[str] = []

    def plan(self, names: Sequence[str], to: str, origin: str = "", *, begin: bool = False) -> tuple[Decision, ...]:
        """One decision per session: what it moves to and when, or why it stays.

        Who names a session says that it may be interrupted. All others are looked at first, which doesn't count as
        work.

        Args:
            names: names of sessions; empty: all.
            to: tag or digest of an image to move to; empty: the newest tested image of each session's profile.
            origin: tag or digest of an image: only the sessions that have it; empty: all.
            begin: whether the rollouts of the images begin with this plan.

        Raises:
            RefitError: there is no such session or image, or a session that was named can't be moved.
        """
        self._latest = self._plan(names, to, origin, begin=begin)
        return self._latest[0]

    def at_start(self, name: str) -> Decision | None:
        """How a session that is stopped moves while its owner starts it; none: it keeps its image.

        It does so if that is its mode, or if it was stopped when it was to be moved; in its wave, as all others.

        Raises:
            UnknownName: there is no such session.
        """
        status, last = self.sessions.show(name), self._journal.last(name)
        session = status.session
        wish = PreferenceStore(self.database).all().get(name, UpdatePreferences())
        mode = wish.mode or policies(self._settings).get(_key(session), self._policy.sessions).mode
        missed = last is not None and last.state is State.skipped
        asked = mode is Mode.next_start or (missed and mode is Mode.when_idle)
        # What was installed by hand is seen only in a container that runs.
        if not asked or wish.replay or status.running is Running.running:
            return None
        digests, _ = self._aims([session], "")
        standings = self._standings.all()
        if not _moves(session, digests) or digests[_key(session)] not in standings:
            return None
        moves, statuses = self._past(), self.sessions.all()
        known = {one.session.name: one for one in self._candidates(statuses, moves, digests)}
        blocked = self._blocked([session], digests).get(name, "")
        known[name] = starting(replace(known[name], blocked=blocked), now())
        approved = {image: standing.approved for image, standing in standings.items() if standing.approved}
        rollout = self._rollout(statuses, digests)
        decisions, _ = plan_after(known.values(), rollout, trials(moves, standings), approved)
        mine = due((line for line in decisions if line.session == name), now(), self._policy)
        return replace(mine[0], starts=True) if mine else None

    def to_image(self, name: str, image: str) -> Decision:
        """How a session that a person named moves to an image, whatever profile that is of; in no wave.

        Raises:
            RefitError: there is no such session, or it can't be moved.
        """
        self._publications.require(image)
        statuses, moves = self.sessions.all(), self._past()
        targets = {_key(status.session): image for status in statuses if status.session.name == name}
        deleted = self.sessions.store.homes().keys() - {status.session.name for status in statuses}
        rollout = PlanInput(now(), targets, self._policy, self._settings.keep_state)
        decision = plan_named(name, self._candidates(statuses, moves, {}), rollout, deleted=deleted)
        return replace(decision, wave=None)

    def deadline(self, session: str) -> datetime | None:
        """When a session of the last plan is moved by force, if its owner is told now; none: never."""
        candidate, rollout = self._known[session], self._last
        new = rollout.targets[candidate.session.profile, candidate.session.release]
        return deadline_if_told(candidate, new, rollout)

    def keeps(self, session: str) -> float:
        """For how many hours a session of the last plan keeps what a stop would lose."""
        return keep_hours(self._known[session], self._last)

    def superseded(self, line: Decision) -> bool:
        """Whether an image has been published that is newer than the one which a session of the last plan is to get.

        It may be known only some seconds later.
        """
        if self._only_begun:  # a newer one that nobody has begun isn't waited for
            return False
        return self._newest(*_key(self._known[line.session].session)) not in (line.new, "")

    def begin(self) -> None:
        """Let the rollouts of the newest images begin, for a run that follows those that have."""
        statuses = self.sessions.all()
        digests, _ = self._aims([status.session for status in statuses], "")
        self._begin(statuses, digests)

    def unfinished(self) -> bool:
        """Whether a rollout that has begun, and isn't over, has sessions left."""
        begun = self._begun()
        return any(_moves(session, begun) for session in self.sessions.store.sessions())

    def _begin(self, statuses: Sequence[Status], digests: Mapping[ImageKey, str]) -> None:
        canaries = {image: self._canary(statuses, digests, image) for image in digests.values()}
        self._standings.begin(digests, canaries, caller())

    def _begun(self) -> dict[ImageKey, str]:
        open_ones = (
            one for one in self._standings.all().values() if one.way in (RolloutStatus.running, RolloutStatus.paused)
        )
        return {(standing.profile, standing.release): standing.image for standing in open_ones}

    def _aims(self, sessions: Iterable[Session], to: str) -> tuple[dict[ImageKey, str], dict[ImageKey, Refusal]]:
        """The digest that each profile of each release is to be on; and of which there is one that doesn't count."""
        if self._only_begun:
            begun = self._begun()
            refused = self._publications.refusals(begun.values())
            found: Mapping[ImageKey, str | Refusal] = {key: refused.get(one, one) for key, one in begun.items()}
        elif to:
            found = targets(sessions, to, self._settings)
        else:
            found = self._publications.current({_key(session) for session in sessions})
        return (
            {key: one for key, one in found.items() if isinstance(one, str)},
            {key: one for key, one in found.items() if isinstance(one, Refusal)},
        )

    def _published(self, profile: str, release: str) -> str:
        """The newest image of a profile; empty: nobody can tell just now, or there is none that counts."""
        with suppress(RefitError):
            return self._publications.newest(profile, release) or ""
        return ""

    def fetch(self, decisions: Iterable[Decision]) -> tuple[str, ...]:
        """Pull what has to be pulled before sessions can be moved that have a time; returns these images.

        What keeps one from being pulled, each move to it finds out by itself.
        """
        missing = {line.new for line in decisions if line.at and self._pulls.get(line.new)}
        for image in sorted(missing):
            with suppress(RefitError):
                self.sessions.engine.pull(image)
            self._pulls[image] = 0
        return tuple(sorted(missing))

    def news(self) -> tuple[str, ...]:
        """What somebody has to look at, since the last time that this was asked."""
        found, self._news = tuple(self._news), []
        return found

    def fleet(self) -> Fleet:
        """Who is on what, who is behind and why, and how the rollouts go: by the last plan, or a new one."""
        decisions, gates = self._latest or self._plan((), "", "", begin=False)
        standings = self._standings.all()
        shown = trials(self._past(), standings, self._fallen(self.sessions.all()))
        return fleet(decisions, gates, shown, standings, self._policy.waves, now())

    def _past(self) -> tuple[Past, ...]:
        """All moves, oldest first; those that had ended when it was asked before aren't read again."""
        asked = now()
        self._moves |= {move.id: move for move in self._journal.since(self._read)}
        self._read = asked - _CLOCKS
        return tuple(sorted(self._moves.values(), key=lambda move: (move.created, move.id)))

    def _plan(self, names: Sequence[str], to: str, origin: str, *, begin: bool) -> Plan:
        statuses = self.sessions.all()
        if origin:
            image = evidence.find(Registry(self._settings), origin).digest
            statuses = tuple(status for status in statuses if status.session.image == image)
        asked = [status for status in statuses if not names or status.session.name in names]
        digests, refused = self._aims([status.session for status in asked], to)
        for status in asked if names else ():
            if refusal := refused.get(_key(status.session)):
                raise NotPublished(refusal)
        self._newest.cache_clear()  # or what was known before this plan would make its own images seem superseded
        if begin:
            self._begin(asked, digests)
        moves = self._past()
        candidates = self._candidates(statuses, moves, {} if names else digests)
        # Who is named isn't put off for a pull: it is part of the move.
        rollout = self._rollout(asked, digests, self._to_pull(asked, digests) if not names else {})
        rollout = replace(rollout, refused={key: str(why) for key, why in refused.items()})
        self._known, self._last = {candidate.session.name: candidate for candidate in candidates}, rollout
        if names:
            deleted = self.sessions.store.homes().keys() - {status.session.name for status in statuses}
            known = dict.fromkeys(names)
            # Who names a session answers for it, however the rollout of its image stands.
            by_itself = replace(rollout, ways={})
            return tuple(plan_named(name, candidates, by_itself, deleted=deleted) for name in known), {}
        standings = self._standings.all()
        approved = {image: standing.approved for image, standing in standings.items() if standing.approved}
        shown = trials(moves, standings, self._fallen(statuses))
        decisions, gates = plan_after(candidates, rollout, shown, approved)
        if begin:
            self._judge(gates)
        return decisions, gates

    def _fallen(self, statuses: Iterable[Status]) -> frozenset[tuple[str, str]]:
        """Sessions that ought to run and don't, with their images; not those that somebody starts or moves just now."""
        away = [one.session for one in statuses if one.wanted and one.running is not Running.running]
        at_work = held(self.database, "session ") if away else ()
        return frozenset((one.name, one.image) for one in away if f"session {one.name}" not in at_work)

    def _canary(self, statuses: Iterable[Status], digests: Mapping[ImageKey, str], image: str) -> str:
        """The session that goes first to an image, if its first wave would be empty."""
        running = [status.session for status in statuses if status.running is Running.running]
        going = [(s.name, image) for s in running if _moves(s, digests) and digests[_key(s)] == image]
        return waves.canary(going, self._policy.waves)

    def _to_pull(self, statuses: Iterable[Status], digests: Mapping[ImageKey, str]) -> dict[str, int]:
        """Image → bytes that have to be pulled before anybody can move to it, as far as anybody knows."""
        going = [one.session for one in statuses if one.running is Running.running and _moves(one.session, digests)]
        images = {digests[_key(session)] for session in going}
        if unknown := images - self._pulls.keys():
            with suppress(RefitError):
                self._pulls.update(dict.fromkeys(unknown, 0) | to_pull(self._settings, unknown))
        return {image: size for image in images if (size := self._pulls.get(image, 0))}

    def _rollout(
        self, statuses: Sequence[Status], digests: Mapping[ImageKey, str], pulls: Mapping[str, int] | None = None
    ) -> PlanInput:
        standings = self._standings.all()
        begun = {image: standings[image] for image in digests.values() if image in standings}
        foreseen = {self._canary(statuses, digests, image) for image in digests.values() if image not in begun}
        return PlanInput(
            now(),
            digests,
            self._policy,
            self._settings.keep_state,
            ways={image: standing.way for image, standing in begun.items()},
            canaries=frozenset(foreseen | {standing.canary for standing in begun.values()}),
            hosts=self._hosts(statuses, pulls or {}),
        )

    def _hosts(self, statuses: Iterable[Status], pulls: Mapping[str, int]) -> dict[str, Host]:
        """What is known of this machine; who wants no GPU has enough of them."""
        room = _room(self._settings) if pulls else None
        if not any(status.session.gpus for status in statuses):
            return {platform.node(): Host(pulls, room=room)} if pulls else {}
        free, returned = self.sessions.gpus.free()
        return {platform.node(): Host(pulls, room=room, gpus=free, gpus_from=returned)}

    def _candidates(
        self, statuses: Sequence[Status], moves: Sequence[Past], digests: Mapping[ImageKey, str]
    ) -> tuple[Candidate, ...]:
        last = {move.session: move for move in moves}
        wishes = PreferenceStore(self.database).all()
        told = History(self.database).events(kinds=(Kind.noticed, Kind.seen, Kind.withdrawn))
        notified, noticed = first_told(told, Kind.noticed), first_told(told, Kind.seen)
        known = policies(self._settings) if statuses else {}
        moving = [s.session for s in statuses if s.running is Running.running and _moves(s.session, digests)]
        seen, blocked = self._seen(moving), self._blocked(moving, digests)
        has = Counter(taken.session for taken in self.sessions.gpus.taken())
        goes_on = any(move.state not in FINAL for move in moves)
        at_work = held(self.database, "session ") if goes_on else ()
        return tuple(
            Candidate(
                session=status.session,
                running=status.running is Running.running,
                host=platform.node(),
                policy=known.get(_key(status.session), self._policy.sessions),
                owner=wishes.get(status.session.name, UpdatePreferences()).owner,
                wish=wishes.get(status.session.name, UpdatePreferences()),
                seen=seen.get(status.session.name),
                notified=notified.get((status.session.name, status.session.image)),
                noticed=noticed.get((status.session.name, status.session.image)),
                blocked=blocked.get(status.session.name, ""),
                gpus=max(0, status.session.gpus - has[status.session.name]),
                **_left_behind(
                    last.get(status.session.name),
                    timedelta(minutes=self._policy.look_minutes),
                    goes_on=f"session {status.session.name}" in at_work,
                ),
            )
            for status in statuses
        )

    def _seen(self, sessions: Iterable[Session]) -> dict[str, Seen]:
        """What was seen of sessions, not longer ago than `look_minutes`."""
        wanted = {(session.name, session.generation): session for session in sessions}
        oldest = now() - timedelta(minutes=self._policy.look_minutes)
        self._looks = {key: look for key, look in self._looks.items() if key in wanted and look[0] > oldest}
        again = [key for key in wanted if key not in self._looks]
        found = look_at(self._settings, self.sessions.engine, [wanted[key] for key in again])
        self._looks |= {key: (now(), seen) for key, seen in zip(again, found, strict=True)}
        return {name: seen for (name, _), (_, seen) in self._looks.items()}

    def _blocked(self, sessions: Iterable[Session], digests: Mapping[ImageKey, str]) -> dict[str, str]:
        """What in their homes doesn't go together with their new images."""
        if not self._policy.scan:
            return {}
        return obstacles(self._settings, {session.name: (session, digests[_key(session)]) for session in sessions})

    def _judge(self, gates: Mapping[tuple[str, int], Gate]) -> None:
        for (image, wave), gate in gates.items():
            if gate.health is Health.open:
                continue
            title = waves.title(wave, self._policy.waves)
            if self._standings.judge(image, wave, title, gate.health) and gate.health is not Health.passed:
                self._news.append(
                    f"The wave {title} of the image {short(image)}: {gate.health.text}. Its other sessions wait: "
                    f"`refit migrate status` shows how it went, `refit migrate approve {short(image)}` lets it go on."
                )


def steer(what: str, image: str, settings: Settings, by: str, wave: str = "") -> str:
    """Pause, resume or abort the rollout of an image, or approve the waves that it has behind it; says what was done.

    Args:
        what: `pause`, `resume`, `abort` or `approve`.
        image: digest, or its first digits, or tag; empty: the only rollout that goes on.
        settings: those in force.
        by: who wants it.
        wave: title of the wave up to which it is approved; empty: of the last one that waits.

    Raises:
        RefitError: there is no such rollout, it is over, or it has nothing that could be approved.
    """
    database = open_database(settings.database)
    standings = Rollouts(database)
    digest = evidence.find(Registry(settings), image).digest if "_" in image else image
    standing = standings.find(digest)
    if what == "approve":
        return _approve(standing, wave, database, settings, by)
    way = {"pause": RolloutStatus.paused, "resume": RolloutStatus.running, "abort": RolloutStatus.aborted}[what]
    standings.steer(standing.image, way, by)
    if way is RolloutStatus.aborted:
        withdraw(settings, Sessions.open(settings, database), History(database), standing.image)
    return f"The rollout of {short(standing.image)} is {way}."


def _approve(standing: RolloutState, wave: str, database: Engine, settings: Settings, by: str) -> str:
    percents, standings = settings.migration.waves, Rollouts(database)
    titles = [waves.title(number, percents) for number in range(len(percents) + 1)]
    waiting = [number for number in standings.waiting(standing) if wave in ("", titles[number])]
    if not waiting:
        after = f" after the wave {wave}" if wave else ""
        raise RefitError(
            f"The rollout of {short(standing.image)} doesn't wait for an approval{after}.",
            fix="`refit migrate status` shows what it waits for.",
        )
    title = titles[max(waiting)]
    standings.approve(standing.image, max(waiting), by, title)
    return f"Approved for {short(standing.image)}: all up to the wave {title}."


def trials(
    moves: Iterable[Past], standings: Mapping[str, RolloutState], fallen: Collection[tuple[str, str]] = ()
) -> list[Trial]:
    """The last move of each session in each rollout; `fallen`: those that ended on an image, though they ought to run.

    Pure.
    """
    last: dict[tuple[str, str], Trial] = {}
    for move in moves:
        image = move.image
        if move.wave is None or image not in standings or move.created < standings[image].begun:
            continue
        moved, failed = move.state is State.cleaned, move.state in _FAILED
        fell = moved and (move.session, image) in fallen
        last[move.session, image] = Trial(image, move.wave, move.ended, moved, failed, move.damaged, fell)
    return list(last.values())


def _left_behind(move: Past | None, rest: timedelta, *, goes_on: bool) -> dict[str, Any]:
    """What a session's last move means for the next; whether somebody works on it now."""
    if move is None:
        return {}
    if move.state is State.deferred:
        return {"rests_until": move.ended and move.ended + rest}
    if move.state is State.rolled_back:
        return {"failed": move.image}
    if move.state not in FINAL:
        return {"obstacle": Reason.moving if goes_on else Reason.unfinished, "away_since": move.created}
    return {"obstacle": Reason.held if move.state is State.held else None}


def _room(settings: Settings) -> int:
    """Compressed bytes of images for which this machine has room."""
    storage = tools.containers(settings)
    there = storage if storage.is_dir() else settings.folder()
    return (shutil.disk_usage(there).free - _SPARE) // _UNPACKED


def _moves(session: Session, digests: Mapping[ImageKey, str]) -> bool:
    """Whether there is another image for a session."""
    return digests.get(_key(session), session.image) != session.image


def _key(session: Session) -> ImageKey:
    return session.profile, session.release


def targets(sessions: Iterable[Session], to: str, settings: Settings) -> Mapping[ImageKey, str]:
    """The digest that each profile of each release is to be on.

    Raises:
        NotPublished: `to` names an image that doesn't count.
        RefitError: `to` names no image, or one of another profile or release.
    """
    registry, wanted = Registry(settings), {(session.profile, session.release) for session in sessions}
    publications = Publications(settings, registry=registry)
    if not to:
        found = publications.current(wanted)
        return {key: digest for key, digest in found.items() if isinstance(digest, str)}
    image = evidence.find(registry, to)
    labels = registry.config(settings.repository, image).get("config", {}).get("Labels") or {}
    made_for = (labels.get("io.refit.profile", ""), labels.get("io.refit.release", ""))
    if wanted and made_for not in wanted:
        raise RefitError(
            f"The image {to!r} is not for any of these sessions.",
            why=f"It is {made_for[0]} of release {made_for[1]}." if all(made_for) else "`refit build` didn't make it.",
            fix="choose an image of the profile and release that the session has; `refit session list` shows them.",
        )
    publications.require(image.digest)
    return {made_for: image.digest}
