"""GPUs of real sessions: made-up devices over a real device node, which Podman gives to containers through CDI."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from flows.catalog.model import Resources
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.move import Move
from flows.migrations.move_steps import State, StepName
from flows.migrations.results import Outcome
from flows.migrations.rollouts.session_planner import SessionPlanner
from flows.sessions.gpus.gpu import NoGpu
from flows.sessions.model import Session
from flows.sessions.reconfigure import release_gpus
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import check_nothing_is_left, to
from tests.support.variants import LIGHT, light

PODMANS = Path("/run/cdi")  # where Podman looks for specifications; it can't be told to look elsewhere
INSIDE = "/dev/refit-gpu"
ONE = Resources.model_validate({"gpus": 1, "memory": "512 MB", "cpus": 0.5})
MEMORY = "cat /sys/fs/cgroup/memory.max || cat /sys/fs/cgroup/memory/memory.limit_in_bytes"
# A rehearsal has no GPU, and the session itself does.
ALONE = f'if [ "$REFIT_REHEARSAL" ]; then ! ls {INSIDE}*; else ls {INSIDE}*; fi || exit 3'
PROFILE = ("light-minimal-deb12-py311", "2026a")


@dataclass(frozen=True)
class Scene:
    executor: MoveExecutor
    settings: Settings
    old: str
    new: str
    nodes: tuple[Path, ...]

    def create(self, name: str) -> Session:
        return self.executor.sessions.create(name, *PROFILE, self.old, LIGHT, resources=ONE)


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Path, ...]:
    """Two device nodes of this test's own; they are /dev/full, which hardly anybody has open."""
    paths = tuple(tmp_path / f"gpu{number}" for number in range(2))
    for path in paths:
        command.run(["mknod", "-m", "666", path, "c", "1", "7"], root=True)
        assert stat.S_ISCHR(path.stat().st_mode)
    return paths


@pytest.fixture
def kind(nodes: tuple[Path, ...]) -> Iterator[str]:
    """The kind of these devices, which nobody else's are; the specification is gone afterwards."""
    name = f"refit-{uuid4().hex[:8]}"
    edits = [
        {"name": str(n), "containerEdits": {"deviceNodes": [{"path": f"{INSIDE}{n}", "hostPath": str(node)}]}}
        for n, node in enumerate(nodes)
    ]
    text = json.dumps({"cdiVersion": "0.5.0", "kind": f"{name}.example/gpu", "devices": edits})
    file = PODMANS / f"{name}.json"
    command.run(["install", "-D", "-m", "0644", "/dev/stdin", file], root=True, stdin=text)
    yield f"{name}.example/gpu"
    command.run(["rm", "-f", file], root=True)


@pytest.fixture
def scene(
    registry_server: RegistryServer,
    registry: Registry,
    shared: Settings,
    base: Built,
    kind: str,
    nodes: tuple[Path, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("gpus") / "home"
    more = {"stop_grace_seconds": 3.0, "ready_timeout_seconds": 20.0, "rehearsal_memory": 0.5, "gpu_kinds": (kind,)}
    labels = {"io.refit.profile": PROFILE[0], "io.refit.release": PROFILE[1]}
    old, new = light(shared, registry, base, "g1"), light(shared, registry, base, "g2", ALONE, labels)
    with private_home(folder, registry_server.port, **more, migration={"rehearse": True}) as settings:
        yield Scene(MoveExecutor.open(settings), settings, old, new, nodes)


@pytest.mark.long
def test_f09_a_gpu_stays_with_its_session_while_it_moves_and_others_wait(
    scene: Scene, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, sessions = scene.executor, scene.executor.sessions
    ana, ben = scene.create("ana"), scene.create("ben")
    assert (ana.devices, ben.devices) == ((f"{kind}=0",), (f"{kind}=1",))
    assert sessions.execute("ana", ["sh", "-c", MEMORY]) == "512000000\n"
    with pytest.raises(NoGpu, match="session ana"):
        scene.create("cyd")

    result = executor.carry_out(to(sessions, "ana", scene.new))
    assert result.state is State.cleaned, result
    ana = sessions.store.session("ana")
    assert ana.devices == (f"{kind}=0",)
    check_nothing_is_left(scene.settings, sessions, executor.journal, "ana")

    # Somebody who asks nobody takes it between stop and start.
    perform, outsiders = executor.steps.perform, []

    def taken(name: StepName, move: Move) -> Outcome:
        if name is StepName.snapshot:
            outsiders.append(subprocess.Popen(["sleep", "600"], stdin=os.open(scene.nodes[0], os.O_RDONLY)))
        return perform(name, move)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(executor.steps, "perform", taken)
            result = executor.carry_out(to(sessions, "ana", scene.old))
    finally:
        for outsider in outsiders:
            outsider.kill()
            outsider.wait()
    assert result.state is State.rolled_back and "sleep, pid" in result.reason, result
    assert sessions.store.session("ana") == ana
    check_nothing_is_left(scene.settings, sessions, executor.journal, "ana")

    with pytest.raises(RefitError, match="runs"):
        release_gpus(sessions, "ana")
    sessions.stop("ana")
    assert sessions.start("cyd").devices == (f"{kind}=0",)
    assert sessions.execute("cyd", ["sh", "-c", f"ls {INSIDE}*"]) == f"{INSIDE}0\n"
    with pytest.raises(NoGpu, match="'ana' waits for a GPU"):
        sessions.start("ana")
    sessions.stop("ben")
    assert sessions.start("ana").devices == (f"{kind}=1",)
    with pytest.raises(RefitError, match="'ben' waits for a GPU"):
        sessions.start("ben")

    # As one of another profile it needs none any more, and gives its own back once it has moved.
    result = executor.carry_out(to(sessions, "ana", scene.old), becomes=lambda after: replace(after, gpus=0))
    assert result.state is State.cleaned and not sessions.store.session("ana").devices
    assert sessions.start("ben").devices == (f"{kind}=1",)

    # A session whose GPU is on record as somebody else's waits.
    sessions.gpus.keep("cyd", ())
    sessions.gpus.hold(f"{kind}=0", by="root", why="a porterbox")
    with pytest.raises(RefitError, match="can't be moved: it waits for a GPU"):
        SessionPlanner(scene.settings).plan(["cyd"], scene.new)
    result = executor.carry_out(to(sessions, "cyd", scene.new))
    assert result.state is State.skipped and "porterbox" in result.reason
