"""The log of an sshd says which key let a connection in; lines that a session adds to it keep nobody in."""

from __future__ import annotations

from flows.sessions.containers import sshd
from tests.support.person_keys import ADAS, BOBS

LINE = "Accepted publickey for dev from 10.88.0.1 port {} ssh2: ED25519 {}\n"


def test_connections_of_keys_that_arent_good_and_of_nobody_are_over() -> None:
    log = LINE.format(1001, ADAS.fingerprint) + "anything\n" + LINE.format(1002, BOBS.fingerprint)
    assert sshd.over((1001, 1002, 1003), sshd.keys_by_port(log), {ADAS.fingerprint}) == {1002, 1003}


def test_a_line_that_a_guest_has_added_keeps_nobody_in() -> None:
    log = LINE.format(1002, BOBS.fingerprint) + LINE.format(1002, ADAS.fingerprint)
    assert sshd.over((1002,), sshd.keys_by_port(log), {ADAS.fingerprint}) == {1002}
