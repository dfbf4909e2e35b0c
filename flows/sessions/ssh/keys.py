"""Public keys of people, as they stand in files `*.pub` and `authorized_keys`. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from flows.core.errors import RefitError, UnknownName

KINDS = (
    *("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa"),
    *("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"),
)
LEAST_RSA_BITS = 2048


@dataclass(frozen=True)
class PublicKey:
    """A public key: its kind, what OpenSSH writes of it in base64, and whose it says it is."""

    kind: str
    body: str
    comment: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.body} {self.comment}".rstrip()

    @property
    def fingerprint(self) -> str:
        """Its fingerprint, as `ssh-keygen -l` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.body)).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


class NoPublicKey(RefitError):
    """A line that lets nobody in, or that does more than that."""

    def __init__(self, where: str, why: str, hint: str = "") -> None:
        hint = hint or "give a file that `ssh-keygen -t ed25519` made, the one that ends in .pub."
        super().__init__(f"{where} is no public key for ssh.", why=why, hint=hint)


def read_keys(text: str, where: str) -> tuple[PublicKey, ...]:
    """The keys in a text, one a line; comments and empty lines are left out.

    Raises:
        NoPublicKey: a line is none, is too weak, or brings options; or there is no key at all.
    """
    if "PRIVATE KEY" in text:
        raise NoPublicKey(where, "It is a private key, which nobody but its owner may have.")
    lines = enumerate(text.splitlines(), 1)
    rows = ((number, line.strip()) for number, line in lines if line.strip() and not line.lstrip().startswith("#"))
    keys = tuple(_key(line, f"{where}:{number}") for number, line in rows)
    if not keys:
        raise NoPublicKey(where, "There is nothing in it.")
    return keys


def added(keys: Iterable[PublicKey], new: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    """The keys that are known and the new ones, each once, with its newest comment."""
    return tuple({key.body: key for key in (*keys, *new)}.values())


def without(before: Iterable[PublicKey], names: Iterable[str]) -> tuple[PublicKey, ...]:
    """The keys that are known but those with these fingerprints or comments.

    Raises:
        UnknownName: there is no such key.
    """
    keys = tuple(before)
    for name in names:
        kept = tuple(key for key in keys if name not in (key.fingerprint, key.comment))
        if kept == keys:
            raise UnknownName("key", name, (key.comment or key.fingerprint for key in keys))
        keys = kept
    return keys


def _key(line: str, where: str) -> PublicKey:
    kind, _, rest = line.partition(" ")
    if kind not in KINDS:
        if any(f" {algorithm} " in f" {line} " for algorithm in KINDS):
            raise NoPublicKey(where, "It has options, which could run programs.", "leave the options out.")
        raise NoPublicKey(where, f"It begins with {kind[:40]!r}; known are {', '.join(KINDS)}.")
    body, _, comment = rest.strip().partition(" ")
    try:
        fields = _fields(base64.b64decode(body, validate=True))
    except (binascii.Error, ValueError) as error:
        raise NoPublicKey(where, f"The text after {kind} is damaged: {error}.") from None
    if fields[:1] != [kind.encode()]:
        raise NoPublicKey(where, f"The text after {kind} is a key of another kind.")
    if kind == "ssh-rsa" and (bits := int.from_bytes(fields[-1], "big").bit_length()) < LEAST_RSA_BITS:
        raise NoPublicKey(where, f"It has {bits} bits, and {LEAST_RSA_BITS} are the least.")
    return PublicKey(kind, body, "".join(letter for letter in comment.strip() if letter.isprintable()))


def _fields(blob: bytes) -> list[bytes]:
    """The parts of a key, each of which is preceded by its length: RFC 4253, section 6.6."""
    fields = []
    while blob:
        length = int.from_bytes(blob[:4], "big")
        if len(blob) < 4 + length:
            raise ValueError("it is cut off")
        fields.append(blob[4 : 4 + length])
        blob = blob[4 + length :]
    if len(fields) < 2:
        raise ValueError("it is too short")
    return fields
