"""Sessions have limits and walls: what somebody who sits in one tries against the machine and against others."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from flows.catalog.model import Resources
from flows.core import command
from flows.core.errors import RefitError
from flows.core.settings import Settings, Span
from flows.host import tools
from flows.sessions.activity import hook
from flows.sessions.activity.hook import HOOK
from flows.sessions.containers.podman_options import PROCESSES
from flows.sessions.containers.walls import Walls
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from tests.support.machine import RegistryServer, private_home
from tests.support.variants import JUPYTER
from tests.support.waiting import wait_until

PROFILE = ("jupyter-minimal-deb12-py311", "2026a")


@pytest.fixture(scope="module")
def sessions(shared: Settings) -> Sessions:
    return Sessions.open(shared)


@pytest.fixture(scope="module")
def ana(sessions: Sessions, jupyter_image: str) -> Iterator[Session]:
    yield sessions.create("wall-ana", *PROFILE, jupyter_image, JUPYTER)
    sessions.remove("wall-ana", purge=True)


def leave_hook(sessions: Sessions, session: Session, script: str) -> None:
    write = f"mkdir -p ~/.config/refit && cat >~/{HOOK} && chmod +x ~/{HOOK}"
    sessions.execute(session.name, ["sh", "-c", write], stdin=f"#!/bin/bash\n{script}\n")


def of_session(session: Session, *names: str) -> list[psutil.Process]:
    """The processes of a session that bear one of these names; its uid is nobody else's."""
    found = []
    for process in psutil.process_iter(["name", "uids"]):
        uids = process.info["uids"]
        if uids and uids.real == session.uid and process.info["name"] in names:
            found.append(process)
    return found


def engines_of_exec(settings: Settings) -> list[psutil.Process]:
    """What keeps a program in a container for Podman, while it runs."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.info["name"] == "conmon" and "--exec-attach" in words and str(settings.home) in " ".join(words):
            found.append(process)
    return found


# --- Hooks ----------------------------------------------------------------------------------------------------------

# Prints for ever itself, and by a program that belongs to no session, group or parent of it any more.
SHOUTS = "setsid yes & disown; yes"


def test_a_hook_that_prints_for_ever_leaves_nothing_behind(sessions: Sessions, ana: Session, shared: Settings) -> None:
    leave_hook(sessions, ana, SHOUTS)
    assert "printed more than" in hook.ask(sessions.engine, ana)
    assert of_session(ana, "yes") == []
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
    wait_until(lambda: not of_session(ana, "sleep"), hook.LIMIT + 60)
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


# --- The network ----------------------------------------------------------------------------------------------------

# Says of each address that it is given whether it takes a connection.
TRIES = """
import socket, sys
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print(address, "open")
    except ConnectionRefusedError:
        print(address, "refused")
    except OSError:
        print(address, "shut")
"""


def tries(sessions: Sessions, session: Session, *addresses: str) -> dict[str, str]:
    told = sessions.execute(session.name, ["python3", "-c", TRIES, *addresses])
    return dict(line.rsplit(" ", 1) for line in told.splitlines())


@pytest.fixture
def ben(sessions: Sessions, jupyter_image: str) -> Iterator[Session]:
    yield sessions.create("wall-ben", *PROFILE, jupyter_image, JUPYTER)
    sessions.remove("wall-ben", purge=True)


def own_address(sessions: Sessions, session: Session) -> str:
    script = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    return sessions.execute(session.name, ["python3", "-c", script]).strip()


def addresses_of_this_machine() -> list[str]:
    """Those that others can ask for."""
    told = json.loads(command.run(["ip", "-4", "-json", "address"], root=True).stdout)
    found = [each["local"] for link in told for each in link["addr_info"]]
    return [address for address in found if not address.startswith("127.")]


@pytest.fixture
def server() -> Iterator[int]:
    """A port of this machine at all of its addresses."""
    with socket.create_server(("0.0.0.0", 0)) as listening:
        yield listening.getsockname()[1]


def test_sessions_reach_neither_each_other_nor_this_machine(
    sessions: Sessions, ana: Session, ben: Session, server: int
) -> None:
    others = f"{own_address(sessions, ben)}:8888"
    before = addresses_of_this_machine()
    found = tries(sessions, ana, others, *(f"{address}:{server}" for address in before))
    # Bridges of other homes come and go meanwhile, and an address that is gone is no longer this machine's.
    stayed = [address for address in before if address in addresses_of_this_machine()]
    gateway = sessions.execute(ana.name, ["sh", "-c", "grep host.containers.internal /etc/hosts | cut -f1"]).strip()
    assert gateway in stayed
    machine = [others, *(f"{address}:{server}" for address in stayed)]
    assert {address: found[address] for address in machine} == dict.fromkeys(machine, "shut")
    # Their people come in as before, and what they begin is answered.
    assert sessions.jupyter(ben).execute("6 * 7") == "42\n"
    assert tries(sessions, ben, f"{own_address(sessions, ben)}:8888") == {f"{own_address(sessions, ben)}:8888": "open"}


HEARS = """
import socket
heard = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
heard.bind(("::", 9999))
heard.settimeout(5)
try:
    print(heard.recv(9).decode())
