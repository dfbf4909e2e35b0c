"""Shares that hold no more: their time is over, their session is another person's, or the Hub has ended them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flows.sessions.people.entitlements import Account, Entitlements, Grant, Kind, Rights, Share
from flows.web.people.share_expiry import over

AT = datetime(2026, 11, 25, 12, tzinfo=UTC)
SHARE = Share("ada", "ada", Kind.person, "bob")


@pytest.mark.parametrize(
    ("until", "owner", "minutes", "at_hub", "ends"),
    [
        (None, "ada", 60, True, False),
        (AT + timedelta(seconds=1), "ada", 60, True, False),
        (AT, "ada", 60, True, True),
        (None, "cyd", 60, True, True),
        (None, "", 60, True, True),  # the session was removed
        (None, "ada", 60, False, True),
        (None, "ada", 0, False, False),  # the Hub is about to make it
    ],
)
def test_a_share_ends_by_its_time_with_its_owner_and_when_the_hub_has_ended_it(
    until: datetime | None, owner: str, minutes: int, at_hub: bool, ends: bool
) -> None:
    grant = Grant(1, "ada", "ada", "", Kind.person, "bob", "ada", AT - timedelta(minutes=minutes), until)
    accounts = {name: Account(name) for name in ("ada", "bob", "cyd")}
    rights = Rights(accounts, frozenset({SHARE} if at_hub else ()))
    told = Entitlements(rights, {"ada": owner} if owner else {}, (grant,), AT)
    assert list(over(told)) == ([grant] if ends else [])
