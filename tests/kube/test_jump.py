"""The jump host in front of sessions that are Pods: real ssh of people's own machines, and the worst neighbours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from flows import services
from flows.core.leases import LeaseTaken
from flows.jump.certificates import HELD_SECONDS
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.services import doctor_cluster
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import SSH_PORT
from flows.sessions.people.entitlements import Kind, Share
from flows.sessions.people.person_keys import PersonKeys
from tests.support import cluster_images
from tests.support.cluster import Lab, kubectl
from tests.support.cluster_moves import NAME, ClusterScene
from tests.support.cluster_ssh import PROFILE, RELEASE, scene_with_ssh
from tests.support.laptops import Laptop, hear
from tests.support.moving import carry_out, to
from tests.support.waiting import PATIENCE, free_port, running_seconds, wait_until

pytestmark = [pytest.mark.long]
PEOPLE = ("ada", "bob", "eve")
TO_BOB, EVES_TO_BOB = (Share(owner, owner, Kind.person, "bob") for owner in ("ada", "eve"))
_NUMBERS = count()
# Takes the place of the sshd of its session, and holds each program of Refit's that brings keys.
_LIAR = """
import contextlib, os, pathlib, signal, socket, threading, time

if os.fork():
    os._exit(0)
os.setsid()
nowhere = os.open(os.devnull, os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(nowhere, number)

def each():
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            yield int(entry.name), (entry / "cmdline").read_bytes()
        except OSError:
            pass

def hold():
    while True:
        for pid, words in each():
            if b"/run/refit/bin/slot\\0keys" in words and pid != os.getpid():
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(pid, signal.SIGSTOP)
                    pathlib.Path("/tmp/held").touch()
        time.sleep(0.01)

threading.Thread(target=hold, daemon=True).start()
listener = None
while listener is None:
    for pid, words in each():
        if words.startswith(b"sshd:") or words.startswith(b"/usr/sbin/sshd"):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):  # the port is not free yet
        listener = socket.create_server(("", 2222))
pathlib.Path("/tmp/lies").touch()
kept = []
while True:
    connection, _ = listener.accept()
    with contextlib.suppress(OSError):
        connection.sendall(b"SSH-2.0-OpenSSH_9.2\\r\\n")
    kept.append(connection)
