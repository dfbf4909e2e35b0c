"""Which images count, by record and by signature, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine

from flows.core.database import now, open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.personal_builds import PersonalBuilds
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.publishing import evidence, provenance
from flows.publishing.own_profiles import OwnProfile, OwnProfiles, repository
from flows.publishing.signatures import _TEXTS, NotPublished, Publication, Publications, Refusal
from flows.signing.keys import BadKey, Keys, pem_of
from flows.signing.trust import ENVELOPE, Distrusted, Doubt, Trust, statement
from tests.support.registry_in_memory import Fake
from tests.support.small_registry import client, server

PROFILE, RELEASE = "runtime-minimal-deb12-py311", "2026a"


@dataclass
class Refit:
    """A home with its key and its database, and the registry that it uses."""

    settings: Settings
    database: Engine
    registry: Registry

    @property
    def trust(self) -> Trust:
        return Trust(self.settings, self.database)

    @property
    def publications(self) -> Publications:
        return Publications(self.settings, self.database, self.registry)

    def publish(self, image: Manifest, profile: str = PROFILE) -> None:
        said = provenance.statement("images", image.digest, provenance.asked(profile, RELEASE))
        self.publications.sign(image, canonical(said), profile, RELEASE)

    def trusting(self, *others: Refit) -> Refit:
        keys = tuple(pem_of(Keys(other.settings).signer().public_key) for other in others)
        return Refit(self.settings.model_copy(update={"trusted_keys": keys}), self.database, self.registry)

    def without_database(self) -> Refit:
        return Refit(self.settings, open_database(f"sqlite:///{self.settings.home}/lost.db"), self.registry)

    def doubt(self, image: Manifest) -> Doubt | None:
        publication = self.publications.find([image.digest])[image.digest]
        return publication.doubt if isinstance(publication, Refusal) else None


@pytest.fixture
def fake() -> Fake:
    return Fake(tells=False)


@pytest.fixture
def make(fake: Fake, tmp_path: Path) -> Iterator[Callable[[str], Refit]]:
    opened = []

    def made(name: str) -> Refit:
        home = Settings(home=tmp_path / name)
        opened.append(open_database(f"sqlite:///{tmp_path}/{name}.db"))
        return Refit(home, opened[-1], client(home, port))

    with server(fake) as port:
        yield made
    for database in opened:
        database.dispose()


@pytest.fixture
def mine(make: Callable[[str], Refit]) -> Refit:
    return make("mine")


@pytest.fixture
def theirs(make: Callable[[str], Refit]) -> Refit:
    return make("theirs")


def image(refit: Refit, name: str = "one", alias: str = "") -> Manifest:
    config = canonical({"config": {"Labels": {"name": name}}})
    refit.registry.put_blob(refit.registry.repository, config)
    content = canonical({"config": descriptor(CONFIG, config), "layers": []})
    for reference in filter(None, (digest_of(content), alias)):
        refit.registry.put_manifest(refit.registry.repository, reference, content, MANIFEST)
    return Manifest(digest_of(content), MANIFEST, content)


def test_what_was_published_counts_and_is_asked_of_nobody(mine: Refit, fake: Fake) -> None:
    published = image(mine)
    assert mine.doubt(published) is Doubt.unsigned
    mine.publish(published)
    fake.asked.clear()
    assert mine.publications.find([published.digest]) == {
        published.digest: Publication(published.digest, PROFILE, RELEASE, mine.trust.signer.public_key.keyid)
    }
    assert fake.asked == []


def test_an_image_that_is_nowhere_is_unknown(mine: Refit) -> None:
    with pytest.raises(NotPublished, match="unknown") as caught:
        mine.publications.require(digest_of(b"nothing"))
    assert caught.value.refusal.doubt is Doubt.unknown


def test_the_signature_counts_without_the_database_and_the_record_without_the_signature(
    mine: Refit, fake: Fake
) -> None:
    published = image(mine)
    mine.publish(published)
    fake.asked.clear()
    lost = mine.without_database().publications
    assert isinstance(lost.find([published.digest])[published.digest], Publication)
    asked = [question for question in fake.asked if not question.endswith("/v2/")]
    assert len(asked) <= 4, asked
    fake.asked.clear()
    assert isinstance(lost.find([published.digest])[published.digest], Publication)
    assert fake.asked == []
    for key in [key for key in fake.manifests if key[1] != published.digest]:
        del fake.manifests[key]
    fake.referring.clear()
    assert mine.doubt(published) is None
    assert mine.without_database().doubt(published) is Doubt.unsigned


def test_a_key_of_somebody_else_counts_where_it_is_trusted(mine: Refit, theirs: Refit) -> None:
    published = image(theirs)
    theirs.publish(published)
    assert mine.doubt(published) is Doubt.unknown_key
    assert mine.trusting(theirs).doubt(published) is None
    file = mine.settings.home / "theirs.pem"
    file.write_text(pem_of(theirs.trust.signer.public_key))
    named = mine.settings.model_copy(update={"trusted_keys": ("theirs.pem",)})
    assert Refit(named, mine.database, mine.registry).doubt(published) is None
    mine.trust.revoke(theirs.trust.signer.public_key.keyid, "lost", "root")
    assert mine.trusting(theirs).doubt(published) is Doubt.revoked


@pytest.mark.slow
def test_both_keys_count_when_a_new_one_signs_until_one_is_revoked(mine: Refit) -> None:
    old, new = image(mine, "old"), image(mine, "new")
    mine.publish(old)
    first = mine.trust.signer.public_key.keyid
    second = Keys(mine.settings).renew()
    assert mine.trust.signer.public_key.keyid == second != first
    mine.publish(new)
    lost = mine.without_database()
    assert (lost.doubt(old), lost.doubt(new)) == (None, None)
    for refit in (mine, lost):
        refit.trust.revoke(first, "it was copied", "root")
        assert (refit.doubt(old), refit.doubt(new)) == (Doubt.revoked, None)
    mine.publish(old)  # by the new key
    assert mine.doubt(old) is None
    mine.trust.revoke(second, "this one too", "root")
    with pytest.raises(RefitError, match="was revoked"):
        mine.publish(new)
    assert mine.trust.restore(second) and not mine.trust.restore(second)
    assert mine.doubt(new) is None


def test_a_digest_that_was_revoked_counts_no_more(mine: Refit) -> None:
    published = image(mine)
    mine.publish(published)
    mine.trust.revoke(published.digest, "a hole", "root")
    assert mine.doubt(published) is Doubt.revoked
    assert [(one.what, one.why, one.by) for one in mine.trust.revocations()] == [(published.digest, "a hole", "root")]
    mine.trust.restore(published.digest)
    assert mine.doubt(published) is None


@pytest.mark.slow
def test_a_signature_of_another_image_or_another_kind_or_changed_is_broken(mine: Refit) -> None:
    published, evil = image(mine), image(mine, "evil")
    mine.publish(published)
    [envelope] = evidence.contents(mine.registry, published.digest, ENVELOPE, evidence.SIGNATURE, 8)
    wrong_kind = canonical(statement("urn:io.refit:document:v1", "images", evil.digest, {}))
    document = json.loads(envelope)
    document["signatures"][0]["sig"] = (
        document["signatures"][0]["sig"].replace("A", "B").replace("a", "b")[:-4] + "AAA="
    )
    for forged in (envelope, mine.trust.sign(wrong_kind), canonical(document), b"{}", b"[" * 100_000):
        evidence.add(mine.registry, evil, ENVELOPE, {evidence.SIGNATURE: forged}, mine.database)
        assert mine.doubt(evil) is Doubt.broken
    mine.publish(evil)
    assert mine.without_database().doubt(evil) is None


def test_an_alias_counts_only_where_it_points_at_an_image_of_its_profile(mine: Refit) -> None:
    alias = f"{PROFILE}_{RELEASE}"
    assert mine.publications.newest(PROFILE, RELEASE) is None
    published = image(mine, alias=alias)
    mine.publish(published)
    assert mine.publications.newest(PROFILE, RELEASE) == published.digest
    for profile, doubt in ((None, Doubt.unsigned), ("another-minimal-deb12-py311", Doubt.other_profile)):
        other = image(mine, f"image of {profile}", alias)
        if profile:
            mine.publish(other, profile)
        with pytest.raises(NotPublished) as caught:
            mine.publications.newest(PROFILE, RELEASE)
        assert caught.value.refusal == Refusal(other.digest, doubt)
        assert caught.value.hint and str(doubt) in str(caught.value)


def test_an_image_of_the_catalog_comes_before_that_of_a_person_who_took_its_name_earlier(mine: Refit) -> None:
    alias, eves = f"{PROFILE}_{RELEASE}", repository(mine.registry.repository, "eve")
    OwnProfiles(mine.database).take(OwnProfile("x", "eve", PROFILE, RELEASE, {}, (), now()), PersonalBuilds())
    theirs = image(mine, "eve's")
    mine.registry.mount(eves, theirs.document["config"]["digest"], mine.registry.repository, 1)
    mine.registry.put_manifest(eves, alias, theirs.content, MANIFEST)
    mine.publish(theirs)
    assert mine.publications.newest(PROFILE, RELEASE) == theirs.digest
    shipped = image(mine, "shipped", alias)
    mine.publish(shipped)
    assert mine.publications.newest(PROFILE, RELEASE) == shipped.digest


def test_all_codes_have_texts_and_stay() -> None:
    assert _TEXTS.keys() == set(Doubt)
    assert {str(doubt) for doubt in Doubt} == {
        *("unknown", "unsigned", "unknown-key", "revoked", "broken", "other-profile")
    }


def test_keys_are_the_owners_alone_and_bad_ones_are_told(mine: Refit, tmp_path: Path) -> None:
    mine.trust.sign(b"{}")
    folder = mine.settings.home / "keys"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "signing.pem").stat().st_mode & 0o777 == 0o600
    assert [file for file in folder.iterdir() if file.name.startswith(".")] == []

    def chosen(**settings: object) -> Keys:
        return Keys(mine.settings.model_copy(update=settings))

    key = tmp_path / "key.pem"
    key.write_bytes((folder / "signing.pem").read_bytes())
    key.chmod(0o644)
    with pytest.raises(BadKey, match="signing_key") as caught:
        chosen(signing_key=str(key)).signer()
    assert "chmod 600" in caught.value.hint
    key.chmod(0o600)
    assert chosen(signing_key=str(key)).signer().public_key == Keys(mine.settings).signer().public_key
    with pytest.raises(BadKey, match="signing_key"):
        chosen(signing_key=str(key)).renew()
    key.write_text("nothing")
    for wrong in (str(key), "nowhere.pem", "pkcs11:token=x"):
        with pytest.raises(BadKey, match="signing_key"):
            chosen(signing_key=wrong).signer()
    for wrong in (str(key), "nowhere.pem", "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(BadKey, match="trusted_keys"):
            chosen(trusted_keys=(wrong,)).trusted()


def test_who_signs_with_a_made_up_key_id_is_not_believed(mine: Refit, theirs: Refit) -> None:
    said = canonical(statement("kind", "name", digest_of(b"x"), {}))
    envelope = json.loads(theirs.trust.sign(said))
    envelope["signatures"][0]["keyid"] = mine.trust.signer.public_key.keyid
    with pytest.raises(Distrusted) as caught:
        mine.trust.opened(canonical(envelope))
    assert caught.value.doubt is Doubt.broken
