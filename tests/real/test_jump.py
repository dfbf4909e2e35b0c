"""The jump host against the worst neighbour: real ssh and sshd, and listeners on loopback in the place of sessions."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import pytest

from flows import services
from flows.core.settings import Settings
from flows.jump.sandbox import Sandbox
from flows.sessions.history import History
from flows.sessions.homes.folders import ref_of
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import SSH_PORT, Session
from flows.sessions.people.entitlements import Kind, Share
from flows.sessions.people.person_keys import KeyTaken, PersonKeys
from flows.sessions.ssh.keys import read_keys
from flows.sessions.tokens import FileTokens
from tests.support.laptops import Laptop, greeter, hear
from tests.support.machine import private_home
from tests.support.ordinary_user import UID, without_sudo
from tests.support.variants import LIGHT
from tests.support.waiting import PATIENCE, free_port, free_span, running_seconds, wait_until

PEOPLE = ("ada", "bob", "eve")
TO_BOB = Share("ada", "ada", Kind.person, "bob")
# Seconds in which a connection has to end when its right has.
PROMISED = 2.0
_NUMBERS = count()
# As in snippets/base/files/sshd_config, with the files of the session where the machine has them.
SSHD = """
Port {port}
ListenAddress {address}
HostKey {files}/host_key
HostCertificate {files}/host_key-cert.pub
AuthorizedKeysFile {files}/authorized_keys
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""


@dataclass
class Host:
    """A jump host with the sessions of Ada and of Bob."""

    settings: Settings
    sessions: Sessions
    folder: Path
    addresses: dict[str, str]

    @property
    def keys(self) -> PersonKeys:
        return PersonKeys(self.sessions.store.database)

    def laptop(self, person: str) -> Laptop:
        laptop = Laptop.make(self.settings, person, self.folder / f"{person}-{next(_NUMBERS)}", self.keys)
        laptop.tell_key()
        laptop.configure()
        return laptop

    def say(self, *shares: Share, people: tuple[str, ...] = PEOPLE) -> None:
        hear(self.settings, people, shares, ("ada", "bob"))

    def point(self, session: str, address: str) -> None:
        """Let a session be somewhere else from now on."""
        port = self.sessions.ssh.port(session)
        self.sessions.ssh.forwarder.point(port, f"{address}:{SSH_PORT}" if address else "")

    def lead(self, session: str) -> None:
        """Let a session be at its own address, and wait until people are led there."""
        self.point(session, self.addresses[session])
        hosts = self.settings.home / "services" / "jump" / "shared" / "hosts"
        wait_until(lambda: f"{self.addresses[session]} {session}.refit" in hosts.read_text().splitlines())

    @property
    def monitor(self) -> psutil.Process:
        [state] = [state for state in services.status(self.settings) if state.name == "jump"]
        assert state.pid
        return psutil.Process(state.pid)

    def programs(self) -> list[psutil.Process]:
        """The programs of its sshd."""
        uid = Sandbox(self.settings).uid
        return [one for one in psutil.process_iter() if one.is_running() and _is_of(one, uid)]


def _is_of(process: psutil.Process, uid: int) -> bool:
    try:
        return process.uids().real == uid and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


def _heard(connection: socket.socket, question: str) -> bytes:
    try:
        connection.sendall(question.encode())
        return connection.recv(100)
    except ConnectionError:  # it was closed before the question was sent, or read
        return b""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("jump")
    ports = {"ssh_ports": free_span(), "jump_port": free_port(), "gateway_port": free_port()}
    # One of its own, so that what runs on this machine at the same time is told apart.
    chosen = {"hub": True, "gateway": True, "jump_uid": 1_000_000 + os.getpid(), **ports}
    with private_home(folder / "home", free_port(), **chosen) as settings, ExitStack() as stack:
        sessions = Sessions.open(settings)
        addresses = {name: stack.enter_context(greeter(number)) for number, name in enumerate(("ada", "bob"), 1)}
        host = Host(settings, sessions, folder, addresses)
        for owner in addresses:
            _record(sessions, settings, owner)
        host.say()
        stack.callback(services.down, settings)
        services.up(settings, only=["jump"])
        for owner in addresses:
            host.laptop(owner)
            wait_until(lambda owner=owner: sessions.ssh.people_keys(owner))  # the monitor has brought them
            host.lead(owner)
        yield host


def _record(sessions: Sessions, settings: Settings, name: str) -> Session:
    home, token = settings.home / name, FileTokens(settings).token_of(name)

    def make(uid: int) -> Session:
        return Session(name, "light", "2026a", "sha256:0", uid, ref_of(home), token, LIGHT)

    return sessions.store.add(name, make, uids=settings.session_uids, owner=name)


@pytest.fixture
def ada(host: Host) -> Laptop:
    host.say()
    host.lead("ada")
    return host.laptop("ada")


@contextmanager
def connected(host: Host, laptop: Laptop, session: str = "ada") -> Iterator[subprocess.Popen[str]]:
    """A connection of somebody to a session, which is open."""
    program = laptop.open("-W", f"{session}.refit:{SSH_PORT}", "jump.host.refit")
    try:
        assert program.stdout and program.stderr
        said = program.stdout.readline()
        assert said == f"this is {host.addresses[session]}\n", program.stderr.read()
        yield program
    finally:
        program.kill()
        program.communicate()


