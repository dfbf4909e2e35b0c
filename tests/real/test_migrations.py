"""Moves on real Podman: one that succeeds, and all the ways in which one does not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.policy import RolloutPolicy
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.metrics import serving
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Entry, Phase
from flows.migrations.move_steps import State
from flows.migrations.results import Result
from flows.publishing.signatures import NotPublished
from flows.sessions.events import Kind
from flows.sessions.history import History
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import HOME, Running
from tests.support import moving
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import carry_out, check_nothing_is_left, furnish, manifest, opened, to
from tests.support.variants import JUPYTER, LIGHT, variant
from tests.support.waiting import PATIENCE, some_long, wait_until

NAME = "grace"
OWN = LIGHT.model_copy(update={"own_paths": ("/.cache/",)})


class Scene(moving.Scene):
    """A session that somebody works in."""

    def create(self, image: str, access: Access = OWN) -> None:
        self.sessions.create(NAME, "light-minimal-deb12-py311", "2026a", image, access)
        furnish(self.sessions, NAME)

    def move(self, image: str) -> Result:
        return carry_out(MoveExecutor.open(self.settings), to(self.sessions, NAME, image), "what changes")

    @property
    def journal(self) -> Journal:
        return Journal(open_database(self.settings.database))

    @property
    def home(self) -> dict[str, tuple[object, ...]]:
        return manifest(self.settings.home / "homes" / NAME, without=(".cache",))


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("moves") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=3.0, ready_timeout_seconds=20.0) as settings:
        yield settings


@pytest.fixture
def scene(settings: Settings, registry: Registry, shared: Settings, base: Built) -> Iterator[Scene]:
    with opened(settings, NAME) as sessions:
        yield Scene(settings, sessions, registry, shared, base)


def healthy_on(scene: Scene, image: str) -> None:
    check_nothing_is_left(scene.settings, scene.sessions, scene.journal, NAME)
    assert scene.sessions.store.session(NAME).image == image


def test_a_session_moves_and_its_home_is_the_same(scene: Scene) -> None:
    old, new = scene.image("old"), scene.image("new", before="mkdir -p .cache; echo mine >.cache/of-the-ide")
    scene.create(old)
    before, home = scene.sessions.store.session(NAME), scene.home
    result = scene.move(new)
    assert (result.moved, result.reason, result.packages) == (True, "", "what changes")
    assert result.downtime is not None and 0 < result.downtime < PATIENCE
    healthy_on(scene, new)
    after = scene.sessions.store.session(NAME)
    assert (after.path, after.uid, after.home, after.token_ref) == (
        before.path,
        before.uid,
        before.home,
        before.token_ref,
    )
    assert scene.home == home
    check_metrics(scene, new)
    check_steps(scene)


def check_steps(scene: Scene) -> None:
    """Every step is written down, in order."""
    entries = scene.journal.entries(scene.journal.latest()[NAME])
    done = [entry.step for entry in entries if entry.phase is Phase.done]
    assert done == [
        *(
            "check",
            "pull",
            "rehearse",
            "create",
            "warm",
            "copy",
            "look",
            "stop",
            "snapshot",
            "start",
            "answer",
            "verify",
        ),
        "commit",
        "clean",
    ]


def check_metrics(scene: Scene, image: str) -> None:
    """Prometheus is told of the session, and of its first move."""
    told = serving.text(scene.settings)
    on = f'image="{image}",profile="light-minimal-deb12-py311",release="2026a",state="running"'
    assert f"refit_sessions{{{on}}} 1.0\n" in told
    assert 'refit_moves{state="cleaned",step=""} 1.0\n' in told
    assert "refit_move_downtime_seconds_count 1.0\n" in told


def test_a_session_takes_over_how_its_new_image_is_reached(scene: Scene) -> None:
    access = Access(port=8001, health="/health", page="/new", own_paths=("/.new-ide/",))
    elsewhere = (
        'mkdir -p "/tmp/www$NB_PREFIX" ~/.new-ide && cd /tmp/www && touch ".$NB_PREFIX/health" ~/.new-ide/mine && '
    )
    before = f"{elsewhere} exec python3 -m http.server 8001"
    new = scene.image("elsewhere", before, access=access.model_dump_json())
    scene.create(scene.image("old"))
    result = scene.move(new)
    assert result.moved, result.reason
    healthy_on(scene, new)
    after = scene.sessions.store.session(NAME)
    assert after.access == access
    assert scene.sessions.address(NAME) == f"{scene.sessions.direct_url(after)}/new"


@pytest.mark.parametrize(
    "written", some_long(['{"port": 8000, "colour": "blue"}', '{"port": "eight"}', "no JSON"], short="no JSON")
)
def test_an_image_whose_access_cant_be_understood_is_not_moved_to(scene: Scene, written: str) -> None:
    old = scene.image("old")
    scene.create(old)
    with pytest.raises(RefitError, match="can't be understood"):
        scene.move(scene.image("odd", access=written))
    healthy_on(scene, old)


@pytest.mark.parametrize(
    ("name", "before", "why"),
    [
        ("silent", "sleep 60", "ready"),
        # The next one ends as well, and another test deletes: a move takes seven seconds of CPU.
        pytest.param("ends", "exit 3", "ended", marks=pytest.mark.long),
        ("spoils", "echo spoiled >>project/work.py; exit 3", "ended"),
        pytest.param("deletes", "rm -rf project; exit 3", "ended", marks=pytest.mark.long),
    ],
)
def test_f03_an_image_that_does_not_prove_itself_is_rolled_back(scene: Scene, name: str, before: str, why: str) -> None:
    old = scene.image("old")
    scene.create(old)
    home = scene.home
    result = scene.move(scene.image(name, before))
    assert (result.state, result.moved) == (State.rolled_back, False)
    assert why in result.reason
    assert result.downtime is not None
    healthy_on(scene, old)
    assert scene.home == home


def test_a_log_that_ends_with_half_a_line_is_shown_up_to_there(scene: Scene) -> None:
    """As while a container writes much, or for ever where what wrote it was killed: `podman logs --tail` fails."""
    scene.create(scene.image("speaks", "echo so far"))
    container = scene.sessions.store.session(NAME).container
    asked = [*tools.podman(scene.settings), "inspect", "--format", "{{.HostConfig.LogConfig.Path}}", container]
    with Path(command.run(asked, root=True).stdout.strip()).open("a") as log:
        log.write("2026-11-21T20:5")
    assert "so far" in scene.sessions.logs(NAME).splitlines()


def test_an_image_that_fails_its_rehearsal_never_touches_the_session(scene: Scene) -> None:
    old, careful = scene.image("old"), scene.settings.model_copy(update={"migration": RolloutPolicy()})
    scene.create(old)
    started = scene.sessions.engine.containers(NAME)
    result = carry_out(MoveExecutor.open(careful), to(scene.sessions, NAME, scene.image("ends", "exit 3")))
    assert (result.state, result.downtime) == (State.rolled_back, None)
    assert "rehearsal" in result.reason and scene.sessions.engine.containers(NAME) == started
    assert carry_out(MoveExecutor.open(careful), to(scene.sessions, NAME, scene.image("new"))).moved


def test_what_an_image_did_to_a_home_before_anybody_was_let_in_is_undone(scene: Scene) -> None:
    old = scene.image("old")
    scene.create(old)
    home = scene.home
    result = scene.move(scene.image("answers-and-deletes", "rm -rf project"))
    assert (result.state, result.damaged) == (State.rolled_back, False) and "changed the home" in result.reason
    healthy_on(scene, old)
    assert scene.home == home


def lets_people_in(scene: Scene) -> bool:
    """Whether the move that is under way has let people into the new container."""
    move = scene.journal.latest().get(NAME)
    return bool(move) and Entry("answer", Phase.done) in scene.journal.entries(move)


def test_where_a_person_may_have_worked_the_snapshot_is_offered_and_the_home_left(scene: Scene) -> None:
    """The light server can't say whether somebody used it: restoring might destroy a person's work."""
    scene.create(scene.image("old"))
    home = scene.home
    waits = "{ (until [ -e ~/let-in ]; do sleep 0.1; done; rm -rf project; kill 1) & }"
    policy = RolloutPolicy(rehearse=False, watch_seconds=60)
    executor = MoveExecutor.open(scene.settings.model_copy(update={"migration": policy, "ready_timeout_seconds": 60.0}))
    with ThreadPoolExecutor() as pool:
        moved = pool.submit(carry_out, executor, to(scene.sessions, NAME, scene.image("deletes-later", waits)))
        wait_until(lambda: moved.done() or lets_people_in(scene))
        assert not moved.done(), moved.result().reason
        container = scene.journal.latest()[NAME].after.container
        scene.sessions.engine.execute(container, ["touch", f"{HOME}/let-in"])
        result = moved.result()
    assert result.state is State.rolled_back
    [snapshot] = (scene.settings.home / "snapshots" / NAME).iterdir()
    assert str(snapshot) in result.reason
    assert manifest(snapshot, without=(".cache",)) == home


def test_f02_an_image_that_does_not_exist_stops_nothing(scene: Scene) -> None:
    old = scene.image("old")
    scene.create(old)
    started = scene.sessions.engine.containers(NAME)
    with pytest.raises(NotPublished, match="unknown"):
        scene.move(f"sha256:{'0' * 64}")
    assert scene.sessions.engine.containers(NAME) == started
    healthy_on(scene, old)


@pytest.mark.long
def test_f08_a_session_whose_home_is_full_comes_up_again(scene: Scene) -> None:
    new = scene.image("new")
    scene.create(scene.image("old"))
    session = scene.sessions.store.session(NAME)
    scene.sessions.stop(NAME)
    options = f"size=8m,uid={session.uid},gid=0,mode=0700"
    command.run(["mount", "-t", "tmpfs", "-o", options, "refit-test", session.home], root=True)
    try:
        scene.sessions.start(NAME)
        furnish(scene.sessions, NAME)
        with suppress(RefitError):
            scene.sessions.execute(NAME, ["sh", "-c", "cat /dev/zero >project/fills-the-disk"])
        assert shutil.disk_usage(session.home).free == 0
        before = scene.home
        result = scene.move(new)
        assert result.moved, result.reason
        healthy_on(scene, new)
        assert scene.home == before
        scene.sessions.stop(NAME)
    finally:
        command.run(["umount", "--lazy", session.home], root=True)


def test_f05_a_session_that_its_owner_stopped_meanwhile_is_left_alone(scene: Scene) -> None:
    old, new = scene.image("old"), scene.image("new")
    scene.create(old)
    decision = to(scene.sessions, NAME, new)
    scene.sessions.stop(NAME)
    result = MoveExecutor.open(scene.settings).carry_out(decision)
    assert not result.moved and result.reason
    [container] = scene.sessions.engine.containers(NAME)
    assert (container.image, container.running) == (old, Running.stopped)


def test_f10_a_session_in_which_work_begins_before_the_stop_goes_on(scene: Scene) -> None:
    old, new = scene.image("old"), scene.image("new")
    scene.create(old)
    decision, started = to(scene.sessions, NAME, new), scene.sessions.engine.containers(NAME)
    scene.sessions.execute(NAME, ["sh", "-c", "nohup sleep 300 >/dev/null 2>&1 &"])
    results = list[Result]()

    def was_seen() -> bool:
        """Whether the look came to its end: a machine that gets nothing done for a while puts the move off as well."""
        results.append(MoveExecutor.open(scene.settings).carry_out(decision))
        return "sleep 300" in results[-1].reason

    wait_until(was_seen)
    assert {(each.state, each.downtime, each.failed) for each in results} == {(State.deferred, None, False)}
    assert scene.sessions.engine.containers(NAME) == started
    assert "sleep" in scene.sessions.execute(NAME, ["sh", "-c", "cat /proc/[0-9]*/comm"])
    healthy_on(scene, old)
    history = History(open_database(scene.settings.database))
    told = [(event.kind, event.image) for event in history.events(NAME)]
    assert told[-2:] == [(Kind.move_begun, new), (Kind.move_ended, new)] and not history.broken()


def test_f06_a_session_that_was_deleted_meanwhile_is_not_resurrected(scene: Scene) -> None:
    old, new = scene.image("old"), scene.image("new")
    scene.create(old)
    decision = to(scene.sessions, NAME, new)
    scene.sessions.remove(NAME)
    result = MoveExecutor.open(scene.settings).carry_out(decision)
    assert (result.state, result.reason) == (State.skipped, "the session was deleted meanwhile")
    assert scene.sessions.engine.containers(NAME) == ()


def test_jupyterlab_moves_with_a_kernel_that_executes_a_cell(scene: Scene, jupyter_image: str) -> None:
    new = variant(scene.shared, scene.registry, jupyter_image, scene.settings.repository, "the next")
    settings = scene.settings.model_copy(update={"ready_timeout_seconds": 60.0})
    sessions = Sessions.open(settings)
    sessions.create(NAME, "jupyter-minimal-deb12-py311", "2026a", jupyter_image, JUPYTER)
    session = sessions.store.session(NAME)
    sessions.jupyter(session).write_file("notes.txt", "kept")
    assert sessions.jupyter(session).execute("open('from-a-kernel', 'w').write('kept')").strip() == "4"
    result = carry_out(MoveExecutor.open(settings), to(sessions, NAME, new))
    assert result.moved, result.reason
    assert sessions.execute(NAME, ["cat", "notes.txt"]) == "kept"
    assert sessions.execute(NAME, ["cat", "from-a-kernel"]) == "kept"
    healthy_on(scene, new)
