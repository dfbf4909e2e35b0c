"""Logins by ssh into a session on a real cluster, through the forwarder of Refit, whatever becomes of the session."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flows import services
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.jump import direct
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.sessions.kubernetes import isolation
from flows.sessions.reconfigure import change_keys
from flows.sessions.ssh.keys import PublicKey, added, read_keys
from tests.support.cluster import Lab, kubectl
from tests.support.cluster_moves import NAME, ClusterScene
from tests.support.cluster_ssh import GATEWAY, scene_with_ssh
from tests.support.moving import carry_out, to
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.long]


@dataclass(frozen=True)
class Person:
    """A person with a key, who calls ssh on the machine of Refit."""

    scene: ClusterScene
    file: Path

    @property
    def key(self) -> PublicKey:
        [key] = read_keys(self.file.with_suffix(".pub").read_text(), "mine.pub")
        return key

    def call(self, text: str) -> list[str]:
        own = ["-F", "none", "-i", str(self.file), "-o", "IdentityAgent=none", "-o", "BatchMode=yes"]
        program, *options = self.scene.sessions.ssh.call(NAME)
        return [program, *own, *options, text]

    def run(self, text: str) -> str:
        """The output of shell text that runs in the session, over ssh."""
        return command.run(self.call(text), limit=60).stdout.strip()


@pytest.fixture(scope="module")
def scene(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with scene_with_ssh(tmp_path_factory.mktemp("ssh")) as scene:
        yield scene


@pytest.fixture(scope="module")
def person(scene: ClusterScene, tmp_path_factory: pytest.TempPathFactory) -> Person:
    """A person whose key came while the session ran."""
    person = Person(scene, tmp_path_factory.mktemp("keys") / "mine")
    command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada@home", "-f", person.file])
    change_keys(scene.sessions, NAME, lambda keys: added(keys, [person.key]))
    services.up(scene.settings, only=["forwarder"])
    scene.sessions.ssh.open(scene.sessions.store.session(NAME))
    return person


def test_the_same_login_works_before_and_after_a_move_and_its_way_back(person: Person) -> None:
    scene = person.scene
    ssh, session = scene.sessions.ssh, scene.sessions.store.session(NAME)
    way, fingerprint = ssh.options(NAME), ssh.fingerprint(NAME)
    assert person.run('id -un; id -u; echo "$REFIT_SESSION"; [ . -ef "$HOME" ] && echo at home') == (
        f"dev\n{session.uid}\n{NAME}\nat home"
    )
    person.run("echo kept >mine")
    files, image, pods = scene.files(), scene.other, scene.pods()
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, image))
    assert result.state is State.cleaned, result.reason
    scene.check(State.cleaned, image, files)
    assert scene.pods() == pods and (ssh.options(NAME), ssh.fingerprint(NAME)) == (way, fingerprint)
    assert person.run("id -u; cat mine /etc/word") == f"{session.uid}\nkept\nlate-ssh-two"
    result = carry_out(MoveExecutor.open(scene.settings), to(scene.sessions, NAME, scene.bad))
    assert result.state is State.rolled_back, result.reason
    assert person.run("cat /etc/word") == "late-ssh-two"


def test_nobody_else_reaches_it_and_no_key_is_in_what_others_may_read(person: Person) -> None:
    policy = kubectl("get", "networkpolicy", isolation.NAME, "-o", "yaml")
    assert GATEWAY in policy
    folder = person.scene.sessions.ssh.folder(NAME)
    told = kubectl("get", "pods,configmaps,events", "-o", "yaml")
    private = (folder / "host_key").read_text().splitlines()[1:-1]
    assert private and not any(line in told for line in private)
    assert person.key.body not in told


def test_it_is_there_again_after_a_stop_and_not_before(person: Person) -> None:
    sessions = person.scene.sessions
    fingerprint = sessions.ssh.fingerprint(NAME)
    sessions.stop(NAME)
    with pytest.raises(ProgramFailed):
        person.run("true")
    sessions.start(NAME)
    assert person.run("cat mine") == "kept" and sessions.ssh.fingerprint(NAME) == fingerprint
    session = sessions.store.session(NAME)
    assert "by ssh" in sessions.ssh.check(session)


def test_a_key_that_is_taken_away_lets_nobody_in_and_ends_what_it_opened(person: Person) -> None:
    sessions = person.scene.sessions
    with subprocess.Popen(person.call("echo in; exec sleep 600"), stdout=subprocess.PIPE) as stays:
        assert stays.stdout and stays.stdout.readline() == b"in\n"
        assert change_keys(sessions, NAME, lambda keys: ()) == ()
        with pytest.raises(ProgramFailed):
            person.run("true")
        assert stays.poll() is None
        assert direct.end_those_without_a_key(sessions, NAME) >= 1
        assert stays.wait(PATIENCE) != 0
    change_keys(sessions, NAME, lambda keys: added(keys, [person.key]))
    assert "by ssh" in sessions.ssh.check(sessions.store.session(NAME))  # its sshd was started anew
    assert person.run("echo in") == "in"


def test_without_an_address_of_refit_nobody_is_let_in(person: Person) -> None:
    open_to_all = person.scene.settings.kubernetes.model_copy(update={"gateway_addresses": ()})
    settings = person.scene.settings.model_copy(update={"kubernetes": open_to_all})
    sessions = type(person.scene.sessions).open(settings)
    before = sessions.ssh.keys(NAME)
    with pytest.raises(RefitError, match="Nobody is let into sessions"):
        change_keys(sessions, NAME, lambda keys: added(keys, [person.key]))
    assert sessions.ssh.keys(NAME) == before
