"""Homes that are bound in late: who may have one, and what a launcher does before it has one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.catalog import load
from flows.catalog.model import Access
from flows.core.programs import command
from flows.core.programs.command import Completed
from flows.core.settings import Settings
from flows.migrations.steps.move_context import room_obstacle
from flows.sessions.containers import warm_start
from flows.sessions.containers.warm_start import VARIABLE, Mounted, Slots, mounted, objection, with_warm
from flows.sessions.model import Container, HomeRef, Running, Session, TokenRef, session_of
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[4]
LAUNCHER = ROOT / "snippets/web/files/launch-jupyter"
IMAGE = "sha256:1"
SESSION = Session("ada", "p", "2026a", IMAGE, 200_000, HomeRef("/h"), TokenRef("/t"), Access(), late_home=True)


def container(session: Session, running: Running) -> Container:
    return Container(session.container, session.name, session.generation, IMAGE, running, session)


@dataclass
class Machine:
    """Containers of one session, of two kinds; the writers into the home are looked at after every act."""

    kinds: list[bool]  # of each generation: whether its home comes later
    running: set[int] = field(default_factory=set)
    bound: set[int] = field(default_factory=set)

    def session(self, number: int) -> Session:
        return replace(SESSION, generation=number, late_home=self.kinds[number])

    def refused(self, number: int) -> str:
        boxes = [
            container(self.session(each), Running.running if each in self.running else Running.stopped)
            for each in range(len(self.kinds))
        ]
        return objection(self.session(number), boxes, [self.session(each).container for each in self.bound])

    def act(self, verb: str, number: int) -> None:
        late = self.kinds[number]
        if verb == "start" and not self.refused(number):
            self.running.add(number)
            self.bound |= {number} if late else set()
        elif verb == "start by hand" and late:  # whoever calls Podman asks nobody
            self.running.add(number)
        elif verb in ("stop", "killed while stopping"):
            self.running.discard(number)
            if verb == "stop":
                self.bound.discard(number)
        writers = [each for each in self.running if each in self.bound or not self.kinds[each]]
        assert len(writers) <= 1, "two containers write into one home"


VERBS = st.sampled_from(["start", "start by hand", "stop", "killed while stopping"])


@given(st.lists(st.booleans(), min_size=3, max_size=3), st.lists(st.tuples(VERBS, st.integers(0, 2)), max_size=40))
def test_there_are_never_two_writers_on_one_home(kinds: list[bool], acts: list[tuple[str, int]]) -> None:
    machine = Machine(kinds)
    for verb, number in acts:
        machine.act(verb, number)


def test_what_runs_without_its_home_is_warm() -> None:
    running, stopped = container(SESSION, Running.running), container(replace(SESSION, generation=2), Running.stopped)
    direct = container(replace(SESSION, generation=3, late_home=False), Running.running)
    foreign = replace(running, name="refit-ada-4", made_from=None)
    boxes = (running, stopped, direct, foreign)
    assert [each.warm for each in with_warm(boxes, [])] == [True, False, False, False]
    assert not any(each.warm for each in with_warm(boxes, [running.name]))


def test_a_home_goes_to_whom_it_belongs_already_and_to_nobody_besides() -> None:
    waiting = container(SESSION, Running.running)
    following = replace(SESSION, generation=2)
    assert objection(SESSION, [waiting], [SESSION.container]) == ""
    assert objection(following, [waiting], []) == ""
    assert objection(following, [waiting], [SESSION.container]) == "refit-ada-1 has it"
    unknown = replace(waiting, made_from=None)
    assert objection(following, [unknown], []) == "refit-ada-1 runs with it"
    assert objection(following, [replace(unknown, running=Running.stopped)], []) == ""


def test_the_name_of_a_container_says_whose_it_is() -> None:
    assert session_of(replace(SESSION, name="ada-2", generation=10).container) == "ada-2"


def test_what_is_mounted_is_shared_or_not() -> None:
    line = "40 30 254:0 /s /srv/a\\040b rw shared:1 master:2 - ext4 /dev/vda rw\n"
    lines = f"{line}41 40 254:0 /t /t rw - ext4 shared:1 rw\n"
    assert mounted(lines) == (Mounted(Path("/srv/a b"), True), Mounted(Path("/t"), False))


@pytest.mark.slow
@pytest.mark.parametrize("uid", [0, 1000])
def test_to_wait_for_a_launcher_takes_one_program_at_most(
    uid: int, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says, execute, started = tmp_path / "waits", command.run, list[Sequence[str | Path]]()

    def run(argv: Sequence[str | Path], *, root: bool, **options: Any) -> Completed:
        started.append(argv)
        return execute(argv, **options)

    monkeypatch.setattr(warm_start, "WAITING", str(says).lstrip("/"))  # seen from a process of no container: ours
    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert not Slots(settings).waits(os.getpid(), 0.3)
    assert len(started) <= 1
    later = Timer(0.3, says.touch)
    later.start()
    assert Slots(settings).waits(os.getpid(), 60)
    assert len(started) <= 2


@pytest.mark.parametrize(
    ("waiting", "free", "why"),
    [(7, 0.5, ""), (8, 9.0, "8 others wait already"), (0, 0.4, "0.4 GB of memory are free, and 0.5 GB are needed")],
)
def test_where_memory_is_short_nobody_waits(waiting: int, free: float, why: str) -> None:
    assert room_obstacle(waiting, 8, free, 0.5) == why


@pytest.mark.parametrize("start", ["ides/1-jupyter/files/start-jupyter", "snippets/web/files/start-web"])
def test_the_start_commands_of_ides_whose_home_comes_later_wait_for_it(start: str) -> None:
    late = [ide.name for ide in load.load_catalog(ROOT).ides.values() if ide.config.access.late_home]
    assert sorted(late) == ["jupyter", "rstudio", "terminal", "vscode"]  # those that begin with the one or the other
    assert "exec launch-jupyter " in (ROOT / start).read_text() and VARIABLE in LAUNCHER.read_text()


DRIVER = """
import importlib.machinery, importlib.util, pathlib, sys
loader = importlib.machinery.SourceFileLoader("launcher", sys.argv[1])
launcher = importlib.util.module_from_spec(importlib.util.spec_from_loader("launcher", loader))
loader.exec_module(launcher)
launcher.WAITS = pathlib.Path(sys.argv[2])
launcher.main("ide")
"""
IDE = """
import os, pathlib, sys
from rfc3987_syntax import is_valid_syntax
pathlib.Path("imported").touch()
def main():
    import late
    pathlib.Path(os.environ["REPORT"]).write_text(f"{os.getcwd()} {sys.argv[1:]} {late.__file__}")
    from rfc3987_syntax import other
    assert [is_valid_syntax("iri", word) for word in ("x", "y")] == [True, True] and other == 1
