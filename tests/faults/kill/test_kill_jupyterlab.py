"""A move of JupyterLab is killed twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.registry import Registry
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.migrations.move_steps import State
from flows.sessions.lifecycle import Sessions
from tests.support.killing import NAME, Scene, check, home_of, move_until_killed, resume, resume_until_killed
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import furnish, to
from tests.support.variants import JUPYTER, variant

OWN = (".cache", ".ipython", ".jupyter", ".local")  # what JupyterLab and its kernels write


@pytest.fixture(scope="module")
def lab(
    registry: Registry,
    jupyter_image: str,
    shared: Settings,
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    """The scene with real JupyterLabs in which somebody has worked."""
    folder = tmp_path_factory.mktemp("lab") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=10.0) as settings:
        sessions, journal = Sessions.open(settings), Journal(open_database(settings.database))
        other = variant(shared, registry, jupyter_image, shared.repository, "the next")
        spoils = ["sh", "-c", "echo spoiled >>project/work.py; exit 3"]
        bad = variant(shared, registry, jupyter_image, shared.repository, "bad", spoils)
        session = sessions.create(NAME, "jupyter-minimal-deb12-py311", "2026a", jupyter_image, JUPYTER)
        try:
            furnish(sessions, NAME)
            sessions.jupyter(session).write_notebook("work.ipynb", ["6 * 7"])
            sessions.jupyter(session).execute("open('from-a-kernel', 'w').write('kept')")
            yield Scene(settings, sessions, journal, (jupyter_image, other), bad, OWN)
        finally:
            sessions.remove(NAME, purge=True)


@pytest.mark.long
def test_jupyterlab_arrives_though_its_move_is_killed_twice(lab: Scene) -> None:
    home, image = home_of(lab), lab.other
    move_until_killed(lab.settings, to(lab.sessions, NAME, image), "snapshot", Phase.intent)
    resume_until_killed(lab, "verify")  # a cell was executed, and nobody has written that down
    resume(lab.settings)
    check(lab, State.cleaned, image, home)
    jupyter = lab.sessions.jupyter(lab.sessions.store.session(NAME))
    assert jupyter.execute("print(open('from-a-kernel').read())") == "kept\n"


@pytest.mark.long
def test_jupyterlab_comes_back_though_its_way_back_is_killed_twice(lab: Scene) -> None:
    home, image = home_of(lab), lab.sessions.store.session(NAME).image
    move_until_killed(lab.settings, to(lab.sessions, NAME, lab.bad), "restore", Phase.intent)
    resume_until_killed(lab, "revive")
    resume(lab.settings)
    check(lab, State.rolled_back, image, home)
