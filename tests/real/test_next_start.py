"""Sessions that get their new image when their owner starts them, and those whose hook says not now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.core.settings.policy import Mode
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move_steps import State
from flows.migrations.rollouts.store import Rollouts
from flows.migrations.start_sessions import start_session
from flows.migrations.switch_profile import go_back, switch_session
from flows.sessions.activity.hook import HOOK, PROOF
from flows.sessions.lifecycle import Sessions
from flows.sessions.wishes import PreferenceStore
from tests.support import moving
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import check_nothing_is_left, to
from tests.support.variants import LIGHT

NAME, PROFILE, RELEASE = "hedy", "light-minimal-deb12-py311", "2026a"
pytestmark = pytest.mark.long


class Scene(moving.Scene):
    """A session on an old image, and a registry in which the newest one of its profile can be chosen."""

    def image(self, name: str, before: str = "true", **labels: str) -> str:
        """An image of the session's profile, if no other is given."""
        return super().image(name, before, **{"profile": PROFILE, "release": RELEASE} | labels)

    def newest(self, image: str, profile: str = PROFILE) -> str:
        """The alias of a profile points at this image from now on, and its rollout has begun."""
        repository = self.settings.repository
        manifest = self.registry.manifest(repository, image)
        self.registry.put_manifest(repository, f"{profile}_{RELEASE}", manifest.content, manifest.media_type)
        Rollouts(open_database(self.settings.database)).begin({(profile, RELEASE): image}, {}, "root")
        return image

    def wish(self, **changes: object) -> None:
        PreferenceStore(open_database(self.settings.database)).change(NAME, "hedy", **changes)

    @property
    def image_now(self) -> str:
        return self.sessions.store.session(NAME).image


@pytest.fixture
def scene(
    registry_server: RegistryServer,
    tmp_path_factory: pytest.TempPathFactory,
    registry: Registry,
    shared: Settings,
    base: Built,
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("starts") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=3.0, ready_timeout_seconds=8.0) as settings:
        scene = Scene(settings, Sessions.open(settings), registry, shared, base)
        scene.sessions.create(NAME, PROFILE, RELEASE, scene.image("next-old"), LIGHT)
        yield scene


def test_f5_a_session_gets_its_new_image_when_it_is_started_and_never_while_it_runs(scene: Scene) -> None:
    old, new = scene.image_now, scene.newest(scene.image("next-new"))
    scene.wish(mode=Mode.next_start)
    session, result = start_session(scene.settings, NAME)
    assert (session.image, result) == (old, None)  # it runs
    scene.sessions.stop(NAME)
    session, result = start_session(scene.settings, NAME)
    assert result and result.moved and session.image == scene.image_now == new
    journal = Journal(open_database(scene.settings.database))
    check_nothing_is_left(scene.settings, scene.sessions, journal, NAME)

    broken = scene.newest(scene.image("next-broken", before="exit 1"))
    scene.sessions.stop(NAME)
    session, result = start_session(scene.settings, NAME)
    assert result and result.state is State.rolled_back and session.image == new
    check_nothing_is_left(scene.settings, scene.sessions, journal, NAME)
    scene.sessions.stop(NAME)
    assert start_session(scene.settings, NAME)[1] is None  # it isn't tried again and again
    assert scene.image_now == new != broken

    scene.newest(scene.image("next-other"))
    scene.wish(mode=Mode.when_idle)
    scene.sessions.stop(NAME)
    assert start_session(scene.settings, NAME)[1] is None  # nobody has asked for it
    scene.sessions.stop(NAME)
    scene.wish(mode=Mode.next_start)
    scene.sessions.store.want(NAME, True)
    assert scene.sessions.up(lambda name: start_session(scene.settings, name)) == {}
    assert scene.image_now not in (old, new)


def test_the_hook_of_a_session_says_not_now_and_hears_of_what_it_cant_stop(scene: Scene) -> None:
    old, new = scene.image_now, scene.image("hook-new")
    script = f"mkdir -p {HOOK.rpartition('/')[0]} && cat >{HOOK} && chmod +x {HOOK}"
    hook = '#!/bin/sh\necho "$1" >>asked\n[ "$1" = now ] || { echo "training ends at 18:00"; exit 75; }\n'
    scene.sessions.execute(NAME, ["sh", "-c", script], stdin=hook)
    executor = MoveExecutor.open(scene.settings)
    result = executor.carry_out(to(scene.sessions, NAME, new))
    assert result.state is State.deferred and result.reason.endswith("says not now: training ends at 18:00")
    assert scene.image_now == old
    agreed = executor.carry_out(replace(to(scene.sessions, NAME, new), agreed=True))
    assert agreed.moved, agreed.reason
    assert scene.sessions.execute(NAME, ["cat", "asked"]).split() == ["whether", "now", "now"]


def test_the_hook_of_a_session_has_the_last_word_on_its_new_image(scene: Scene) -> None:
    old, new = scene.image_now, scene.image("proof-new")
    script = f"mkdir -p {PROOF.rpartition('/')[0]} && cat >{PROOF} && chmod +x {PROOF}"
    hook = '#!/bin/sh\n[ "$REFIT_REHEARSAL" ] || [ -e well ] || { echo "$1: no CUDA"; exit 1; }\n'
    scene.sessions.execute(NAME, ["sh", "-c", script], stdin=hook)
    try:
        executor = MoveExecutor.open(scene.settings)
        result = executor.carry_out(to(scene.sessions, NAME, new))
        assert result.state is State.rolled_back and "exit code 1: moved: no CUDA" in result.reason
        assert scene.image_now == old
        scene.sessions.execute(NAME, ["touch", "well"])
        result = executor.carry_out(to(scene.sessions, NAME, new))
        assert result.moved, result.reason
    finally:
        scene.sessions.execute(NAME, ["rm", "-f", PROOF, "well"])


def test_a_session_gets_another_profile_by_the_same_move_and_its_own_back_where_that_fails(scene: Scene) -> None:
    before, other = scene.sessions.store.session(NAME), "terminal-minimal-deb12-py311"
    scene.newest(scene.image("switch-broken", before="exit 1", profile=other), other)
    assert switch_session(scene.settings, NAME, other, RELEASE).state is State.rolled_back
    assert scene.sessions.store.session(NAME) == before
    new = scene.newest(scene.image("switch-new", profile=other), other)
    result = switch_session(scene.settings, NAME, other, RELEASE)
    assert result.moved, result.reason
    after = scene.sessions.store.session(NAME)
    assert (after.profile, after.release, after.image) == (other, RELEASE, new)
    assert (after.path, after.home, after.token_ref, after.uid) == (
        before.path,
        before.home,
        before.token_ref,
        before.uid,
    )
    check_nothing_is_left(scene.settings, scene.sessions, Journal(open_database(scene.settings.database)), NAME)
    with pytest.raises(RefitError, match="already"):
        switch_session(scene.settings, NAME, other, RELEASE)
    with pytest.raises(RefitError, match="There is no image"):
        switch_session(scene.settings, NAME, "runtime-minimal-deb12-py311", RELEASE)
    result = go_back(scene.settings, NAME, force=True)
    assert result.moved, result.reason
    session = scene.sessions.store.session(NAME)
    assert (session.profile, session.image, session.path) == (before.profile, before.image, before.path)
