"""Hours on people's clocks: written, read, and right on the days on which clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flows.core import hours
from flows.core.hours import Hours, narrow, read_hours, spans, wide, without
from tests.support.examples import several

ZURICH, HAVANA = ZoneInfo("Europe/Zurich"), ZoneInfo("America/Havana")
FORWARD, BACK = date(2026, 3, 29), date(2026, 10, 25)  # at 02:00 to 03:00, at 03:00 to 02:00
# Half an hour, a whole day that was left out, clocks that change at midnight.
ZONES = ("UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "America/Havana")
DAYS = st.dates(date(2009, 1, 1), date(2028, 12, 31)) | st.sampled_from(
    [FORWARD, BACK, date(2011, 12, 29), date(2011, 12, 30), date(2011, 12, 31), date(2026, 3, 8), date(2026, 11, 1)]
)


def utc(moment: int) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%d %H:%M}"


def shown(span: hours.Span) -> tuple[str, str]:
    return utc(span[0]), utc(span[1])


def test_hours_are_read_as_people_write_them() -> None:
    assert read_hours("Mon-Fri 22:00-07:00") == Hours(frozenset(range(5)), 22 * 60, 31 * 60, "mon-fri 22:00-07:00")
    assert read_hours("sat,mon 00:00-24:00").days == {0, 5}
    assert read_hours("fri-mon 08:30-12:00").days == {4, 5, 6, 0}
    assert read_hours("12:00-13:00").days == set(range(7))


@pytest.mark.parametrize(
    "text", ["", "22-7", "25:00-26:00", "12:00-12:00", "12:61-13:00", "mo 08:00-09:00", "24:00-01:00", "mon, 1:00-2:00"]
)
def test_what_is_no_hours_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="22:00-07:00"):
        read_hours(text)


def test_a_zone_that_is_none_is_refused() -> None:
    assert hours.zone("Europe/Zurich").key == "Europe/Zurich"
    for name in ("Europe/Atlantis", "../../etc/passwd", ""):
        with pytest.raises(ValueError, match="no time zone"):
            hours.zone(name)


def test_f19_a_night_in_which_clocks_change_is_as_long_as_it_is() -> None:
    night = read_hours("22:00-07:00")
    assert shown(wide(night, FORWARD - timedelta(days=1), ZURICH)) == ("28 21:00", "29 05:00")  # 8 hours
    assert shown(wide(night, BACK - timedelta(days=1), ZURICH)) == ("24 20:00", "25 06:00")  # 10 hours


def test_hours_in_the_gap_begin_when_the_clocks_jump() -> None:
    assert shown(wide(read_hours("22:00-02:30"), FORWARD - timedelta(days=1), ZURICH)) == ("28 21:00", "29 01:00")
    assert shown(narrow(read_hours("02:30-04:00"), FORWARD, ZURICH)) == ("29 01:00", "29 02:00")
    first, last = narrow(read_hours("02:15-02:45"), FORWARD, ZURICH)
    assert first == last


def test_in_the_hour_that_comes_twice_quiet_is_quiet_twice_and_a_window_is_open_once() -> None:
    early, late = read_hours("01:00-02:30"), read_hours("02:30-05:00")
    assert shown(wide(early, BACK, ZURICH)) == ("24 23:00", "25 01:30")
    assert shown(narrow(early, BACK, ZURICH)) == ("24 23:00", "25 00:30")
    assert shown(wide(late, BACK, ZURICH)) == ("25 00:30", "25 04:00")
    assert shown(narrow(late, BACK, ZURICH)) == ("25 01:30", "25 04:00")
    assert shown(narrow(read_hours("02:15-02:45"), BACK, ZURICH)) == ("25 01:15", "25 01:45")


def test_a_day_has_the_hours_of_the_night_before() -> None:
    servers = spans([read_hours("22:00-07:00"), read_hours("06:00-08:00")], date(2026, 11, 21), ZoneInfo("UTC"), wide)
    assert list(map(shown, servers)) == [("21 00:00", "21 08:00"), ("21 22:00", "22 00:00")]


def test_what_is_taken_away_is_gone() -> None:
    assert without([(0, 10), (20, 30)], [(2, 4), (8, 25), (29, 40)]) == [(0, 2), (4, 8), (25, 29)]


@pytest.mark.slow
@settings(max_examples=several(500), deadline=None)
@example(day=date(2026, 3, 8), zone=HAVANA, start=1, length=60, minute=0)
@given(
    day=DAYS,
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    start=st.integers(0, 1439),
    length=st.integers(1, 1440),
    minute=st.integers(-120, 1600),
)
def test_quiet_hours_leave_nothing_out_and_windows_let_nothing_in(
    day: date, zone: ZoneInfo, start: int, length: int, minute: int
) -> None:
    """The time of a clock at any moment says whether it lies within the hours."""
    chosen = Hours(frozenset(range(7)), start, start + length, "")
    moment = hours.midnight(day, zone) + minute * 60
    wall = datetime.fromtimestamp(moment, zone)
    minutes = wall.hour * 60 + wall.minute
    within = any(start <= shown < start + length for shown in (minutes, minutes + 1440))
    around = [wall.date() + timedelta(days=days) for days in (-1, 0, 1)]
    quiet = any(first <= moment < last for each in around for first, last in spans([chosen], each, zone, wide))
    window = any(first <= moment < last for each in around for first, last in spans([chosen], each, zone, narrow))
    assert quiet or not within
    assert within or not window
