"""Closed stages on parents that change: grafted where that is right, made where it isn't, and never told apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from flows import nightly
from flows.catalog import load
from flows.catalog.model import Catalog
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.grafting.configuration import has_layer
from flows.images.grafting.layers import Trees, compare
from flows.images.plan import Plan
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.run import opened
from flows.images.stages import Graph, Kind, Stage, join
from flows.releases.night_report import Night, ReleaseNight
from flows.releases.outcomes import Attempt, Outcomes
from flows.releases.plan import ReleasePlan
from tests.support.machine import RegistryServer

BEGIN = "RUN . /mnt/env.sh; set -eu; umask 022; export SOURCE_DATE_EPOCH=315532800;"
ENVIRONMENT = Stage(
    "environment",
    Kind.closed,
    "below",
    f"{BEGIN} python3 -m venv --without-pip /opt/app-root; echo {{}} > /opt/app-root/contents",
    abi={"python": "py311"},
    writes=("/opt/app-root",),
)
PROGRAM = Stage(
    "program",
    Kind.closed,
    "environment",
    'COPY --chmod=0755 files/start /usr/local/bin/start\nENV PATH=/opt/more:$PATH\nUSER 1001:0\nCMD ["start"]',
    {"files/start": b"#!/bin/sh\nexec sleep infinity\n"},
)
CONFIGURED = Stage("configured", Kind.closed, "environment", 'ENV COLOUR=blue\nCMD ["sleep", "infinity"]')


def environment(contents: str) -> Stage:
    """An environment of its own for each test, so that none finds another's layer."""
    return replace(ENVIRONMENT, text=ENVIRONMENT.text.replace("{}", contents))


def below(builder: Builder, base: Built, script: str) -> Built:
    """A parent that differs from the base by what a script does."""
    return builder.build(Stage("below", Kind.instructions, "base", f"{BEGIN} {script}"), base)


@pytest.fixture(scope="module")
def parents(builder: Builder, base: Built) -> tuple[Built, Built]:
    """Two parents that differ where no layer stands, and in their configuration."""
    one = below(builder, base, "echo one > /etc/one")
    text = f"{BEGIN} echo two > /etc/two; echo 'ann:x:1234:0::/:/bin/sh' >> /etc/passwd\nLABEL two=yes\nEXPOSE 99"
    return one, builder.build(Stage("below", Kind.instructions, "base", text), base)


def test_layers_are_carried_to_another_parent_and_give_what_a_build_gives(
    parents: tuple[Built, Built], builder: Builder, registry: Registry, shared: Settings
) -> None:
    stage = environment("carried")
    first = builder.build(stage, parents[0])
    assert (first.how, first.reason) == ("built", "its layer was never made where its instructions find the same")
    assert [builder.build(leaf, first).how for leaf in (PROGRAM, CONFIGURED)] == ["built", "grafted"]
    grafted = builder.build(stage, parents[1])
    assert (grafted.how, grafted.reason) == ("grafted", f"its layer stood on {parents[0].digest}")
    program, configured = (builder.build(leaf, grafted) for leaf in (PROGRAM, CONFIGURED))
    assert (program.how, configured.how) == ("grafted", "grafted")
    assert builder.compare(stage, parents[1], grafted) == ()
    assert builder.compare(PROGRAM, grafted, program) == ()
    # buildah gives a layer, an empty one, even to what only configures.
    [told] = builder.compare(CONFIGURED, grafted, configured)
    assert (told.sort, json.loads(str(told.old))) == ("history", {**json.loads(str(told.new)), "empty_layer": True})
    # The same content with another key is made again.
    rebuilt = builder.build(replace(stage, abi={**stage.abi, "again": "1"}), parents[1])
    assert rebuilt.how == "built"
    images = (registry.manifest(registry.stages, each.digest) for each in (grafted, rebuilt))
    assert compare(Trees(shared, registry), registry.stages, *images) == ()
    assert rebuilt.digest == grafted.digest


