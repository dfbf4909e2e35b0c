"""The changes in a stream of `btrfs send`; the lines are those that it printed."""

from __future__ import annotations

import pytest

from flows.sessions.homes.btrfs_send import only_within, touched

HEAD = "snapshot        ./now           uuid=6fed7efb transid=9 parent_uuid=ce8f7227 parent_transid=7"
NEW = """mkfile          ./now/o560-9-0
rename          ./now/o560-9-0                  dest=./now/.cache/we\\ ird\\nname
chown           ./now/.cache/we\\ ird\\nname      gid=0 uid=0
utimes          ./now/.cache/we\\ ird\\nname      atime=2026-11-21T12:21:13+0000
utimes          ./now/.cache                    atime=2026-11-21T12:21:11+0000
utimes          ./now/                          atime=2026-11-21T12:21:11+0000"""
OLD = """rename          ./now/project                   dest=./now/o258-7-0
unlink          ./now/o258-7-0/data
rmdir           ./now/o258-7-0"""


@pytest.mark.parametrize(
    ("lines", "paths"),
    [
        ("", set()),
        ("utimes          ./now/                          atime=1", set()),
        ("utimes          ./now/project/f4                atime=1", {"project/f4"}),
        (NEW, {".cache/we\\ ird\\nname"}),
        (OLD, {"project"}),
        ("link            ./now/project/g3                dest=project/f3", {"project/g3"}),
        ("unlink          ./now/o1-2-3", {"o1-2-3"}),
        ("mkfile          ./now/o5-9-0\nrename          ./now/o5-9-0   dest=./now/o1-2-3", {"o1-2-3"}),
        ("symlink         ./now/o563-9-0                  dest=/etc/passwd", {"o563-9-0"}),
        ("chmod           ./now/                          mode=700", {""}),
    ],
)
def test_what_differs_is_read(lines: str, paths: set[str]) -> None:
    assert touched(f"{HEAD}\n{lines}") == paths


@pytest.mark.parametrize("line", ["nonsense", "rename          ./now/a   to=./now/b", "mkfile  now/a"])
def test_what_isnt_understood_is_nothing_to_rely_on(line: str) -> None:
    assert touched(f"{HEAD}\n{line}") is None


@pytest.mark.parametrize(
    ("paths", "allowed", "within"),
    [
        (set(), (), True),
        ({".cache/x"}, ("/.cache/",), True),
        ({".cache"}, (".cache/",), True),
        ({".cached/x"}, ("/.cache/",), False),
        ({".cache/x"}, ("/.cac*/",), False),
        ({"work/.cache/x"}, ("/.cache/",), False),
        ({""}, ("/.cache/",), False),
        ({".cache/x", "y"}, ("/.cache/",), False),
    ],
)
def test_only_plain_folders_are_left_out(paths: set[str], allowed: tuple[str, ...], within: bool) -> None:
    assert only_within(paths, allowed) is within