def refused(laptop: Laptop, session: str) -> str:
    said = laptop.call(*laptop.ssh.split(), "-W", f"{session}.refit:{SSH_PORT}", "jump.host.refit")
    assert said.returncode != 0
    return said.stderr


def ends_in_time(program: subprocess.Popen[str], change: Callable[[], object]) -> None:
    assert program.poll() is None
    change()
    begun = running_seconds()
    program.wait(PATIENCE)
    seconds = running_seconds() - begun
    print(f"ended after {seconds:.2f} s")
    assert seconds < PROMISED


def test_a_connection_ends_in_time_when_its_key_is_removed(host: Host, ada: Laptop) -> None:
    with connected(host, ada) as one:
        ends_in_time(one, lambda: host.keys.remove("ada", [ada.fingerprint]))
    assert "Permission denied" in refused(ada, "ada")


def test_a_connection_ends_in_time_when_its_person_is_removed(host: Host, ada: Laptop) -> None:
    with connected(host, ada) as one:
        ends_in_time(one, lambda: host.say(people=("bob", "eve")))
    assert "Permission denied" in refused(ada, "ada")


def test_a_share_opens_a_session_and_its_end_closes_what_is_open_there(host: Host, ada: Laptop) -> None:
    bob = host.laptop("bob")
    assert "prohibited" in refused(bob, "ada")
    host.say(TO_BOB)
    with connected(host, bob) as guest, connected(host, ada) as owner:
        wait_until(
            lambda: [event for event in History(host.sessions.store.database).events("ada") if event.by == "bob"]
        )
        ends_in_time(guest, host.say)
        assert owner.poll() is None
    assert "prohibited" in refused(bob, "ada")
    with connected(host, bob, "bob"):
        pass


def test_a_connection_that_leads_nowhere_yet_ends_with_the_right_too(host: Host) -> None:
    """It was told at its login where it may lead, and would still be let there."""
    bob = host.laptop("bob")
    host.say(TO_BOB)
    waits = bob.open("-N", "-v", "jump.host.refit")
    try:
        assert waits.stderr
        assert any("Entering interactive session" in line for line in waits.stderr)
        ends_in_time(waits, host.say)
    finally:
        waits.kill()
        waits.communicate()


def test_a_connection_ends_when_its_session_moves_and_the_next_one_finds_it(host: Host, ada: Laptop) -> None:
    with greeter(3) as elsewhere, connected(host, ada) as one:
        ends_in_time(one, lambda: host.point("ada", elsewhere))
        after = ada.open("-W", f"ada.refit:{SSH_PORT}", "jump.host.refit")
        assert after.stdout and after.stdout.readline() == f"this is {elsewhere}\n"
        host.point("ada", "")
        after.wait(PATIENCE)
    assert "open failed" in refused(ada, "ada")


def test_who_only_knows_a_public_key_gets_nowhere_and_is_nobody_else(host: Host, ada: Laptop) -> None:
    eve = host.laptop("eve")
    public = ada.key.with_suffix(".pub").read_text()
    with pytest.raises(KeyTaken):
        host.keys.add("eve", read_keys(public, "stolen"))
    stolen = eve.folder / ".ssh" / "stolen"
    stolen.with_suffix(".pub").write_text(public)
    stolen.write_text(eve.key.read_text())
    stolen.chmod(0o600)
    forged = eve.call(*eve.ssh.split(), "-i", str(stolen), "-W", f"ada.refit:{SSH_PORT}", "jump.host.refit")
    assert forged.returncode != 0 and f"this is {host.addresses['ada']}" not in forged.stdout
    # Offered before her own key, it makes her login nobody's but hers.
    waits = eve.open("-N", "-v", "-i", str(stolen), "jump.host.refit")
    try:
        assert waits.stderr and any("Entering interactive session" in line for line in waits.stderr)
        host.keys.remove("ada", [ada.fingerprint])
        with connected(host, host.laptop("ada")):  # the monitor has looked since
            assert waits.poll() is None
        ends_in_time(waits, lambda: host.keys.remove("eve", [eve.fingerprint]))
    finally:
        waits.kill()
        waits.communicate()


