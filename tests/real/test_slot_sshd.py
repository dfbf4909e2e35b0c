"""The sshd of a slot, in namespaces as a Pod has them: real logins, whenever the keys and the home come."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from flows.core.programs import command
from flows.host.sockets import written_ends
from flows.sessions.kubernetes import manifests, ssh_mounts
from flows.sessions.model import SSH_PORT, USER
from tests.support.machine import ROOT
from tests.support.pods import SESSION
from tests.support.waiting import PATIENCE, wait_until

T = TypeVar("T")
_SCRIPT = ROOT / "flows/sessions/kubernetes/slot.sh"
# Nobody's, but for this test.
_UID = 399124
_AS_USER = ("setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups")
_SESSION = replace(SESSION, uid=_UID, environment={"COLOUR": "light blue"})
_PROGRAM = manifests.program(_SESSION, ["sleep", "600"])
_NO_SSHD, _REFUSED, _ESTABLISHED = 69, 75, "01"
# Shell text of a login: the process that serves it, in the words of the slot.
_SERVED_BY = "read -r _ _ _ parent _ </proc/$$/stat"


@dataclass(frozen=True)
class Pod:
    """A slot that runs, what its Secret has, and the key of a person."""

    first: int
    secret: Path
    key: Path

    def ends(self) -> set[int]:
        """The ports from which open connections to its sshd come."""
        table = Path(f"/proc/{self.first}/net/tcp").read_text().splitlines()[1:]
        rows, own = (line.split()[1:4] for line in table), f":{SSH_PORT:04X}"
        remote = (there for here, there, state in rows if here.endswith(own) and state == _ESTABLISHED)
        return {int(end.rpartition(":")[2], 16) for end in remote}

    @contextmanager
    def connected(self) -> Iterator[subprocess.Popen[str]]:
        """A login that answers each line with itself."""
        call, pipe = self.call("echo in; exec cat"), subprocess.PIPE
        with subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True) as login:
            try:
                assert login.stdout and login.stdout.readline() == "in\n"
                yield login
            finally:
                login.kill()

    def slot(self, *words: str, stdin: str = "") -> str:
        """Call its script as an exec does; returns its output."""
        call = self.call_of(*words)
        return subprocess.run(call, check=True, text=True, input=stdin, capture_output=True, timeout=60).stdout

    def call_of(self, *words: str) -> list[str]:
        call = [*self._entered("pid", "mount", "net"), "env", "REFIT_SLOT=a", *_AS_USER]
        return [*call, "sh", "/run/refit/bin/slot", *words]

    def programs(self) -> str:
        """The command lines of all that runs in it."""
        return "\n".join(" ".join(words) for words in self._of_each(psutil.Process.cmdline))

    def sshds(self) -> list[str]:
        """The names of its sshd and of those that serve connections."""
        return [name for name in self._of_each(psutil.Process.name) if name.startswith("sshd")]

    def _of_each(self, attribute: Callable[[psutil.Process], T]) -> list[T]:
        """An attribute of each process in it; one that ends meanwhile has none."""
        own = Path(f"/proc/{self.first}/ns/pid").stat().st_ino
        values = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                inside = Path(f"/proc/{process.pid}/ns/pid").stat().st_ino == own
                if inside and process.status() != psutil.STATUS_ZOMBIE:
                    values.append(attribute(process))
        return values

    def begin(self, verb: str = "start", number: int = 1) -> None:
        self.slot("run-next", str(len(_PROGRAM)), verb, "1", str(number), "ask", stdin=_PROGRAM)

    def start_sshd(self, version: str, *, generation: int = 1, number: int = 1) -> None:
        self.slot("sshd", version, str(generation), str(number))

    def refusal(self, version: str, *, generation: int = 1, number: int = 1) -> str:
        """Why its sshd is not started."""
        with pytest.raises(subprocess.CalledProcessError) as refused:
            self.start_sshd(version, generation=generation, number=number)
        assert refused.value.returncode == _REFUSED
        return str(refused.value.stderr)

    def let_in(self, version: str) -> None:
        """Bring the keys, as kubelet does."""
        (self.secret / "authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        (self.secret / "version").write_text(version)

    def call(self, text: str) -> list[str]:
        options = ("BatchMode=yes", "IdentityAgent=none", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null")
        words = [word for option in options for word in ("-o", option)]
        to = ["-q", "-F", "none", "-i", str(self.key), "-p", str(SSH_PORT), f"{USER}@127.0.0.1", text]
        return [*self._entered("net"), "ssh", *words, *to]

    def says(self, text: str) -> str:
        """The output of a login; empty: it wasn't let in."""
        return subprocess.run(self.call(text), check=False, text=True, capture_output=True, timeout=60).stdout.strip()

    def _entered(self, *spaces: str) -> list[str]:
        return ["nsenter", f"--target={self.first}", *(f"--{space}" for space in spaces)]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    tmp_path.chmod(0o755)
    secret, key, log = tmp_path / "secret", tmp_path / "id", tmp_path / "log"
    secret.mkdir(mode=0o777)
    secret.chmod(0o1777)  # as kubelet makes it
    for file in (key, secret / "host_key"):
        command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file])
    os.chown(secret / "host_key", 0, _UID)
    (secret / "host_key").chmod(0o440)
    for name, text in {"authorized_keys": "", "probe": "", "version": "none"}.items():
        (secret / name).write_text(text)
    (tmp_path / "passwd").write_text(ssh_mounts.accounts(_UID))
    for folder in ("etc", "bin"):
        (tmp_path / folder).mkdir()
    (tmp_path / "etc" / "session_config").write_text((ROOT / "snippets/base/files/sshd_config").read_text())
    (tmp_path / "bin" / "slot").write_text(_SCRIPT.read_text())
    setup = (
        "ip link set lo up; for at in /home /run; do mount -t tmpfs -o mode=1777 none $at; done; "
        "install -d -m 1777 /run/refit /run/refit/home; mkdir /run/refit/sshd /run/refit/bin; "
        f"mount --bind {tmp_path}/passwd /etc/passwd; mount --bind {tmp_path}/etc /etc/ssh; "
        f"mount --bind {secret} /run/refit/sshd; mount --bind {tmp_path}/bin /run/refit/bin; "
        f"export REFIT_SLOT=a; exec {' '.join(_AS_USER)} sh /run/refit/bin/slot run"
    )
    spaces = ("unshare", "--pid", "--fork", "--mount", "--net", "--mount-proc", "--kill-child")
    with log.open("w") as said:
        os.fchown(said.fileno(), _UID, 0)  # as runtimes do
        process = subprocess.Popen([*spaces, "sh", "-c", setup], stdout=said, stderr=said)
    try:
        wait_until(lambda: bool(psutil.Process(process.pid).children()))
        first = psutil.Process(process.pid).children()[0].pid
        gate = Path(f"/proc/{first}/root/run/refit/slots/a/gate")
        wait_until(gate.is_fifo)
        yield Pod(first, secret, key)
    except BaseException:
        print(log.read_text())
        raise
    finally:
        with suppress(psutil.NoSuchProcess):  # one that has become another user doesn't end with its parent
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.kill()
        process.wait()


