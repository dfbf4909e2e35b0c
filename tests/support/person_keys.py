"""Public keys of people."""

from __future__ import annotations

import base64

from flows.sessions.ssh.keys import PublicKey


def key(number: int, comment: str = "") -> PublicKey:
    fields = (b"ssh-ed25519", number.to_bytes(32, "big"))
    blob = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return PublicKey("ssh-ed25519", base64.b64encode(blob).decode(), comment)


ADAS, BOBS = key(1, "laptop"), key(2)
