"""The wishes of a session's owner about migrations: plain data. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from flows.core.errors import RefitError, UnknownName
from flows.core.hours import Hours, read_hours, zone
from flows.core.settings.policy import Mode


@dataclass(frozen=True)
class UpdatePreferences:
    """The wishes of a session's owner.

    Attributes:
        mode: when it moves; none: as the policy says.
        until: a pin's end (the first day on which it may move), or the last day before it is forced; on the owner's
            calendar.
        snoozed_until: not before.
        time_zone: the time zone of hours and days; empty: the policy's.
        quiet: hours in which it is left alone, besides those of the policy.
        volunteer: it is among the first.
        agreed: digest of the image that the owner has agreed to move to now, busy or not; empty: none.
        replay: system packages that were installed by hand are installed in its new image, too.
        owner: its owner, if known: people with several sessions want to lose one at a time.
    """

    mode: Mode | None = None
    until: date | None = None
    snoozed_until: datetime | None = None
    time_zone: str = ""
    quiet: tuple[Hours, ...] = ()
    volunteer: bool = False
    agreed: str = ""
    replay: bool = False
    owner: str = ""


@dataclass(frozen=True)
class PreferenceChange:
    """One change of a wish: when, by whom, and what became of it, in words."""

    session: str
    at: datetime
    by: str
    what: str


_DURATION = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?", re.ASCII)


def chosen_mode(mode: str, day: str) -> dict[str, Any]:
    """The fields of a wish that a mode sets; an agreement to move at once ends with it.

    Args:
        mode: `when-idle`, `ask`, `next-start`, `pin` or `forced-by`.
        day: for `pin` and `forced-by`, a date; else empty.

    Raises:
        RefitError: there is no such mode, or the date is missing, one too many, or none.
    """
    if mode not in set(Mode):
        raise UnknownName("mode", mode, [str(each) for each in Mode])
    chosen = Mode(mode)
    dated = chosen in (Mode.pin, Mode.forced_by)
    if dated != bool(day):
        what = f"{mode!r} needs a date." if dated else f"{mode!r} has no date."
        raise RefitError(
            what, hint=f"`refit session updates mode NAME {mode}{' 2026-12-31' if dated else ''}`, for instance."
        )
    return {"mode": chosen, "until": _read_date(day) if day else None, "agreed": ""}


def _read_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise RefitError(f"{text!r} is no date.", hint="write it as 2026-12-31.") from None


def chosen_hours(quiet: tuple[str, ...] | None, time_zone: str | None) -> dict[str, Any]:
    """The fields of a wish that quiet hours and a time zone set; none: as they are.

    Raises:
        RefitError: there are no such hours, or no such zone.
    """
    try:
        if time_zone:
            zone(time_zone)
        changes = {} if quiet is None else {"quiet": tuple(read_hours(text) for text in quiet if text)}
    except ValueError as error:
        raise RefitError(f"{str(error)[0].upper()}{str(error)[1:]}.") from None
    return changes if time_zone is None else {**changes, "time_zone": time_zone}


def read_duration(text: str) -> timedelta:
    """How long that is: `30m`, `2h`, `1d12h`.

    Raises:
        RefitError: nobody can tell.
    """
    match = _DURATION.fullmatch(text.strip())
    days, hours, minutes = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if not (length := timedelta(days=days, hours=hours, minutes=minutes)):
        raise RefitError(f"{text!r} is no length of time.", hint="write 30m, 2h or 1d12h, for instance.")
    return length
