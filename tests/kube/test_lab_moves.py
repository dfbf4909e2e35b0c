"""JupyterLab itself moves in a cluster, with all steps of a move: rehearsed, warm, proven by a cell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import lab
from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.policy import RolloutPolicy
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.migrations.move_steps import State, StepName
from flows.sessions.lifecycle import Sessions
from tests.support import variants
from tests.support.cluster import REGISTRY, REPOSITORY, Lab, copy_image
from tests.support.cluster_moves import NAME, give_up_namespace, settings_for_cluster
from tests.support.moving import carry_out, to

pytestmark = [pytest.mark.long]


@pytest.fixture(scope="module")
def images(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, str], str, Access]:
    """The catalog's first image and another one like it, the stem of its profile, and how it is reached."""
    folder = tmp_path_factory.mktemp("lab")
    with lab.lab() as here:
        digests = here.origin, here.image("the next")
        for number, digest in enumerate(digests):
            source = f"docker://{here.settings.registry_host}/{here.settings.repository}@{digest}"
            assert copy_image(source, f"lab-{number}", folder) == digest
        return digests, here.profile.stem, here.profile.ide.config.access


@pytest.fixture(scope="module")
def settings(
    images: tuple[tuple[str, str], str, Access], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """The session `ada` with JupyterLab, on the first of two images."""
    digests, stem, access = images
    rehearsed = RolloutPolicy(keep_hours=0)
    settings = settings_for_cluster(
        tmp_path_factory.mktemp("moves") / "refit",
        migration=rehearsed,
        ready_timeout_seconds=120.0,
        rehearsal_memory=1.0,
    )
    registry = Registry(settings)
    assert (settings.registry_host, settings.repository) == (REGISTRY, REPOSITORY)
    for digest in digests:
        labels = {"io.refit.profile": stem, "io.refit.release": lab.RELEASE}
        variants.sign(settings, registry, registry.manifest(settings.repository, digest), labels)
    sessions = Sessions.open(settings)
    sessions.create(NAME, stem, lab.RELEASE, digests[0], access)
    yield settings
    sessions.remove(NAME, purge=True)
    give_up_namespace()


def test_jupyterlab_moves_warm_and_proves_itself_by_a_cell(
    settings: Settings, images: tuple[tuple[str, str], str, Access]
) -> None:
    sessions = Sessions.open(settings)
    sessions.execute(NAME, ["sh", "-c", "echo kept >notes"])
    result = carry_out(MoveExecutor.open(settings), to(sessions, NAME, images[0][1]))
    assert result.state is State.cleaned, result.reason
    journal = Journal(open_database(settings.database))
    entries = journal.entries(journal.latest()[NAME])
    notes = {entry.step: entry.note for entry in entries if entry.phase is Phase.done}
    assert "not warm" not in notes[StepName.warm] and "rehearsed in" in notes[StepName.rehearse]
    session = sessions.store.session(NAME)
    assert session.image == images[0][1]
    assert sessions.execute(NAME, ["cat", "notes"]) == "kept\n"
    assert sessions.jupyter(session).execute("open('notes').read()").strip() == r"'kept\n'"
    print(f"away for {result.downtime} s")
