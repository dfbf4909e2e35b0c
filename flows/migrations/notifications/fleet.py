"""How rollouts and sessions stand: who is on what, who is behind and why. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from flows.migrations.planning import wave_gates
from flows.migrations.planning.rollout import BLOCKING, Action, Decision, Gate, Health, Reason, RolloutStatus
from flows.migrations.planning.rollout_state import RolloutState
from flows.migrations.planning.wave_gates import Trial


@dataclass(frozen=True)
class WaveLine:
    """One wave of a rollout: what it says of the image, and how many sessions were moved, have failed, are left."""

    wave: int
    title: str
    health: Health | None
    moved: int
    failed: int
    left: int


@dataclass(frozen=True)
class RolloutLine:
    """How the rollout of one image stands."""

    image: str
    profile: str
    release: str
    way: RolloutStatus
    begun: datetime
    waves: tuple[WaveLine, ...]

    @property
    def complete(self) -> bool:
        """Whether nobody is left whom it could move."""
        return self.way is RolloutStatus.running and not any(wave.left for wave in self.waves)

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it, unless a person steers it."""
        return self.complete or self.way in (RolloutStatus.aborted, RolloutStatus.superseded)


@dataclass(frozen=True)
class SessionLine:
    """Where one session stands.

    Attributes:
        session: its name.
        image: digest of its image.
        newest: digest of the image that it is to have; empty: there is none.
        behind_since: when the rollout of that began; none: it has that image, or the rollout has not begun.
        at: when it moves, as far as can be told; none: nobody knows, or it doesn't.
        deadline: when it is moved whether it fits or not; none: never.
        overdue: its deadline has passed.
        why: why it hasn't moved; empty: its turn comes, or it has.
    """

    session: str
    image: str
    newest: str
    behind_since: datetime | None
    at: datetime | None
    deadline: datetime | None
    overdue: bool
    why: str


@dataclass(frozen=True)
class Fleet:
    """All rollouts that matter, and all sessions."""

    rollouts: tuple[RolloutLine, ...]
    sessions: tuple[SessionLine, ...]


def fleet(
    decisions: Sequence[Decision],
    gates: Mapping[tuple[str, int], Gate],
    trials: Sequence[Trial],
    standings: Mapping[str, RolloutState],
    percents: Sequence[float],
    now: datetime,
) -> Fleet:
    """How all stands, by what a plan says and what the moves so far have shown."""
    shown = [standing for standing in standings.values() if standing.way is not RolloutStatus.superseded]
    return Fleet(
        tuple(
            _rollout(standing, decisions, gates, trials, percents)
            for standing in sorted(shown, key=lambda standing: standing.begun)
        ),
        tuple(_session(line, standings.get(line.new), now) for line in decisions),
    )


@dataclass(frozen=True)
class Question:
    """What a rollout that goes on asks a person: may it do so after this wave?

    Attributes:
        image: its digest.
        wave: title of the wave.
        shown: the results of the wave; with other results it is another question.
    """

    image: str
    wave: str
    shown: str


def questions(fleet: Fleet) -> tuple[Question, ...]:
    """The questions, by rollout; none where nobody is left who would move."""
    going = [rollout for rollout in fleet.rollouts if rollout.way is RolloutStatus.running and not rollout.complete]
    blocked = {rollout: wave for rollout in going for wave in rollout.waves if wave.health in BLOCKING}
    return tuple(Question(rollout.image, wave.title, _shown(rollout, wave)) for rollout, wave in blocked.items())


def _shown(line: RolloutLine, wave: WaveLine) -> str:
    health = wave.health.text if wave.health else ""
    return f"{health}. {line.profile} {line.release}: moved {wave.moved}, failed {wave.failed}."


def _rollout(
    standing: RolloutState,
    decisions: Iterable[Decision],
    gates: Mapping[tuple[str, int], Gate],
    trials: Iterable[Trial],
    percents: Sequence[float],
) -> RolloutLine:
    mine = [trial for trial in trials if trial.image == standing.image]
    failed = Counter(trial.wave for trial in mine if trial.failed or trial.fell)
    moved = Counter(trial.wave for trial in mine if trial.moved and not trial.fell)
    left = Counter(d.wave for d in decisions if d.new == standing.image and d.wave is not None)
    lines = tuple(
        WaveLine(
            wave,
            wave_gates.title(wave, percents),
            gates[standing.image, wave].health if (standing.image, wave) in gates else None,
            moved[wave],
            failed[wave],
            left[wave],
        )
        for wave in sorted({*moved, *failed, *left})
    )
    return RolloutLine(standing.image, standing.profile, standing.release, standing.way, standing.begun, lines)


def _session(line: Decision, standing: RolloutState | None, now: datetime) -> SessionLine:
    behind = bool(line.new) and line.reason is not Reason.current
    return SessionLine(
        session=line.session,
        image=line.old,
        newest=line.new,
        behind_since=standing.begun if behind and standing else None,
        at=line.at,
        deadline=line.deadline,
        overdue=behind and line.deadline is not None and line.deadline < now,
        why=line.why if behind or line.action is not Action.skip else "",
    )