"""
SLOW = """
import pathlib
pathlib.Path("compiled").touch(exist_ok=False)
is_valid_syntax = lambda term, value: term == "iri"
other = 1
"""


def not_mine(folder: Path) -> Path:
    if os.geteuid() != 0:
        return Path("/")
    folder.mkdir()
    os.chown(folder, 12345, 0)
    return folder


@pytest.mark.slow
def test_the_launcher_imports_then_waits_for_the_home_and_begins_as_if_it_had_been_there(tmp_path: Path) -> None:
    (place := tmp_path / "home").symlink_to(not_mine(tmp_path / "nobody"))
    (mine := tmp_path / "mine").mkdir()
    packages = mine / f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    packages.mkdir(parents=True)
    (packages / "late.py").touch()
    (tmp_path / "ide.py").write_text(IDE)
    (tmp_path / "rfc3987_syntax.py").write_text(SLOW)
    report, waits = tmp_path / "report", tmp_path / "waits"
    python = Path(sys.executable).resolve()  # not that of an environment, which has no packages of a user
    variables = {"HOME": str(place), VARIABLE: "1", "PYTHONPATH": str(tmp_path), "REPORT": str(report)}
    call = [python, "-c", DRIVER, LAUNCHER, waits]
    with subprocess.Popen(call, env=variables, cwd=tmp_path) as launcher:
        wait_until(waits.exists)
        assert (tmp_path / "imported").exists() and not report.exists() and not (place / ".local").exists()
        assert not (tmp_path / "compiled").exists()
        (following := tmp_path / "following").symlink_to(mine)
        following.rename(place)
        assert launcher.wait(PATIENCE) == 0
    assert report.read_text() == f"{mine} [] {place}/.local/lib/{packages.parent.name}/site-packages/late.py"
    assert not waits.exists() and (mine / "compiled").exists()
