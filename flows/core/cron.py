"""When something starts by itself: the five fields of cron, in a part that all schedulers read in the same way."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("day of the week", 0, 7))
_PART = re.compile(r"(?:\*|([0-9]+)|([0-9]+)-([0-9]+))(?:/([1-9][0-9]*))?")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # days of each month


def _schedule(text: str) -> str:
    """The schedule with single spaces.

    Raises:
        ValueError: it isn't one, or there is no such day.
    """
    fields = text.split()
    if len(fields) != len(_FIELDS):
        named = ", ".join(name for name, _, _ in _FIELDS)
        raise ValueError(f"a schedule has {len(_FIELDS)} fields ({named}), e.g. 0 2 * * * for each night at 2:00 UTC")
    chosen = [
        set().union(*(_values(part, *field) for part in written.split(",")))
        for written, field in zip(fields, _FIELDS, strict=True)
    ]
    # Where a day of the week is given as well, cron takes either.
    if fields[4] == "*" and min(chosen[2]) > max(_LONGEST[month - 1] for month in chosen[3]):
        raise ValueError(f"no month {fields[3]} has a day {fields[2]}")
    return " ".join(fields)


def _values(part: str, name: str, least: int, most: int) -> set[int]:
    """The numbers that one part of a field stands for: `*`, `5`, `1-5`, `*/15` or `8-18/2`."""
    match = _PART.fullmatch(part)
    if match is None or (match[1] and match[4]):
        raise ValueError(f"{part!r} is no {name}: write *, a number, or a range like {least}-{most}, maybe with /step")
    first, last = int(match[1] or match[2] or least), int(match[1] or match[3] or most)
    if not least <= first <= last <= most:
        raise ValueError(f"{part!r} is no {name}: it goes from {least} to {most}")
    return set(range(first, last + 1, int(match[4] or 1)))


Schedule = Annotated[str, AfterValidator(_schedule)]
"""Five fields of cron, in UTC."""
