"""Namespaces of users: the uid that a program has outside of one, and what is said where there is none."""

from __future__ import annotations

import pytest

from flows.host import user_namespace
from flows.host.user_namespace import NoNamespace, outside


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


def test_a_machine_without_newuidmap_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    user_namespace.outer_uid.cache_clear()
    with pytest.raises(NoNamespace) as told:
        user_namespace.outer_uid()
    assert told.value.why == "newuidmap isn't installed." and "uidmap" in told.value.hint
    assert not user_namespace.is_possible()
