"""Java's store of authorities, as the layers of images have it: without dates, in one order."""

from __future__ import annotations

import struct
from hashlib import sha1
from pathlib import Path
from runpy import run_path

import pytest

settled = run_path(str(Path(__file__).parents[2] / "snippets/base/files/keystore.py"))["settled"]


def entry(name: str, date: int, kind: int = 2) -> bytes:
    certificate = f"certificate of {name}".encode()
    return (
        struct.pack(">IH", kind, len(name))
        + name.encode()
        + struct.pack(">QH", date, 5)
        + b"X.509"
        + struct.pack(">I", len(certificate))
        + certificate
    )


def store(*entries: bytes) -> bytes:
    content = bytes.fromhex("feedfeed00000002") + struct.pack(">I", len(entries)) + b"".join(entries)
    return content + sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def test_two_stores_of_the_same_authorities_are_the_same() -> None:
    one, other = store(entry("b", 1), entry("a", 2)), store(entry("a", 3), entry("b", 4))
    date = 315_532_800_000
    assert settled(one) == settled(other) == store(entry("a", date), entry("b", date))


def test_what_is_settled_stays_as_it_is_and_so_does_what_is_no_such_store() -> None:
    once = settled(store(entry("a", 1)))
    assert settled(once) == once
    assert settled(store()) == store()
    assert settled(b"PKCS12") == b"PKCS12"


@pytest.mark.parametrize(
    "broken",
    [store(entry("a", 1))[:-1], store(entry("a", 1, kind=1)), store(entry("a", 1)).replace(b"of a", b"of b")],
)
def test_a_damaged_store_or_one_with_keys_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it"):
        settled(broken)