except OSError:
    print("nothing")
"""
SAYS = """
import socket, sys, time
said = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
for _ in range(30):
    said.sendto(b"hello", (sys.argv[1], 9999, 0, socket.if_nametoindex("eth0")))
    time.sleep(0.1)
"""


def test_neighbours_cant_be_reached_by_their_link_either(sessions: Sessions, ana: Session, ben: Session) -> None:
    link = "import socket; print(*(line.split()[0] for line in open('/proc/net/if_inet6') if 'eth0' in line))"
    if not (raw := sessions.execute(ben.name, ["python3", "-c", link]).strip()):
        pytest.skip("sessions have no IPv6 here")
    address = ":".join(raw[at : at + 4] for at in range(0, 32, 4))
    with ThreadPoolExecutor() as pool:
        heard = pool.submit(sessions.execute, ben.name, ["python3", "-c", HEARS])
        sessions.execute(ana.name, ["python3", "-c", SAYS, address])
        assert heard.result() == "nothing\n"


def test_the_walls_are_there_again_after_the_firewall_was_emptied(
    sessions: Sessions, ben: Session, ana: Session, server: int, shared: Settings
) -> None:
    wall = Walls(shared).wall(())
    machine = f"{addresses_of_this_machine()[0]}:{server}"
    command.run(["nft", "delete", "table", "inet", wall.table], root=True)
    for port in Path(f"/sys/class/net/{wall.bridge}/brif").iterdir():
        (port / "isolated").write_text("0")
    there = f"{own_address(sessions, ana)}:8888"
    assert tries(sessions, ben, machine, there) == {machine: "open", there: "open"}  # so the test can fail
    sessions.stop(ben.name)
    sessions.start(ben.name)
    assert tries(sessions, ben, machine, there) == {machine: "shut", there: "shut"}


def test_a_profile_may_name_ports_of_this_machine(
    sessions: Sessions, ana: Session, jupyter_image: str, server: int
) -> None:
    wanting = JUPYTER.model_copy(update={"machine_ports": (server,)})
    machine = addresses_of_this_machine()[0]
    with socket.create_server(("0.0.0.0", 0)) as other:
        try:
            made = sessions.create("wall-reaches", *PROFILE, jupyter_image, wanting)
            asked = [f"{machine}:{server}", f"{machine}:{other.getsockname()[1]}", f"{own_address(sessions, ana)}:8888"]
            assert tries(sessions, made, *asked) == dict(zip(asked, ("open", "shut", "shut"), strict=True))
        finally:
            sessions.remove("wall-reaches", purge=True)


@pytest.mark.long
def test_sessions_of_another_home_are_out_of_reach_too(
    sessions: Sessions, ana: Session, jupyter_image: str, registry_server: RegistryServer, tmp_path: Path
) -> None:
    with private_home(tmp_path / "other", registry_server.port) as other:
        theirs = Sessions.open(other)
        made = theirs.create("wall-other", *PROFILE, jupyter_image, JUPYTER)
        there = f"{own_address(theirs, made)}:8888"
        assert tries(sessions, ana, there) == {there: "shut"}
        here = f"{own_address(sessions, ana)}:8888"
        assert tries(theirs, made, here) == {here: "shut"}
        theirs.remove("wall-other", purge=True)
        bridge = Walls(other).wall(()).bridge
        assert Path("/sys/class/net", bridge).exists()
    assert not Path("/sys/class/net", bridge).exists()


def test_where_the_walls_cant_be_raised_nothing_starts(sessions: Sessions, ben: Session, shared: Settings) -> None:
    wall = Walls(shared).wall(())
    rules = tools.hooks(shared) / f"{wall.id}.nft"
    sessions.stop(ben.name)
    good = rules.read_text()
    rules.write_text("nonsense\n")
    try:
        with pytest.raises(RefitError):
            sessions.engine.start(ben.container)
    finally:
        rules.write_text(good)
    sessions.start(ben.name)


def test_the_world_outside_stays_in_reach(sessions: Sessions, ana: Session) -> None:
    """By whatever of it this machine reaches: the way there leads over it, not to it."""
    routes = json.loads(command.run(["ip", "-4", "-json", "route", "show", "default"], root=True).stdout)
    if not routes:
        pytest.skip("this machine reaches nothing")
    asked = [f"{routes[0]['gateway']}:{port}" for port in (1, 53, 80, 443, 3128, 8080)]
    here = {address for address in asked if _answers_here(address)}
    seen = tries(sessions, ana, *asked)
    assert here <= {address for address, said in seen.items() if said in ("open", "refused")}


def _answers_here(address: str) -> bool:
    gateway, _, port = address.rpartition(":")
    try:
        socket.create_connection((gateway, int(port)), timeout=2).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
