"""Sessions from their creation to their end: real Podman, real JupyterLab, real homes."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from flows.catalog.model import Access
from flows.core.errors import RefitError, UnknownName
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.environment import variables
from flows.host import tools
from flows.publishing.signatures import NotPublished
from flows.sessions.homes.folders import folder_of
from flows.sessions.ide.jupyter import Jupyter, JupyterError
from flows.sessions.lifecycle import NotStarted, Sessions
from flows.sessions.model import Running, Session
from flows.sessions.store import NameTaken
from tests.support.moving import kernels, terminals
from tests.support.terminal import CTRL_C, CTRL_Z, Terminal
from tests.support.variants import JUPYTER
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def sessions(shared: Settings) -> Sessions:
    return Sessions.open(shared)


@pytest.fixture
def create(sessions: Sessions, jupyter_image: str) -> Iterator[Callable[..., Session]]:
    """Makes running sessions, and removes in the end what they leave behind."""
    names: list[str] = []

    def create(name: str = "", access: Access = JUPYTER, on: Sessions = sessions) -> Session:
        names.append(name or f"test-{next(_numbers)}")
        return on.create(names[-1], "jupyter-minimal-deb12-py311", "2026a", jupyter_image, access)

    yield create
    for name in names:
        if name in sessions.store.homes():
            sessions.remove(name, purge=True)


@pytest.fixture(scope="module")
def ana(sessions: Sessions, jupyter_image: str) -> Iterator[Session]:
    """A session for the tests that leave it as it was."""
    yield sessions.create("ana", "jupyter-minimal-deb12-py311", "2026a", jupyter_image, JUPYTER)
    sessions.remove("ana", purge=True)


def test_a_session_opens_in_a_browser_with_its_token_and_not_without(sessions: Sessions, ana: Session) -> None:
    assert sessions.show("ana").running is Running.running
    address = sessions.address("ana")
    assert address == f"{sessions.direct_url(ana)}/lab?token={sessions.token(ana)}"
    page = httpx.get(address, follow_redirects=True, **PATIENTLY)
    assert page.status_code == 200
    assert "JupyterLab" in page.text
    assert httpx.get(f"{sessions.direct_url(ana)}/api/contents", **PATIENTLY).status_code == 403


def test_a_session_writes_a_notebook_and_a_file_through_itself(sessions: Sessions, ana: Session) -> None:
    jupyter = sessions.jupyter(ana)
    jupyter.write_file("my notes.txt", "written\n")
    jupyter.write_notebook("first.ipynb", ["1 + 1", "print('x')"])
    assert (folder_of(ana.home) / "my notes.txt").read_text() == "written\n"
    cells = json.loads((folder_of(ana.home) / "first.ipynb").read_text())["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["1 + 1", "print('x')"]
    assert {path.stat().st_uid for path in folder_of(ana.home).rglob("*")} == {ana.uid}


def test_a_kernel_executes_a_cell_and_is_gone_afterwards(sessions: Sessions, ana: Session) -> None:
    jupyter = sessions.jupyter(ana)
    assert jupyter.execute("import os\nprint(os.getuid())\n6 * 7") == f"{ana.uid}\n42\n"
    with pytest.raises(JupyterError, match="exception") as raised:
        jupyter.execute("1 / 0")
    assert "ZeroDivisionError" in str(raised.value)
    with pytest.raises(JupyterError, match="didn't execute"):
        jupyter.execute("import time; time.sleep(60)", limit=2)
    assert kernels(sessions, ana) == []


def test_ctrl_z_suspends_a_program_in_a_terminal_of_jupyterlab(sessions: Sessions, ana: Session) -> None:
    headers = {"Authorization": f"token {sessions.token(ana)}"}
    name = (
        httpx.post(f"{sessions.direct_url(ana)}/api/terminals", headers=headers, **PATIENTLY)
        .raise_for_status()
        .json()["name"]
    )
    with terminal_at(sessions, ana, name) as channel:

        def type_until_told(typed: str, told: str) -> None:
            channel.send(json.dumps(["stdin", typed]))
            seen = ""
            while told not in seen:
                kind, *words = json.loads(channel.recv(timeout=PATIENCE))
                seen += "".join(words) if kind == "stdout" else ""

        type_until_told("sh -c 'echo be''gun; exec sleep 1000'\r", "begun")
        type_until_told(CTRL_Z, "Stopped")
    httpx.delete(f"{sessions.direct_url(ana)}/api/terminals/{name}", headers=headers, **PATIENTLY).raise_for_status()


def test_a_terminal_that_is_awaited_is_there_when_a_page_asks_and_no_shell_before(
    sessions: Sessions, create: Callable[..., Session]
) -> None:
    session = create()
    jupyter = sessions.jupyter(session)
    jupyter.await_terminals(["1", "work"])
    assert shells(sessions, session) == 0 and not jupyter.used()
    with terminal_at(sessions, session, "work") as channel:  # a tab that is open asks for nothing else
        assert json.loads(channel.recv(timeout=PATIENCE)) == ["setup", {}]
        assert sorted(terminals(sessions, session)) == ["1", "work"]
    wait_until(lambda: shells(sessions, session) == 2)


def terminal_at(sessions: Sessions, session: Session, name: str) -> ClientConnection:
    url = f"ws{sessions.direct_url(session).removeprefix('http')}/terminals/websocket/{name}"
    headers = {"Authorization": f"token {sessions.token(session)}"}
    return connect(url, additional_headers=headers, proxy=None, open_timeout=PATIENCE)


def shells(sessions: Sessions, session: Session) -> int:
    return sessions.execute(session.name, ["ps", "-e", "-o", "args="]).splitlines().count("/bin/bash -l")


def test_a_wrong_token_is_refused_and_nothing_secret_is_said(sessions: Sessions, ana: Session) -> None:
    with pytest.raises(JupyterError, match="refuses") as refused:
        Jupyter(sessions.direct_url(ana), "wrong-token").wait_ready("/api", PATIENCE)
    assert "wrong-token" not in str(refused.value)


@pytest.mark.parametrize("prepared", [False, True])
def test_kernels_are_seen_and_ended_though_the_door_is_shut(sessions: Sessions, ana: Session, prepared: bool) -> None:
    headers = {"Authorization": f"token {sessions.token(ana)}"}
    httpx.post(f"{sessions.direct_url(ana)}/api/kernels", headers=headers, **PATIENTLY).raise_for_status()
    assert [kernel["name"] for kernel in kernels(sessions, ana)] == ["python3"]
    if prepared:
        sessions.prepare_stop(ana)
    reopen = sessions.engine.block_ingress(ana.container, [ana.access.port or 0])
    try:
        assert sessions.end_kernels(ana) == 1  # right before a move's stop, nobody comes in from outside
    finally:
        reopen()
    assert kernels(sessions, ana) == []


def run_a_cell(sessions: Sessions, session: Session) -> None:
    sessions.jupyter(session).execute("1 + 1")


def open_a_terminal(sessions: Sessions, session: Session) -> None:
    headers = {"Authorization": f"token {sessions.token(session)}"}
    httpx.post(f"{sessions.direct_url(session)}/api/terminals", headers=headers, **PATIENTLY).raise_for_status()


def read_a_file(sessions: Sessions, session: Session) -> None:
    headers = {"Authorization": f"token {sessions.token(session)}"}
    httpx.get(f"{sessions.direct_url(session)}/api/contents/notes.txt", headers=headers, **PATIENTLY).raise_for_status()


def test_a_server_is_used_when_somebody_did_something_and_not_when_it_was_asked(
    sessions: Sessions, create: Callable[..., Session]
) -> None:
    session = create()
    sessions.jupyter(session).write_file("notes.txt", "kept")
    for use in (run_a_cell, open_a_terminal, read_a_file):
        sessions.stop(session.name)
        sessions.start(session.name)
        assert kernels(sessions, session) == []
        sessions.wait_ready(session)
        jupyter = sessions.jupyter(session)  # at another address after each start
        assert not jupyter.used()
        assert not jupyter.used()
        use(sessions, session)
        assert jupyter.used()


def test_a_program_runs_inside_and_the_log_is_shown(sessions: Sessions, ana: Session) -> None:
    assert sessions.execute("ana", ["pwd"]) == "/home/dev\n"
    assert sessions.execute("ana", ["printenv", "REFIT_SESSION"]) == "ana\n"
    assert "Jupyter Server" in sessions.logs("ana", lines=5000)


def exec_in_ana(sessions: Sessions, *words: str) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of `refit session exec ana -- …`."""
    refit = Path(sys.executable).parent / "refit"
    return [str(refit), "session", "exec", "ana", "--", *words], {**os.environ, **variables(sessions._settings)}