def test_the_configuration_is_that_of_the_new_parent_and_the_instructions(
    parents: tuple[Built, Built], builder: Builder, registry: Registry
) -> None:
    stage = environment("configured")
    builder.build(PROGRAM, builder.build(stage, parents[0]))
    leaf = builder.build(PROGRAM, builder.build(stage, parents[1]))
    assert leaf.grafted
    config = registry.config(registry.stages, registry.manifest(registry.stages, leaf.digest))
    path = next(word for word in config["config"]["Env"] if word.startswith("PATH="))
    assert path.startswith("PATH=/opt/more:/opt/app-root/bin:")
    assert (config["config"]["Labels"]["two"], list(config["config"]["ExposedPorts"])) == ("yes", ["99/tcp"])
    assert config["config"]["User"] == "1001:0"
    assert config["config"]["Cmd"] == ["start"]


def test_a_new_parent_is_compared_with_the_one_before_of_the_same_stage(base: Built, builder: Builder) -> None:
    def on(name: str, script: str) -> tuple[Built, Built]:
        parent = builder.build(Stage(name, Kind.instructions, "base", f"{BEGIN} {script}"), base)
        return parent, builder.build(replace(environment("compared"), parent=name), parent)

    (one, made), (other, carried) = on("one", "echo 1 > /etc/1"), on("other", "echo 2 > /etc/2")
    assert (made.how, carried.reason) == ("built", f"its layer stood on {one.digest}")
    newest, again = on("one", "echo 3 > /etc/1")
    assert again.reason == f"its layer stood on {one.digest}"
    assert on("other", "echo 4 > /etc/2")[1].reason == f"its layer stood on {other.digest}"
    assert on("one", "echo 5 > /etc/1")[1].reason == f"its layer stood on {newest.digest}"


@pytest.mark.parametrize(
    ("script", "path"),
    [("chmod 0775 /opt", "/opt"), ("echo other > /opt/app-root/contents", "/opt/app-root/contents")],
)
def test_what_doesnt_fit_is_made(
    script: str, path: str, base: Built, parents: tuple[Built, Built], builder: Builder
) -> None:
    stage = environment(f"not on {path}")
    assert builder.build(stage, parents[0]).how == "built"
    again = builder.build(stage, below(builder, base, script))
    assert again.how == "built"
    assert again.reason.startswith(f"its layer doesn't fit: {path}: ")


def test_a_folder_that_became_a_link_is_no_place_for_a_layer(base: Built, builder: Builder) -> None:
    with pytest.raises(RefitError, match="writes where it may not"):
        builder.build(environment("linked"), below(builder, base, "mv /opt /srv/opt; ln -s /srv/opt /opt"))


def test_a_stage_that_writes_where_it_may_not_fails(parents: tuple[Built, Built], builder: Builder) -> None:
    stage = environment("stray")
    with pytest.raises(RefitError, match="writes where it may not") as caught:
        builder.build(replace(stage, text=f"{stage.text}; echo stray > /etc/stray; chmod 0775 /opt"), parents[0])
    assert "/etc/stray: outside of /opt/app-root" in caught.value.why
    assert "/opt: the layer makes it a folder of 0:0, mode 0775" in caught.value.why


def test_programs_with_other_variables_are_run_again(parents: tuple[Built, Built], builder: Builder) -> None:
    stage = environment("other variables")
    other = builder.build(Stage("below", Kind.instructions, "base", f"{BEGIN} true\nENV PATH=/two:$PATH"), parents[0])
    assert [builder.build(stage, parent).how for parent in (parents[0], other, parents[1])] == [
        "built",
        "built",
        "grafted",
    ]


def test_nothing_is_grafted_where_that_is_not_wanted(
    parents: tuple[Built, Built], builder: Builder, shared: Settings, registry: Registry
) -> None:
    stage = environment("not grafted")
    builder.build(stage, parents[0])
    again = Builder(shared, registry, graft=False).build(stage, parents[1])
    assert (again.how, again.reason) == ("built", "grafting was not wanted")


def test_a_layer_that_the_registry_lost_is_made_again_by_the_next_run(
    parents: tuple[Built, Built],
    builder: Builder,
    shared: Settings,
    registry: Registry,
    registry_server: RegistryServer,
) -> None:
    stage = environment("lost")
    first = builder.build(stage, parents[0])
    layer = registry.manifest(registry.stages, first.digest).document["layers"][-1]["digest"]
    links = registry_server.storage.rglob(f"_layers/sha256/{layer.removeprefix('sha256:')}/link")
    for link in [*links]:
        link.unlink()
    again = Builder(shared, registry).build(stage, parents[1])
    assert (again.how, again.reason) == ("built", "the registry has lost its layer")


