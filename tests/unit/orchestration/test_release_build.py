"""When a build of a release has failed: by what was tried, not by what this machine can't build."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pytest
from prefect.logging.loggers import disable_run_logger
from pydantic import TypeAdapter

from flows.catalog.load import load_catalog
from flows.catalog.model import Catalog, Profile
from flows.core.database import open_database
from flows.core.errors import RefitError, Vanished
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.builder.failures import failure
from flows.images.distributed.job_queue import Outcome
from flows.images.grafting.layer_cache import NotCarried
from flows.images.ledger import Ledger
from flows.images.plan import Action, Plan, Step
from flows.images.run import Run, opened
from flows.images.stages import Graph, Kind, Stage
from flows.orchestration import release_build
from flows.orchestration.admission import Share
from flows.orchestration.release_build import build_release, build_stage, carry_out
from flows.publishing.published import Published
from flows.releases.outcomes import Attempt, Outcomes
from flows.releases.plan import NotBuildable, ReleasePlan
from flows.releases.report import BuildFailed, BuildReport, has_failed
from tests.support.machine import ROOT
from tests.support.small_registry import HELLO, server

IMAGE = Published("runtime-one", "runtime-one_2026a_20261121", "sha256:a", "sha256:b", 110_200_000, True, 9.5)
NO_WAY = {"rstudio-r": "https://nowhere/rstudio.deb: it answers 403"}
LOST = {"runtime-two": "no disk"}


@pytest.mark.parametrize(
    ("report", "named", "failed"),
    [
        (BuildReport((IMAGE,), (), {}), False, False),
        (BuildReport((IMAGE,), (), LOST), False, True),
        (BuildReport((IMAGE,), (), {}, unbuildable=NO_WAY), False, False),
        (BuildReport((IMAGE,), (), {}, unbuildable=NO_WAY), True, True),
        (BuildReport((), (), {}, unbuildable=NO_WAY), False, True),
    ],
)
def test_what_this_machine_cant_build_is_no_failure_unless_it_was_named_or_all_there_is(
    report: BuildReport, named: bool, failed: bool
) -> None:
    assert has_failed(report, named=named) is failed


def test_both_are_told_apart_and_whatever_was_not_built_has_its_reason() -> None:
    planned = ReleasePlan((), Graph({}, {}), Plan({}), LOST, NO_WAY)
    report = Attempt(planned, Outcomes()).report
    assert (report.failures, report.unbuildable) == (LOST, NO_WAY)
    tried = pickle.loads(pickle.dumps(BuildFailed(BuildReport((IMAGE,), (), LOST, unbuildable=NO_WAY))))
    assert str(tried).startswith("1 of 3 profiles failed.\nruntime-two: no disk\nrstudio-r: https://nowhere/")
    alone = str(BuildFailed(BuildReport((), (), {}, unbuildable=NO_WAY)))
    assert alone.startswith("1 of 1 profiles can't be built here.\nrstudio-r: ") and "Hint: build it on" in alone
    assert str(NotBuildable(planned)).startswith("2 of 2 profiles can't be built here.\n")


def attempt(profiles: Sequence[str], *made: str, **failed: Exception) -> Attempt:
    """The result of an attempt to build some profiles, each with a stage of its own on one base."""
    base, recipes = Built("base", "key", None, "sha256:1"), load_catalog(ROOT)
    any_one = recipes.releases[max(recipes.releases)].profiles[0]
    asked = tuple(replace(any_one, stem=stem) for stem in profiles)
    outcomes = Outcomes({"base": base})
    for stem in profiles:
        image = replace(IMAGE, profile=stem)
        outcomes.stages[stem] = failed.get(stem) or Built(stem, f"key of {stem}", None, "sha256:2", stem not in made)
        outcomes.images[stem] = failed.get(stem, image)
    return Attempt(ReleasePlan(asked, Graph({}, {}), Plan({})), outcomes)


def build(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tries: Callable[[Sequence[str]], Attempt]
) -> BuildReport:
    """The report of a run on the profiles one, two and three, if an attempt at some of them goes as `tries` says."""
    tried: list[Attempt] = []

    def plan(release: str, profiles: Sequence[Profile], recipes: Catalog, run: Run) -> ReleasePlan:
        tried.append(tries([profile.stem for profile in profiles]))
        return tried[-1].planned

    monkeypatch.setattr(release_build, "make_plan", plan)
    monkeypatch.setattr(release_build, "_show_plan", lambda *_: None)
    monkeypatch.setattr(release_build, "carry_out", lambda *_: tried[-1].outcomes)
    share = Share(attempt(["one", "two", "three"]).planned.profiles)
    with opened(settings, date(2026, 11, 22)) as run:
        return build_release("2026a", share, load_catalog(ROOT), run, show_unchanged=True).report


def test_what_no_builder_could_build_either_for_want_of_what_it_takes_is_no_failure() -> None:
    gone, lost, ill = RefitError("curl failed"), RefitError("no disk"), RefitError("it answers nothing")
    stems = ["fine", "gone", "lost", "with-lost", "ill"]
    tried = attempt(stems, "fine", gone=gone, lost=lost, **{"with-lost": lost})
    tops, why = {stem: stem for stem in stems}, "https://nowhere/rstudio.deb: it answers 403"
    doubtful = dict.fromkeys(["fine", "gone", "lost", "ill"], why)
    tried.outcomes.images["ill"] = ill
    report = replace(tried, planned=replace(tried.planned, graph=Graph({}, tops), doubtful=doubtful)).report
    assert [image.profile for image in report.images] == ["fine"]
    assert report.unbuildable == {"gone": f"{why}\ncurl failed"}
    assert report.failures == {"lost": "no disk", "with-lost": "no disk", "ill": "it answers nothing"}


def test_what_went_from_the_mirror_is_resolved_anew_once_and_nothing_else_is_tried_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Vanished("The mirror has no longer what stage 'one' was resolved to.", why="tmux 3.3a-3")
    asked: list[Sequence[str]] = []

    def tries(profiles: Sequence[str]) -> Attempt:
        asked.append(profiles)
        if len(asked) == 1:
            return attempt(profiles, "two", one=gone, three=RefitError("no disk"))
        return attempt(profiles, "one")

    report = build(settings, monkeypatch, tries)
    assert asked == [["one", "two", "three"], ["one"]]
    assert sorted(image.profile for image in report.images) == ["one", "two"]
    assert report.failures == {"three": "no disk"} and list(report.again) == ["one"] and "tmux" in report.again["one"]
    assert sorted(stage.stage for stage in report.stages) == ["base", "one", "two"]


def test_what_goes_twice_has_failed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Vanished("gone", why="tmux")
    report = build(settings, monkeypatch, lambda profiles: attempt(profiles, one=gone))
    assert report.failures == {"one": "gone\ntmux"} and list(report.again) == ["one"]
    assert [image.profile for image in report.images] == ["two", "three"]


def test_a_mirror_that_is_away_then_loses_nothing_of_what_was_made(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, asked = Vanished("gone", why="tmux"), list[Sequence[str]]()

    def tries(profiles: Sequence[str]) -> Attempt:
        asked.append(profiles)
        if len(asked) > 1:
            raise RefitError("the mirror doesn't answer")
        return attempt(profiles, one=gone)

    report = build(settings, monkeypatch, tries)
    assert report.failures == {"one": "gone\ntmux"}
    assert [image.profile for image in report.images] == ["two", "three"]


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ("E: Version '3.3a-3' for 'tmux' was not found", "tmux 3.3a-3"),
        ("Error: Unable to find a match: editor-2:1.1-1.el9.noarch", "editor-2:1.1-1.el9.noarch"),
        ("Not as resolved: tmux=3.3a-4", "tmux=3.3a-4"),
        ("make: *** Error 2", ""),
    ],
)
def test_that_something_went_is_known_by_what_programs_say(settings: Settings, said: str, gone: str) -> None:
    failed = ProgramFailed(["buildah", "build"], "failed", said, settings.home / "log", 1)
    error = failure(settings, Stage("top", Kind.instructions, "base", "RUN x"), "STEP 2/3", failed, Path("/log"))
    assert isinstance(error, Vanished) is bool(gone) and gone in error.why


def test_that_it_went_is_known_from_other_builders_too() -> None:
    told = TypeAdapter(Outcome).validate_json(TypeAdapter(Outcome).dump_json(Outcome.failed(Vanished("gone"), "b2")))
    with pytest.raises(Vanished, match="b2"):
        told.result()
    with pytest.raises(RefitError) as caught:
        Outcome.failed(RefitError("no disk"), "b2").result()
    assert not isinstance(caught.value, Vanished)


BASE = Stage("base", Kind.bootstrap, None, "ADD base.tar /")
CLOSED = {
    name: Stage(name, Kind.closed, parent, "RUN true")
    for name, parent in (("python", "base"), ("files", "python"), ("odd", "python"), ("on odd", "odd"))
}


class Grafting(Builder):
    """Builds whatever it is asked for, and grafts all but what is odd."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def build(self, stage: Stage, parent: Built | None) -> Built:
        self.asked.append(f"build {stage.name}")
        return Built(stage.name, f"key of {stage.name}", "layer", "sha256:a")

    def graft(self, stage: Stage, parent: Built) -> Built:
        self.asked.append(f"graft {stage.name}")
        if stage.name == "odd":
            raise NotCarried("it doesn't fit")
        return Built(stage.name, f"key of {stage.name}", "layer", "sha256:a", reused=False)


