"""The engine of sessions, chosen by a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings, load
from flows.core.settings.cluster import SessionEngine
from flows.publishing.container_checks import ContainerLook
from flows.publishing.trial_checks import TrialLook
from flows.sessions import engines
from flows.sessions.engine_choice import choose
from flows.sessions.homes.folders import ref_of
from flows.sessions.kubernetes import ownership
from flows.sessions.model import Session, TokenRef
from flows.sessions.store import Store
from tests.support.command_line import in_process


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("REFIT_HOME", str(tmp_path / "refit"))
    return load()


@pytest.mark.parametrize("engine", SessionEngine)
@pytest.mark.parametrize("inside", [False, True])
def test_images_are_looked_at_in_pods_where_refit_is_one(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: SessionEngine, inside: bool
) -> None:
    if inside:
        (tmp_path / "token").touch()
    monkeypatch.setattr(ownership, "_SERVICE_ACCOUNT", tmp_path / "token")
    look = engines.image_look(settings.model_copy(update={"engine": engine}))
    pods = inside and engine is SessionEngine.kubernetes
    assert type(look) is (TrialLook if pods else ContainerLook)


def test_it_is_written_behind_what_stands_there(settings: Settings) -> None:
    file = settings.folder() / "settings.yaml"
    file.write_text("# mine\nkubernetes:\n  namespace: here")
    after = choose(SessionEngine.kubernetes, load())
    assert after.engine is SessionEngine.kubernetes and after.kubernetes.namespace == "here"
    assert file.read_text() == "# mine\nkubernetes:\n  namespace: here\nengine: kubernetes\n"
    assert choose(SessionEngine.kubernetes, after) == after
    assert file.read_text().count("engine:") == 1


def test_one_that_a_person_has_written_is_not_overwritten(settings: Settings) -> None:
    file = settings.folder() / "settings.yaml"
    file.write_text("engine: podman\n")
    with pytest.raises(RefitError, match="sessions run on podman"):
        choose(SessionEngine.kubernetes, load())
    assert file.read_text() == "engine: podman\n"


def test_a_variable_goes_before_the_file(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_ENGINE", "podman")
    with pytest.raises(RefitError, match="sessions run on podman"):
        choose(SessionEngine.kubernetes, load())


def test_sessions_that_are_there_are_named(settings: Settings, tmp_path: Path) -> None:
    store = Store(open_database(settings.database))
    session = Session(
        "ada",
        "p",
        "2026a",
        f"sha256:{'0' * 64}",
        300_000,
        ref_of(tmp_path),
        TokenRef(str(tmp_path / "token")),
        Access(),
    )
    store.add("ada", lambda uid: session, uids=settings.session_uids)
    with pytest.raises(RefitError, match="There are sessions on podman: ada"):
        choose(SessionEngine.kubernetes, settings)
    assert not (settings.home / "settings.yaml").exists()


def test_the_command_knows_no_other_engine(tmp_path: Path) -> None:
    done = in_process(tmp_path / "refit", "up", "--engine", "docker")
    assert done.returncode == 1 and "There is no engine 'docker'" in done.stderr
    assert "podman, kubernetes" in done.stderr