def test_people_come_in_with_the_variables_of_the_session_as_often_as_it_begins(pod: Pod) -> None:
    pod.let_in("1")
    for _ in range(2):
        pod.begin()
        wait_until(
            lambda: pod.says('echo "$COLOUR $REFIT_SESSION:$REFIT_SLOT" in $(id -un)') == f"light blue ada: in {USER}"
        )
        wait_until(lambda: _is_childless(pod))
        pod.slot("stop", "1", "1")
        assert not pod.says("echo in")


def test_it_begins_when_the_home_comes(pod: Pod) -> None:
    pod.let_in("1")
    pod.begin("warm")
    assert "does not run here with its home" in pod.refusal("1")
    assert not pod.says("echo in")
    pod.slot("open", "1", "1")
    wait_until(lambda: pod.says("pwd -P") == "/run/refit/home/dev")


def test_keys_that_come_and_go_count_at_once_and_connections_end(pod: Pod) -> None:
    pod.begin()
    pod.start_sshd("none")
    assert not pod.says("echo in")
    pod.let_in("1")
    pod.start_sshd("1")
    wait_until(lambda: pod.says("echo in") == "in")
    with subprocess.Popen(pod.call("echo in; exec sleep 600"), stdout=subprocess.PIPE) as stays:
        assert stays.stdout and stays.stdout.readline() == b"in\n"
        assert not _is_childless(pod)
        (pod.secret / "authorized_keys").write_text("")
        (pod.secret / "version").write_text("2")
        pod.slot("keys", "2", "1", "1")
        assert not pod.says("echo in") and stays.poll() is None
        assert int(pod.slot("hang-up")) >= 1
        assert stays.wait(60 * PATIENCE) != 0
    pod.let_in("3")
    pod.start_sshd("3")
    wait_until(lambda: pod.says("echo in") == "in")


def test_connections_that_are_known_by_their_ends_go_on_and_only_they(pod: Pod) -> None:
    pod.let_in("1")
    pod.begin()
    wait_until(lambda: pod.says("echo in") == "in")
    wait_until(lambda: not pod.ends())
    with pod.connected() as owner:
        (own,) = pod.ends()
        kept = "".join(f" {end} " for end in written_ends("127.0.0.1", own))
        for _ in range(2):  # the second time, its listener is another one than that which has let the owner in
            with pod.connected() as guest:
                assert pod.ends() > {own}
                assert int(pod.slot("hang-up", stdin=kept)) >= 1
                assert guest.wait(60 * PATIENCE) != 0
            assert _answer(owner, "still here") == "still here"
            wait_until(lambda: pod.says("echo in") == "in")
        wait_until(lambda: pod.ends() == {own})
        assert int(pod.slot("hang-up", stdin=" 0100007F:0001 ")) >= 1
        assert owner.wait(60 * PATIENCE) != 0


