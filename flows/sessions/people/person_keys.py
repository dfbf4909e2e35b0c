"""Public keys of people for ssh: one key is one person's, and good for every session that the person may use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, select
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.orm import Session as Transaction

from flows.core.database import Instant, Table, now, write_rows
from flows.core.errors import RefitError, UnknownName
from flows.sessions.ssh.keys import PublicKey

# Each login of a person is looked up among them, and each session that the person may use has them all.
MOST_KEYS = 50
_LONGEST_TITLE = 200


class PersonKeyRow(Table):
    """A key that somebody has."""

    __tablename__ = "person_keys"

    fingerprint: Mapped[str] = mapped_column(primary_key=True)
    person: Mapped[str] = mapped_column(index=True)
    kind: Mapped[str]
    body: Mapped[str]
    title: Mapped[str]
    added: Mapped[datetime] = mapped_column(Instant)


@dataclass(frozen=True)
class PersonKey:
    """A key of a person.

    Attributes:
        person: its owner, by the name with which they log in.
        key: the public half; its comment is what the person calls it.
        added: since when.
    """

    person: str
    key: PublicKey
    added: datetime


class KeyTaken(RefitError):
    """A key that is somebody else's already, so that nobody could tell who logs in with it."""

    def __init__(self, key: PublicKey) -> None:
        super().__init__(
            f"The key {key.fingerprint} belongs to another person here.",
            why="With one key for two people it can't be told who logs in.",
            hint="make a key of your own: `ssh-keygen -t ed25519`.",
        )


class PersonKeys:
    """The keys in Refit's database."""

    def __init__(self, database: Engine) -> None:
        self._database = database

    def all(self) -> tuple[PersonKey, ...]:
        """The keys of everybody, by person; the oldest of each comes first."""
        order = (PersonKeyRow.person, PersonKeyRow.added, PersonKeyRow.fingerprint)
        with Transaction(self._database) as rows:
            return tuple(map(_person_key, rows.scalars(select(PersonKeyRow).order_by(*order))))

    def of(self, person: str) -> tuple[PersonKey, ...]:
        """The keys of one person, the oldest first."""
        return tuple(key for key in self.all() if key.person == person)

    def find(self, fingerprint: str) -> PersonKey | None:
        """The key with this fingerprint; none: it is nobody's."""
        with Transaction(self._database) as rows:
            row = rows.get(PersonKeyRow, fingerprint)
            return _person_key(row) if row else None

    def add(self, person: str, keys: Iterable[PublicKey]) -> tuple[PersonKey, ...]:
        """Give a person further keys, all or none; one that they have gets the new comment. Returns all of theirs.

        Raises:
            KeyTaken: one is somebody else's.
            RefitError: these are too many.
        """
        new = tuple(keys)

        def work(rows: Transaction) -> None:
            for key in new:
                row = rows.get(PersonKeyRow, key.fingerprint)
                if row is not None and row.person != person:
                    raise KeyTaken(key)
                if row is None:
                    row = PersonKeyRow(fingerprint=key.fingerprint, person=person, added=now())
                    row.kind, row.body = key.kind, key.body
                row.title = key.comment[:_LONGEST_TITLE]
                rows.add(row)
                rows.flush()
            own = rows.scalars(select(PersonKeyRow.fingerprint).where(PersonKeyRow.person == person)).all()
            if len(own) > MOST_KEYS:
                raise RefitError(
                    f"{person} would have {len(own)} keys.", why=f"{MOST_KEYS} are the most.", hint="remove old ones."
                )

        write_rows(self._database, work)
        return self.of(person)

    def remove(self, person: str, names: Iterable[str]) -> tuple[PersonKey, ...]:
        """Remove the keys of a person with these fingerprints or comments, all or none; returns those that are left.

        Raises:
            UnknownName: the person has no such key.
        """
        gone = tuple(names)

        def work(rows: Transaction) -> None:
            own = rows.scalars(select(PersonKeyRow).where(PersonKeyRow.person == person)).all()
            for name in gone:
                named = [row for row in own if name in (row.fingerprint, row.title)]
                if not named:
                    raise UnknownName("key", name, [row.title or row.fingerprint for row in own])
                for row in named:
                    rows.delete(row)

        write_rows(self._database, work)
        return self.of(person)

    def forget(self, person: str) -> int:
        """Remove all keys of a person who has gone; returns how many there were."""

        def work(rows: Transaction) -> int:
            own = rows.scalars(select(PersonKeyRow).where(PersonKeyRow.person == person)).all()
            for row in own:
                rows.delete(row)
            return len(own)

        return write_rows(self._database, work)


def _person_key(row: PersonKeyRow) -> PersonKey:
    return PersonKey(row.person, PublicKey(row.kind, row.body, row.title), row.added)
