"""The rule for limits of a person: what they may have, what they use, and whether more is allowed. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from flows.core.errors import RefitError
from flows.core.settings.person_limits import PersonLimit, PersonLimits


class Resource(StrEnum):
    """A thing that is limited; programs decide by it."""

    sessions = "sessions"
    memory = "memory"
    cpus = "cpus"
    gpus = "gpus"


@dataclass(frozen=True)
class Amounts:
    """Amounts of all that is limited; infinity: without a limit.

    Attributes:
        sessions: how many sessions there are, whether they run or not.
        memory: bytes, of those that run.
        cpus: cores, of those that run.
        gpus: GPUs, of those that run.
    """

    sessions: float = 0
    memory: float = 0
    cpus: float = 0
    gpus: float = 0

    def of(self, resource: Resource) -> float:
        """One of the amounts."""
        amounts = {
            Resource.sessions: self.sessions,
            Resource.memory: self.memory,
            Resource.cpus: self.cpus,
            Resource.gpus: self.gpus,
        }
        return amounts[resource]


NO_LIMITS = Amounts(math.inf, math.inf, math.inf, math.inf)


class OverLimit(RefitError):
    """A person asks for more than they may have.

    Attributes:
        resource: of what it would be too much.
    """

    def __init__(self, resource: Resource, what: str, why: str, hint: str) -> None:
        super().__init__(what, why=why, hint=hint)
        self.resource = resource


@dataclass(frozen=True)
class Homes:
    """The homes of a person.

    Attributes:
        count: how many there are.
        kept: how many of them have no session any more.
        most: bytes that each of them may take, and each volume; none: there is no limit.
    """

    count: int
    kept: int
    most: int | None

    def __str__(self) -> str:
        """Their number and their limit, for people; empty: there is nothing to tell."""
        sentence = f"You have {self.count} home{'' if self.count == 1 else 's'}"
        kept = f", {self.kept} of them without a session" if self.kept else ""
        if self.most is None:
            return f"{sentence}{kept}." if self.kept else ""
        return f"{sentence}{kept}; each home and volume may take {self.most / 1e9:.3g} GB of disk."


@dataclass(frozen=True)
class Account:
    """A person's limits, and what they use.

    Attributes:
        allowed: the most that they may have.
        used: the resources of their sessions, by name of the session.
    """

    allowed: Amounts
    used: Mapping[str, Amounts]

    @property
    def total(self) -> Amounts:
        """The sum of their sessions."""
        return total(self.used.values())

    def refusal(self, asked: Amounts, session: str = "") -> OverLimit | None:
        """Why a session can't be had; none: it can.

        A session is never refused the amount that it has: a limit that was lowered takes nothing away.

        Args:
            asked: the resources that the session takes once it runs.
            session: its name; empty: it is a new one.
        """
        has = self.used.get(session, Amounts())
        others = total(amounts for name, amounts in self.used.items() if name != session)
        for resource in Resource:
            wanted_amount, before, most = asked.of(resource), others.of(resource), self.allowed.of(resource)
            if wanted_amount > has.of(resource) and before + wanted_amount > most:
                return _REFUSALS[resource](resource, wanted_amount, before, most)
        return None

    def __str__(self) -> str:
        """Their use and their limits, for people; empty: nothing is limited."""
        sessions, *of_those = (
            f"{_number(resource, self.total.of(resource))} of {_amount(resource, self.allowed.of(resource))}"
            if math.isfinite(self.allowed.of(resource))
            else ""
            for resource in Resource
        )
        *first, last = list(filter(None, of_those)) or [""]
        running = " and ".join(filter(None, (", ".join(first), last)))
        sentences = [f"You have {sessions}."] * bool(sessions) + [f"Those that run take {running}."] * bool(running)
        return " ".join(sentences) if sessions or not running else f"Your sessions that run take {running}."


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum of amounts."""
    several = list(amounts)
    return Amounts(*(sum(part.of(resource) for part in several) for resource in Resource))


