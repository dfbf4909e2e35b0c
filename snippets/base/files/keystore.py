"""Takes the dates out of Java's store of authorities, and sorts it: made on two days, it is the same.

It has for each authority the moment at which that was put in. Its format is JKS: a head of 12 bytes, the entries, and a
checksum of 20. A store in another format stays as it is.
"""

import struct
import sys
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

JKS = bytes.fromhex("feedfeed00000002")
DATE = 315_532_800_000  # ms since 1970, as all files of all layers have
# The password is the one that everybody's store has: it only guards against damage.
SECRET = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"


def settled(store: bytes) -> bytes:
    """The store with its entries in one order, and all of one date.

    Raises:
        ValueError: its checksum or its entries aren't as they should be.
    """
    if not store.startswith(JKS):
        return store
    if store[-20:] != sha1(SECRET + store[:-20]).digest():
        raise ValueError("its checksum isn't that of its content")
    content = store[:12] + b"".join(sorted(entries(store[:-20])))
    return content + sha1(SECRET + content).digest()


def entries(store: bytes) -> Iterator[bytes]:
    """The entries, each with the same date."""
    (count,) = struct.unpack_from(">I", store, 8)
    at = 12
    for _ in range(count):
        kind, length = struct.unpack_from(">IH", store, at)
        if kind != 2:
            raise ValueError("it holds something other than authorities")
        date = at + 6 + length
        certificate = date + 10 + struct.unpack_from(">H", store, date + 8)[0]
        end = certificate + 4 + struct.unpack_from(">I", store, certificate)[0]
        yield store[at:date] + struct.pack(">Q", DATE) + store[date + 8 : end]
        at = end
    if at != len(store):
        raise ValueError("it holds more than its entries")


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_bytes(settled(file.read_bytes()))
