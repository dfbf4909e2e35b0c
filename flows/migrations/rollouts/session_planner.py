"""Planning a migration of the sessions of this machine: observe them, decide, and write down what their waves show."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from flows.compatibility.obstacles import PLAN_SECONDS
from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.policy import Mode
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.move_steps import State
from flows.migrations.notifications.fleet import Fleet, fleet
from flows.migrations.planning import drain_plan
from flows.migrations.planning.move_terms import deadline_if_told, keep_hours, mode, starting
from flows.migrations.planning.observed import Observed
from flows.migrations.planning.plan import plan_after, plan_named
from flows.migrations.planning.policies import policies
from flows.migrations.planning.rollout import (
    Action,
    Candidate,
    Decision,
    Gate,
    ImageKey,
    Lack,
    PlanInput,
    Reason,
    RolloutStatus,
)
from flows.migrations.rollouts.control import judge
from flows.migrations.rollouts.image_pulls import ImagePulls
from flows.migrations.rollouts.observer import Observer, canaries
from flows.migrations.rollouts.reconcile import due
from flows.migrations.rollouts.store import Rollouts
from flows.migrations.rollouts.targets import TargetFinder, has_other_image, image_key
from flows.publishing import evidence
from flows.publishing.signatures import NotPublished
from flows.sessions.containers.pulls import to_pull
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.others.model import Owned
from flows.sessions.overview import Status
from flows.sessions.preferences import UpdatePreferences
from flows.sessions.wishes import PreferenceStore, caller

logger = logging.getLogger("refit.migrations")

Plan = tuple[tuple[Decision, ...], Mapping[tuple[str, int], Gate]]
"""One line for each session, and what is known of the waves."""


def plan_migration(names: Sequence[str], to: str, settings: Settings, origin: str = "") -> tuple[Decision, ...]:
    """One decision per session, as of `SessionPlanner.plan`; no session is moved or told.

    Homes are scanned for it, in a cluster beside their sessions, and images that weren't read yet in Pods.
    Each line says how much of its image has to be pulled first.
    """
    planner = SessionPlanner(settings)
    planned = planner.plan(names, to, origin)
    if not names:
        planned = tuple(sorted((*planned, *planner.immovable), key=lambda line: line.session))
        planned = tuple(map(planner.with_lacks, planned))
    if settings.in_cluster:  # nodes have their images, and a move pulls its own before anybody waits
        return _in_cluster(planned, settings)
    own = planner.of_refit(planned)  # the rest is pulled by nodes of others
    pulls = to_pull(settings, {line.new for line in own if line.new not in ("", line.old)})
    return tuple(replace(line, pull=pulls.get(line.new, 0)) if line in own else line for line in planned)


# The reasons of sessions whose wave or rollout a person has to open.
_CLOSED = frozenset({Reason.gate, Reason.paused, Reason.aborted, Reason.superseded})


def _planned(observed: Observed) -> tuple[Decision, ...]:
    """The lines of a plan by what was observed. Pure."""
    return plan_after(observed.candidates, observed.rollout, observed.trials, observed.approved)[0]


def _moves(line: Decision) -> bool:
    return line.new not in ("", line.old)


def _in_cluster(planned: Iterable[Decision], settings: Settings) -> tuple[Decision, ...]:
    """The lines with what snapshots of homes cost, and which nodes have to be left."""
    sessions, history = Sessions.open(settings), History(open_database(settings.database))
    prices, closed = sessions.homes.prices(), sessions.machines.leaving()
    since = drain_plan.still_leaving(history.events(kinds=(Kind.leaves,))) if closed else {}

    def about(line: Decision) -> Decision:
        if _moves(line):
            line = replace(line, home=prices.get(line.session, ""))
        if not (machine := closed.get(line.session)):
            return line
        seen_on, seen = since.get(line.session, ("", None))
        words = drain_plan.explanation(machine, seen if seen_on == machine else None, settings.kubernetes.drain_minutes)
        return replace(line, machine=words)

    return tuple(map(about, planned))


class SessionPlanner:
    """Plans again and again, each time with what is seen now."""

    def __init__(self, settings: Settings, *, only_begun: bool = False) -> None:
        """A planner; `only_begun`: no other image than those whose rollouts have begun is planned for."""
        self._settings, self._policy = settings, settings.migration
        self.database = open_database(settings.database)
        self.sessions = Sessions.open(settings, self.database)
        self._rollouts = Rollouts(self.database)
        self._targets = TargetFinder(settings, self.database, only_begun=only_begun)
        self._pulls = ImagePulls(settings, self.sessions.engine)
        self._observer = Observer(settings, self.sessions, self.database, self._pulls)
        self._observed: Observed | None = None
        self._latest: Plan | None = None
        self._news: list[str] = []
        self._owned: Mapping[str, Owned] = {}

    def plan(self, names: Sequence[str], to: str, origin: str = "", *, begin: bool = False) -> tuple[Decision, ...]:
        """One decision per session: its target and time, or why it stays.

        A session that is named may be interrupted. All others are looked at first, which doesn't count as
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

    def agree(self, decisions: Iterable[Decision]) -> None:
        """Write down that whoever names these sessions has agreed to the images that other people's recipes made."""
        for line in decisions:
            if line.by:
                PreferenceStore(self.database).change(line.session, caller(), agreed=line.new)

    def of_refit(self, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """The lines of sessions that Refit has made, into which notices can be brought."""
        return tuple(line for line in decisions if line.session not in self._owned)

    @property
    def immovable(self) -> tuple[Decision, ...]:
        """Lines for the sessions of others that were seen for the last plan, and that can't be moved."""
        owned = [owned_session for owned_session in self._owned.values() if owned_session.trouble]
        return tuple(
            Decision(
                owned_session.session.name, Action.skip, owned_session.session.image, "", detail=owned_session.trouble
            )
            for owned_session in owned
        )

    def at_start(self, name: str) -> Decision | None:
        """How a session that is stopped moves while its owner starts it; none: it keeps its image.

        It does so if that is its mode, or if it was stopped when it was to be moved; in its wave, as all others.

        Raises:
            UnknownName: there is no such session.
        """
        status = self.sessions.show(name)
        session = status.session
        if not self._moves_at_start(status):
            return None
        images = self._targets.find([session]).images
        if not has_other_image(session, images) or images[image_key(session)] not in self._rollouts.all():
            return None
        statuses = self.sessions.all()
        # The homes of others decide nothing about this one.
        observed = self._observer.observe(statuses, statuses, images, pull=False, scan=False)
        # Elsewhere a home is read beside a session that runs.
        here = self.sessions.engine.on_this_machine
        self._observer.begin_scans()
        blocked = self._observer.blocked([session], images).get(name, "") if here else ""
        mine = starting(replace(observed.candidate(name), blocked=blocked), now())
        # After a reboot all sessions ought to run and don't; that says nothing of their images.
        observed = replace(observed.with_candidate(mine), fallen=frozenset())
        decisions, _ = plan_after(observed.candidates, observed.rollout, observed.trials, observed.approved)
        lines = due((line for line in decisions if line.session == name), now(), self._policy)
        return replace(lines[0], starts=True) if lines else None

    def images_at_start(self, name: str) -> tuple[str, ...]:
        """The images that a session may need when its owner starts it: its own, and one onto which it may move.

        Raises:
            UnknownName: there is no such session.
        """
        status = self.sessions.show(name)
        session = status.session
        newest = self._targets.find([session]).images.get(image_key(session)) if self._moves_at_start(status) else None
        return tuple(dict.fromkeys(filter(None, (session.image, newest))))

    def _moves_at_start(self, status: Status) -> bool:
        """Whether a session is one that may move when its owner starts it."""
        session, last = status.session, Journal(self.database).last(status.session.name)
        wish = PreferenceStore(self.database).all().get(session.name, UpdatePreferences())
        policy = policies(self._settings).get(image_key(session), self._policy.sessions)
        chosen = mode(Candidate(session, running=False, policy=policy, wish=wish))
        missed = last is not None and last.state is State.skipped
        asked = chosen is Mode.next_start or (missed and chosen is Mode.when_idle)
        # Packages that were installed by hand are seen only in a container that runs.
        return asked and not wish.replay and status.running is not Running.running

    def to_image(self, name: str, image: str) -> Decision:
        """How a session that a person named moves to an image, whatever profile that is of; in no wave.

        Raises:
            RefitError: there is no such session, or it can't be moved.
        """
        self._targets.require(image)
        statuses = self.sessions.all()
        images = {image_key(status.session): image for status in statuses if status.session.name == name}
        observed = self._observer.observe(statuses, (), {}, pull=False)
        rollout = PlanInput(now(), images, self._policy, self._settings.idle_state_hours)
        return replace(plan_named(name, observed.candidates, rollout, deleted=observed.deleted), wave=None)

    def deadline(self, session: str) -> datetime | None:
        """When a session of the last plan is moved by force, if its owner is told now; none: never."""
        candidate, rollout = self._seen.candidate(session), self._seen.rollout
        return deadline_if_told(candidate, rollout.targets[image_key(candidate.session)], rollout)

    def keeps(self, session: str) -> float:
        """For how many hours a session of the last plan keeps what a stop would lose."""
        return keep_hours(self._seen.candidate(session), self._seen.rollout)

    def with_lacks(self, line: Decision) -> Decision:
        """A line of the last plan with the parts of its move that can't be had."""
        why = self._unscanned(line.session) if _moves(line) else ""
        return replace(line, lacks=(Lack.no_scan,), unscanned=why) if why else line

    def _unscanned(self, session: str) -> str:
        """Why no scan looks at the home of a session that moves, in words; empty: one does, or none is wanted."""
        if not self._policy.scan:
            return ""
        candidate = self._seen.candidate(session)
        if candidate.session.owned_by:
            return "others keep its home"
        if not candidate.running and not self.sessions.engine.on_this_machine:
            return "it doesn't run"
        return self._observer.scans.unread.get(session, "")

    def superseded(self, line: Decision) -> bool:
        """Whether an image has been published that is newer than the one which a session of the last plan is to get."""
        return self._targets.superseded(self._seen.candidate(line.session).session, line.new)

    def begin(self) -> None:
        """Let the rollouts of the newest images begin, for a run that follows those that have."""
        statuses = self.sessions.all()
        self._begin(statuses, self._targets.find([status.session for status in statuses]).images)

    def unfinished(self) -> bool:
        """Whether a rollout that has begun, and isn't over, has sessions left."""
        begun = self._targets.begun()
        return any(has_other_image(session, begun) for session in self.sessions.store.sessions())

    def fetch(self, decisions: Iterable[Decision]) -> tuple[str, ...]:
        """Pull what has to be pulled before sessions can be moved that have a time; returns these images."""
        return self._pulls.fetch(decisions)

    def news(self) -> tuple[str, ...]:
        """The news that somebody has to look at, since the last call."""
        news, self._news = tuple(self._news), []
        return news

    def fleet(self) -> Fleet:
        """Which session is on which image, which is behind and why, and how rollouts go: by the last plan or a new one.

        Moves and rollouts are read anew.
        """
        # A status is asked for again and again, and lets no Pods be made: plans do.
        seconds = PLAN_SECONDS if self.sessions.engine.on_this_machine else 0.0
        decisions, gates = self._latest or self._plan((), "", "", begin=False, scan_seconds=seconds)
        observed = replace(
            self._seen,
            moves=self._observer.moves(),
            rollouts=self._rollouts.all(),
            fallen=self._observer.fallen(self.sessions.all()),
        )
        return fleet(decisions, gates, observed.trials, observed.rollouts, self._policy.waves, now())

    @property
    def _seen(self) -> Observed:
        if self._observed is None:
            raise LookupError("nothing was planned yet")
        return self._observed

    def _begin(self, statuses: Sequence[Status], images: Mapping[ImageKey, str]) -> None:
        self._rollouts.begin(images, canaries(statuses, images, self._policy.waves), caller())

    def _plan(
        self, names: Sequence[str], to: str, origin: str, *, begin: bool, scan_seconds: float = PLAN_SECONDS
    ) -> Plan:
        statuses = self._statuses(origin)
        for name in {*names} & self._owned.keys():
            if trouble := self._owned[name].trouble:
                raise RefitError(f"The session {name!r} can't be moved: {trouble}.")
        named_statuses = [status for status in statuses if not names or status.session.name in names]
        images = self._targets.find([status.session for status in named_statuses], to)
        for status in named_statuses if names else ():
            if refusal := images.refused.get(image_key(status.session)):
                raise NotPublished(refusal)
        self._targets.forget()
        if begin:
            self._begin(named_statuses, images.images)
        self._observer.begin_scans(scan_seconds)
        # A session that is named isn't put off for a pull, which is part of its move, nor for somebody who works in it.
        spared = frozenset[str]() if names else self._closed(statuses, named_statuses, images.images)
        observed = self._observer.observe(
            statuses, named_statuses, images.images, look=not names, pull=not names, spared=spared
        )
        refused = {key: str(why) for key, why in images.refused.items()}
        self._observed = observed = replace(observed, rollout=replace(observed.rollout, refused=refused))
        if names:
            return self._with_owners(self._decide_named(names, observed)), {}
        decisions, gates = plan_after(observed.candidates, observed.rollout, observed.trials, observed.approved)
        if begin:
            self._news += judge(gates, self._rollouts, self._policy.waves)
        return self._with_owners(decisions), gates

    def _closed(
        self, statuses: Sequence[Status], asked: Sequence[Status], images: Mapping[ImageKey, str]
    ) -> frozenset[str]:
        """Sessions in waves that nothing opens but a person, whatever is done in them: a look at them tells nothing.

        Sessions of waves that have begun are looked at first: how many of them are left decides about the next ones.
        """
        observed = self._observer.observe(statuses, asked, images, look=False, pull=False)
        if not observed.trials and not any(way is not RolloutStatus.running for way in observed.rollout.ways.values()):
            return frozenset()
        begun = max((trial.wave for trial in observed.trials), default=-1)
        later = {line.session for line in _planned(observed) if line.wave is not None and line.wave > begun}
        if not later:
            return frozenset()
        observed = self._observer.observe(statuses, asked, images, pull=False, spared=later)
        return frozenset(
            line.session for line in _planned(observed) if line.session in later and line.reason in _CLOSED
        )

    def _with_owners(self, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
        """The lines of a plan, each of a session that others own with what its move does without."""
        return tuple(
            replace(line, detail="; ".join(filter(None, (line.detail, self._observer.others.terms(self._owned[name])))))
            if (name := line.session) in self._owned and line.action is not Action.skip
            else line
            for line in decisions
        )

    def _decide_named(self, names: Sequence[str], observed: Observed) -> tuple[Decision, ...]:
        """The person who names a session answers for it, however the rollout of its image stands."""
        by_itself = replace(observed.rollout, ways={})
        return tuple(
            plan_named(name, observed.candidates, by_itself, deleted=observed.deleted) for name in dict.fromkeys(names)
        )

    def _statuses(self, origin: str) -> tuple[Status, ...]:
        """All sessions; with `origin`, a tag or digest, those that have this image."""
        own = self.sessions.all()
        seen, problems = self._observer.others.see(besides={status.session.name for status in own})
        for problem in problems:
            logger.warning("sessions of others can't be seen just now: %s", problem)
        self._owned = {owned_session.session.name: owned_session for owned_session in seen}
        statuses = (*own, *(owned_session.status for owned_session in seen if not owned_session.trouble))
        if not origin:
            return statuses
        image = evidence.find(Registry(self._settings), origin).digest
        return tuple(status for status in statuses if status.session.image == image)
