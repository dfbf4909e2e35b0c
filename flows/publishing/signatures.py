"""Which images count: those that were tested and published, by this database or by a signature on the image itself.

The signature is a DSSE envelope over the provenance that is attached to the image, attached in the same way. Images
that Refit has published with this database are on record there, and count though the registry has lost the signature;
others count if a trusted key has signed them. A tag or alias says nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from threading import Lock

from cachetools import TTLCache
from sqlalchemy import Engine, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from flows.core.database import Instant, Table, now, open_database, write_rows
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.threads import each
from flows.images.manifests import Manifest
from flows.images.registry import Registry
from flows.publishing import evidence, provenance
from flows.publishing.own_profiles import OwnProfiles
from flows.publishing.own_profiles import repository as own_repository
from flows.signing.trust import ENVELOPE, Distrusted, Doubt, Signed, Trust

_MOST_LOOKED_AT = 8  # signatures of one image
_KNOWN, _SECONDS = 10_000, 60.0  # images whose signatures were checked, and for how long that is known
_IN_ONE_QUESTION = 500
# Of several signatures that don't count, the reason that says most.
_WEIGHT = (Doubt.revoked, Doubt.broken, Doubt.unknown_key, Doubt.unsigned, Doubt.unknown)
_TEXTS: Mapping[Doubt, tuple[str, str]] = {
    Doubt.unknown: (
        "The registry has no such image, and none was ever published under this digest.",
        "`refit build` publishes what is missing.",
    ),
    Doubt.unsigned: (
        "It isn't on record here, and nobody has signed it: it is from before images were signed, or not of Refit's.",
        "`refit build` publishes the profile's image again; `refit images sign` takes this one as it is.",
    ),
    Doubt.unknown_key: (
        "It was signed by a key that doesn't count here.",
        "if it is of another Refit of yours, name its public key, which `refit images keys` prints there, in "
        "`trusted_keys`; else find out who pushed it.",
    ),
    Doubt.revoked: (
        "It was revoked, or the key was that had signed it.",
        "`refit build` publishes another one; `refit images revoked` says who revoked it and why.",
    ),
    Doubt.broken: (
        "Its signature is another image's, or was changed.",
        "find out who pushed it; `refit build` publishes the profile's image again.",
    ),
    Doubt.other_profile: (
        "It was published as the image of another profile or release.",
        "find out who has moved the alias; `refit build` lets it point where it belongs.",
    ),
}


class PublicationRow(Table):
    """An image that was tested and published: for which profile and release, by which key it was signed."""

    __tablename__ = "publications"

    digest: Mapped[str] = mapped_column(primary_key=True)
    profile: Mapped[str]
    release: Mapped[str]
    key: Mapped[str]
    at: Mapped[datetime] = mapped_column(Instant)


@dataclass(frozen=True)
class Publication:
    """An image that counts: for which profile and release it was published, and whose key has signed it."""

    digest: str
    profile: str
    release: str
    key: str


@dataclass(frozen=True)
class Refusal:
    """An image that doesn't count: the code by which programs decide, and the id of the key in question, if any."""

    digest: str
    doubt: Doubt
    key: str = ""

    @property
    def why(self) -> str:
        """In words."""
        return f"{_TEXTS[self.doubt][0]}{f' The key: {self.key[:16]}.' if self.key else ''}"

    @property
    def hint(self) -> str:
        """Advice for a person."""
        return _TEXTS[self.doubt][1]

    def __str__(self) -> str:
        return f"{self.doubt}: {self.why}"


