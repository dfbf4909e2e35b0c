"""Volumes of real sessions: the same after a move, and as they were after one that failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.sessions import reconfigure
from flows.sessions.homes.folders import folder_of, ref_of
from flows.sessions.homes.volumes import read_wanted
from flows.sessions.lifecycle import Sessions
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import carry_out, check_nothing_is_left, manifest, to
from tests.support.variants import LIGHT, light

NAME = "vola"
FILL = "echo one >~/notes; echo 1 >/data/rows; echo ours >/scratch/ours; ls ~/models; ! touch ~/models/mine 2>/dev/null"
SPOILS = '[ "$REFIT_REHEARSAL" ] || { rm ~/notes /data/rows /scratch/ours; exit 3; }'
# In its rehearsal it may do with its copies what it likes, and nothing with what is shared.
TRIES = '[ -z "$REFIT_REHEARSAL" ] || { rm ~/notes /data/rows && ! touch /scratch/rehearsed; }'


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("volumes") / "home"
    more = {
        "stop_grace_seconds": 3.0,
        "ready_timeout_seconds": 20.0,
        "rehearsal_memory": 0.5,
        "migration": {"rehearse": True},
    }
    with private_home(folder, registry_server.port, **more) as settings:
        yield settings


def test_home_and_volumes_move_and_go_back_together(
    settings: Settings, registry: Registry, shared: Settings, base: Built
) -> None:
    old, spoils, fine = (light(shared, registry, base, f"v{s}", s) for s in ("true", SPOILS, TRIES))
    executor = MoveExecutor.open(settings)
    sessions: Sessions = executor.sessions
    scratch = folder_of(sessions.homes.make_shared("scratch"))
    volumes = read_wanted(["data:/data", "scratch:/scratch", "models:/home/dev/models:ro"])
    session = sessions.create(NAME, "light-minimal-deb12-py311", "2026a", old, LIGHT, volumes=volumes)
    sessions.execute(NAME, ["sh", "-euc", FILL])
    own, _, models = session.volumes
    before = [manifest(folder) for folder in (session.home, own.ref, models.ref)]

    result = carry_out(executor, to(sessions, NAME, spoils))
    assert result.state is State.rolled_back, result
    assert [
        manifest(folder) for folder in (folder_of(session.home), folder_of(own.ref), folder_of(models.ref))
    ] == before
    assert not (scratch / "ours").exists()  # others may have written there since
    check_nothing_is_left(settings, sessions, executor.journal, NAME)

    result = carry_out(executor, to(sessions, NAME, fine))
    assert result.state is State.cleaned, result
    assert sessions.store.session(NAME).volumes == session.volumes
    assert [
        manifest(folder) for folder in (folder_of(session.home), folder_of(own.ref), folder_of(models.ref))
    ] == before
    assert sessions.execute(NAME, ["cat", "/data/rows"]) == "1\n"
    assert not (scratch / "rehearsed").exists()

    with pytest.raises(RefitError, match=f"{NAME} has it"):
        reconfigure.remove_volume(sessions, f"{NAME}/data", own.ref)
    sessions.remove(NAME)
    assert manifest(folder_of(own.ref)) == before[1]
    again = sessions.create(NAME, "light-minimal-deb12-py311", "2026a", old, LIGHT, volumes=volumes)
    assert again.volumes == session.volumes and sessions.execute(NAME, ["cat", "/data/rows"]) == "1\n"
    with pytest.raises(RefitError, match="runs"):
        reconfigure.add_volumes(sessions, NAME, read_wanted(["more:/more"]))
    sessions.stop(NAME)
    with pytest.raises(RefitError, match="twice"):
        reconfigure.add_volumes(sessions, NAME, read_wanted(["data:/more"]))
    reconfigure.add_volumes(sessions, NAME, read_wanted(["more:/more"]))
    sessions.start(NAME)
    assert sessions.execute(NAME, ["sh", "-c", "touch /more/x && cat /data/rows"]) == "1\n"
    sessions.remove(NAME, purge=True)
    assert not folder_of(own.ref).exists() and scratch.is_dir()
    reconfigure.remove_volume(sessions, "scratch", ref_of(scratch))
    assert not scratch.exists()
