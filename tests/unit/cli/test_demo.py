"""The demo's own catalog and release."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.catalog import load
from flows.cli import demo, services
from flows.core.settings import Settings
from flows.images.build import Built
from flows.releases.report import BuildReport
from tests.support.machine import ROOT


@pytest.mark.slow
def test_the_demo_has_a_release_that_nobody_else_has(tmp_path: Path) -> None:
    demo.copy_catalog(ROOT, tmp_path / "catalog")
    copied = load.load_catalog(tmp_path / "catalog")
    assert list(copied.releases) == [demo.RELEASE]
    assert demo.PROFILE in {profile.stem for profile in copied.releases[demo.RELEASE].profiles}
    assert demo.RELEASE not in load.load_catalog(ROOT).releases


@pytest.mark.slow
def test_a_copy_changes_with_the_recipes_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    demo.copy_catalog(ROOT, first)
    demo.copy_catalog(first, second)
    assert demo._state(first) == demo._state(second)
    (second / "snippets" / "more.j2").write_text("RUN true\n")
    assert demo._state(first) != demo._state(second)
    demo.copy_catalog(first, second)
    assert demo._state(first) == demo._state(second)


def test_nothing_was_built_only_if_nothing_was_grafted_either() -> None:
    reused, grafted = Built("base", "key", None, "digest"), Built("ide", "key", None, "digest", reused=False)
    there, moved = (BuildReport((), (reused, stage), {}) for stage in (reused, grafted))
    assert demo.Story(there, there, (), "", True).built_nothing
    assert not demo.Story(there, moved, (), "", True).built_nothing


def test_the_hub_is_turned_on_in_a_new_home_and_never_against_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    assert services.turn_hub_on(Settings(home=tmp_path)) and file.read_text() == "hub: true\n"
    assert not services.turn_hub_on(Settings(home=tmp_path, hub=False)) and file.read_text() == "hub: true\n"
    file.write_text("registry_port: 5001")
    assert services.turn_hub_on(Settings(home=tmp_path, registry_port=5001))
    assert file.read_text() == "registry_port: 5001\nhub: true\n"


def test_prefect_is_not_imported_before_it_can_be_told_of_its_server(tmp_path: Path) -> None:
    turns = "services.turn_hub_on(Settings(home=Path(sys.argv[1])))"
    imports = (
        "import sys; from pathlib import Path; from flows.cli import services; from flows.core.settings import Settings"
    )
    subprocess.run(
        [sys.executable, "-c", f"{imports}; {turns}; sys.exit('prefect' in sys.modules)", tmp_path], check=True
    )
