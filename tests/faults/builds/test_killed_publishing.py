"""An image's publication is killed, its clock goes back, a rebuild gives the same."""

from __future__ import annotations

import datetime
import secrets
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from flows.catalog.model import Base, Bundle, Ide, IdeConfig, Profile
from flows.core.settings import Settings
from flows.host import containers
from flows.images.build import Builder, Built
from flows.images.registry import Registry
from flows.images.run import opened
from flows.images.stages import Kind, Stage
from flows.publishing import checks, container_checks, evidence
from flows.publishing import publish as publishing
from flows.publishing.publish import current
from flows.publishing.published import Published
from tests.support import tiny
from tests.support.building import carried_out, deadly, executions, graph_of
from tests.support.machine import RegistryServer
from tests.support.prefect_api import prefect_client
from tests.support.processes import in_a_process
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def contents(builder: Builder, base: Built) -> tuple[Built, Built]:
    """Two contents of an image; each waits when it is started."""
    waiting = builder.build(Stage("waits", Kind.instructions, base.stage, 'CMD ["sleep", "infinity"]'), base)
    return waiting, builder.build(Stage("more", Kind.instructions, "waits", "RUN echo more > /opt/more"), waiting)


@pytest.fixture
def profile(base_recipe: Base) -> Profile:
    """A profile of this test alone."""
    name = f"b{secrets.token_hex(8)}"
    ide, bundle = Ide("runtime", Path(), "", IdeConfig()), Bundle(name, Path(), "", (), {})
    return Profile(f"runtime-{name}-deb12-py311", "2026a", ide, bundle, base_recipe, "py311")


def publish(profile: Profile, top: Built, settings: Settings, days: int = 0) -> Published:
    date = datetime.date(2026, 11, 20) + datetime.timedelta(days=days)
    with opened(settings, date) as run:
        return publishing.publish(profile, top, {evidence.PACKAGES: b"{}"}, run)


def alias_of(_: object, name: str, *rest: object) -> bool:
    return name.endswith("_2026a")


# Where → how to die there, and which tags are there then beside those of the image before.
PUBLISHING: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "before the checks": (lambda: deadly(checks, "run"), ()),
    "while it is checked": (lambda: deadly(container_checks, "_pip"), ()),
    "after the checks": (lambda: deadly(evidence, "attach"), ()),
    "before the evidence is listed": (lambda: deadly(evidence, "_list"), ()),
    "before the date tag": (lambda: deadly(publishing, "_give_date_tag"), ()),
    "between date tag and alias": (lambda: deadly(publishing, "_give_date_tag", after=True), ("20261121",)),
    "after the alias": (lambda: deadly(publishing, "_point", after=True, when=alias_of), ("20261121", "alias")),
}


@pytest.mark.long
@pytest.mark.parametrize("where", PUBLISHING)
def test_killed_while_an_image_is_published(
    where: str, contents: tuple[Built, Built], profile: Profile, shared: Settings, registry: Registry
) -> None:
    arm, there = PUBLISHING[where]
    first = publish(profile, contents[0], shared)
    shutil.rmtree(shared.folder("cache", "checks"))  # what was checked once isn't checked again

    def work() -> None:
        arm()
        publish(profile, contents[1], shared, days=1)

    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the process never came there"
    assert (current(profile.stem, "2026a", registry) != first.digest) == ("alias" in there)
    assert dates(profile, registry) == ["20261120", *(tag for tag in there if tag != "alias")]

    second = publish(profile, contents[1], shared, days=1)
    assert second.new == ("alias" not in there)
    assert current(profile.stem, "2026a", registry) == second.digest != first.digest
    assert dates(profile, registry) == ["20261120", "20261121"]
    assert registry.digest(registry.repository, first.tag) == first.digest
    assert evidence.newest(registry, second.digest)
    assert containers.remove_orphans(shared) == ()


