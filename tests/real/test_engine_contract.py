"""Podman keeps the contract of engines; and what only a real engine can be asked: privileges, signals, secrets."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.sessions import own_folder
from flows.sessions.containers.podman import Podman
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.model import HomeRef, Session, TokenRef
from tests.support.engine_contract import EngineContract
from tests.support.moving import own_weight
from tests.support.variants import JUPYTER, LIGHT, light
from tests.support.waiting import PATIENCE, wait_until

TOKEN = "a-token-of-this-test"
UP = "is running at"  # as JupyterLab says it
_numbers = itertools.count(1)


@pytest.fixture
def engine(shared: Settings) -> Podman:
    return Podman(shared)


@contextmanager
def recorded(engine: Podman, shared: Settings, image: str, access: Access) -> Iterator[Session]:
    """A session that nothing is made for but its home and its token; in the end its containers are removed."""
    engine.pull(image)
    name = f"contract-{next(_numbers)}"
    uid = 300_000 + next(_numbers)
    home = LocalHomes(shared).make(name, uid)
    token_file = own_folder.token(shared, name)
    token_file.parent.mkdir(exist_ok=True)
    command.run(["install", "-m", "0400", "-o", str(uid), "/dev/stdin", token_file], root=True, stdin=TOKEN)
    session = Session(name, "p", "2026a", image, uid, home, TokenRef(str(token_file)), access)
    for each in (name, f"{name}-2"):  # the contract makes another session of this one
        own_folder.ssh(shared, each).mkdir(parents=True)
    yield session
    for container in engine.containers(name):
        engine.stop(container.name, grace=1)
        engine.remove(container.name)


@pytest.fixture
def session(engine: Podman, shared: Settings, registry: Registry, base: Built) -> Iterator[Session]:
    """A session whose image is up in a moment, where JupyterLab takes three seconds of CPU."""
    with recorded(engine, shared, light(shared, registry, base, "contract", f"echo {UP}"), LIGHT) as session:
        yield session


@pytest.fixture
def another_home(session: Session, shared: Settings) -> HomeRef:
    return LocalHomes(shared).make(f"{session.name}-more", session.uid)


def started(engine: Podman, session: Session) -> Session:
    engine.create(session)
    engine.start(session.container)
    wait_until(lambda: UP in engine.logs(session.container))
    return session


@pytest.fixture
def running(engine: Podman, session: Session) -> Session:
    return started(engine, session)


@pytest.fixture
def lab(engine: Podman, shared: Settings, jupyter_image: str) -> Iterator[Session]:
    """A session in which JupyterLab runs."""
    with recorded(engine, shared, jupyter_image, JUPYTER) as session:
        yield started(engine, session)


def inspected(settings: Settings, session: Session) -> dict[str, object]:
    call = [*tools.podman(settings), "inspect", session.container]
    return dict(json.loads(command.run(call, root=True).stdout)[0])


def left_running(engine: Podman, session: Session, script: str) -> None:
    """A program that a person left behind; it makes the file `ready` once it is so far."""
    start = "import subprocess, sys; subprocess.Popen(['bash', '-c', sys.argv[1]], start_new_session=True)"
    engine.execute(session.container, ["python3", "-c", start, f"exec >/dev/null 2>&1; {script}"])
    wait_until((folder_of(session.home) / "ready").exists)


def seconds_of(action: Callable[[], None]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


class TestPodman(EngineContract):
    def test_programs_run_as_the_sessions_user(self, engine: Podman, running: Session) -> None:
        assert engine.execute(running.container, ["id", "-u"]) == f"{running.uid}\n"
        assert engine.execute(running.container, ["id", "-G"]) == "0\n"
        assert engine.execute(running.container, ["cat"], stdin="as it came\n") == "as it came\n"
        with engine.dialogue(running.container, ["cat"]) as ask:
            assert (ask("one"), ask("two")) == ("one\n", "two\n")
        with pytest.raises(RefitError, match="exit code 3"):
            engine.execute(running.container, ["sh", "-c", "exit 3"])

    def test_a_session_has_no_privileges(self, engine: Podman, running: Session) -> None:
        status = engine.execute(running.container, ["cat", "/proc/self/status"])
        told = dict(line.split(":\t") for line in status.splitlines())
        assert {int(told[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
        assert (
            engine.execute(running.container, ["sh", "-c", "touch /etc/x /opt/app-root/x /x 2>&1; true"]).count(
                "Permission denied"
            )
            == 3
        )
        with pytest.raises(RefitError, match=r"Read-only|Permission"):
            engine.execute(running.container, ["sh", "-c", "echo x > /run/refit/token"])

    def test_init_is_process_1_and_no_port_of_the_machine_leads_in(
        self, engine: Podman, running: Session, shared: Settings
    ) -> None:
        assert "init" in engine.execute(running.container, ["cat", "/proc/1/cmdline"]).partition("\0")[0]
        settings = inspected(shared, running)["HostConfig"]
        assert isinstance(settings, dict)
        assert not any(settings["PortBindings"].values())
        assert settings["PidsLimit"] > 0

    def test_the_token_is_nowhere_but_in_its_file(self, engine: Podman, lab: Session, shared: Settings) -> None:
        assert engine.execute(lab.container, ["cat", "/run/refit/token"]) == TOKEN
        assert TOKEN not in json.dumps(inspected(shared, lab))
        assert TOKEN not in engine.logs(lab.container)
        seen = engine.execute(lab.container, ["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"])
        assert "REFIT_TOKEN_FILE" in seen
        assert TOKEN not in seen

    def test_every_process_is_told_to_end_and_has_time_to_save(self, engine: Podman, lab: Session) -> None:
        # A second of saving is longer than Jupyter needs to end; the container must not end with it.
        saver = "trap 'sleep 1; echo saved > ~/saved; exit' TERM; touch ~/ready; while :; do sleep 0.1; done"
        left_running(engine, lab, saver)
        engine.stop(lab.container, grace=20)
        assert (folder_of(lab.home) / "saved").read_text() == "saved\n"

    def test_a_program_that_ignores_the_signal_holds_nobody_up(self, engine: Podman, running: Session) -> None:
        deaf = "trap '' TERM; touch ~/ready; sleep 1000"
        left_running(engine, running, deaf)
        seconds = seconds_of(lambda: engine.stop(running.container, grace=2 * PATIENCE))
        assert seconds < PATIENCE

    def test_a_program_that_doesnt_end_in_time_is_ended(self, engine: Podman, running: Session) -> None:
        stubborn = "trap : TERM; touch ~/ready; while :; do sleep 0.1; done"
        left_running(engine, running, stubborn)
        seconds = seconds_of(lambda: engine.stop(running.container, grace=2))
        assert 2 <= seconds < PATIENCE
        assert engine.containers(running.name)[0].running == "stopped"


def test_a_higher_weight_ends_with_the_container_at_the_latest(
    engine: Podman, running: Session, shared: Settings
) -> None:
    asks = ["sh", "-c", "cat /sys/fs/cgroup/cpu.weight 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.shares"]

    def has() -> int:
        return int(engine.execute(running.container, asks))

    own, higher = own_weight(shared), own_weight(shared, favoured=True)
    assert has() == own < higher
    engine.favour(running.container, True)
    assert has() == higher
    engine.favour(running.container, False)
    assert has() == own
    engine.favour(running.container, True)  # by a run that is killed then: a start knows nothing of it
    engine.stop(running.container, grace=5)
    Podman(shared).start(running.container)
    assert has() == own