@dataclass
class Done:
    """A task that has ended, as Prefect shows it."""

    outcome: object

    def add_done_callback(self, call: Callable[[Done], None]) -> None:
        call(self)

    def result(self, *, raise_on_failure: bool) -> object:
        return self.outcome


def test_what_cannot_be_grafted_along_is_left_to_a_task_of_its_own() -> None:
    builder, above = Grafting(), [CLOSED[name] for name in ("files", "odd", "on odd")]
    with disable_run_logger():
        made = build_stage.fn(CLOSED["python"], None, builder, above)
    assert builder.asked == ["build python", "graft files", "graft odd"]
    assert [*made] == ["python", "files"] and made["files"].grafted


@pytest.mark.parametrize("graft", [True, False])
def test_stages_that_are_grafted_on_each_other_are_one_task(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, graft: bool
) -> None:
    steps = {name: Step(name, Action.graft, layer="layer") for name in CLOSED}
    graph, builder, tasks = Graph({"base": BASE, **CLOSED}, {}), Grafting(), list[list[str]]()

    def submit(stage: Stage, parent: Built | None, _: Builder, above: Sequence[Stage]) -> Done:
        tasks.append([one.name for one in (stage, *above)])
        assert (parent.stage if parent else None) == stage.parent
        return Done(build_stage.fn(stage, parent, builder, above))

    monkeypatch.setattr(release_build.build_stage, "submit", submit)
    planned = ReleasePlan((), graph, Plan({"base": Step("base", Action.build), **steps}))
    with server(lambda _: HELLO) as port, disable_run_logger():
        here = settings.model_copy(update={"registry_port": port})
        with opened(here, date(2026, 11, 22), graft=graft) as run:
            outcomes = carry_out(planned, run)
    assert sorted(outcomes.stages) == sorted(graph.stages) and not outcomes.images
    assert len(outcomes.built) == len(graph.stages)
    together = [["base"], ["python", "files", "odd", "on odd"], ["odd"], ["on odd"]]
    assert tasks == (together if graft else [["base"], ["python"], ["files"], ["odd"], ["on odd"]])


