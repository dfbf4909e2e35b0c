"""The kernel's own calls for btrfs: a program for each would take longer than what it does."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def call(file: int, number: int, request: bytes) -> bytes:
    """Make one of the calls of `ioctl` on an open file; returns what the kernel has written over the question."""
    buffer = bytearray(request)  # of one that can't be changed, Python passes 1 KiB at most
    fcntl.ioctl(file, number, buffer)
    return bytes(buffer)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A folder, open while the `with` block runs. Raises OSError, for a link as well."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
