"""Limits to the disk that homes and volumes take, by the quotas of btrfs. Only root may set them."""

from __future__ import annotations

import errno
import struct
import uuid
from pathlib import Path

from flows.sessions.homes.btrfs_calls import call, opened

# From linux/btrfs.h: the numbers of the calls, and the forms of what they take.
_QUOTAS, _LIMIT, _ABOUT = 0xC0109428, 0x8030942B, 0x8400941F
_TWO_NUMBERS, _OF_LIMIT, _INFO = "=QQ", "=QQQQQQ", "=QQ16s992x"
_SIMPLE_QUOTAS, _MOST_REFERENCED = 4, 1
_MAKE_GROUP, _ASSIGN, _WHICH, _TOP = 0x4010942A, 0x40189429, 0xD0009412, 256
_NO_LIMIT = 2**64 - 1
_GROUP = 1 << 48  # quota groups of a subvolume and of all that are made inside it bear its number at this level


def limit(path: Path, most: int) -> None:
    """Let a subvolume have so many bytes from now on; none (0): as many as there are.

    All that was written to it counts, whoever still shares it: so a snapshot stays a matter of milliseconds, where
    btrfs's other kind of quotas has to count anew who shares what. A file system without quotas gets these; Linux has
    them since 6.7, and no older one mounts it then.
    """
    number = _number(path)
    group = _GROUP | number
    with opened(path.parent) as above:  # the calls themselves take room where they are made
        try:
            _make_group(above, group, number)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # quotas are on
                raise
            if not most:
                return
            call(above, _QUOTAS, struct.pack(_TWO_NUMBERS, _SIMPLE_QUOTAS, 0))
            _make_group(above, group, number)
        call(above, _LIMIT, struct.pack(_OF_LIMIT, group, _MOST_REFERENCED, most or _NO_LIMIT, 0, 0, 0))


def _make_group(file: int, group: int, number: int) -> None:
    """Let a group hold a subvolume and, from now on, those that its owner makes inside: any user may make some."""
    for number_of_call, request in (
        (_MAKE_GROUP, struct.pack(_TWO_NUMBERS, 1, group)),
        (_ASSIGN, struct.pack("=QQQ", 1, number, group)),
    ):
        try:
            call(file, number_of_call, request)
        except FileExistsError:
            continue


def has_quotas(path: Path) -> bool:
    """Whether subvolumes of this file system can have limits; anybody may ask."""
    return _groups(path).is_dir()


def use(path: Path) -> tuple[int, int] | None:
    """Bytes that a subvolume takes of its limit, and that limit, 0: it has none. None: nobody counts them.

    Some writes of the last half minute may be missing: btrfs counts them when it writes them to the disk.

    Raises:
        OSError: there is no such subvolume, or this user may not open it.
    """
    group = _groups(path) / f"1_{_number(path)}"
    try:
        used, most = (int((group / name).read_text(encoding="ascii")) for name in ("referenced", "max_referenced"))
    except FileNotFoundError:
        return None
    return used, 0 if most == _NO_LIMIT else most


def _number(path: Path) -> int:
    with opened(path) as subvolume:
        limits = struct.unpack("=Q4088x", call(subvolume, _WHICH, struct.pack("=QQ4080x", 0, _TOP)))
    return int(limits[0])


def _groups(path: Path) -> Path:
    with opened(path) as folder:
        identity = struct.unpack(_INFO, call(folder, _ABOUT, bytes(struct.calcsize(_INFO))))[2]
    return Path(f"/sys/fs/btrfs/{uuid.UUID(bytes=identity)}/qgroups")
