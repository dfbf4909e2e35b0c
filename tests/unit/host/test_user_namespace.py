"""Namespaces of users: the uid that a program has outside of one, and what is said where there is none."""

from __future__ import annotations

import pytest

from flows.core.programs import command
from flows.core.programs.command import CommandTimeout, ProgramFailed
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
    assert not user_namespace.is_possible()


def test_a_machine_that_is_too_busy_to_answer_is_not_one_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **_: object) -> None:
        raise problems.pop(0)(argv, "it failed", "", None, None)

    problems = [CommandTimeout, ProgramFailed]
    monkeypatch.setattr("shutil.which", str)
    monkeypatch.setattr(command, "run", run)
    user_namespace.uid.cache_clear()
    assert user_namespace.is_possible() and not user_namespace.is_possible()