def test_a_late_call_lets_nobody_into_a_session_that_was_stopped(pod: Pod) -> None:
    pod.let_in("1")
    pod.begin()
    wait_until(lambda: pod.says("echo in") == "in")
    pod.slot("stop", "1", "1")
    assert "does not run here" in pod.refusal("1")
    assert not pod.sshds() and not pod.says("echo in")
    pod.slot("hang-up")
    assert not pod.sshds() and not pod.says("echo in")


def test_of_two_refits_the_one_that_was_taken_for_dead_starts_nothing(pod: Pod) -> None:
    pod.begin(number=2)
    pod.let_in("1")
    assert "number 1 is out of date" in pod.refusal("1", number=1)
    assert "generation 7 does not run here" in pod.refusal("1", generation=7, number=2)
    with pytest.raises(subprocess.CalledProcessError):
        pod.slot("keys", "1", "1", "1")
    assert not pod.sshds() and not pod.says("echo in")
    pod.start_sshd("1", number=2)
    wait_until(lambda: pod.says("echo in") == "in")


def test_a_slot_that_is_stopped_while_its_keys_come_starts_none(pod: Pod) -> None:
    pod.begin()
    call = pod.call_of("sshd", "1", "1", "1")
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as waits:
        # Its number is here as soon as it has begun; that of `begin` is the same, so its process is looked for.
        wait_until(lambda: "slot sshd 1 1 1" in pod.programs())
        pod.slot("stop", "1", "2")
        pod.let_in("1")
        assert waits.wait(60 * PATIENCE) != 0
    assert not pod.sshds() and not pod.says("echo in")


@pytest.mark.parametrize("trick", ["echo $parent >{file}", "mkfifo {file}"])
def test_a_guest_spares_no_connection_and_lets_nothing_hang(pod: Pod, trick: str) -> None:
    pod.let_in("1")
    pod.begin()
    wait_until(lambda: pod.says("echo in") == "in")
    files = ("sshd.pid", "sshd_config.new")
    tricks = "; ".join(trick.format(file=f"/run/refit/slots/a/{name}") for name in files)
    with subprocess.Popen(pod.call(f"{_SERVED_BY}; {tricks}; echo in; exec sleep 600"), stdout=subprocess.PIPE) as bob:
        assert bob.stdout and bob.stdout.readline() == b"in\n"
        assert int(pod.slot("hang-up")) >= 1
        assert bob.wait(60 * PATIENCE) != 0
    wait_until(lambda: pod.says("echo in") == "in")


def test_a_session_begins_without_waiting_for_its_sshd(pod: Pod) -> None:
    pod.let_in("1")
    config = pod.secret.parent / "etc" / "session_config"
    text = config.read_text()
    config.unlink()
    os.mkfifo(config)  # its sshd can't begin before somebody writes that
    config.chmod(0o644)
    pod.begin("warm")
    pod.slot("open", "1", "1")
    assert not pod.says("echo in")
    config.write_text(text)
    wait_until(lambda: pod.says("echo in") == "in")


def test_an_sshd_that_starts_while_its_slot_ends_goes_at_once(pod: Pod) -> None:
    pod.begin()
    pod.let_in("1")
    config = pod.secret.parent / "etc" / "session_config"
    text = config.read_text()
    config.unlink()
    os.mkfifo(config)  # it stands still between its look and its start
    config.chmod(0o644)
    with subprocess.Popen(pod.call_of("sshd", "1", "1", "1"), stderr=subprocess.PIPE, text=True) as late:
        wait_until(lambda: "slot serve" in pod.programs())
        # As process 1 does; `stop` itself would end the call, but for one that came between two of its looks.
        Path(f"/proc/{pod.first}/root/run/refit/slots/a/running").write_text("")
        config.write_text(text)
        assert late.wait(60 * PATIENCE) == _REFUSED
        assert late.stderr and "was stopped" in late.stderr.read()
    assert not pod.sshds() and not pod.says("echo in")


def test_an_image_without_sshd_says_so(pod: Pod) -> None:
    (pod.secret.parent / "etc" / "session_config").unlink()
    pod.begin()
    pod.let_in("1")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        pod.start_sshd("1")
    assert refused.value.returncode == _NO_SSHD


def _is_childless(pod: Pod) -> bool:
    try:
        pod.slot("childless")
    except subprocess.CalledProcessError:
        return False
    return True


def _answer(login: subprocess.Popen[str], line: str) -> str:
    assert login.stdin and login.stdout
    login.stdin.write(f"{line}\n")
    login.stdin.flush()
    return login.stdout.readline().strip()
