"""The part of a release that can be planned when another can't."""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Barrier

import pytest
import yaml

from flows.catalog import load
from flows.catalog.model import Base, Download, Profile
from flows.core.errors import RefitError
from flows.core.progress import Report, State, listening
from flows.core.settings import Settings
from flows.images import stages
from flows.images.plan import Action, Plan, Step
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Graph, Kind, Stage
from flows.locks import freshness, python_lockfile
from flows.releases.plan import assemble, chosen, foreign, lacking, plan_release, read_catalog
from tests.support.waiting import PATIENCE, free_port, serving

ROOT = Path(__file__).parents[3]
IDES = ("jupyter", "runtime")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A catalog whose release ships `minimal`, and `other` with a Pipfile that its lock was not made of."""
    for part in ("base", "bundles", "ides", "snippets", "releases"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copytree(tmp_path / "bundles/1-minimal", tmp_path / "bundles/2-other")
    pipfile = tmp_path / "bundles/2-other/py311/Pipfile"
    pipfile.write_text(pipfile.read_text().replace("[packages]\n", '[packages]\nsix = "*"\n'))
    choices = [
        {"ide": ide, "bundle": bundle, "os": "deb12", "python": "py311"}
        for bundle in ("minimal", "other")
        for ide in IDES
    ]
    (tmp_path / "releases/2026a.yaml").write_text(yaml.safe_dump({"release": "2026a", "profiles": choices}))
    return tmp_path


def test_profiles_of_a_bundle_that_has_to_be_locked_stop_no_others(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "resolve", lambda base, settings: ("python3=3.11",))
    recipes = load.load_catalog(root)
    chains, problems = assemble(recipes.releases["2026a"].profiles, recipes, settings)
    assert set(chains) == {f"{ide}-minimal-deb12-py311" for ide in IDES}
    assert set(problems) == {f"{ide}-other-deb12-py311" for ide in IDES}
    assert all("it was made of another Pipfile" in str(error) for error in problems.values())


def test_a_lock_that_its_release_forbids_is_in_no_image(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "resolve", lambda base, settings: ("python3=3.11",))
    first = {"bundles": {"minimal": {"py311": {"packages": {"requests": "2.0.0"}}}}}
    (root / "releases/2026a.lock").write_text(json.dumps(first))
    recipes = load.load_catalog(root)
    chains, problems = assemble(recipes.releases["2026a"].profiles, recipes, settings)
    assert not chains
    assert "requests would be" in str(problems["runtime-minimal-deb12-py311"])


def test_a_mirror_that_does_not_answer_is_asked_once(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def resolve(base: Base, settings: Settings) -> tuple[str, ...]:
        asked.append(base.name)
        raise RefitError("The mirror doesn't answer.")

    monkeypatch.setattr(freshness, "resolve", resolve)
    recipes = load.load_catalog(root)
    chains, problems = assemble(recipes.releases["2026a"].profiles, recipes, settings)
    assert not chains and len(problems) == 4
    assert asked == ["deb12"]


def test_sets_of_packages_are_resolved_at_once_after_those_that_they_stand_on_and_progress_is_told(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, asked, told = Barrier(2, timeout=PATIENCE), list[tuple[str, ...]](), list[Report]()

    def resolve(base: Base, settings: Settings) -> tuple[str, ...]:
        asked.append(base.packages)
        if len(base.packages) > len(ground.packages):
            together.wait()
        return tuple(f"{name}=1" for name in base.packages)

    monkeypatch.setattr(freshness, "resolve", resolve)
    monkeypatch.setattr("flows.releases.plan._AT_ONCE", 2)
    recipes = load.load_catalog(root)
    profile = load.profile(recipes, "2026a", "runtime-minimal-deb12-py311")
    (_, ground), *_ = Assembler(recipes, resolve).system_sets(profile)
    minimal = recipes.bundles["minimal"]
    profiles = [
        replace(profile, stem=f"runtime-{name}", bundle=replace(minimal, name=name, packages=(name,)))
        for name in ("tmux", "zsh")
    ]
    with listening(told.append):
        chains, problems = assemble(profiles, recipes, settings)
    assert not problems and len(chains) == 2
    assert asked[0] == ground.packages
    assert sorted(asked[1:]) == [(*ground.packages, "tmux"), (*ground.packages, "zsh")], "each once"
    names = {f"packages of {name}" for name in ("base-deb12-py311", "tmux-os-deb12-py311", "zsh-os-deb12-py311")}
    assert {one.thing for one in told if one.state is State.done} == names
    assert told[0].state is State.running


@pytest.mark.slow
def test_without_a_registry_nothing_is_resolved(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "resolve", lambda base, settings: pytest.fail("it was resolved"))
    away = settings.model_copy(update={"registry": f"127.0.0.1:{free_port()}"})
    with pytest.raises(RefitError, match="doesn't answer"):
        recipes = read_catalog(root)
        plan_release("2026a", chosen(recipes, "2026a", ()), recipes, away, Registry(away), tolerant=True)


class Shelf(BaseHTTPRequestHandler):
    """Has one file."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/there" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_profile_that_takes_what_cant_be_had_here_is_told_unless_it_is_there_already(settings: Settings) -> None:
    recipes = load.load_catalog(ROOT)
    first = recipes.releases["2026a"].profiles[0]

    def taking(name: str, *urls: str) -> Profile:
        downloads = {f"no{n}": Download.model_construct(url=url, sha256="0" * 64) for n, url in enumerate(urls)}
        ide = replace(first.ide, config=first.ide.config.model_copy(update={"downloads": downloads}))
        return replace(first, stem=name, ide=ide)

    with serving(Shelf) as port:
        here, gone = f"http://127.0.0.1:{port}/there", f"http://127.0.0.1:{port}/gone"
        nobody = f"http://127.0.0.1:{free_port()}/file"
        profiles = [taking("fine", here), taking("lost", here, gone, nobody), taking("built", gone), taking("plain")]
        steps = {profile.stem: Step(profile.stem, Action.build) for profile in profiles}
        steps["built"] = Step("built", Action.reuse)
        graph = Graph({name: Stage(name, Kind.closed, None, "") for name in steps}, {name: name for name in steps})
        result = lacking(profiles, graph, Plan(steps), settings)
    assert list(result) == ["lost"]
    assert f"{gone}: it answers 404" in result["lost"].why
    assert f"{nobody}: " in result["lost"].why
    assert here not in result["lost"].why


