"""All that a plan of a migration depends on, as it was at one moment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from flows.migrations.move import Past
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Candidate, PlanInput
from flows.migrations.planning.rollout_state import RolloutState
from flows.migrations.planning.wave_gates import Approval, Trial

_FAILED = (State.rolled_back, State.held)


@dataclass(frozen=True)
class Observed:
    """The observed sessions, with their moves and their rollouts.

    Attributes:
        candidates: all sessions.
        rollout: the facts that the sessions that may be moved share.
        moves: all moves, oldest first.
        rollouts: image → how its rollout stands.
        fallen: sessions that ought to run and don't, with their images.
        deleted: names of sessions that are gone while their homes were kept.
    """

    candidates: tuple[Candidate, ...]
    rollout: PlanInput
    moves: tuple[Past, ...] = ()
    rollouts: Mapping[str, RolloutState] = field(default_factory=dict)
    fallen: frozenset[tuple[str, str]] = frozenset()
    deleted: frozenset[str] = frozenset()

    @property
    def trials(self) -> list[Trial]:
        """The last move of each session in each rollout."""
        return trials(self.moves, self.rollouts, self.fallen)

    @property
    def approved(self) -> dict[str, Approval]:
        """Image → the last wave that a person has approved, and when."""
        return {image: rollout.approved for image, rollout in self.rollouts.items() if rollout.approved}

    def candidate(self, session: str) -> Candidate:
        """The session with this name."""
        return self._by_name[session]

    @cached_property
    def _by_name(self) -> Mapping[str, Candidate]:
        return {candidate.session.name: candidate for candidate in self.candidates}

    def with_candidate(self, candidate: Candidate) -> Observed:
        """The same, with something else known of one session."""
        name = candidate.session.name
        others = (other for other in self.candidates if other.session.name != name)
        return replace(self, candidates=(*others, candidate))


def trials(
    moves: Iterable[Past], rollouts: Mapping[str, RolloutState], fallen: Collection[tuple[str, str]] = ()
) -> list[Trial]:
    """The last move of each session in each rollout; `fallen`: those that ended on an image, though they ought to run.

    Pure.
    """
    last: dict[tuple[str, str], Trial] = {}
    for move in moves:
        image = move.image
        if move.wave is None or image not in rollouts or move.created < rollouts[image].begun:
            continue
        moved, failed = move.state is State.cleaned, move.state in _FAILED
        fell = moved and (move.session, image) in fallen
        last[move.session, image] = Trial(image, move.wave, move.ended, moved, failed, move.damaged, fell)
    return list(last.values())
