"""Moves whose run is killed (SIGKILL) with the session closed, or away, and which nobody resumes: the waiting page ends
them.

`IngressReopener.open` and `end_abandoned` do so after a while. The tests don't wait for it: they name a later moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from flows.catalog.model import Access
from flows.core.database import now, open_database
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import LOOK_AGE, Phase
from flows.migrations.move_steps import State
from flows.migrations.orphaned_moves import PATIENCE, IngressReopener, end_abandoned
from flows.migrations.recovery import recover_all
from flows.migrations.results import Result
from tests.support.killing import move_until_killed
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import Scene, check_nothing_is_left, furnish, manifest, opened, to
from tests.support.variants import LATE, LIGHT, WAITS
from tests.support.waiting import PATIENTLY

NAME, PROFILE, RELEASE = "ruth", "light-minimal-deb12-py311", "2026a"
SPOILS = "echo spoiled >>project/work.py; exit 3"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    more = {"stop_grace_seconds": 3.0, "ready_timeout_seconds": 20.0, "warm_memory": 0.0}
    with private_home(tmp_path_factory.mktemp("abandoned") / "home", registry_server.port, **more) as settings:
        yield settings


@pytest.fixture
def scene(settings: Settings, registry: Registry, shared: Settings, base: Built) -> Iterator[Scene]:
    with opened(settings, NAME) as sessions:
        yield Scene(settings, sessions, registry, shared, base)


def begun_and_killed(scene: Scene, access: Access, before: str, step: str, phase: Phase) -> object:
    """Let a session begin to move to an image that runs `before` first; returns what was in its home until then."""
    waits = f"{WAITS}; " if access.late_home else ""
    old, new = scene.image("old", f"{waits}true"), scene.image("new", waits + before)
    scene.sessions.create(NAME, PROFILE, RELEASE, old, access)
    furnish(scene.sessions, NAME)
    home = manifest(scene.sessions.store.session(NAME).home)
    move_until_killed(scene.settings, to(scene.sessions, NAME, new), step, phase)
    return home


def journal_of(scene: Scene) -> Journal:
    return Journal(open_database(scene.settings.database))


def end(scene: Scene, later: timedelta) -> tuple[Result, ...]:
    """The waiting page so much later."""
    return end_abandoned(journal_of(scene), lambda: MoveExecutor.open(scene.settings), now() + later)


def gets_in(scene: Scene) -> bool:
    """Whether somebody from outside does."""
    url = scene.sessions.direct_url(scene.sessions.store.session(NAME))
    try:
        return httpx.get(f"{url}/api", **{**PATIENTLY, "timeout": 2}).status_code == 200
    except httpx.TransportError:
        return False


def test_f01_a_session_that_a_killed_run_has_closed_is_open_again_and_its_move_waits(scene: Scene) -> None:
    begun_and_killed(scene, LIGHT, "true", "look", Phase.done)
    assert not gets_in(scene)
    doors = IngressReopener(scene.sessions, journal_of(scene))
    assert doors.open(now()) == ()  # whoever has killed the run may be about to begin the next
    assert doors.open(now() + 2 * LOOK_AGE) == (NAME,)
    assert gets_in(scene)
    assert doors.open(now() + 2 * LOOK_AGE) == () == end(scene, 2 * PATIENCE)
    assert scene.sessions.store.session(NAME).image == scene.image("old")
    (result,) = recover_all(MoveExecutor.open(scene.settings))
    assert result.moved, result.reason


@pytest.mark.parametrize("access", [LIGHT, LATE], ids=["at once", "late"])
@pytest.mark.parametrize(
    ("before", "step", "expected"),
    [
        ("true", "stop", State.cleaned),
        ("true", "start", State.cleaned),
        ("true", "clean", State.cleaned),
        (SPOILS, "restore", State.rolled_back),
    ],
)
def test_f01_a_session_that_a_killed_run_has_left_away_is_brought_back(
    scene: Scene, access: Access, before: str, step: str, expected: State
) -> None:
    home = begun_and_killed(scene, access, before, step, Phase.intent)
    assert end(scene, timedelta()) == ()
    (result,) = end(scene, 2 * PATIENCE)
    assert result.state is expected, result.reason
    check_nothing_is_left(scene.settings, scene.sessions, journal_of(scene), NAME)
    session = scene.sessions.store.session(NAME)
    assert session.image == (result.new if result.moved else result.old)
    assert manifest(session.home) == home
    assert end(scene, 2 * PATIENCE) == ()
