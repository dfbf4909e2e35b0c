"""When a session may be away: the hours that its owner leaves, and the seats that caps leave. Pure.

Time is divided into slots as long as a move is foreseen to take at most, counted since 1970, so that they are the same
in each plan. A move takes one whole slot, which makes "so many at the same time" a matter of counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from flows.core import hours
from flows.core.hours import Hours
from flows.core.settings.policy import Freeze
from flows.migrations.planning.rollout import Reason

# Days that are looked through for an hour in which a session may be moved.
HORIZON = 90
_DAY = timedelta(days=1)


class Calendar:
    """The slots in which one kind of session may be moved: inside windows, outside quiet hours and freezes."""

    def __init__(
        self,
        zone: ZoneInfo,
        freezes: Sequence[Freeze] = (),
        windows: Sequence[Hours] = (),
        quiet: Sequence[Hours] = (),
        *,
        length: int,
    ) -> None:
        self._zone, self._freezes, self._windows, self._quiet, self._length = zone, freezes, windows, quiet, length
        self._days: dict[date, list[tuple[int, int]]] = {}
        self._found: dict[int, int | None] = {}
        self._always = not (freezes or windows or quiet)

    def after(self, slot: int) -> int | None:
        """The first slot from this one on; none within the horizon."""
        if self._always:
            return slot
        if slot not in self._found:
            self._found[slot] = self._look_for(slot)
        return self._found[slot]

    def _look_for(self, slot: int) -> int | None:
        day = hours.local_day(slot * self._length, self._zone)
        for _ in range(HORIZON):
            for first, last in self._open(day):
                if slot <= last:
                    return max(slot, first)
            day += _DAY
        return None

    def why(self, slot: int) -> Reason | None:
        """The reason that keeps a session from being moved in this slot; none: there is none."""
        if self.after(slot) == slot:
            return None
        day = hours.local_day(slot * self._length, self._zone)
        if any(freeze.first <= day <= freeze.last for freeze in self._freezes):
            return Reason.frozen
        moment = slot * self._length
        quiet = hours.spans(self._quiet, day, self._zone, hours.wide)
        inside = any(first < moment + self._length and moment < last for first, last in quiet)
        return Reason.quiet if inside else Reason.window

    def _open(self, day: date) -> list[tuple[int, int]]:
        """The slots of a day, first and last of each stretch, that lie inside its open hours as a whole."""
        if day not in self._days:
            stretches = ((-(-first // self._length), last // self._length - 1) for first, last in self._hours(day))
            self._days[day] = [(first, last) for first, last in stretches if first <= last]
        return self._days[day]

    def _hours(self, day: date) -> list[hours.Span]:
        if any(freeze.first <= day <= freeze.last for freeze in self._freezes):
            return []
        whole = [(hours.midnight(day, self._zone), hours.midnight(day + _DAY, self._zone))]
        windows = hours.spans(self._windows, day, self._zone, hours.narrow) if self._windows else whole
        return hours.without(windows, hours.spans(self._quiet, day, self._zone, hours.wide))


class Capacity:
    """How many sessions are away in each slot, and that there are never more than `cap`."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._taken: dict[int, int] = {}
        # Slot that is full → one before which all are: shortens the way for the next who asks.
        self._later: dict[int, int] = {}

    def after(self, slot: int) -> int:
        """The first slot with a seat, from this one on."""
        if self._taken.get(slot, 0) < self._cap:
            return slot
        passed = []
        while self._taken.get(slot, 0) >= self._cap:
            passed.append(slot)
            slot = self._later.get(slot, slot + 1)
        for full in passed:
            self._later[full] = slot
        return slot

    def take(self, slot: int) -> bool:
        """Take a seat; false if it is one more than there are."""
        self._taken[slot] = self._taken.get(slot, 0) + 1
        return self._taken[slot] <= self._cap

    def give(self, slot: int) -> None:
        """Give a seat back."""
        if self._taken[slot] >= self._cap:
            self._later.clear()
        self._taken[slot] -= 1


def first(slot: int, calendar: Calendar, seats: Sequence[Capacity]) -> int | None:
    """The first slot from this one on that the calendar allows and in which all have a seat."""
    while True:
        allowed = calendar.after(slot)
        if allowed is None:
            return None
        slot = allowed
        for each in seats:
            slot = each.after(slot)
        if slot == allowed:
            return slot
