"""Folders in which a group shares what any of its members makes: a default of POSIX access control lists."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from flows.core.programs import command

# A file that is made in a folder with this default is its group's to write: one entry for user, group and others each.
_ACL = struct.pack("<I" + 3 * "HHI", 2, *(0x01, 7, 0xFFFFFFFF), *(0x04, 7, 0xFFFFFFFF), *(0x20, 0, 0xFFFFFFFF))
_OPEN_TO_GROUP = "import os, sys; os.setxattr(sys.argv[1], 'system.posix_acl_default', bytes.fromhex(sys.argv[2]))"
# Makes a folder for a group, where nobody is root, and tells its owner and mode; it follows no link. On file systems
# without such lists, what somebody makes there is the group's all the same, with the mode that its maker gives it.
SHARE_FOLDER = """
import os, sys
try:
    os.mkdir(sys.argv[1], 0o700)
except FileExistsError:
    pass
folder = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
if os.fstat(folder).st_uid == os.geteuid():
    os.fchmod(folder, 0o2770)
    try:
        os.setxattr(folder, "system.posix_acl_default", bytes.fromhex(sys.argv[2]))
    except OSError:
        pass
there = os.fstat(folder)
print(there.st_uid, format(there.st_mode & 0o7777, "o"))
"""


def default_list() -> str:
    """That default, as `SHARE_FOLDER` takes it."""
    return _ACL.hex()


def open_to_group(folder: Path) -> None:
    """Let the group of a folder write what is made in it from now on, whatever the umask of its maker."""
    command.run([sys.executable, "-I", "-c", _OPEN_TO_GROUP, folder, _ACL.hex()], root=True)