def test_exec_passes_input_outputs_and_the_exit_code_on_as_they_come(sessions: Sessions, ana: Session) -> None:
    script = "id -u; read -r line; echo $line; echo wrong >&2; exit 7"
    argv, environment = exec_in_ana(sessions, "sh", "-c", script)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(argv, env=environment, text=True, **pipes)
    assert process.stdin and process.stdout
    assert process.stdout.readline() == f"{ana.uid}\n"
    assert process.communicate("as it came\n") == ("as it came\n", "wrong\n")
    assert process.returncode == 7


def test_exec_at_a_terminal_gives_the_program_one_and_its_ctrl_c(sessions: Sessions, ana: Session) -> None:
    script = "trap 'echo caught; exit 5' INT; test -t 0 && test -t 2 && echo ready; while :; do sleep 0.1; done"
    terminal = Terminal(*exec_in_ana(sessions, "sh", "-c", script))
    terminal.wait_for("ready")
    terminal.type(CTRL_C)
    terminal.wait_for("caught")
    assert terminal.exit_code() == 5


def test_what_programs_in_a_session_are_called_does_nothing_to_the_terminal_of_who_looks(
    sessions: Sessions, ana: Session
) -> None:
    """As an escape sequence, which would change the window's title and its colours, or a line of its own."""
    name = r"$'\e]0;owned\a\e[31m[/red]\nbob  idle'"
    argv, environment = exec_in_ana(sessions)
    pid = sessions.execute("ana", ["bash", "-c", f"exec -a {name} sleep 600 >/dev/null 2>&1 & echo $!"]).strip()
    try:
        terminal = Terminal([*argv[: argv.index("session")], "session", "activity", "ana"], environment)
        assert terminal.exit_code(PATIENCE) == 0
    finally:
        sessions.execute("ana", ["bash", "-c", f"kill {pid}"])
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.shown)  # the table's own title is bold
    assert all(each.isprintable() or each in "\r\n" for each in shown), shown
    joined = "".join(shown.split())
    assert r"\x1b]0;owned\x07\x1b[31m[/red]\n" in joined


