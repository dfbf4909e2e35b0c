"""Which sessions move, which stay, when, and why. Pure: facts go in, one decision per session comes out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from flows.catalog.model import Access
from flows.core.errors import RefitError, UnknownName
from flows.migrations.planning import wave_gates
from flows.migrations.planning.rollout import Candidate, Decision, Gate, PlanInput, Reason
from flows.migrations.planning.wave_gates import Approval, Trial
from flows.migrations.planning.wave_scheduler import WaveScheduler
from flows.sessions.model import Session


def plan(candidates: Iterable[Candidate], rollout: PlanInput) -> tuple[Decision, ...]:
    """Decide for every session, by name.

    A stopped session is left alone: an image has to prove itself in a session before the old one is given up,
    and starting what its owner stopped is not ours to do.

    Args:
        candidates: the sessions that are asked for.
        rollout: the facts that they share.
    """
    return WaveScheduler(rollout, candidates).decisions


def plan_after(
    candidates: Iterable[Candidate], rollout: PlanInput, trials: Iterable[Trial], approved: Mapping[str, Approval]
) -> tuple[tuple[Decision, ...], dict[tuple[str, int], Gate]]:
    """Decide for every session, with what its rollout has shown so far; also what that says of each wave.

    Args:
        candidates: the sessions that are asked for.
        rollout: the facts that they share; its gates are decided here.
        trials: the last move of each session.
        approved: image → the last wave that a person has approved, and when.
    """
    past_trials, gates = tuple(trials), dict[tuple[str, int], Gate]()

    def judge(left: Mapping[tuple[str, int], int]) -> Mapping[tuple[str, int], Gate]:
        gates.update(wave_gates.gates(past_trials, left, approved, rollout.policy, rollout.now))
        return gates

    begun = max((trial.wave for trial in past_trials), default=wave_gates.VOLUNTEERS - 1)
    return WaveScheduler(rollout, candidates, judge=judge, begun=begun).decisions, gates


def plan_named(
    name: str,
    candidates: Iterable[Candidate],
    rollout: PlanInput,
    *,
    deleted: Collection[str] = (),
) -> Decision:
    """Decide for the one session that a person named, and so agreed for; one that can't go at once is an error here.

    Args:
        name: its name.
        candidates: all sessions.
        rollout: as for `plan`.
        deleted: names of sessions that are gone while their homes were kept.

    Raises:
        RefitError: there is no such session, it was deleted, it is stopped or pinned, its image doesn't exist or is the
            one that it has, or its last move has not ended.
    """
    by_name = {candidate.session.name: candidate for candidate in candidates}
    if name in deleted and name not in by_name:
        raise RefitError(
            f"The session {name!r} was deleted.",
            why="Its home was kept, but there is nothing that could be moved.",
            hint=f"`refit session create {name} …` gives the home a session again.",
        )
    if name not in by_name:
        raise UnknownName("session", name, by_name)
    session = by_name[name].session
    new = rollout.targets.get((session.profile, session.release), "")
    agreed = replace(by_name[name], wish=replace(by_name[name].wish, agreed=new))
    (decision,) = plan([agreed], rollout)
    if decision.reason:
        raise RefitError(
            f"The session {name!r} can't be moved: {decision.reason.text}.",
            why=f"Profile {session.profile}, release {session.release}, image {session.image}.",
            hint=_HINTS.get(decision.reason, "").format(name=name, release=session.release),
        )
    return decision


_HINTS = {
    Reason.stopped: "`refit session start {name}`, then migrate it.",
    Reason.no_image: "`refit build {release}` makes it.",
    Reason.moving: "`refit migrate status --watch` shows how it goes.",
    Reason.unfinished: "`refit migrate recover`.",
    Reason.held: "`refit migrate history {name}`.",
    Reason.not_offered: "the person who made it can offer it (again); another profile can be taken instead.",
    Reason.other_maker: "a change of profile gives it another one, or this one as it is today.",
    Reason.unknown_maker: "try again once the registry answers; a change of profile gives it an image that is known.",
    Reason.gpu: "`refit gpu list` shows who has them.",
    Reason.pinned: "`refit session updates mode {name} when-idle` takes the pin away.",
}


def moved(session: Session, image: str, access: Access | None) -> Session:
    """The session on another image, in its next container.

    Args:
        session: as it is.
        image: digest of the other image.
        access: how the IDE in that is reached; none: as before.

    Raises:
        RefitError: the one has an IDE to reach and the other has not.
    """
    access = access or session.access
    if bool(access.port) != bool(session.access.port):
        raise RefitError(
            f"The session {session.name!r} can't be moved to {image}.",
            why="That image has an IDE, and the session has none."
            if access.port
            else "That image has no IDE, and the session has one.",
            hint=f"`refit session rm {session.name}` keeps its home; then create it anew.",
        )
    return replace(session, image=image, generation=session.generation + 1, access=access)
