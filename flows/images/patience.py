"""How long a registry is waited for that says that it is busy. Pure.

A registry that isn't there is tried a few times within seconds: so the first command without one says so soon. One that
answers that it is busy is there, and says maybe for how long; it is asked again for minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

ATTEMPTS = 4  # at what isn't there
BUSY = (429, 502, 503, 504)
_FIRST_SECONDS, _LONGEST_SECONDS = 0.2, 30.0
_MOST_DIGITS = 9


def pause(number: int) -> float:
    """Seconds before another attempt, after this many."""
    return min(_FIRST_SECONDS * (2.0 ** min(number, _MOST_DIGITS) - 1), _LONGEST_SECONDS)


def asked_for(headers: Mapping[str, str], now: datetime) -> float:
    """The seconds for which a server asks to be left alone (`Retry-After`: seconds, or a date); 0 if it doesn't."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:_MOST_DIGITS])
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds())


def wait(asked: float, number: int, chance: float) -> float:
    """Seconds to wait after this many answers that it is busy: never less than was asked for.

    `chance`, from 0 to 1, is another for each that waits, so that they don't all come back at once.
    """
    return max(asked, pause(number)) * (1.0 + chance / 4)
