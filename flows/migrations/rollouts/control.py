"""Steering rollouts: a person pauses, resumes, aborts or approves; the results of its waves close or open them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Engine

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.formatting import short
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.migrations.notifications.notifier import withdraw
from flows.migrations.planning import wave_gates
from flows.migrations.planning.rollout import Gate, Health, RolloutStatus
from flows.migrations.planning.rollout_state import RolloutState
from flows.migrations.rollouts.store import Rollouts
from flows.publishing import evidence
from flows.sessions.history import History
from flows.sessions.lifecycle import Sessions


def steer(what: str, image: str, settings: Settings, by: str, wave: str = "") -> str:
    """Pause, resume or abort the rollout of an image, or approve the waves that it has behind it; says what was done.

    Args:
        what: `pause`, `resume`, `abort` or `approve`.
        image: digest, or its first digits, or tag; empty: the only rollout that goes on.
        settings: those in force.
        by: the person who wants it.
        wave: title of the wave up to which it is approved; empty: of the last one that waits.

    Raises:
        RefitError: there is no such rollout, it is over, or it has nothing that could be approved.
    """
    database = open_database(settings.database)
    rollouts = Rollouts(database)
    digest = evidence.find(Registry(settings), image).digest if "_" in image else image
    rollout = rollouts.find(digest)
    if what == "approve":
        return _approve(rollout, wave, database, settings, by)
    way = {"pause": RolloutStatus.paused, "resume": RolloutStatus.running, "abort": RolloutStatus.aborted}[what]
    rollouts.steer(rollout.image, way, by)
    if way is RolloutStatus.aborted:
        withdraw(settings, Sessions.open(settings, database), History(database), rollout.image)
    return f"The rollout of {short(rollout.image)} is {way}."


def _approve(rollout: RolloutState, wave: str, database: Engine, settings: Settings, by: str) -> str:
    percents, rollouts = settings.migration.waves, Rollouts(database)
    titles = [wave_gates.title(number, percents) for number in range(len(percents) + 1)]
    waiting = [number for number in rollouts.waiting(rollout) if wave in ("", titles[number])]
    if not waiting:
        after = f" after the wave {wave}" if wave else ""
        raise RefitError(
            f"The rollout of {short(rollout.image)} doesn't wait for an approval{after}.",
            hint="`refit migrate status` shows what it waits for.",
        )
    title = titles[max(waiting)]
    rollouts.approve(rollout.image, max(waiting), by, title)
    return f"Approved for {short(rollout.image)}: all up to the wave {title}."


def judge(gates: Mapping[tuple[str, int], Gate], rollouts: Rollouts, percents: Sequence[float]) -> Iterator[str]:
    """Write down what waves have shown; yields what somebody has to look at."""
    for (image, wave), gate in gates.items():
        if gate.health is Health.open:
            continue
        title = wave_gates.title(wave, percents)
        if rollouts.judge(image, wave, title, gate.health) and gate.health is not Health.passed:
            yield (
                f"The wave {title} of the image {short(image)}: {gate.health.text}. Its other sessions wait: "
                f"`refit migrate status` shows how it went, `refit migrate approve {short(image)}` lets it go on."
            )