def dates(profile: Profile, registry: Registry) -> list[str]:
    """The date tags of a profile, without what is the same in all."""
    stem = f"{profile.stem}_2026a_"
    return sorted(tag.removeprefix(stem) for tag in registry.tags(registry.repository) if tag.startswith(stem))


@pytest.mark.long
def test_an_image_of_a_day_that_the_clock_went_back_to_is_the_current_one(
    contents: tuple[Built, Built], profile: Profile, shared: Settings, registry: Registry
) -> None:
    first, second = publish(profile, contents[0], shared), publish(profile, contents[1], shared, days=-3)
    assert dates(profile, registry) == ["20261117", "20261120"]
    assert current(profile.stem, "2026a", registry) == second.digest != first.digest
    again = publish(profile, contents[1], shared, days=1)
    assert (again.tag, again.new) == (second.tag, False)


def stored(registry: Registry, storage: Path) -> dict[str, str]:
    """The files in which a registry has its stages and images; of links, also where they lead."""
    root = storage / "docker" / "registry" / "v2"
    folders = (root / "blobs", *(root / "repositories" / name for name in (registry.stages, registry.repository)))
    files = [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "unfinished" not in path.parts
    ]
    return {str(path.relative_to(root)): path.read_text() if path.name == "link" else "" for path in files}


def announced() -> list[str]:
    """The digests of all images of which the Prefect server was told that they are new, oldest first."""
    asked = {"filter": {"event": {"name": [publishing.EVENT]}, "order": "ASC"}}
    server = Settings(prefect_server=str(PREFECT_API_URL.value()).removesuffix("/api"))
    with prefect_client(server) as api:
        events = api.post("/events/filter", json=asked).raise_for_status().json()["events"]
    return [event["payload"]["digest"] for event in events]


@pytest.mark.long
@pytest.mark.usefixtures("prefect")
def test_a_rebuild_that_gives_the_same_stops_there(
    shared: Settings, base_stage: Stage, profile: Profile, registry: Registry, registry_server: RegistryServer
) -> None:
    names = (f"{profile.bundle.name}-bundle", f"{profile.bundle.name}-other", profile.stem)

    def build(comment: str, said: str) -> tuple[list[Built], Published, list[int]]:
        """An image and another stage on a bundle that is told differently and does the same, unless it says more."""
        bundle, other, image = names
        text = f"# {comment}\nRUN . /mnt/files/script > /etc/said; echo {tiny.SAID}"
        script = f": {comment}; echo {said}".encode()
        graph = graph_of(
            base_stage,
            Stage(bundle, Kind.instructions, base_stage.name, text, {"script": script}),
            tiny.on(bundle, other, kind=Kind.closed),
            Stage(image, Kind.instructions, bundle, f'{tiny.step("image")}\nCMD ["sleep", "infinity"]'),
        )
        outcomes, _ = carried_out(shared, replace(graph, tops={profile.stem: image}), profile)
        published = outcomes.images[profile.stem]
        assert isinstance(published, Published), published
        stages = [outcome for name in names if isinstance(outcome := outcomes.stages[name], Built)]
        return stages, published, [executions(shared, name) for name in names]

    made, first, executed = build("once", "the same")
    assert ([stage.how for stage in made], first.new, executed) == (["built"] * 3, True, [1, 1, 1])
    before = stored(registry, registry_server.storage)
    again, second, executed = build("twice", "the same")
    assert [stage.how for stage in again] == ["built", "reused", "reused"]
    assert (second.tag, second.digest, second.new, executed) == (first.tag, first.digest, False, [2, 1, 1])
    # All that is new is the key by which the same bundle is found the next time.
    after = stored(registry, registry_server.storage)
    written = dict(after.items() - before.items())
    assert before.keys() <= after.keys() and {*written.values()} == {again[0].digest}
    assert all(f"/_manifests/tags/{again[0].key}/" in path for path in written)
    _, third, executed = build("twice", "another")
    assert (third.new, executed) == (True, [3, 1, 2])  # what is closed is grafted
    wait_until(lambda: len(announced()) > 1)
    assert announced() == [first.digest, third.digest]
