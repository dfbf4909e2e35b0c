"""The demo's own catalog and release."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.model import Access
from flows.cli import demo, services
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.images.build import Built
from flows.migrations import start_sessions
from flows.releases.report import BuildReport
from flows.sessions.homes.folders import ref_of
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session, TokenRef
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


def test_prefect_is_not_imported_before_it_can_be_told_of_its_server(tmp_path: Path) -> None:
    asks = "print(len(services.services.all_services(Settings(home=Path(sys.argv[1])))))"
    imports = (
        "import sys; from pathlib import Path; from flows.cli import services; from flows.core.settings import Settings"
    )
    subprocess.run(
        [sys.executable, "-c", f"{imports}; {asks}; sys.exit('prefect' in sys.modules)", tmp_path], check=True
    )


def test_up_names_the_sessions_of_a_home_from_before_logins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(home=tmp_path)
    monkeypatch.setattr("flows.services.up", lambda _: ())
    for name in ("serve", "_show_services", "_show_link"):
        monkeypatch.setattr(services, name, lambda *_: None)
    store = Sessions.open(settings).store
    store.add("notes", lambda uid: session("notes", uid, tmp_path), uids=Span(first=300_000, last=300_999))
    monkeypatch.setattr(start_sessions, "start_all", lambda _: {})
    assert services._up(settings)
    said = " ".join(capsys.readouterr().err.split())
    assert "lets none of them in to notes" in said and "`refit session owner SESSION NAME`" in said
    assert services._up(settings.model_copy(update={"hub": False}))
    assert "notes" not in capsys.readouterr().err


def session(name: str, uid: int, folder: Path) -> Session:
    digest = f"sha256:{64 * 'a'}"
    return Session(
        name, "p", "2026a", digest, uid, ref_of(folder / name), TokenRef(str(folder / "token")), Access(port=8888), {}
    )


def test_the_words_of_help_need_no_hub() -> None:
    """It takes half a second of CPU to be imported."""
    run = "import sys; from flows.cli.main import main; sys.argv = ['refit', '--help']"
    end = "import atexit; atexit.register(lambda: print('jupyterhub' in sys.modules))"
    told = subprocess.run([sys.executable, "-c", f"{run}; {end}; main()"], check=True, capture_output=True, text=True)
    assert told.stdout.rstrip().endswith("False")
