"""Limits of sessions, against somebody in one who tries to take all of the machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import psutil
import pytest

from flows.catalog.model import Resources
from flows.core.programs import command
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.host import tools
from flows.sessions.activity import hook
from flows.sessions.activity.hook import HOOK
from flows.sessions.containers.podman_options import PROCESSES
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from tests.support.machine import RegistryServer, private_home
from tests.support.variants import JUPYTER
from tests.support.waiting import PATIENCE, wait_until

PROFILE = ("jupyter-minimal-deb12-py311", "2026a")


def leave_hook(sessions: Sessions, session: Session, script: str) -> None:
    write = f"mkdir -p ~/.config/refit && cat >~/{HOOK} && chmod +x ~/{HOOK}"
    sessions.execute(session.name, ["sh", "-c", write], stdin=f"#!/bin/bash\n{script}\n")


def of_session(session: Session, *names: str) -> list[psutil.Process]:
    """The processes of a session that bear one of these names; its uid is nobody else's."""
    results = []
    for process in psutil.process_iter(["name", "uids"]):
        uids = process.info["uids"]
        if uids and uids.real == session.uid and process.info["name"] in names:
            results.append(process)
    return results


def engines_of_exec(settings: Settings) -> list[psutil.Process]:
    """The processes that hold a program in a container for Podman, while it runs."""
    results = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["name"] == "conmon" and "--exec-attach" in words and str(settings.home) in " ".join(words):
            results.append(process)
    return results


# --- Hooks ----------------------------------------------------------------------------------------------------------

# Prints for ever itself, and by a program that belongs to no session, group or parent of it any more.
SHOUTS = "setsid yes & disown; yes"


def test_a_hook_that_prints_for_ever_leaves_nothing_behind(sessions: Sessions, ana: Session, shared: Settings) -> None:
    leave_hook(sessions, ana, SHOUTS)
    assert "printed more than" in hook.ask(sessions.engine, ana)
    wait_until(lambda: not of_session(ana, "yes"))
    wait_until(lambda: not engines_of_exec(shared))


def ask(settings: Settings, session: Session) -> None:
    hook.ask(Sessions.open(settings).engine, session)


