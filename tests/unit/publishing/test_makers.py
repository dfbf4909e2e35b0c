"""The makers of images, by what the registry says of these, and where it says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from sqlalchemy import Engine

from flows.core.database import now, open_database
from flows.core.settings import Settings
from flows.core.settings.personal_builds import OWNER_LABEL, PersonalBuilds
from flows.images.manifests import CONFIG, MANIFEST, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.publishing.makers import Makers
from flows.publishing.own_profiles import OwnProfile, OwnProfiles, repository
from tests.support.registry_in_memory import Fake
from tests.support.small_registry import HELLO, Answer, client, ping, server

STEM, OTHER = "jupyter-mine-deb12-py311", "jupyter-minimal-deb12-py311"
OWN = OwnProfile("mine", "ada", STEM, "2026a", {}, (), now())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    database = open_database(f"sqlite:///{tmp_path}/refit.db")
    yield database
    database.dispose()


@pytest.fixture
def records(database: Engine) -> OwnProfiles:
    """A name that ada has had, has built, and has given back."""
    records = OwnProfiles(database)
    records.take(OWN, PersonalBuilds())
    records.begin("mine", "ada", PersonalBuilds())
    records.forget("mine", "ada")
    return records


@pytest.fixture
def fake() -> Fake:
    return Fake(tells=False)


@pytest.fixture
def registry(fake: Fake, tmp_path: Path) -> Iterator[tuple[Settings, Registry]]:
    settings = Settings(home=tmp_path / "home")
    with server(fake) as port:
        yield settings.model_copy(update={"registry_port": port}), client(settings, port)


def put(registry: Registry, place: str, **labels: str) -> str:
    """Store an image in a repository; returns its digest."""
    config = canonical({"config": {"Labels": labels or None}})
    registry.put_blob(place, config)
    content = canonical({"config": descriptor(CONFIG, config), "layers": []})
    return registry.put_manifest(place, digest_of(content), content, MANIFEST)


def test_the_label_of_an_image_says_who_made_it_and_is_read_once(
    registry: tuple[Settings, Registry], fake: Fake, records: OwnProfiles
) -> None:
    settings, all_images = registry
    hers, shipped = (put(all_images, settings.repository, **made) for made in ({OWNER_LABEL: "ada"}, {}))
    makers = Makers(settings, records.database)
    assert makers.of({hers: STEM, shipped: STEM}) == {hers: "ada", shipped: ""}
    fake.asked.clear()
    assert makers.of({hers: STEM, shipped: OTHER}) == {hers: "ada", shipped: ""} and fake.asked == []


@pytest.mark.parametrize("lost", ["manifests", "blobs"])
def test_an_image_that_the_registry_collected_is_found_in_its_makers_own_repository(
    registry: tuple[Settings, Registry], fake: Fake, records: OwnProfiles, lost: str
) -> None:
    settings, all_images = registry
    for place in (settings.repository, repository(settings.repository, "ada")):
        hers = put(all_images, place, **{OWNER_LABEL: "ada"})
    for stored in [one for one in getattr(fake, lost) if one[0] == settings.repository]:
        del getattr(fake, lost)[stored]
    assert Makers(settings, records.database).of({hers: STEM}) == {hers: "ada"}


def test_of_a_lost_image_nobody_knows_unless_no_person_ever_had_its_name(
    registry: tuple[Settings, Registry], fake: Fake, records: OwnProfiles
) -> None:
    settings, _ = registry
    lost, other = (f"sha256:{letter * 64}" for letter in "ab")
    makers = Makers(settings, records.database)
    assert makers.of({lost: STEM, other: OTHER}) == {lost: None, other: ""}
    fake.asked.clear()
    assert makers.of({lost: STEM}) == {lost: None} and fake.asked == []  # for a while


def test_a_registry_that_hangs_is_waited_for_once_and_for_seconds_in_all(tmp_path: Path, records: OwnProfiles) -> None:
    asked, over = [], Event()

    def hang(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        if not ping(request):
            over.wait(60)
        return HELLO

    images = {f"sha256:{number:064x}": STEM for number in range(20)}
    with server(hang) as port:
        makers = Makers(Settings(home=tmp_path / "home", registry_port=port), records.database, seconds=1.0)
        began = monotonic()
        try:
            assert set(makers.of(images).values()) == {None}
            assert monotonic() - began < 15.0  # one after the other they would take 20 s
            asked.clear()
            assert set(makers.of(images).values()) == {None} and asked == []
        finally:
            over.set()
