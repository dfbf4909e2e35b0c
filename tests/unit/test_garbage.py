"""How the memory of processes that run tests is arranged."""

from tests.support.garbage import HUGE_PAGE, huge_pages

MAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 1234                       /usr/bin/python3.11
00b00000-01300000 rw-p 00000000 00:00 0                          [heap]
7f0000100000-7f0000500000 rw-p 00000000 00:00 0
7f0000800000-7f0000900000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 ---p 00000000 00:00 0
7f0002000000-7f0002400000 rw-p 00000000 fe:00 99                 /tmp/a file
7f0003000000-7f0003400000 rw-s 00000000 00:01 7                  /dev/zero (deleted)
7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0                  [stack]
"""


def test_whole_huge_pages_of_own_memory_are_taken() -> None:
    heap = [0x00C00000, 0x00E00000, 0x01000000]
    assert [*huge_pages(MAPS)] == [*heap, 0x7F0000200000]
    assert all(start % HUGE_PAGE == 0 for start in huge_pages(MAPS))