def takes(memory: int, cpus: float, gpus: int = 0, *, runs: bool = True) -> Amounts:
    """The amounts of a session.

    Args:
        memory: bytes that it may take; 0: as much as there is.
        cpus: cores that it may take; 0: as many as there are.
        gpus: GPUs that it has while it runs.
        runs: whether it runs, or ought to.
    """
    return Amounts(1, memory or math.inf, cpus or math.inf, gpus) if runs else Amounts(1)


def allowed(limits: PersonLimits, groups: Collection[str]) -> Amounts:
    """The most that a member of these groups may have. Each amount is the most generous of the groups that name it.

    Where none of them does, it is that of all people.
    """
    of_groups = [limits.groups[group] for group in groups if group in limits.groups]
    return Amounts(
        _most([group.sessions for group in of_groups], limits.sessions),
        _most([_bytes(group) for group in of_groups], _bytes(limits)),
        _most([group.cpus for group in of_groups], limits.cpus),
        _most([group.gpus for group in of_groups], limits.gpus),
    )


def home(limits: PersonLimits, groups: Collection[str]) -> int | None:
    """Bytes that each home of a member of these groups may take, 0: as many as there are; none: as of all sessions."""
    of_groups = [limit for group in groups if (limit := limits.groups.get(group)) and limit.home_gb is not None]
    named = [group.home_gb for group in of_groups or [limits] if group.home_gb is not None]
    if not named:
        return None
    return 0 if 0 in named else round(max(named) * 1e9)


def _bytes(limit: PersonLimit) -> float | None:
    return None if limit.memory_gb is None else limit.memory_gb * 1e9


def _most(of_groups: Iterable[float | None], of_all: float | None) -> float:
    named = [group for group in of_groups if group is not None] or [of_all or 0]
    return max(number or math.inf for number in named)


def _number(resource: Resource, amount: float) -> str:
    if not math.isfinite(amount):
        return "any number" if resource is not Resource.memory else "any amount"
    return f"{amount / 1e9:.3g}" if resource is Resource.memory else f"{amount:g}"


def _amount(resource: Resource, amount: float) -> str:
    number = _number(resource, amount)
    if resource is Resource.memory:
        return f"{number} GB of memory"
    word = {Resource.cpus: "core", Resource.gpus: "GPU"}.get(resource, "session")
    return f"{number} {word}{'' if amount == 1 else 's'}"


_ASK = "ask the people who run this Refit for more"


def _too_many(resource: Resource, _: float, before: float, most: float) -> OverLimit:
    what = "You can't have another session now."
    why = f"You have {_amount(resource, before)}, and may have {_number(resource, most)}."
    return OverLimit(resource, what, why, f"remove a session that you don't need, or {_ASK}.")


def _too_much(resource: Resource, amount: float, before: float, most: float) -> OverLimit:
    noun = {Resource.memory: "memory", Resource.cpus: "cores", Resource.gpus: "GPUs"}[resource]
    what = f"The session would take more {noun} than you may have."
    may = f"You may have {_amount(resource, most)}"
    if math.isinf(amount):
        why = f"{may}, and this profile has no limit of its own: it may take all that there is."
        return OverLimit(resource, what, why, f"choose another profile, or {_ASK}.")
    if amount > most:
        why = f"{may}, and it takes {_number(resource, amount)}."
        return OverLimit(resource, what, why, f"choose a smaller profile, or {_ASK}.")
    others = "all that there is" if math.isinf(before) else _number(resource, before)
    why = f"{may}. It takes {_number(resource, amount)}, and your sessions that run take {others}."
    return OverLimit(resource, what, why, f"stop another session first, choose a smaller profile, or {_ASK}.")


_REFUSALS = {resource: _too_many if resource is Resource.sessions else _too_much for resource in Resource}
