"""Folders in which a group shares what any of its members makes: a default of POSIX access control lists."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from flows.core.programs import command

# A file that is made in a folder with this default is its group's to write: one entry for user, group and others each.
_ACL = struct.pack("<I" + 3 * "HHI", 2, *(0x01, 7, 0xFFFFFFFF), *(0x04, 7, 0xFFFFFFFF), *(0x20, 0, 0xFFFFFFFF))
_OPEN_TO_GROUP = "import os, sys; os.setxattr(sys.argv[1], 'system.posix_acl_default', bytes.fromhex(sys.argv[2]))"


def open_to_group(folder: Path) -> None:
    """Let the group of a folder write what is made in it from now on, whatever the umask of its maker."""
    command.run([sys.executable, "-I", "-c", _OPEN_TO_GROUP, folder, _ACL.hex()], root=True)