def test_a_graft_that_differs_from_a_build_is_bad_news_of_its_night(
    parents: tuple[Built, Built], base: Built, builder: Builder, shared: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = date(2026, 11, 25)
    monkeypatch.setattr(nightly, "compare_graft", nightly.compare_graft.fn)
    bottom, below = (Stage(name, Kind.instructions, on, "") for name, on in (("base", None), ("below", "base")))
    graph = join({"environment": [bottom, below, environment("proven")]})
    builder.build(environment("proven"), parents[0])
    right = builder.build(environment("proven"), parents[1])
    wrong = replace(right, digest=builder.build(environment("another"), parents[1]).digest)
    told = list[Mapping[str, str]]()
    for image in (right, wrong):
        assert image.grafted
        attempt = Attempt(ReleasePlan((), graph, Plan({})), Outcomes({"below": parents[1], "environment": image}))
        with opened(shared, night) as run:
            proof = nightly._prove(attempt, run)
        assert proof and (proof.stage, proof.problem) == ("environment", "")
        told.append(Night(night, releases=(ReleaseNight("2026a", attempt.report, proof=proof),)).failures)
    assert told[0] == {} and list(told[1]) == ["graft of environment of 2026a"]
    assert "opt/app-root/contents" in told[1]["graft of environment of 2026a"]


def test_a_graft_asks_the_registry_for_no_more_than_it_needs(
    base: Built, builder: Builder, shared: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [replace(environment(f"asked {number}"), name=f"asked{number}") for number in range(3)]
    first, second = (below(builder, base, f"echo {number} > /etc/one") for number in (1, 2))
    for stage in layers:
        builder.build(stage, first)
    asked = list[str]()
    follow = Registry._follow

    def noted(registry: Registry, method: str, url: object, *words: Any, **more: Any) -> Any:
        *_, kind, name = str(url).partition("?")[0].rstrip("/").rsplit("/", 2)
        asked.append(f"{method} {'signature' if name.endswith('.signature') else name.partition('-')[0][:6]} of {kind}")
        return follow(registry, method, url, *words, **more)

    registry = Registry(shared)
    run = Builder(shared, registry)
    run.plan(Graph({}, {}))
    monkeypatch.setattr(Registry, "_follow", noted)
    for stage in layers:
        asked.clear()
        carried = run.build(stage, second)
        assert carried.grafted
    # Its layer, its configuration, and three manifests: the layer's note, the signature, the stage itself.
    kinds = [line.split(" of ")[0].split()[0] + " " + line.split(" of ")[1] for line in asked]
    assert kinds == [
        *("GET manifests", "HEAD blobs"),
        "PUT manifests",
        *("POST blobs", "PUT uploads"),
        *("PUT manifests", "PUT manifests"),
    ], asked
    assert not [line for line in asked if line.startswith("GET signature")]


# With Python packages, with npm's, with a stage that is one of another name. No layer has the files of the patch.
REAL = ("jupyter-minimal", "vscode-minimal", "terminal-minimal")
PATCH = "USER 0\nRUN echo patched | tee -a /usr/share/common-licenses/GPL-3 /usr/lib/os-release\n"


@pytest.mark.long
def test_every_graft_of_real_images_on_a_patched_base_is_what_a_build_gives(
    catalog: Catalog, assembler: Assembler, builder: Builder
) -> None:
    stems = [f"{name}-deb12-py311" for name in REAL]
    graph = join({stem: assembler.chain(load.profile(catalog, "2026a", stem)) for stem in stems})
    build_graph(builder, graph)
    [base] = (stage for stage in graph.stages.values() if stage.parent is None)
    patched = replace(graph, stages={**graph.stages, base.name: replace(base, text=f"{base.text}\n{PATCH}")})
    built = build_graph(builder, patched)
    closed = [stage for stage in patched.stages.values() if stage.kind is Kind.closed and has_layer(stage.text)]
    assert {built[stage.name].how for stage in closed} <= {"grafted", "reused"}  # those that are one of another name
    for stage in closed:
        assert builder.compare(stage, built[str(stage.parent)], built[stage.name]) == (), stage.name


def build_graph(builder: Builder, graph: Graph) -> dict[str, Built]:
    """All stages, parents before children."""
    built = dict[str, Built]()
    for stage in graph.stages.values():
        built[stage.name] = builder.build(stage, built[stage.parent] if stage.parent else None)
    return built
