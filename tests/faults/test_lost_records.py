"""The database is lost, whatever happened just then: sessions go on, and are on record again as they are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from flows.catalog.model import Access
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Phase
from flows.services import doctor_sessions
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.recovery import recover
from tests.support.killing import move_until_killed
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import Scene, furnish, manifest, opened, to
from tests.support.processes import in_a_process
from tests.support.variants import LATE, LIGHT, WAITS

NAME, PROFILE, RELEASE = "ruth", "light-minimal-deb12-py311", "2026a"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    more = {"stop_grace_seconds": 3.0, "warm_memory": 0.0}
    with private_home(tmp_path_factory.mktemp("lost") / "home", registry_server.port, **more) as settings:
        yield settings


@pytest.fixture
def scene(settings: Settings, registry: Registry, shared: Settings, base: Built) -> Iterator[Scene]:
    of_its_own = without_records(settings)
    with opened(of_its_own, NAME) as sessions:
        yield Scene(of_its_own, sessions, registry, shared, base)


def without_records(settings: Settings) -> Settings:
    """The machine with a database in which nothing is."""
    return settings.model_copy(update={"database_url": f"sqlite:///{settings.home}/{uuid4().hex}.db"})


def told(settings: Settings) -> str:
    """The doctor's finding on records; empty: all is well."""
    (finding,) = doctor_sessions.records(settings)
    return "" if finding.ok else finding.seen


def killed(work: Callable[[], object]) -> None:
    """Do something in a process of its own, which is to end by SIGKILL."""
    process = in_a_process(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(("verb", "told_of"), [("create", "homes"), ("start", "containers")])
def test_a_session_whose_creation_was_killed_is_made_after_all(scene: Scene, verb: str, told_of: str) -> None:
    image = scene.image("old")

    def create() -> None:
        sessions = Sessions.open(scene.settings)
        setattr(sessions.engine, verb, lambda _: os.kill(os.getpid(), signal.SIGKILL))
        sessions.create(NAME, PROFILE, RELEASE, image, LIGHT)

    killed(create)
    lost = without_records(scene.settings)
    assert f"of {NAME}: {told_of}" in told(lost)
    sessions = Sessions.open(lost)
    (session,) = recover(sessions)
    assert (session.session, session.runs, session.problem) == (NAME, False, "")
    assert not told(lost) and recover(sessions) == ()
    if not session.container:
        sessions.create(NAME, PROFILE, RELEASE, image, LIGHT)
    assert sessions.running(sessions.start(NAME)) is Running.running


KILLED = [
    ("copy", Phase.intent),
    ("look", Phase.done),
    ("stop", Phase.intent),
    ("snapshot", Phase.intent),
    ("start", Phase.done),
    ("clean", Phase.intent),
]


@pytest.mark.parametrize("access", [LIGHT, LATE], ids=["at once", "late"])
@pytest.mark.parametrize(("step", "phase"), KILLED)
def test_a_session_whose_move_was_killed_goes_on(scene: Scene, step: str, phase: Phase, access: Access) -> None:
    waits = f"{WAITS}; true" if access.late_home else "true"
    old, new, newest = (scene.image(name, waits) for name in ("old", "new", "newest"))
    scene.sessions.create(NAME, PROFILE, RELEASE, old, access)
    furnish(scene.sessions, NAME)
    home, decision = manifest(scene.sessions.store.session(NAME).home), to(scene.sessions, NAME, new)

    move_until_killed(scene.settings, decision, step, phase)
    lost = without_records(scene.settings)
    assert f"of {NAME}: containers" in told(lost)
    sessions = Sessions.open(lost)
    (lost_session,) = recover(sessions)
    assert not lost_session.problem and not told(lost)
    if lost_session.runs:  # and people get in, though the killed run may have closed it
        sessions.wait_ready(sessions.store.session(NAME))
        assert sessions.execute(NAME, ["cat", "project/work.py"])
    session = sessions.start(NAME)
    assert (session.container, manifest(session.home)) == (lost_session.container, home)
    result = MoveExecutor.open(lost).carry_out(replace(to(sessions, NAME, newest), agreed=True))
    assert result.moved, result.reason
    assert manifest(session.home) == home