def test_stages_are_counted_whoever_carries_a_plan_out(settings: Settings) -> None:
    stages = {name: Stage(name, Kind.instructions, None, "RUN true") for name in ("lower", "upper")}
    steps = {name: Step(name, Action.reuse, key=f"key of {name}", digest="sha256:a") for name in stages}
    with server(lambda _: HELLO) as port:
        here = settings.model_copy(update={"registry_port": port})
        for _ in range(2):
            with opened(here, date(2026, 11, 22)) as run:
                carry_out(ReleasePlan((), Graph(stages, {}), Plan(steps), {}, {}), run)
    assert Ledger(open_database(settings.database)).counts() == {"built": 0, "grafted": 0, "reused": 4}


def test_a_refit_that_is_a_pod_says_that_others_have_to_build_and_publishes_what_is_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_build, "is_pod", lambda _: True)
    graph = Graph({"base": BASE}, {})
    with server(lambda _: HELLO) as port:
        here = settings.model_copy(update={"registry_port": port})
        with opened(here, date(2026, 11, 22)) as run:
            with pytest.raises(RefitError, match="base can't be built by a Refit that is a Pod") as refused:
                carry_out(ReleasePlan((), graph, Plan({"base": Step("base", Action.build)})), run)
            there = Step("base", Action.reuse, key="key of base", digest="sha256:a")
            assert [*carry_out(ReleasePlan((), graph, Plan({"base": there})), run).stages] == ["base"]
    assert "kubernetes.builder_job" in refused.value.hint
