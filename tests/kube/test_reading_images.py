"""Images are read in Pods, and what was installed by hand in a session is told by comparing it with its image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.compatibility.changes import hand_made
from flows.compatibility.scan import of_image
from flows.core.settings import Settings
from flows.sessions import engines
from flows.sessions.kubernetes import manifests
from flows.sessions.model import Session
from tests.support import cluster_images
from tests.support.cluster import Lab, kubectl
from tests.support.cluster_moves import give_up_namespace, running, settings_for_cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
MORE = "/tmp/more"
_METADATA = "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"


@pytest.fixture
def settings(cluster: Lab, tmp_path: Path) -> Iterator[Settings]:
    yield settings_for_cluster(tmp_path / "refit")
    give_up_namespace()


@pytest.fixture
def session(settings: Settings, tmp_path: Path) -> Iterator[Session]:
    """A session that runs, in which Python looks for packages in one folder more."""
    image = cluster_images.push("reads", ":", tmp_path)
    with running(settings, "read", image, {"PYTHONPATH": MORE}) as session:
        yield session


def test_packages_that_were_installed_by_hand_are_named_with_how_to_install_them_again(
    settings: Settings, session: Session
) -> None:
    engine = engines.engine(settings)
    before = hand_made(settings, engine, session)
    assert not before and not before.files_known  # which other files were changed, nobody can tell there
    make = f"mkdir -p {MORE}/thing-1.0.dist-info && cat >{MORE}/thing-1.0.dist-info/METADATA"
    engine.execute(session.container, ["sh", "-c", make], stdin=_METADATA)
    after = hand_made(settings, engine, session)
    assert after.python.added == {"thing": "1.0"} and "thing==1.0" in "".join(after.recipe)


def test_an_image_is_read_once_and_nothing_stays(settings: Settings, session: Session) -> None:
    facts = of_image(settings, session.image)
    assert "/bin/sh" in facts.files and facts.programs["python3"]
    wait_until(lambda: not kubectl("get", "pods", "-l", f"{manifests.KIND}=trial", "-o", "name"))
    assert not [*settings.folder("rehearsals").iterdir()]
    assert of_image(settings, session.image) == facts