class NotPublished(RefitError):
    """An image was to be used that doesn't count."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(
            f"The image {refusal.digest} is not used ({refusal.doubt}).", why=refusal.why, hint=refusal.hint
        )


class Publications:
    """The published images; findings about signatures are kept for a minute."""

    def __init__(self, settings: Settings, database: Engine | None = None, registry: Registry | None = None) -> None:
        self._settings, self._given = settings, registry
        self._database = database or open_database(settings.database)
        self._trust = Trust(settings, self._database)
        self._checked: TTLCache[str, Publication] = TTLCache(_KNOWN, _SECONDS)
        self._lock = Lock()

    @cached_property
    def _registry(self) -> Registry:
        return self._given or Registry(self._settings)

    def sign(self, image: Manifest, provenance: bytes, profile: str, release: str) -> None:
        """Sign an image that was tested, attach the signature, and write down that it was published.

        Args:
            image: the image.
            provenance: how it was made: an in-toto statement about it.
            profile: the profile of the image.
            release: of which release.

        Raises:
            RefitError: the key can't be used, or the registry doesn't do its part.
        """
        key = self._trust.signer.public_key.keyid
        if not any(signed.key == key for signed in self._signed(image.digest)):
            files = {evidence.SIGNATURE: self._trust.sign(provenance)}
            evidence.add(self._registry, image, ENVELOPE, files, self._database)
        row = {"digest": image.digest, "profile": profile, "release": release, "key": key, "at": now()}
        write_rows(self._database, lambda session: session.merge(PublicationRow(**row)))

    def find(self, digests: Collection[str]) -> dict[str, Publication | Refusal]:
        """Digest → what it was published as, or why it doesn't count."""
        sorted_digests = sorted(set(digests) - {""})
        with self._lock:
            checked = {digest: what for digest in sorted_digests if (what := self._checked.get(digest))}
        published = {**checked, **self._recorded(sorted_digests)}
        revoked = self._revoked({*sorted_digests, *(publication.key for publication in published.values())})
        results: dict[str, Publication | Refusal] = {
            digest: what for digest, what in published.items() if what.key not in revoked
        }
        results |= {digest: Refusal(digest, Doubt.revoked) for digest in sorted_digests if digest in revoked}
        unsettled = [digest for digest in sorted_digests if digest not in results]
        seen = each(self._by_signature, unsettled)
        with self._lock:
            self._checked.update({digest: what for digest, what in seen.items() if isinstance(what, Publication)})
        return results | seen

    def dates(self, digests: Collection[str]) -> dict[str, datetime]:
        """Digest → when the image was published here; those of others, and of before, are missing."""
        chosen = select(PublicationRow.digest, PublicationRow.at).where(PublicationRow.digest.in_(sorted(set(digests))))
        with Session(self._database) as rows:
            return {row.digest: row.at for row in rows.execute(chosen)}

    def newest_here(self, most: int) -> tuple[str, ...]:
        """The digests of the images that were published here last, the newest first, also of those that are gone."""
        newest = select(PublicationRow.digest).order_by(PublicationRow.at.desc(), PublicationRow.digest).limit(most)
        with Session(self._database) as rows:
            return tuple(rows.scalars(newest))

    def refusals(self, digests: Collection[str]) -> dict[str, Refusal]:
        """Those of these images that don't count."""
        return {digest: what for digest, what in self.find(digests).items() if isinstance(what, Refusal)}

    def require(self, digest: str) -> None:
        """Let nothing else go on than what counts.

        Raises:
            NotPublished: this image doesn't; it says why.
        """
        for refusal in self.refusals([digest]).values():
            raise NotPublished(refusal)

    def current(self, profiles: Collection[tuple[str, str]]) -> dict[tuple[str, str], str | Refusal]:
        """Profile and release → the digest that its alias points at, if that was published as theirs; else why not.

        Those without an alias are missing.
        """
        owners = OwnProfiles(self._database).owners()
        pointed = {key: digest for key in profiles if (digest := self._pointed(*key, owners.get(key[0], "")))}
        publications = self.find(pointed.values())
        return {key: _fitting(publications[digest], *key) for key, digest in pointed.items()}

    def _pointed(self, profile: str, release: str, owner: str) -> str | None:
        """The digest that an alias points at; `owner` is a person who has a profile of their own of that name.

        One of the catalog comes first: a name that somebody had taken before it leads nobody to their image.
        """
        alias = f"{profile}_{release}"
        shipped = self._registry.digest(self._registry.repository, alias)
        if shipped or not owner:
            return shipped
        return self._registry.digest(own_repository(self._settings.repository, owner), alias)

    def newest(self, profile: str, release: str) -> str | None:
        """The newest tested image of a profile; none before there is one.

        Raises:
            NotPublished: its alias points at an image that doesn't count.
        """
        publication = self.current([(profile, release)]).get((profile, release))
        if isinstance(publication, Refusal):
            raise NotPublished(publication)
        return publication

    def _recorded(self, digests: Collection[str]) -> dict[str, Publication]:
        some, publications = list(digests), dict[str, Publication]()
        with Session(self._database) as session:
            for start in range(0, len(some), _IN_ONE_QUESTION):
                part = some[start : start + _IN_ONE_QUESTION]
                for row in session.scalars(select(PublicationRow).where(PublicationRow.digest.in_(part))):
                    publications[row.digest] = Publication(row.digest, row.profile, row.release, row.key)
        return publications

    def _revoked(self, what: Collection[str]) -> frozenset[str]:
        some = sorted(what)
        parts = (some[start : start + _IN_ONE_QUESTION] for start in range(0, len(some), _IN_ONE_QUESTION))
        return frozenset[str]().union(*map(self._trust.revoked, parts))

    def _by_signature(self, digest: str) -> Publication | Refusal:
        """The verdict of the signatures on an image."""
        doubts: dict[Doubt, str] = {}
        for envelope in self._envelopes(digest):
            try:
                statement = self._trust.opened(envelope)
            except Distrusted as error:
                doubts.setdefault(error.doubt, error.key)
                continue
            if _is_about(statement, digest):
                parameters = statement.predicate.get("buildDefinition", {}).get("externalParameters", {})
                return Publication(
                    digest, str(parameters.get("profile", "")), str(parameters.get("release", "")), statement.key
                )
            doubts.setdefault(Doubt.broken, statement.key)
        if not doubts:
            present = self._registry.digest(self._registry.repository, digest)
            return Refusal(digest, Doubt.unsigned if present else Doubt.unknown)
        worst = min(doubts, key=_WEIGHT.index)
        return Refusal(digest, worst, doubts[worst])

    def _signed(self, digest: str) -> list[Signed]:
        """The statements about an image that trusted keys have signed."""
        statements = []
        for envelope in self._envelopes(digest):
            try:
                signed = self._trust.opened(envelope)
            except Distrusted:
                continue
            if _is_about(signed, digest):
                statements.append(signed)
        return statements

    def _envelopes(self, digest: str) -> list[bytes]:
        return evidence.contents(self._registry, digest, ENVELOPE, evidence.SIGNATURE, _MOST_LOOKED_AT)


def _is_about(signed: Signed, digest: str) -> bool:
    return (signed.kind, signed.subject) == (provenance.PROVENANCE_TYPE, digest)


def _fitting(publication: Publication | Refusal, profile: str, release: str) -> str | Refusal:
    if isinstance(publication, Refusal):
        return publication
    as_what = (publication.profile, publication.release)
    return publication.digest if as_what == (profile, release) else Refusal(publication.digest, Doubt.other_profile)
