"""Whether something was signed by a key that counts here: DSSE envelopes over in-toto statements, checked offline."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from securesystemslib.exceptions import Error
from sqlalchemy import Engine, bindparam, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Instant, Table, now, write, write_rows
from flows.core.errors import RefitError
from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.signing.keys import BadKey, Keys

with lazily(globals()):
    from securesystemslib.dsse import Envelope  # with all kinds of signers, PKCS #11 among them
    from securesystemslib.signer import Key, Signer

ENVELOPE = "application/vnd.dsse.envelope.v1+json"
STATEMENT = "application/vnd.in-toto+json"
_KNOWN_BY = "https://in-toto.io/Statement/v1"


class Doubt(StrEnum):
    """Why something doesn't count as made here; programs decide by these values, which stay."""

    unknown = "unknown"
    unsigned = "unsigned"
    unknown_key = "unknown-key"
    revoked = "revoked"
    broken = "broken"
    other_profile = "other-profile"


class Distrusted(Exception):
    """An envelope that doesn't count; says why, and whose signature it bears."""

    def __init__(self, doubt: Doubt, key: str = "") -> None:
        self.doubt, self.key = doubt, key
        super().__init__(doubt)


@dataclass(frozen=True)
class Signed:
    """A statement that a trusted key has signed.

    Attributes:
        kind: the statement's predicate type.
        subject: digest of what it is about.
        name: how that is called there.
        predicate: the content of the statement.
        key: id of the key.
    """

    kind: str
    subject: str
    name: str
    predicate: Mapping[str, Any]
    key: str


class RevocationRow(Table):
    """A digest or the id of a key that doesn't count any more."""

    __tablename__ = "revocations"

    what: Mapped[str] = mapped_column(primary_key=True)
    why: Mapped[str]
    by: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)


# Made once, without an ORM's session: each graft asks, and this takes a tenth of the time.
_REVOKED = select(RevocationRow.__table__.c.what).where(
    RevocationRow.__table__.c.what.in_(bindparam("of", expanding=True))
)


@dataclass(frozen=True)
class Revocation:
    """A revocation: of which key or image, why, by whom, when."""

    what: str
    why: str
    by: str
    at: datetime


class Trust:
    """The keys that count, and what was revoked."""

    def __init__(self, settings: Settings, database: Engine) -> None:
        self._keys, self._database = Keys(settings), database

    @cached_property
    def signer(self) -> Signer:
        """The signer.

        Raises:
            RefitError: its key can't be used, or was revoked.
        """
        signer = self._keys.signer()
        vars(self).pop("trusted", None)  # it may have been made up just now
        if self.revoked([signer.public_key.keyid]):
            raise RefitError(
                f"The key {signer.public_key.keyid[:16]}, by which Refit signs here, was revoked.",
                why="Its signatures count nowhere.",
                hint="`refit images keys --new` makes up another one; or let `signing_key` name one.",
            )
        return signer

    @cached_property
    def trusted(self) -> Mapping[str, Key]:
        """Key id → key, of all whose signatures count unless they were revoked."""
        return self._keys.trusted()

    def sign(self, statement: bytes) -> bytes:
        """The envelope of an in-toto statement, signed.

        Raises:
            RefitError: the key can't be used, or was revoked.
        """
        envelope = Envelope(statement, STATEMENT, {})
        try:
            envelope.sign(self.signer)
        except (ValueError, RuntimeError, OSError) as error:  # of hardware
            hint = "check that the token is there, and that the file of `pin-source` holds its PIN."
            raise BadKey("signing_key", str(error) or type(error).__name__, hint) from None
        return json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":")).encode()

    def opened(self, envelope: bytes) -> Signed:
        """The content of an envelope.

        Raises:
            Distrusted: nobody has signed it whose signature counts, or it is none.
        """
        try:
            signed = Envelope.from_dict(json.loads(envelope))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Error):
            raise Distrusted(Doubt.broken) from None
        keys = [self.trusted[id] for id in signed.signatures if id in self.trusted]
        if not keys:
            raise Distrusted(Doubt.unknown_key, next(iter(signed.signatures), ""))
        revoked = self.revoked([key.keyid for key in keys])
        valid = [key for key in keys if key.keyid not in revoked]
        if not valid:
            raise Distrusted(Doubt.revoked, keys[0].keyid)
        try:
            (by,) = signed.verify(valid, 1)
        except Error:
            raise Distrusted(Doubt.broken, valid[0].keyid) from None
        if signed.payload_type != STATEMENT:
            raise Distrusted(Doubt.broken, by)
        return _understood(signed.payload, by)

    def revoked(self, what: Collection[str]) -> frozenset[str]:
        """Those of these digests and key ids that were revoked."""
        with self._database.connect() as connection:
            return frozenset(map(str, connection.scalars(_REVOKED, {"of": list(what)})))

    def revocations(self) -> tuple[Revocation, ...]:
        """All that was revoked, the last first."""
        with Session(self._database) as session:
            rows = session.scalars(select(RevocationRow).order_by(RevocationRow.at.desc()))
            return tuple(Revocation(row.what, row.why, row.by, row.at) for row in rows)

    def revoke(self, what: str, why: str, by: str) -> None:
        """Let a digest, or whatever a key has signed, count no more."""
        row = {"what": what, "why": why, "by": by, "at": now()}
        write_rows(self._database, lambda session: session.merge(RevocationRow(**row)))

    def restore(self, what: str) -> bool:
        """Take a revocation back; returns whether there was one."""
        gone = delete(RevocationRow).where(RevocationRow.what == what)
        return write(self._database, lambda connection: connection.execute(gone).rowcount > 0)


def statement(kind: str, name: str, subject: str, predicate: Mapping[str, object]) -> dict[str, object]:
    """An in-toto statement about something with a digest (`sha256:…`). Pure."""
    algorithm, _, digits = subject.partition(":")
    return {
        "_type": _KNOWN_BY,
        "subject": [{"name": name, "digest": {algorithm: digits}}],
        "predicateType": kind,
        "predicate": predicate,
    }


def _understood(payload: bytes, key: str) -> Signed:
    try:
        document = json.loads(payload)
        (subject,) = document["subject"]
        ((algorithm, digits),) = subject["digest"].items()
        predicate = document["predicate"]
        if document["_type"] != _KNOWN_BY or not isinstance(predicate, dict):
            raise ValueError
        kind, name = str(document["predicateType"]), str(subject["name"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Distrusted(Doubt.broken, key) from None
    return Signed(kind, f"{algorithm}:{digits}", name, predicate, key)