"""


@dataclass(frozen=True)
class Host:
    """A jump host with the sessions of Ada and Eve, which are Pods."""

    scene: ClusterScene
    folder: Path

    @property
    def sessions(self) -> Sessions:
        return self.scene.sessions

    def laptop(self, person: str) -> Laptop:
        """One that knows the jump host and the authority of host keys, and no session."""
        keys = PersonKeys(self.sessions.store.database)
        laptop = Laptop.make(self.scene.settings, person, self.folder / f"{person}-{next(_NUMBERS)}", keys)
        laptop.configure()
        known = laptop.folder / ".ssh" / "refit" / "known_hosts"
        lines = known.read_text().splitlines(keepends=True)
        known.write_text("".join(line for line in lines if not line.startswith("[")))
        assert "@cert-authority" in known.read_text()
        laptop.tell_key()
        return laptop

    def say(self, *shares: Share, people: tuple[str, ...] = PEOPLE) -> None:
        hear(self.scene.settings, people, shares, ("ada", "eve"))

    def hosts(self) -> dict[str, str]:
        """Where the jump host leads now, by name."""
        text = (self.scene.settings.home / "services" / "jump" / "shared" / "hosts").read_text()
        return {name: address for address, name in map(str.split, text.splitlines())}

    def address(self, session: str) -> str:
        """Where the Pod of a session is."""
        return self.sessions.engine.address(self.sessions.store.session(session).container, SSH_PORT)[0]

    @contextmanager
    def connected(self, laptop: Laptop, session: str = NAME) -> Iterator[subprocess.Popen[str]]:
        """A login that answers each line with itself."""
        login = laptop.open(f"{session}.refit", "echo in; exec cat")
        try:
            assert login.stdout and login.stderr
            assert login.stdout.readline() == "in\n", login.stderr.read()
            yield login
        finally:
            login.kill()
            login.communicate()


def says(laptop: Laptop, text: str, session: str = NAME) -> str:
    """The output of shell text in a session, once somebody is let in."""
    seen: list[subprocess.CompletedProcess[str]] = []

    def is_let_in() -> bool:
        seen.append(laptop.run(session, text))
        print(seen[-1].stderr)
        return seen[-1].returncode == 0

    wait_until(is_let_in)
    return seen[-1].stdout


def answers(login: subprocess.Popen[str], line: str) -> bool:
    assert login.stdin and login.stdout
    login.stdin.write(f"{line}\n")
    login.stdin.flush()
    return login.stdout.readline() == f"{line}\n"


@pytest.fixture(scope="module")
def host(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("jump")
    ports = {"jump_port": free_port(), "gateway_port": free_port(), "jump_uid": 1_000_000 + os.getpid()}
    with scene_with_ssh(folder, "ada", hub=True, gateway=True, subdomain_host="none", **ports) as scene:
        host = Host(scene, folder)
        host.say()
        services.up(scene.settings, only=["forwarder", "jump"])
        yield host


@pytest.fixture
def ada(host: Host) -> Laptop:
    host.say()
    return host.laptop("ada")


@pytest.fixture(scope="module")
def eve(host: Host) -> Iterator[Laptop]:
    """The machine of Eve, who has a session beside that of Ada."""
    image = host.sessions.store.session(NAME).image
    host.sessions.create("eve", PROFILE, RELEASE, image, cluster_images.LATE_SERVER, owner="eve")
    try:
        eve = host.laptop("eve")
        says(eve, "true", "eve")
        yield eve
    finally:
        services.down(host.scene.settings)
        host.sessions.remove("eve", purge=True)


def test_the_same_login_works_before_and_after_a_move_and_its_way_back(host: Host, ada: Laptop) -> None:
    scene, uid = host.scene, host.sessions.store.session(NAME).uid
    assert says(ada, 'id -un; id -u; echo "$REFIT_SESSION"; [ . -ef "$HOME" ] && echo at home; echo kept >mine') == (
        f"dev\n{uid}\n{NAME}\nat home\n"
    )
    files, image = scene.files(), scene.other
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
    assert result.state is State.cleaned, result.reason
    scene.check(State.cleaned, image, files)
    assert says(ada, "cat mine /etc/word") == "kept\nlate-ssh-two\n"
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back, result.reason
    assert says(ada, "cat mine /etc/word") == "kept\nlate-ssh-two\n"


def test_files_and_forwards_go_through_and_nothing_else_does(host: Host, ada: Laptop) -> None:
    says(ada, "true")
    (ada.folder / "notes").write_text("from my laptop\n")
    sent = ada.call("scp", *ada.ssh.split()[1:], "notes", "ada.refit:copied")
    assert sent.returncode == 0, sent.stderr
    assert says(ada, "cat copied") == "from my laptop\n"
    for target in (f"{host.address(NAME)}:{SSH_PORT}", "ada.refit:8000", f"eve.refit:{SSH_PORT}"):
        said = ada.call(*ada.ssh.split(), "-W", target, "jump.host.refit")
        assert said.returncode != 0 and "prohibited" in said.stderr, target


def test_the_doctor_tries_the_pods_of_sessions_that_run(host: Host) -> None:
    findings = {finding.thing: finding for finding in doctor_cluster.cluster(host.scene.settings)}
    reached, apart = findings["network of Pods"], findings["sessions apart"]
    assert reached.ok and reached.seen == "reached"
    assert "NetworkPolicy" in apart.seen


def test_the_owner_stays_when_a_guest_has_to_go(host: Host, ada: Laptop) -> None:
    bob = host.laptop("bob")
    host.say(TO_BOB)
    says(bob, "true")
    program, *options = host.sessions.ssh.call(NAME)
    own = ["-F", "none", "-i", str(bob.key), "-o", "IdentityAgent=none", "-o", "BatchMode=yes"]
    with host.connected(ada) as owner, host.connected(bob) as guest:
        past = subprocess.Popen([program, *own, *options, "echo in; exec sleep 600"], stdout=subprocess.PIPE)
        try:
            assert past.stdout and past.stdout.readline() == b"in\n"
            host.say()
            assert guest.wait(PATIENCE) != 0
            # It came past the jump host, so that its end is that of all that the session's sshd doesn't keep.
            assert past.wait(PATIENCE) != 0
        finally:
            past.kill()
            past.communicate()
        assert bob.fingerprint not in {key.fingerprint for key in host.sessions.ssh.people_keys(NAME)}
        assert answers(owner, "still here")
    assert says(ada, "echo in") == "in\n"
    assert bob.run(NAME, "true").returncode != 0


def test_nobody_is_led_to_the_pod_of_another_session_and_a_pod_that_comes_back_is_found(
    host: Host, ada: Laptop, eve: Laptop
) -> None:
    says(ada, "echo kept >mine")
    port = host.sessions.ssh.port(NAME)
    with host.connected(ada) as stays, host.connected(eve, "eve") as neighbour:
        host.sessions.ssh.forwarder.point(port, f"{host.address('eve')}:{SSH_PORT}")
        assert stays.wait(PATIENCE) != 0
        wait_until(lambda: "ada.refit" not in host.hosts())
        begun = running_seconds()
        while running_seconds() - begun < HELD_SECONDS + 2:
            assert host.hosts().get("ada.refit") != host.address("eve")
        assert ada.run(NAME, "true").returncode != 0
        assert answers(neighbour, "nobody has come")
    host.sessions.ssh.open(host.sessions.store.session(NAME))
    says(ada, "true")
    with host.connected(ada) as stays:
        kubectl("delete", "pods", "-l", "io.refit.kind=session,io.refit.session=ada", "--grace-period=1")
        assert stays.wait(PATIENCE) != 0
        wait_until(lambda: "ada.refit" not in host.hosts())
    host.sessions.start(NAME)
    assert says(ada, "cat mine") == "kept\n"


def test_a_session_that_lies_holds_up_nobody_elses_keys(host: Host, ada: Laptop, eve: Laptop) -> None:
    says(ada, "true")
    host.sessions.execute(NAME, ["python3", "-c", _LIAR])
    wait_until(lambda: has(host, "lies"))
    with ada.open("-o", "ConnectTimeout=600", "ada.refit", "true") as fraud:
        try:
            bob = host.laptop("bob")
            host.say(TO_BOB)
            wait_until(lambda: has(host, "held"))
            host.say(TO_BOB, EVES_TO_BOB)
            assert says(bob, "echo in", "eve") == "in\n"
            with host.connected(bob, "eve") as guest, host.connected(eve, "eve") as owner:
                host.say(TO_BOB)
                assert guest.wait(PATIENCE) != 0
                assert answers(owner, "still here")
        finally:
            fraud.kill()  # the program that it has called goes on until the liar ends
    wait_until(lambda: stops(host), 10 * PATIENCE)
    host.sessions.start(NAME)
    assert says(ada, "echo in") == "in\n"


def has(host: Host, name: str) -> bool:
    """Whether there is such a file in /tmp of Ada's session."""
    return name in host.sessions.execute(NAME, ["ls", "/tmp"]).split()


def stops(host: Host) -> bool:
    """Whether Ada's session could be stopped: somebody may be bringing it keys, which it holds for two minutes."""
    try:
        host.sessions.stop(NAME)
    except LeaseTaken:
        return False
    return True
