"""Hours of the week on somebody's clock, as moments of UTC: "at night" as people mean it. Pure.

They mean it, too, on the days on which clocks are put forward or back.
Moments are whole seconds since 1970 UTC, spans are half-open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Span = tuple[int, int]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = 24 * 60
_TEXT = re.compile(r"(?:([a-z,-]+) )?(\d\d):(\d\d)-(\d\d):(\d\d)", re.ASCII)
_EXAMPLE = "write, for instance, mon-fri 22:00-07:00, or 12:00-13:00 for every day"


@dataclass(frozen=True)
class Hours:
    """Hours that come again each week: `days` on which they begin (Monday is 0), minutes after midnight.

    `end` is beyond 24 h where they end on the next day.
    """

    days: frozenset[int]
    start: int
    end: int
    text: str

    def __str__(self) -> str:
        return self.text


def read_hours(text: str) -> Hours:
    """The hours that somebody wrote.

    Raises:
        ValueError: nobody can tell what is meant.
    """
    match = _TEXT.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} are no hours: {_EXAMPLE}")
    start, end = (60 * int(match[n]) + int(match[n + 1]) for n in (2, 4))
    if start >= _DAY or end > _DAY or int(match[3]) > 59 or int(match[5]) > 59 or start == end:
        raise ValueError(f"{text!r} are no hours of a day: {_EXAMPLE}")
    return Hours(_read_days(match[1] or "mon-sun"), start, end if end > start else end + _DAY, match[0])


def _read_days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"{text!r} are no days of the week: {_EXAMPLE}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        days |= {day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)}
    return frozenset(days)


def zone(name: str) -> ZoneInfo:
    """The time zone of that name.

    Raises:
        ValueError: there is none.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}: write, for instance, Europe/Zurich or UTC") from None


def moments(day: date, minutes: int, zone: ZoneInfo) -> Span:
    """When a clock shows so many minutes after midnight of `day` (two days at most), the first time and the last.

    They differ where clocks are put back over it; where clocks skip it, both are the moment at which they do.
    """
    begin, steady = _beginning(day, zone)
    return (begin + 60 * minutes,) * 2 if steady else _moments(day, minutes, zone)


@lru_cache(maxsize=1 << 16)
def _beginning(day: date, zone: ZoneInfo) -> tuple[int, bool]:
    """When a day begins, and whether no clock is changed on it and the next: then counting is enough."""
    begin, _ = _moments(day, 0, zone)
    # The second before shows whether clocks jump at midnight itself, as in Havana.
    offsets = {_offset(begin + seconds, zone) for seconds in (-1, 0, 86_400, 2 * 86_400)}
    return begin, len(offsets) == 1


def _moments(day: date, minutes: int, zone: ZoneInfo) -> Span:
    wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)
    first, last = (int(wall.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    if first <= last:
        return first, last
    jump = _jump(last, first, zone)
    return jump, jump


def _jump(before: int, after: int, zone: ZoneInfo) -> int:
    """The moment between two at which clocks are put forward."""
    new = _offset(after, zone)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if _offset(middle, zone) == new else (middle, after)
    return after


def _offset(moment: int, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(moment, zone).utcoffset()


def wide(hours: Hours, day: date, zone: ZoneInfo) -> Span:
    """The hours that begin on `day`, none left out: quiet hours end when a clock shows so for the last time."""
    return moments(day, hours.start, zone)[0], moments(day, hours.end, zone)[1]


def narrow(hours: Hours, day: date, zone: ZoneInfo) -> Span:
    """The hours that begin on `day`, none too many: a window is open when a clock can't show anything else."""
    (first, start), (end, last) = moments(day, hours.start, zone), moments(day, hours.end, zone)
    if start < end:
        return start, end
    # The whole window lies in the hour that comes twice.
    return (start, last) if first < start < last else (start, start)


def midnight(day: date, zone: ZoneInfo) -> int:
    """The moment at which a day begins."""
    return _beginning(day, zone)[0]


def local_day(moment: int, zone: ZoneInfo) -> date:
    """The date that a calendar shows."""
    return datetime.fromtimestamp(moment, zone).date()


def spans(hours: Iterable[Hours], day: date, zone: ZoneInfo, of: Callable[[Hours, date, ZoneInfo], Span]) -> list[Span]:
    """The parts of `day` that are within `hours` (those, too, that began the day before), in order, none overlapping.

    Args:
        hours: hours of the week.
        day: a date on the clock of `zone`.
        zone: the time zone of the clock.
        of: `wide` or `narrow`.
    """
    begin, end = midnight(day, zone), midnight(day + timedelta(days=1), zone)
    yesterday = day - timedelta(days=1)
    openings = (of(each, began, zone) for each in hours for began in (yesterday, day) if began.weekday() in each.days)
    inside: list[Span] = []
    for first, last in sorted((max(begin, first), min(end, last)) for first, last in openings):
        if inside and first <= inside[-1][1]:
            inside[-1] = (inside[-1][0], max(last, inside[-1][1]))
        elif first < last:
            inside.append((first, last))
    return inside


def without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """The parts of spans that remain; both lists are in order, and none of them overlap."""
    pending = list(spans)
    for begin, end in taken:
        pending = [
            part
            for first, last in pending
            for part in ((first, min(last, begin)), (max(first, end), last))
            if part[0] < part[1]
        ]
    return pending