def test_two_sessions_side_by_side_cant_read_each_others_homes(
    sessions: Sessions, ana: Session, create: Callable[..., Session]
) -> None:
    ben = create()
    assert ana.uid != ben.uid
    sessions.jupyter(ana).write_file("private.txt", "of ana")
    # Not even with the whole of the host's file system in front of it.
    call = ["setpriv", f"--reuid={ben.uid}", "--regid=0", "--clear-groups", "cat", "private.txt"]
    with pytest.raises(RefitError, match="exit code"):
        command.run(call, root=True, cwd=folder_of(ana.home))
    assert (
        command.run([*call[:1], f"--reuid={ana.uid}", *call[2:]], root=True, cwd=folder_of(ana.home)).stdout == "of ana"
    )
    with pytest.raises(RefitError, match="No such file"):
        sessions.execute(ben.name, ["cat", str(folder_of(ana.home) / "private.txt")])
    result = sessions.execute(ben.name, ["sh", "-c", "find / -name private.txt -not -path '/proc/*' 2>/dev/null; true"])
    assert result == ""
    with pytest.raises(JupyterError, match="refuses"):
        Jupyter(sessions.direct_url(ana), sessions.token(ben)).used()


def test_stop_and_start_keep_token_and_home(sessions: Sessions, create: Callable[..., Session]) -> None:
    session = create()
    before = sessions.token(session)
    sessions.jupyter(session).write_file("notes.txt", "kept")
    sessions.stop(session.name)
    sessions.stop(session.name)
    assert sessions.show(session.name).running is Running.stopped
    with pytest.raises(RefitError, match="doesn't run"):
        sessions.execute(session.name, ["true"])
    with pytest.raises(RefitError, match="doesn't run"):
        sessions.attach(session.name, ["true"], terminal=False)
    sessions.start(session.name)
    sessions.start(session.name)
    assert sessions.token(session) == before
    assert sessions.execute(session.name, ["cat", "notes.txt"]) == "kept"


