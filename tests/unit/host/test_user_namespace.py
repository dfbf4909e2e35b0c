"""Namespaces of users: the uid that a program has outside of one, and what is said where there is none."""

from __future__ import annotations

import pytest

from flows.host import user_namespace
from flows.host.user_namespace import NoNamespace, Uid, last, outside


@pytest.mark.parametrize(
    ("table", "uid", "outer"),
    [
        ("         0      64321          1\n         1     500000      65535\n", 1, 500_000),
        ("         0      64321          1\n         1     500000      65535\n", 0, 64_321),
        ("         0      64321          1\n         1     500000      65535\n", 65_535, 565_534),
        ("         0      64321          1\n         1     500000      65535\n", 65_536, None),
        ("         0      64321          1\n", 1, None),
        ("         0          0 4294967295\n", 1, 1),
        ("", 1, None),
    ],
)
def test_a_uid_inside_is_another_one_outside(table: str, uid: int, outer: int | None) -> None:
    assert outside(table, uid) == outer


RANGE = "         0      64321          1\n         1     500000      65535\n"
SMALL = "         0      64321          1\n         1     500000         10\n"


@pytest.mark.parametrize(
    ("uids", "gids", "chosen"),
    [
        (RANGE, RANGE, Uid(65_533, 565_532)),
        (SMALL, SMALL, Uid(10, 500_009)),
        (RANGE, SMALL, Uid(10, 500_009)),
        (RANGE.replace("65535", "165535"), RANGE.replace("65535", "165535"), Uid(165_535, 665_534)),
        (SMALL.replace("10\n", "1\n"), SMALL, Uid(1, 500_000)),
        (RANGE, "         0      64321          1\n", None),
        ("         0      64321          1\n", RANGE, None),
        ("", "", None),
    ],
)
def test_the_last_uid_that_is_a_group_too_and_not_nobody_is_taken(uids: str, gids: str, chosen: Uid | None) -> None:
    assert last(uids, gids) == chosen


def test_a_machine_without_newuidmap_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    user_namespace.uid.cache_clear()
    with pytest.raises(NoNamespace) as told:
        user_namespace.uid()
    assert told.value.why == "newuidmap isn't installed." and "uidmap" in told.value.hint
