"""Evidence, and what a registry has lost of an image: in registries that list what refers to it, and in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from flows.catalog.model import Base, BaseConfig, Bundle, Ide, IdeConfig, Profile
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.images.build import Built
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.publishing import evidence, provenance
from flows.publishing.publish import already, labelled, push_labelled
from flows.publishing.signatures import Publications
from flows.signing.trust import ENVELOPE
from tests.support.registry_in_memory import IMAGES, Fake
from tests.support.small_registry import HELLO, Answer, client, server

PROFILE = Profile(
    "runtime-minimal-deb12-py311",
    "2026a",
    Ide("runtime", Path(), "", IdeConfig()),
    Bundle("minimal", Path(), "", (), {}),
    Base("deb12", Path(), "", BaseConfig(family="deb", suite="bookworm", pythons=("py311",)), ()),
    "py311",
)
OTHER = replace(PROFILE, stem="runtime-other-deb12-py311")


@pytest.fixture(params=[True, False], ids=["tells", "doesn't tell"])
def fake(request: pytest.FixtureRequest) -> Fake:
    return Fake(request.param)


@pytest.fixture
def registry(fake: Fake, settings: Settings) -> Iterator[Registry]:
    with server(fake) as port:
        yield client(settings, port)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    opened = open_database(f"sqlite:///{tmp_path}/refit.db")
    yield opened
    opened.dispose()


@pytest.fixture
def publications(tmp_path: Path, registry: Registry, database: Engine) -> Publications:
    return Publications(Settings(home=tmp_path), database, registry)


@pytest.fixture
def top(registry: Registry) -> Built:
    """A stage of two layers that was built."""
    config, layers = canonical({"config": {}}), (b"lower", b"upper")
    for blob in (config, *layers):
        registry.put_blob(registry.stages, blob)
    document = {"config": descriptor(CONFIG, config), "layers": [descriptor("l", layer) for layer in layers]}
    content = canonical(document)
    registry.put_manifest(registry.stages, digest_of(content), content, MANIFEST)
    return Built("top", "key", None, digest_of(content))


def publish(registry: Registry, top: Built, database: Engine, profile: Profile = PROFILE, **packages: str) -> Manifest:
    """All that publishing does but for the checks."""
    image = push_labelled(registry, profile, top)
    files = {evidence.PACKAGES: canonical(packages), evidence.CHECKS: b"[]"}
    evidence.attach(registry, image, files, database)
    stated = canonical(provenance.statement(IMAGES, image.digest, provenance.asked(profile.stem, "2026a")))
    keeping = Settings(home=Path(str(database.url.database)).parent)
    Publications(keeping, database, registry).sign(image, stated, profile.stem, "2026a")
    for tag in ("_20261120", ""):
        registry.put_manifest(registry.repository, f"{profile.stem}_2026a{tag}", image.content, MANIFEST)
    return image


def test_an_image_of_a_persons_own_says_whose_it_is_and_no_recipe_says_otherwise(
    registry: Registry, top: Built
) -> None:
    config = {"config": {"Labels": {OWNER_LABEL: "root"}}}
    own = replace(PROFILE, bundle=replace(PROFILE.bundle, owner="ada"))
    labels: Any = labelled(config, own, top.digest)["config"]
    assert labels["Labels"][OWNER_LABEL] == "ada"
    labels = registry.config(registry.repository, push_labelled(registry, PROFILE, top))["config"]
    assert OWNER_LABEL not in labels["Labels"]


@pytest.mark.slow
def test_what_is_attached_is_found_on_all_pages_and_the_newer_wins(
    fake: Fake, registry: Registry, top: Built, database: Engine
) -> None:
    image = publish(registry, top, database, tmux="3")
    evidence.attach(registry, image, {"more.txt": b"more"}, database)
    publish(registry, top, database, tmux="4")
    assert [file.name for file in evidence.listed(registry, image.digest)] == [
        evidence.CHECKS,
        "more.txt",
        evidence.PACKAGES,
    ]
    assert evidence.packages(registry, image.digest) == {"tmux": "4"}
    assert ((IMAGES, image.digest.replace(":", "-")) in fake.manifests) is not fake.tells
    publish(registry, top, database, tmux="4")
    assert len(fake.referring) == 4, "what is there was attached once more"


def test_a_list_of_referrers_without_an_end(settings: Settings) -> None:
    entry = descriptor(MANIFEST, b"", artifactType=evidence.KIND)
    circle: Answer = (200, {"Link": '<?page=1>; rel="next"'}, canonical({"manifests": [entry]}))
    with (
        server(lambda request: HELLO if request.path == "/v2/" else circle) as port,
        pytest.raises(evidence.RegistryError, match="doesn't answer as"),
    ):
        client(settings, port).referrers("images", digest_of(b""))


LOST: dict[str, Callable[[Manifest, Manifest, Manifest], str]] = {
    "the image": lambda image, *_: image.digest,
    "its configuration": lambda image, *_: image.part_digests[0],
    "a layer": lambda image, *_: image.part_digests[1],
    "its evidence": lambda _, attached, __: attached.digest,
    "the configuration of its evidence": lambda _, attached, __: attached.part_digests[0],
    "a file of its evidence": lambda _, attached, __: attached.part_digests[-1],
    "its signature": lambda *manifests: manifests[-1].digest,
    "the envelope of its signature": lambda *manifests: manifests[-1].part_digests[-1],
}


@pytest.mark.parametrize("lost", LOST)
def test_what_the_registry_has_lost_is_published_anew(
    lost: str, fake: Fake, registry: Registry, top: Built, database: Engine, publications: Publications
) -> None:
    image = publish(registry, top, database, tmux="3")
    attached = evidence.newest_of_each(registry, image.digest, (evidence.KIND, ENVELOPE))
    assert attached
    [published] = already([(PROFILE, top.digest)], registry, publications)
    assert (published.digest, published.tag) == (image.digest, f"{PROFILE.stem}_2026a_20261120")
    fake.lose(LOST[lost](image, *attached))
    assert already([(PROFILE, top.digest)], registry, publications) == ()
    evidence.packages(registry, image.digest)  # what is lost is no obstacle to publishing
    publish(registry, top, database, tmux="3")
    assert already([(PROFILE, top.digest)], registry, publications) == (published,)
    assert evidence.packages(registry, image.digest) == {"tmux": "3"}


@pytest.mark.slow
def test_nothing_is_asked_for_twice_that_images_share(
    fake: Fake, registry: Registry, top: Built, database: Engine, publications: Publications
) -> None:
    for profile in (PROFILE, OTHER):
        publish(registry, top, database, profile, tmux="3")
    fake.asked.clear()
    assert len(already([(PROFILE, top.digest), (OTHER, top.digest)], registry, publications)) == 2
    blobs = [question for question in fake.asked if question.startswith("HEAD") and "/blobs/" in question]
    assert len(blobs) == len(set(blobs)) == 9  # two configurations and two layers, three of evidence, two signatures
    assert not any(question.startswith(("PUT", "POST")) for question in fake.asked)