def test_rm_keeps_the_home_and_its_uid_and_purge_removes_them(
    sessions: Sessions, create: Callable[..., Session]
) -> None:
    first = create()
    sessions.jupyter(first).write_file("notes.txt", "kept")
    sessions.remove(first.name)
    assert sessions.engine.containers(first.name) == ()
    assert not Path(first.token_ref).parent.exists()
    other = create()
    assert other.uid != first.uid
    again = create(first.name)
    assert (again.uid, (folder_of(again.home) / "notes.txt").read_text()) == (first.uid, "kept")
    sessions.remove(first.name)
    told = sessions._settings.folder("scans") / f"{first.name}.json"
    told.write_text("the packages in it")
    sessions.remove(first.name, purge=True)
    assert not folder_of(first.home).exists() and not told.exists()
    assert first.name not in sessions.store.homes()
    with pytest.raises(UnknownName):
        sessions.remove(first.name, purge=True)


def test_after_a_reboot_those_that_ran_run_again(sessions: Sessions, create: Callable[..., Session]) -> None:
    running, stopped = create(), create()
    sessions.stop(stopped.name)
    sessions.down()
    assert sessions.show(running.name).running is Running.stopped
    assert sessions.up() == {}
    states = {status.session.name: status.running for status in sessions.all()}
    assert (states[running.name], states[stopped.name]) == (Running.running, Running.stopped)


def test_a_container_that_is_gone_is_made_anew(sessions: Sessions, create: Callable[..., Session]) -> None:
    session = create()
    sessions.halt(session)
    sessions.engine.remove(session.container)
    assert sessions.show(session.name).running is None
    assert sessions.up() == {}
    assert sessions.show(session.name).running is Running.running


def test_a_session_never_runs_in_two_containers(sessions: Sessions, create: Callable[..., Session]) -> None:
    session = create()
    sessions.halt(session)
    second = replace(session, generation=2)
    sessions.engine.create(second)
    sessions.engine.start(second.container)
    with pytest.raises(RefitError, match=f"another container: {second.container}"):
        sessions.start(session.name)


def test_an_ide_that_never_answers_says_why_and_what_is_left(
    sessions: Sessions, shared: Settings, create: Callable[..., Session]
) -> None:
    for seconds in (3.0, 30.0, 300.0):  # its server may take longer until it says something
        hasty = shared.model_copy(update={"ready_timeout_seconds": seconds})
        impatient = Sessions(hasty, sessions.engine, sessions.homes, sessions.store)
        with pytest.raises(NotStarted) as failed:
            create("test-silent", JUPYTER.model_copy(update={"port": 9999}), impatient)
        if "Jupyter Server" in str(failed.value):
            break
        sessions.remove("test-silent", purge=True)
    assert f"within {seconds:g} s" in str(failed.value)
    assert "Jupyter Server" in str(failed.value)
    assert "refit session rm test-silent" in str(failed.value)
    assert sessions.show("test-silent").running is Running.stopped


def test_a_name_that_is_taken_illegal_or_missing(sessions: Sessions, ana: Session) -> None:
    def make(name: str) -> None:
        sessions.create(name, ana.profile, ana.release, ana.image, JUPYTER)

    with pytest.raises(NameTaken, match="already"):
        make("ana")
    with pytest.raises(RefitError, match="can't be the name") as illegal:
        make("Ana's Session")
    assert "'ana-s-session'" in str(illegal.value)
    for verb in (sessions.start, sessions.stop, sessions.remove, sessions.show, sessions.logs, sessions.address):
        with pytest.raises(UnknownName, match="There is no session 'anna'") as missing:
            verb("anna")
        assert "Did you mean 'ana'?" in str(missing.value)


def test_an_image_that_nobody_has_leaves_nothing_behind(sessions: Sessions) -> None:
    with pytest.raises(NotPublished, match="unknown"):
        sessions.create("test-ghost", "p", "2026a", f"sha256:{'0' * 64}", JUPYTER)
    assert "test-ghost" not in sessions.store.homes()


def test_nothing_secret_is_on_the_container_or_in_a_log(sessions: Sessions, ana: Session, tmp_path: Path) -> None:
    with command.logged(tmp_path / "log"):
        token = sessions.token(ana)
        sessions.start("ana")
    inspected = command.run([*tools.podman(sessions._settings), "inspect", ana.container], root=True).stdout
    for text in (inspected, sessions.logs("ana"), (tmp_path / "log").read_text()):
        assert text
        assert token not in text
    status = Path(ana.token_ref).stat()
    assert (oct(status.st_mode & 0o7777), status.st_uid) == ("0o400", ana.uid)
