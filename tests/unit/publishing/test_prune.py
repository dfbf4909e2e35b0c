"""Pruning: by example, and for whatever a registry may hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.grafting import layers
from flows.images.grafting.layer_cache import Layers
from flows.images.ledger import StageRow
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage, layer_tag
from flows.publishing.prune import OwnImages, Plan, Policy, Stored, plan
from flows.publishing.stored_manifests import observe
from flows.signing.trust import Trust
from tests.support.registry_in_memory import Fake
from tests.support.small_registry import server

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICY = Policy(images=2, days=7)
ALIAS = "jupyter-minimal-deb12-py311_2026a"
IMAGES, STAGES = "workbench-images", "workbench-images/stages"


def dated(age: int, number: int = 0, alias: str = ALIAS) -> str:
    day = (NOW - timedelta(days=age)).date()
    return f"{alias}_{day:%Y%m%d}" + (f".{number}" if number else "")


def image(digest: str, *tags: str, subject: str = "", content: str = "", layers: str = "", age: int = 100) -> Stored:
    sizes = dict.fromkeys(layers, 10)
    made = NOW - timedelta(days=age)
    return Stored(IMAGES, digest, tags, sizes, made, subject=subject, content=content)


def stage(digest: str, name: str = "", *tags: str, parent: str = "", layers: str = "", age: int = 100) -> Stored:
    sizes = dict.fromkeys(layers, 10)
    return Stored(STAGES, digest, tags or (f"key{digest}",), sizes, NOW - timedelta(days=age), name=name, parent=parent)


def kept(made: Plan) -> dict[str, str]:
    return {decision.digest: decision.reason for decision in made.keep}


def removed(made: Plan) -> list[str]:
    return [decision.digest for decision in made.remove]


def test_the_newest_the_young_and_what_the_alias_points_at_stay() -> None:
    images = [
        image("oldest", dated(90), ALIAS),
        image("old", dated(80)),
        image("older", dated(80, 1)),
        image("new", dated(20)),
        image("young", dated(6)),
        image("younger", dated(5)),
    ]
    made = plan(images, [], {}, NOW, Policy(images=3, days=5.6))
    assert kept(made) == {
        "oldest": f"{ALIAS} points at it",
        "new": f"one of the newest 3 of {ALIAS}",
        "young": f"one of the newest 3 of {ALIAS}",
        "younger": f"one of the newest 3 of {ALIAS}",
    }
    assert removed(made) == ["old", "older"]
    assert kept(plan(images, [], {}, NOW, Policy(images=1, days=21)))["new"] == "younger than 21 days"


def test_a_number_counts_and_ten_is_more_than_nine() -> None:
    images = [image(str(number), dated(90, number)) for number in range(11)]
    assert set(kept(plan(images, [], {}, NOW, POLICY))) == {"9", "10"}


def test_each_profile_and_release_has_its_own_newest() -> None:
    other = ALIAS.replace("2026a", "2026b")
    images = [image("a", dated(90)), image("b", dated(99, alias=other)), image("c", dated(98, alias=other))]
    assert removed(plan(images, [], {}, NOW, Policy(images=1, days=1))) == ["b"]


def test_an_image_with_several_tags_stays_for_any_of_them() -> None:
    made = plan([image("a", dated(90), dated(2)), image("b", dated(80), "latest")], [], {}, NOW, Policy(1, 1))
    assert kept(made) == {"a": f"one of the newest 1 of {ALIAS}", "b": "latest is no tag of Refit's"}


def test_what_is_in_use_stays_without_a_tag_too() -> None:
    images = [image("a", *[]), image("b"), image("new", dated(1), ALIAS)]
    made = plan(images, [], {"a": "session ada"}, NOW, POLICY)
    assert kept(made)["a"] == "session ada"
    assert [(decision.digest, decision.reason) for decision in made.remove] == [("b", "no tag points at it")]


def test_what_is_attached_goes_and_stays_with_its_image() -> None:
    index = f"sha256-{'e' * 64}"
    images = [
        image("new", dated(1), ALIAS),
        image("sbom", subject="new"),
        image("attached-to-sbom", subject="sbom"),
        image("old-sbom", subject="old"),
        image("index", index, subject="old"),
        image("orphan", subject="gone long ago"),
        image("old", dated(90)),
    ]
    made = plan(images, [], {}, NOW, Policy(1, 1))
    assert set(kept(made)) == {"new", "sbom", "attached-to-sbom"}
    assert removed(made) == ["old", "old-sbom", "index", "orphan"]


def test_stages_stay_for_what_stands_on_them() -> None:
    images = [image("image", ALIAS, dated(1), content="top", layers="xyz"), image("old", dated(90), content="t0")]
    stages = [
        stage("base", "base", layers="x"),
        stage("python", "py", parent="base", layers="xy"),
        stage("top", "top", parent="python", layers="xyz"),
        stage("closed", "closed", layers="y"),  # a layer of its own that was grafted
        stage("locker", "locker", parent="base", layers="xl"),
        stage("old-locker", "locker", parent="base", layers="xk", age=200),
        stage("t0", "top", parent="python", layers="xy0", age=200),
        stage("building", "py", layers="x1", age=1),
        stage("on-an-old-base", "gone", parent="b0", layers="9z"),
        stage("b0", "base", layers="9", age=300),
    ]
    made = plan(images, stages, {}, NOW, Policy(1, 2))
    assert removed(made) == ["old", "old-locker", "t0", "on-an-old-base", "b0"]
    assert kept(made)["locker"] == "the newest on a stage that stays"
    assert kept(made)["building"] == "younger than 2 days"
    assert made.bytes == 10 * len("k09")  # of "z" the image that stays has a copy


def test_the_newest_wheels_stay_whatever_stands_on_them() -> None:
    stages = [
        replace(stage("new", "wheels", age=100), wheels=True),
        replace(stage("old", "wheels", age=200), wheels=True),
        stage("base", "base", age=100),
    ]
    made = plan([], stages, {}, NOW, POLICY)
    assert kept(made) == {"new": "the newest wheels"}


@pytest.mark.parametrize("expected", [True, False], ids=["an image has the layer", "no image has it"])
def test_the_parent_of_a_layer_stays_as_long_as_what_is_noted_of_it(settings: Settings, expected: bool) -> None:
    carried, database = layers.Stored(digest_of(b"carried"), 7, digest_of(b"tar")), open_database(settings.database)
    written = canonical({"config": descriptor(CONFIG, b"{}"), "layers": [descriptor("l", b"base")]})
    parent = Manifest(digest_of(written), MANIFEST, written)
    with Session(database) as session, session.begin():
        old = NOW - timedelta(days=100)
        session.add(StageRow(key="base", name="base", digest=parent.digest, inputs="{}", seconds=1.0, built=old))
    with server(Fake(tells=False)) as port:
        here = settings.model_copy(update={"registry_port": port})
        registry = Registry(here)
        registry.put_manifest(registry.stages, "base", parent.content, MANIFEST)
        Layers(here, registry, Trust(here, database))._note(
            layer_tag("key", {}), carried, Stage("layer", Kind.closed, "base", ""), parent, {}
        )
        _, stages = observe(registry, database, None)
    assert {tag for stage in stages for tag in stage.tags} == {"base", layer_tag("key", {})}
    top = replace(image("image", ALIAS, dated(1)), layers={carried.digest: 7, "another": 1} if expected else {})
    made = plan([top], stages, {}, NOW, POLICY)
    assert (parent.digest in kept(made), len(removed(made))) == ((True, 0) if expected else (False, 2))


def test_what_a_build_left_behind_is_no_stage() -> None:
    left = [
        Stored(STAGES, "a", ("unfinished",), {"x": 1}, NOW),
        Stored(STAGES, "b", (), {"x": 1}, NOW),
        Stored(STAGES, "c", ("unfinished", "key"), {"x": 1}, NOW),
    ]
    made = plan([image("image", ALIAS, dated(1), layers="x")], left, {}, NOW, POLICY)
    assert removed(made) == ["a", "b"]


def test_of_unknown_age_is_not_old() -> None:
    assert removed(plan([], [Stored(STAGES, "a", ("key",))], {}, NOW, POLICY)) == []


DIGESTS = st.sampled_from([f"d{number}" for number in range(12)])
ALIASES = st.sampled_from(
    [f"{ide}-minimal-deb12-py311_{release}" for ide in ("jupyter", "code") for release in ("2026a", "2026b")]
)


def of_person(digest: str, *tags: str, content: str = "", subject: str = "", layers: str = "") -> Stored:
    return replace(
        image(digest, *tags, content=content, subject=subject, layers=layers), repository=f"{IMAGES}/people/ada"
    )


def test_old_images_of_people_go_and_what_the_others_are_made_of_stays() -> None:
    mine = "jupyter-mine-deb12-py311_2026a"
    images = [
        of_person("new", mine, dated(30, alias=mine), content="top", layers="ab"),
        of_person("old", dated(40, alias=mine), content="before", layers="c"),
        of_person("older", dated(50, alias=mine), content="first", layers="d"),
        of_person("evidence", subject="older"),
    ]
    carried = [
        image("new", layers="ab"),
        image("old", layers="c"),
        image("older", layers="d"),
    ]  # in the repository of all nothing but digests
    stages = [
        *(stage("top", parent="low", layers="ab"), stage("low", layers="a"), stage("before", layers="c")),
        *(stage("first", layers="d"), stage("nobodys", layers="e")),
    ]
    has = OwnImages(tuple(images), frozenset({"jupyter-mine-deb12-py311"}))
    made = plan(carried, stages, {}, NOW, POLICY, [has])
    assert sorted(removed(made)) == ["evidence", "first", "nobodys", "older", "older"]
    both = {(one.repository, one.reason) for one in made.keep if one.digest == "old"}
    assert both == {
        (f"{IMAGES}/people/ada", f"one of the newest 2 of {mine}"),
        (IMAGES, f"{IMAGES}/people/ada has it"),
    }

    gone = OwnImages(tuple(images), frozenset())  # its name was given back: nothing starts from it any more
    used = plan(carried, stages, {"old": "session bob"}, NOW, POLICY, [gone])
    assert sorted({one.digest for one in used.keep}) == ["before", "old"]
    assert kept(used)["old"] == "session bob"


def test_the_same_tag_of_two_people_is_decided_for_each() -> None:
    mine = "jupyter-mine-deb12-py311_2026a"
    of_ada = OwnImages((of_person("hers", mine, dated(30, alias=mine)),), frozenset())
    his = replace(of_person("his", mine, dated(30, alias=mine)), repository=f"{IMAGES}/people/bob")
    of_bob = OwnImages((his,), frozenset({"jupyter-mine-deb12-py311"}))
    made = plan([], [], {}, NOW, POLICY, [of_ada, of_bob])
    assert removed(made) == ["hers"] and list(kept(made)) == ["his"]


@st.composite
def registries(draw: st.DrawFn) -> tuple[list[Stored], list[Stored]]:
    """Any repository: tags point anywhere, attachments at anything, stages stand on anything."""
    digests = draw(st.lists(DIGESTS, unique=True, min_size=1))
    days = st.dates(date(2026, 1, 1), NOW.date())
    day_tags = st.builds(lambda alias, day: f"{alias}_{day:%Y%m%d}", ALIASES, days)
    tags = draw(st.dictionaries(st.one_of(ALIASES, day_tags, st.just("latest")), st.sampled_from(digests), max_size=20))
    layers = st.dictionaries(st.sampled_from("vwxyz"), st.just(1))
    ages = st.one_of(st.none(), st.integers(0, 300).map(lambda age: NOW - timedelta(days=age)))
    images = [
        Stored(
            IMAGES, digest, tuple(tag for tag in tags if tags[tag] == digest), draw(layers), draw(ages),
            subject=draw(st.one_of(st.just(""), DIGESTS)) if digest not in tags.values() else "",
            content=draw(st.one_of(st.just(""), DIGESTS.map("s".__add__))),
        )
        for digest in digests
    ]  # fmt: skip
    names = st.sampled_from(["", "base", "top"])
    stages = [
        Stored(
            STAGES, f"s{digest}", draw(st.sampled_from([(), ("unfinished",), ("key",)])), draw(layers), draw(ages),
            name=draw(names), parent=draw(st.one_of(st.just(""), DIGESTS.map("s".__add__))),
        )
        for digest in draw(st.lists(DIGESTS, unique=True))
    ]  # fmt: skip
    return images, stages


@pytest.mark.slow
@given(registries(), st.sets(DIGESTS), st.integers(1, 4), st.integers(0, 100))
def test_nothing_that_is_needed_ever_goes(
    registry: tuple[list[Stored], list[Stored]], used: set[str], count: int, days: int
) -> None:
    images, stages = registry
    made = plan(images, stages, dict.fromkeys(used, "a session"), NOW, Policy(count, days))
    gone = set(removed(made))
    assert len(made.keep) + len(made.remove) == len(images) + len(stages)
    assert not gone & used
    kept_images = [image for image in images if image.digest not in gone]
    for item in images:
        if item.subject and item.subject not in gone and any(i.digest == item.subject for i in images):
            assert item.digest not in gone
        undated = [tag for tag in item.tags if not tag[-8:].isdigit()]
        # An alias without any dated tag can't be told from a tag that somebody else made: it stays as well.
        assert not (undated and item.digest in gone)
    for item in stages:
        if item.digest in gone and "key" in item.tags:
            assert not any(image.content == item.digest for image in kept_images)
            assert not any(child.parent == item.digest for child in stages if child.digest not in gone)
            assert not any(item.layers.keys() <= image.layers.keys() for image in kept_images if not image.subject)
    staying = {layer for item in (*images, *stages) if item.digest not in gone for layer in item.layers}
    lost = {layer for item in (*images, *stages) if item.digest in gone for layer in item.layers} - staying
    assert made.bytes == len(lost)


@pytest.mark.slow
@given(registries(), st.integers(1, 4), st.integers(0, 100))
def test_what_stays_is_decided_once(registry: tuple[list[Stored], list[Stored]], count: int, days: int) -> None:
    """A second prune right after the first finds nothing to do."""
    policy = Policy(count, days)
    gone = set(removed(plan(*registry, {}, NOW, policy)))
    left = [[item for item in part if item.digest not in gone] for part in registry]
    assert removed(plan(left[0], left[1], {}, NOW, policy)) == []


@pytest.mark.parametrize("more", [1, 5])
def test_a_more_generous_policy_never_removes_more(more: int) -> None:
    images = [image(str(age), dated(age), age=age) for age in range(0, 60, 3)]
    few, many = (set(removed(plan(images, [], {}, NOW, Policy(n, n)))) for n in (2, 2 + more))
    assert many < few


def test_the_signature_of_a_stage_stays_as_long_as_the_stage() -> None:
    old = NOW - timedelta(days=100)
    stages = [
        Stored(STAGES, "stage", ("key",), {"x": 1}, old),
        Stored(STAGES, "signed", ("key.signature",), {}, None, "stage"),
    ]
    with_image = plan([image("image", ALIAS, dated(1), layers="x")], stages, {}, NOW, POLICY)
    assert not removed(with_image)
    assert sorted(removed(plan([], stages, {}, NOW, POLICY))) == ["signed", "stage"]
