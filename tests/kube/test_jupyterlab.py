"""A real JupyterLab moves in a cluster with all steps of a move: warm, with a snapshot of its home, and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.core.settings.policy import RolloutPolicy
from flows.images.build import Builder
from flows.images.registry import Registry
from flows.images.stages import Stage
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase
from flows.migrations.move_steps import OF_EVERY_MOVE, State, StepName
from flows.migrations.rehearsals.rehearsal import CELL, CELL_SAYS
from tests.support.cluster import NAMESPACE, Lab, copy_image
from tests.support.cluster_moves import NAME, ClusterScene, session_between, settings_for_cluster
from tests.support.machine import FIRST, RegistryServer, build_all
from tests.support.moving import carry_out, to
from tests.support.variants import JUPYTER, WAITS, variant

pytestmark = [pytest.mark.long]
ACCESS = JUPYTER.model_copy(update={"late_home": True})
# JupyterLab itself writes there.
OWN = (".cache", ".ipython", ".jupyter", ".local", ".config")
SPOILS = ["sh", "-c", f"{WAITS}; echo spoiled >>work.py; exit 3"]


@pytest.fixture(scope="module")
def image(builder: Builder, jupyter_chain: tuple[Stage, ...]) -> str:
    """The catalog's first image, in the registry of this process."""
    return build_all(builder, jupyter_chain)[-1].digest


@pytest.fixture(scope="module", params=[Snapshots.none, Snapshots.auto])
def scene(
    image: str,
    registry_server: RegistryServer,
    cluster: Lab,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[ClusterScene]:
    folder = tmp_path_factory.mktemp("jupyterlab")
    settings = settings_for_cluster(
        folder / "refit",
        kubernetes=ClusterSettings(namespace=NAMESPACE, home_gb=1, snapshots=request.param),
        migration=RolloutPolicy(rehearse=True, keep_hours=0),
        ready_timeout_seconds=60.0,
        rehearsal_memory=1.0,
    )
    stage = f"docker://127.0.0.1:{registry_server.port}/{settings.repository}/stages@{image}"
    assert copy_image(stage, "jupyterlab", folder) == image
    registry, labels = Registry(settings), {"io.refit.access": ACCESS.model_dump_json()}
    one, two = (variant(settings, registry, image, settings.repository, name, labels=labels) for name in ("1", "2"))
    bad = variant(settings, registry, image, settings.repository, "bad", SPOILS, labels)
    with session_between(settings, FIRST, ACCESS, (one, two), bad, OWN) as scene:
        yield scene


def notes(scene: ClusterScene) -> dict[str, str]:
    """Step → what its line in the journal says, of the last move."""
    entries = scene.journal.entries(scene.journal.latest()[NAME])
    return {entry.step: entry.note for entry in entries if entry.phase is Phase.done}


def test_it_moves_warm_with_all_of_its_steps(scene: ClusterScene) -> None:
    files, image, pods = scene.files(), scene.other, scene.pods()
    server = scene.sessions.jupyter(scene.sessions.store.session(NAME))
    assert server.execute(CELL).strip() == CELL_SAYS
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
    assert result.state is State.cleaned, result.reason
    scene.check(State.cleaned, image, files)
    told = notes(scene)
    assert [*told] == [step.name for step in OF_EVERY_MOVE]
    assert told[StepName.warm] == "" and told[StepName.rehearse].startswith("rehearsed in")
    assert scene.pods() == pods
    assert scene.sessions.jupyter(scene.sessions.store.session(NAME)).execute(CELL).strip() == CELL_SAYS
    assert result.downtime is not None
    print(f"away for {result.downtime:.2f} s")


def test_an_image_that_fails_is_undone(scene: ClusterScene) -> None:
    files, image = scene.files(), scene.sessions.store.session(NAME).image
    settings = scene.settings.model_copy(update={"migration": RolloutPolicy(rehearse=False, keep_hours=0)})
    result = carry_out(MoveExecutor.open(settings), to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back, result.reason
    if scene.sessions.homes.keeps_snapshots:
        scene.check(State.rolled_back, image, files)
    else:  # what it did to the home is not undone there
        scene.check(State.rolled_back, image, scene.files())
        assert scene.sessions.execute(NAME, ["cat", "work.py"]).endswith("spoiled\n")
