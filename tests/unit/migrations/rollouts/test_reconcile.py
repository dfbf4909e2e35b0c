"""A migration that goes on, on a clock of its own: nobody sleeps here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.settings.policy import RolloutPolicy, SessionPolicy, Unavailable
from flows.migrations.move_steps import State
from flows.migrations.planning.plan import plan_after
from flows.migrations.planning.rollout import Action, Candidate, Decision, PlanInput, Reason, RolloutStatus
from flows.migrations.planning.wave_gates import Approval, Trial
from flows.migrations.results import Result
from flows.migrations.rollouts.reconcile import PART, FailureBudget, foreseen, reconcile
from flows.sessions.activity.evidence import Evidence, Verdict
from flows.sessions.activity.seen import Seen
from flows.sessions.model import HomeRef, Session, TokenRef
from tests.support.examples import several

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
OLD, NEW, NEWER = "sha256:old", "sha256:new", "sha256:newer"
MINUTE = timedelta(minutes=1)
KEY = ("p0", "2026a")


class Killed(Exception):
    """The process is gone."""


@dataclass
class World:
    """Sessions that are busy until some time, and what a database would know of their moves.

    Attributes:
        busy: session → until when somebody works in it.
        ends: session → how its move ends, if not well.
        events: (when, what happens then).
        moves: session → (when it was moved, to what).
        told: when everybody was told of the new image.
        lag: by how much the clock oversleeps.
    """

    policy: RolloutPolicy
    names: Sequence[str]
    busy: dict[str, datetime] = field(default_factory=dict)
    ends: dict[str, State] = field(default_factory=dict)
    sessions: SessionPolicy = field(default_factory=SessionPolicy)
    target: str = NEW
    ways: dict[str, RolloutStatus] = field(default_factory=dict)
    approved: dict[str, Approval] = field(default_factory=dict)
    time: datetime = NOW
    images: dict[str, str] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    moves: list[tuple[datetime, str, str]] = field(default_factory=list)
    deferred: dict[str, datetime] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    events: list[tuple[datetime, str, object]] = field(default_factory=list)
    killed_at: frozenset[int] = frozenset()
    actions: int = 0
    told: datetime | None = None
    lag: timedelta = timedelta()

    def now(self) -> datetime:
        return self.time

    def wait(self, until: datetime) -> None:
        assert until > self.time, "it would go round and round"
        upcoming = min((event[0] for event in self.events), default=until)
        self.time = max(self.time, min(until, upcoming)) + self.lag
        for event in [event for event in self.events if event[0] <= self.time]:
            self.events.remove(event)
            setattr(self, event[1], event[2])

    def candidate(self, name: str) -> Candidate:
        session = Session(name, *KEY, self.images.get(name, OLD), 200001, HomeRef("/h"), TokenRef("/t"), Access())
        verdict = Verdict.busy if self.is_busy(name) else Verdict.idle
        seen = Seen(name, verdict, self.time, verdict is Verdict.idle, (Evidence(verdict, "python train.py"),))
        rests = self.deferred.get(name)
        return Candidate(
            session,
            True,
            policy=self.sessions,
            notified=self.told,
            seen=seen,
            failed=self.failed.get(name, ""),
            rests_until=rests and rests + self.policy.poll_minutes * MINUTE,
        )

    def is_busy(self, name: str) -> bool:
        return self.busy.get(name, self.time) > self.time

    def plan(self) -> Sequence[Decision]:
        self._may_die()
        rollout = PlanInput(self.time, {KEY: self.target}, self.policy, ways=self.ways)
        mine = [trial for trial in self.trials.values() if trial.image == self.target]
        return plan_after(map(self.candidate, self.names), rollout, mine, self.approved)[0]

    part = PART

    def rest(self, lines: Sequence[Decision], until: datetime | None) -> None:
        """Nobody is told anything here."""

    def move(self, number: int, lines: Sequence[Decision]) -> list[Result]:
        assert 0 < len(lines) <= PART and number > 0
        doubts = FailureBudget(lines, self.policy.failures)
        return [self._tried(line, doubts) for line in lines]

    def _tried(self, line: Decision, doubts: FailureBudget) -> Result:
        if doubt := doubts.about(line):
            return replace(foreseen(line), reason=doubt)
        result = self._moved(line)
        doubts.note(line, result)
        return result

    def _moved(self, line: Decision) -> Result:
        self._may_die()
        assert self.images.get(line.session, OLD) == line.old != line.new and line.wave is not None
        self.time += timedelta(seconds=6)
        refuses = self.is_busy(line.session) and not line.consent
        end = State.deferred if refuses else self.ends.get(line.session, State.cleaned)
        if end is State.cleaned:
            self.images[line.session] = line.new
            self.moves.append((self.time, line.session, line.new))
        if end is State.deferred:
            self.deferred[line.session] = self.time
        else:
            failed, damaged = end is not State.cleaned, end is State.held
            self.trials[line.session] = Trial(line.new, line.wave, self.time, not failed, failed, damaged)
            self.failed |= {line.session: line.new} if failed else {}
        self._may_die()
        return Result(line.session, line.old, line.new, "", None, end, "", damaged=end is State.held)

    def _may_die(self) -> None:
        self.actions += 1
        if self.actions in self.killed_at:
            raise Killed

    def run(self, *, once: bool = False) -> tuple[Result, ...]:
        return reconcile(self, self, self.policy, once=once)

    def times(self, wave: int) -> list[datetime]:
        return [at for at, name, _ in self.moves if self.trials[name].wave == wave]


class Planned:
    """A world that is planned in another way."""

    part = PART

    def __init__(self, world: World, plan: Callable[[], Sequence[Decision]]) -> None:
        self.plan, self.move, self.rest = plan, world.move, world.rest


def names(number: int) -> list[str]:
    return [f"s{n:03}" for n in range(number)]


def test_the_next_wave_begins_when_the_one_before_has_baked() -> None:
    world = World(RolloutPolicy(waves=(10, 50, 100), bake_minutes=30), names(60))
    results = world.run()
    assert all(result.moved for result in results) and len(results) == 60
    for wave in (1, 2):
        rest = min(world.times(wave + 1)) - max(world.times(wave))
        assert 30 * MINUTE <= rest < 32 * MINUTE


def test_who_is_busy_is_moved_when_the_work_is_done_and_holds_nobody_up() -> None:
    world = World(RolloutPolicy(waves=(100,)), names(5), busy={"s003": NOW + 90 * MINUTE})
    world.run()
    when = {name: at - NOW for at, name, _ in world.moves}
    assert when.pop("s003") > 90 * MINUTE and max(when.values()) < MINUTE
    assert world.time < NOW + 100 * MINUTE


def test_once_waits_for_nobody() -> None:
    world = World(RolloutPolicy(waves=(50, 100), bake_minutes=10), names(20), busy={"s003": NOW + 600 * MINUTE})
    results = {result.session: result for result in world.run(once=True)}
    assert world.moves and {world.trials[name].wave for _, name, _ in world.moves} == {1}
    assert results["s003"].reason == f"{Reason.busy.text}; python train.py"
    assert world.time < NOW + 5 * MINUTE


def test_nobody_is_waited_for_beyond_the_horizon() -> None:
    world = World(RolloutPolicy(max_run_hours=2), names(2), busy={"s000": NOW + timedelta(days=9)})
    moved = {result.session: result.moved for result in world.run()}
    assert moved == {"s000": False, "s001": True}
    assert world.time == NOW + timedelta(hours=2)


def test_hours_open_while_it_waits() -> None:
    evening = SessionPolicy.model_validate({"windows": ["18:00-22:00"]})
    world = World(RolloutPolicy(waves=(100,)), names(8), sessions=evening)
    world.run()
    assert len(world.moves) == 8
    assert all(NOW.replace(hour=18) <= at < NOW.replace(hour=18, minute=5) for at, *_ in world.moves)


def test_f03_after_a_wave_that_failed_nobody_else_is_moved_until_a_person_approves() -> None:
    world = World(RolloutPolicy(waves=(50, 100), max_run_hours=6), names(20))
    first = [line.session for line in world.plan() if line.wave == 1]
    world.ends = {first[0]: State.rolled_back}
    world.events = [(NOW + 60 * MINUTE, "approved", {NEW: (1, world.time + 60 * MINUTE)})]
    world.run()
    assert {at > NOW + 60 * MINUTE for at, name, _ in world.moves if world.trials[name].wave == 2} == {True}
    assert len(world.moves) == 19 and first[0] not in world.images


def test_some_may_fail_but_no_home_may_be_damaged() -> None:
    policy = RolloutPolicy(waves=(50, 100), failures=5, max_run_hours=1)
    for end, moved in ((State.rolled_back, 99), (State.held, 0)):
        world = World(policy, names(100))
        last = [line.session for line in world.plan() if line.wave == 1][-1]
        world.ends = {last: end}
        world.run()
        later = [name for _, name, _ in world.moves if world.trials[name].wave == 2]
        assert len(world.moves) == moved if moved else not later


def test_a_part_stops_where_more_fail_than_may_and_those_who_were_not_begun_wait_for_nobody() -> None:
    world = World(RolloutPolicy(waves=(100,), failures=10, max_run_hours=1), names(100))
    first = [line.session for line in world.plan()][:PART]
    world.ends = dict.fromkeys(first[:3], State.rolled_back)  # of a part two may fail, of the wave ten
    world.run()
    assert len(world.moves) == 97 and world.time < NOW + 100 * 6 * timedelta(seconds=1) + MINUTE


def test_an_image_that_fails_everywhere_disturbs_no_more_than_may_fail() -> None:
    world = World(RolloutPolicy(waves=(100,), failures=5, max_run_hours=1), names(100))
    world.ends = dict.fromkeys(world.names, State.rolled_back)
    results = world.run()
    # Two of a part's twenty are one too many; a plan that knows of six of a hundred begins no other part.
    assert len(world.trials) == 6
    assert sum(Reason.gate.text in result.reason for result in results) == 94


def test_a_wave_waits_for_an_approval_where_that_is_asked_for() -> None:
    world = World(RolloutPolicy(waves=(50, 100), approval=True), names(20))
    world.events = [(NOW + 40 * MINUTE, "approved", {NEW: (1, world.time + 40 * MINUTE)})]
    world.run()
    assert len(world.moves) == 20 and min(world.times(2)) > NOW + 40 * MINUTE > max(world.times(1))


def test_paused_and_resumed() -> None:
    world = World(RolloutPolicy(waves=(100,)), names(4), ways={NEW: RolloutStatus.paused})
    world.events = [(NOW + 30 * MINUTE, "ways", {NEW: RolloutStatus.running})]
    world.run()
    assert len(world.moves) == 4 and world.moves[0][0] > NOW + 30 * MINUTE


def test_what_is_aborted_is_over_and_leaves_the_others_alone() -> None:
    world = World(RolloutPolicy(waves=(50, 100), bake_minutes=60), names(20))
    world.events = [(NOW + 30 * MINUTE, "ways", {NEW: RolloutStatus.aborted})]
    results = world.run()
    assert world.moves and not world.times(2) and world.time == NOW + 30 * MINUTE
    assert {result.reason for result in results if not result.moved} == {Reason.aborted.text}


def test_a_newer_image_supersedes_and_nobody_goes_through_the_one_between() -> None:
    world = World(RolloutPolicy(waves=(50, 100), bake_minutes=60), names(20))
    world.events = [(NOW + 30 * MINUTE, "target", NEWER)]
    world.run()
    assert set(world.images.values()) == {NEWER}
    first = {name for _, name, image in world.moves if image == NEW}
    assert first and len(world.moves) == 20 + len(first)


def test_a_session_that_is_deferred_is_not_tried_again_and_again() -> None:
    world = World(RolloutPolicy(waves=(100,), max_run_hours=1), names(1))
    plan = world.plan
    tried = []

    def blind() -> Sequence[Decision]:  # the plan sees no work where the last look does
        world.busy, busy = {}, world.busy
        lines, world.busy = plan(), busy
        tried.extend(line for line in lines if line.action is Action.migrate)
        return lines

    world.busy = {"s000": NOW + timedelta(days=1)}
    results = reconcile(Planned(world, blind), world, world.policy)
    assert results[0].state is State.deferred and world.time == NOW + timedelta(hours=1)
    assert len(tried) <= 12


def test_a_registry_may_be_away_for_a_while_but_not_at_the_beginning() -> None:
    world = World(RolloutPolicy(waves=(50, 100), bake_minutes=30), names(20))
    plan = world.plan

    def sometimes() -> Sequence[Decision]:
        if NOW + 10 * MINUTE < world.time < NOW + 60 * MINUTE or not world.names:
            raise RefitError("The registry doesn't answer.")
        return plan()

    reconcile(Planned(world, sometimes), world, world.policy)
    assert len(world.moves) == 20 and min(world.times(2)) > NOW + 60 * MINUTE
    world.names = []
    with pytest.raises(RefitError):
        reconcile(Planned(world, sometimes), world, world.policy)


@pytest.mark.slow
@settings(max_examples=several(60), deadline=None)
@given(
    killed=st.frozensets(st.integers(1, 80), max_size=5),
    ends=st.dictionaries(st.sampled_from(names(30)), st.sampled_from([State.rolled_back, State.held]), max_size=2),
    busy=st.dictionaries(st.sampled_from(names(30)), st.integers(1, 300).map(lambda n: NOW + n * MINUTE), max_size=9),
)
def test_whenever_it_is_killed_the_next_run_goes_on(
    killed: frozenset[int], ends: dict[str, State], busy: dict[str, datetime]
) -> None:
    world = World(RolloutPolicy(waves=(30, 100), bake_minutes=20, max_run_hours=8), names(30), busy, ends)
    world.killed_at = killed
    for _ in range(len(killed) + 1):
        try:
            world.run()
            break
        except Killed:
            continue
    moved = [name for _, name, _ in world.moves]
    assert len(moved) == len(set(moved)), "moved twice"
    if not ends:
        assert set(moved) == set(world.names)
    firsts, seconds = world.times(1), [one.ended for one in world.trials.values() if one.wave == 2 and one.ended]
    if firsts and seconds:
        early = [at for at in firsts if at < min(seconds)]
        assert not early or min(seconds) - max(early) >= 20 * MINUTE


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0.0, 0.3, 7.0])
def test_f11_of_40_who_work_on_all_are_forced_from_their_deadline_on_and_none_before(lag: float) -> None:
    policy, told = RolloutPolicy(waves=(100,), unavailable=Unavailable(rollout=4)), NOW - timedelta(days=1, seconds=25)
    names = [f"s{number}" for number in range(40)]
    busy = dict.fromkeys(names, NOW + timedelta(days=30))
    two_days = SessionPolicy(deadline_days=2)
    world = World(policy, names, busy, sessions=two_days, told=told, lag=timedelta(seconds=lag))
    assert {result.state for result in world.run()} == {State.cleaned}
    begun = [at - timedelta(seconds=6) for at, _, _ in world.moves]
    deadline = told + timedelta(days=2)
    assert len(begun) == 40 and all(at >= deadline for at in begun)
    assert max(begun) - deadline < 10 * MINUTE


def test_a_home_into_which_somebody_wrote_after_a_good_move_stops_no_other() -> None:
    line = Decision("ada", Action.migrate, OLD, NEW, wave=1)
    doubts = FailureBudget([line])
    doubts.note(line, Result("ada", OLD, NEW, "", 1.0, State.cleaned, "its home was kept", damaged=True))
    assert not doubts.about(line)
    doubts.note(line, Result("ada", OLD, NEW, "", 1.0, State.rolled_back, "", damaged=True))
    assert doubts.about(line) == "ada is rolled back, and its home may be damaged: first look at that one"


@pytest.mark.parametrize("once", [True, False])
def test_where_nobody_is_to_be_moved_it_ends_at_once(once: bool) -> None:
    world = World(RolloutPolicy(), names(3), images=dict.fromkeys(names(3), NEW))
    assert {result.reason for result in world.run(once=once)} == {Reason.current.text}
    assert world.time == NOW