def test_nobody_but_the_jump_user_asks_the_keeper(host: Host, ada: Laptop) -> None:
    place = host.settings.home / "services" / "jump" / "shared"
    folder = os.open(place, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as curious:
        curious.settimeout(PATIENCE)
        curious.connect(f"/proc/self/fd/{folder}/monitor")
        os.close(folder)
        assert _heard(curious, f"{ada.fingerprint}\n") == b""


def test_a_flood_of_connections_keeps_nobody_from_coming_in_from_elsewhere(host: Host, ada: Laptop) -> None:
    with ExitStack() as flood:
        for _ in range(100):
            one = flood.enter_context(socket.socket())
            one.bind(("127.0.0.66", 0))
            one.settimeout(PATIENCE)
            one.connect(("127.0.0.1", host.settings.jump_port))
        wait_until(lambda: len(host.programs()) > 10)
        for _ in range(3):  # with one of three, it might have been luck
            with connected(host, ada):
                assert len(host.programs()) < 60


def test_with_the_keeper_everything_ends_and_nothing_is_left(host: Host, ada: Laptop) -> None:
    with connected(host, ada) as one:
        programs = host.programs()  # its supervisor starts others within a second
        host.monitor.send_signal(signal.SIGKILL)
        one.wait(PATIENCE)
        wait_until(lambda: not any(program.is_running() for program in programs))
    services.up(host.settings, only=["jump"])
    with connected(host, ada):
        pass


def test_the_sshd_sees_nothing_of_this_machine(host: Host) -> None:
    [listener] = [one for one in host.programs() if "listener" in _words(one)]
    root = Path(f"/proc/{listener.pid}/root")
    assert {entry.name for entry in root.iterdir()} == {
        *("bin", "dev", "etc", "lib", "lib64", "refit", "sbin", "tmp", "usr")
    }
    assert {entry.name for entry in (root / "etc").iterdir()} == {
        *("group", "host_key", "host_key.pub", "hosts", "nsswitch.conf", "passwd", "sshd_config")
    }
    status = Path(f"/proc/{listener.pid}/status").read_text()
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        assert line in status


@contextmanager
def session_of_this_user(host: Host, name: str) -> Iterator[None]:
    """An sshd of the user's own in the place of a session, with the keys and the certificate of that one."""
    address = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.77"
    config = host.folder / "sshd_config"
    files = host.settings.home / "sessions" / name / "ssh"
    config.write_text(SSHD.format(port=SSH_PORT, address=address, files=files))
    (Path.home() / "session").mkdir()
    with subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", config]) as sshd:
        host.point(name, address)
        try:
            yield
        finally:
            sshd.terminate()


@pytest.mark.skipif(os.geteuid() != UID, reason="test_jump_without_root.py runs it")
def test_real_programs_come_in_and_are_out_when_the_share_ends_without_sudo(host: Host) -> None:
    """Only to bring a key into a session, sudo is needed."""
    host.say(TO_BOB)
    ada, bob = host.laptop("ada"), host.laptop("bob")
    known = {ada.fingerprint, bob.fingerprint}
    wait_until(lambda: known <= {key.fingerprint for key in host.sessions.ssh.people_keys("ada")})
    services.down(host.settings)
    with session_of_this_user(host, "ada"), without_sudo():
        services.up(host.settings, only=["jump"])
        wait_until(lambda: ada.run("ada", "true").returncode == 0, PATIENCE)
        use_every_program(ada)
        get_nowhere_else(host, ada)
        guest, owner = (one.open("ada.refit", "echo here; exec cat") for one in (bob, ada))
        for program in (guest, owner):
            assert program.stdout and program.stdout.readline() == "here\n"
        try:
            ends_in_time(guest, host.say)
            assert owner.poll() is None
        finally:
            for program in (guest, owner):
                program.kill()
                program.communicate()
        assert "prohibited" in refused(bob, "ada")
        services.down(host.settings)
        assert not host.programs()


def use_every_program(ada: Laptop) -> None:
    said = ada.run("ada", "id -u")
    assert said.stdout == f"{UID}\n", said.stderr
    (ada.folder / "notes").write_text("from my laptop\n")
    assert ada.call("scp", *ada.ssh.split()[1:], "notes", "ada.refit:copied").returncode == 0
    assert ada.call("rsync", "-e", ada.ssh, "ada.refit:copied", "back").returncode == 0
    assert (ada.folder / "back").read_text() == "from my laptop\n"
    assert ada.run("ada", "git init -q --bare project.git").returncode == 0
    made = "git init -q work && git -C work -c user.name=a -c user.email=a@b commit -q --allow-empty -m first"
    assert ada.call("sh", "-c", f"{made} && git -C work push -q ada.refit:project.git HEAD:main").returncode == 0
    assert ada.call("git", "clone", "-q", "-b", "main", "ada.refit:project.git", "again").returncode == 0
    assert (ada.folder / "again" / ".git").is_dir()


def get_nowhere_else(host: Host, ada: Laptop) -> None:
    hint = ada.call(*ada.ssh.split(), "jump.host.refit", "id")
    assert "leads to sessions" in hint.stdout and "uid=" not in hint.stdout
    gateway = f"127.0.0.1:{host.settings.gateway_port}"
    for target in (gateway, f"127.0.0.1:{SSH_PORT}", f"bob.refit:{SSH_PORT}", "ada.refit:8000"):
        said = ada.call(*ada.ssh.split(), "-W", target, "jump.host.refit")
        assert said.returncode != 0 and "prohibited" in said.stderr, target
    words = ("-N", "-R", f"{free_port()}:ada.refit:{SSH_PORT}", "-o", "ExitOnForwardFailure=yes", "jump.host.refit")
    back = ada.call(*ada.ssh.split(), *words)
    assert back.returncode != 0 and "forwarding failed" in back.stderr