def test_a_download_is_for_the_machines_that_it_names() -> None:
    own = platform.machine()
    assert foreign("") == foreign(own) == foreign("vax", own) == ""
    assert foreign("vax", "pdp11") == f"it is for vax or pdp11, and this machine is {own}"


def test_cuda_for_other_machines_is_no_reason_not_to_build_the_rest(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    monkeypatch.setattr(freshness, "resolve", lambda base, settings: ("python3=3.11",))
    recipes = load.load_catalog(root)
    plain = load.profile(recipes, "2026a", "runtime-minimal-deb12-py311")
    cuda = replace(plain, stem=f"cuda-{plain.stem}", cuda_level="base")
    chains, problems = assemble([plain, cuda], recipes, settings)
    assert (list(chains), list(problems)) == ([plain.stem], [cuda.stem])
    assert "it is for x86_64 or aarch64, and this machine is vax" in str(problems[cuda.stem])


def test_a_profile_whose_packages_come_from_an_index_that_does_not_answer_is_told_unless_their_wheels_are_here(
    root: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = f"http://127.0.0.1:{free_port()}/whl"
    pipfile = root / "bundles/3-pytorch/py311/Pipfile"
    pipfile.write_text(pipfile.read_text().replace("https://download.pytorch.org/whl/cpu", index))
    monkeypatch.setattr(python_lockfile, "verify", lambda folder: None)
    monkeypatch.setattr(freshness, "resolve", lambda base, settings: ("python3=3.11",))
    recipes = load.load_catalog(root)
    profile = replace(recipes.releases["2026a"].profiles[0], stem="torch", bundle=recipes.bundles["pytorch"])
    chains, _ = assemble([profile], recipes, settings)
    graph = stages.join(chains)
    plan = Plan({name: Step(name, Action.build) for name in graph.stages})
    assert f"{index}/torch/" in lacking([profile], graph, plan, settings)["torch"].why
    (tmp := root / "wheels").mkdir()
    (tmp / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    here = settings.model_copy(update={"wheel_folders": (tmp,)})
    assert not lacking([profile], graph, plan, here)
    assert not lacking([profile], graph, Plan({n: Step(n, Action.reuse) for n in graph.stages}), settings)