def test_a_hook_ends_though_its_mover_is_killed(
    sessions: Sessions, ana: Session, shared: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_hook(sessions, ana, "setsid sleep 1000 & disown; sleep 1000")
    mover = multiprocessing.get_context("fork").Process(target=ask, args=(shared, ana))
    mover.start()
    wait_until(lambda: len(of_session(ana, "sleep")) == 2)
    assert mover.pid
    os.kill(mover.pid, signal.SIGKILL)
    mover.join()
    assert of_session(ana, "sleep")
    wait_until(lambda: not of_session(ana, "sleep"), hook.LIMIT + PATIENCE)
    wait_until(lambda: not engines_of_exec(shared))


def test_what_a_session_answers_is_bounded(sessions: Sessions, ana: Session, shared: Settings) -> None:
    with pytest.raises(command.TooMuchOutput):
        sessions.engine.execute(ana.container, ["cat", "/dev/zero"])
    with (
        sessions.engine.dialogue(ana.container, ["sh", "-c", "read line; exec cat /dev/zero"]) as say,
        pytest.raises(command.ProgramFailed, match="printed more than"),
    ):
        say("well?")
    wait_until(lambda: not of_session(ana, "cat"))
    wait_until(lambda: not engines_of_exec(shared))


# --- The kernel -----------------------------------------------------------------------------------------------------

# Every way to a namespace in which a user is root, and whether what programs do all the time still works.
NAMESPACES = """
import ctypes, errno, os, platform, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, CLONE3 = 0x10000000, 435
CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
def why(result):
    if result == 0 and os.getpid() != me: os._exit(0)
    return "works" if result >= 0 else errno.errorcode[ctypes.get_errno()]
me = os.getpid()
print("unshare", why(libc.unshare(NEWUSER)))
print("clone", why(libc.syscall(CLONE, NEWUSER | 17, 0, 0, 0, 0)))
arguments = (ctypes.c_uint64 * 11)(NEWUSER, 0, 0, 0, 17)
print("clone3", why(libc.syscall(CLONE3, ctypes.byref(arguments), 88)))
print("setns", why(libc.setns(os.open("/proc/self/ns/user", 0), 0)))
seen = []
thread = threading.Thread(target=seen.append, args=[1]); thread.start(); thread.join()
print("thread", seen, "process", subprocess.run(["true"]).returncode)
"""


def namespaces(sessions: Sessions, session: Session) -> dict[str, str]:
    told = sessions.execute(session.name, ["python3", "-c", NAMESPACES])
    return dict(line.split(" ", 1) for line in told.splitlines())


def test_nobody_becomes_root_in_a_namespace_of_their_own(sessions: Sessions, ana: Session) -> None:
    assert namespaces(sessions, ana) == {
        "unshare": "EPERM",
        "clone": "EPERM",
        "clone3": "ENOSYS",
        "setns": "EPERM",
        "thread": "[1] process 0",
    }
    with pytest.raises(command.ProgramFailed):
        sessions.execute(ana.name, ["unshare", "--user", "--map-root-user", "true"])
    assert sessions.jupyter(ana).execute("6 * 7") == "42\n"


def test_a_profile_may_want_user_namespaces(sessions: Sessions, jupyter_image: str) -> None:
    wanting = JUPYTER.model_copy(update={"user_namespaces": True})
    try:
        made = sessions.create("wall-spaces", *PROFILE, jupyter_image, wanting)
        assert sessions.execute(made.name, ["unshare", "--user", "--map-root-user", "id", "-u"]) == "0\n"
        assert namespaces(sessions, made)["unshare"] == "works"
    finally:
        sessions.remove("wall-spaces", purge=True)


# --- Memory and processes -------------------------------------------------------------------------------------------

EATS = "x = bytearray(int(1.5e9)); print(len(x))"


def test_a_session_takes_no_more_memory_than_the_setting_lets_or_its_profile(
    sessions: Sessions, shared: Settings, jupyter_image: str
) -> None:
    narrow = Sessions.open(shared.model_copy(update={"session_memory": 0.7}))
    try:
        narrow.create("wall-small", *PROFILE, jupyter_image, JUPYTER)
        narrow.create(
            "wall-large", *PROFILE, jupyter_image, JUPYTER, resources=Resources.model_validate({"memory": "3 GB"})
        )
        with pytest.raises(command.ProgramFailed, match="137"):
            narrow.execute("wall-small", ["python3", "-c", EATS])
        assert narrow.execute("wall-large", ["python3", "-c", EATS]) == "1500000000\n"
        assert narrow.show("wall-small").running is Running.running
        narrow.wait_ready(narrow.store.session("wall-small"))
        assert not Path("oom").exists()  # conmon would leave it to whoever started it
    finally:
        narrow.remove("wall-small", purge=True)
        narrow.remove("wall-large", purge=True)


def test_by_default_a_session_may_take_half_of_the_machine(sessions: Sessions, ana: Session, shared: Settings) -> None:
    asked = [*tools.podman(shared), "inspect", "--format", "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}}"]
    memory, swap = command.run([*asked, ana.container], root=True).stdout.split()
    assert int(memory) == int(swap) == tools.session_memory(shared)
    assert abs(int(memory) / psutil.virtual_memory().total - 0.5) < 0.01


FEW = 400
FORKS = f"for i in $(seq {2 * FEW}); do sleep 300 & done"


def test_a_fork_bomb_stays_within_its_session(
    sessions: Sessions,
    jupyter_image: str,
    registry_server: RegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "flows.sessions.containers.podman_options.PROCESSES", FEW
    )  # so that they are started in seconds
    eve = sessions.create("wall-eve", *PROFILE, jupyter_image, JUPYTER)
    with pytest.raises(command.ProgramFailed, match="fork"):
        sessions.execute(eve.name, ["bash", "-c", FORKS])
    assert len(of_session(eve, "sleep")) < FEW
    # A session of another home may have the same uid, whose processes the kernel counts together.
    uids = Span(first=eve.uid, last=eve.uid)
    with private_home(tmp_path / "other", registry_server.port, session_uids=uids) as other:
        made = Sessions.open(other).create("wall-beside", *PROFILE, jupyter_image, JUPYTER)
        assert made.uid == eve.uid
        Sessions.open(other).remove("wall-beside", purge=True)
    # No program more can be started in it, and it can be restarted nonetheless.
    sessions.stop(eve.name)
    sessions.start(eve.name)
    sessions.wait_ready(eve)
    assert of_session(eve, "sleep") == []
    sessions.remove(eve.name, purge=True)


def test_by_default_a_session_may_have_that_many_processes(ana: Session, shared: Settings) -> None:
    asked = [*tools.podman(shared), "inspect", "--format", "{{.HostConfig.PidsLimit}}", ana.container]
    assert int(command.run(asked, root=True).stdout) == PROCESSES
