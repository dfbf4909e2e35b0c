"""Logging in by ssh, as people do: with a program of their own, through the forwarder, before and after a move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flows import services
from flows.core.database import open_database
from flows.core.programs import command
from flows.core.programs.command import CommandTimeout, ProgramFailed
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move_steps import State
from flows.migrations.rehearsals.rehearsal import rehearse
from flows.sessions.activity import probes
from flows.sessions.activity.evidence import Verdict
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.reconfigure import change_keys
from flows.sessions.ssh.keys import added, read_keys, without
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import carry_out, check_nothing_is_left, to
from tests.support.terminal import Terminal
from tests.support.variants import LIGHT, light
from tests.support.waiting import PATIENCE, free_span, wait_until

NAME = "radia"


@dataclass(frozen=True)
class Desk:
    """A session with a key, and the person who has the other half of it."""

    settings: Settings
    sessions: Sessions
    key: Path
    images: tuple[str, str]

    @property
    def session(self) -> Session:
        return self.sessions.store.session(NAME)

    @property
    def other(self) -> str:
        """The image that the session hasn't."""
        return next(image for image in self.images if image != self.session.image)

    def call(self, *words: str) -> list[str]:
        """How this person calls ssh."""
        own = ["-F", "none", "-i", str(self.key), "-o", "IdentityAgent=none", "-o", "BatchMode=yes"]
        program, *options = self.sessions.ssh.call(NAME)
        return [tools.program(program) or program, *own, *options, *words]

    def run(self, text: str) -> str:
        """The output of shell text that runs in the session, over ssh."""
        return command.run(self.call(text), limit=PATIENCE).stdout.strip()


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("ssh") / "home"
    chosen = {"stop_grace_seconds": 3.0, "ready_timeout_seconds": 30.0, "ssh_ports": free_span()}
    with private_home(folder, registry_server.port, **chosen) as settings:
        try:
            yield settings
        finally:
            services.down(settings)


@pytest.fixture(scope="module")
def desk(
    settings: Settings,
    registry: Registry,
    shared: Settings,
    base: Built,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Desk]:
    sessions, key = Sessions.open(settings), tmp_path_factory.mktemp("keys") / "mine"
    command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "radia@home", "-f", key])
    old, new = (light(shared, registry, base, name) for name in ("ssh one", "ssh two"))
    variables = {"GREETING": 'hello "there"\\ $HOME', "EMPTY": ""}
    sessions.create(NAME, "light-minimal-deb12-py311", "2026a", old, LIGHT, variables)
    try:
        public = read_keys(key.with_suffix(".pub").read_text(), "mine.pub")
        change_keys(sessions, NAME, lambda keys: added(keys, public))
        services.up(settings, only=["forwarder"])
        yield Desk(settings, sessions, key, (old, new))
    finally:
        sessions.remove(NAME, purge=True)


def test_the_same_login_works_before_and_after_a_move(desk: Desk) -> None:
    """Same port, host key and user; a login meanwhile counts as somebody who works there."""
    before = desk.session
    way, fingerprint = desk.sessions.ssh.options(NAME), desk.sessions.ssh.fingerprint(NAME)
    assert desk.run("whoami; id -u; pwd; umask") == f"dev\n{before.uid}\n/home/dev\n0022"
    assert desk.run('echo "$GREETING"; echo "$REFIT_SESSION"; which python3') == (
        'hello "there"\\ $HOME\nradia\n/usr/bin/python3'
    )
    desk.run("echo kept >mine")

    login = Terminal(desk.call("-tt"))
    try:
        login.wait_for("$")
        wait_until(lambda: "an ssh connection" in seen_by_look(desk))
    finally:
        login.close()
    wait_until(lambda: "dev@pts" not in desk.sessions.execute(NAME, ["ps", "-eo", "args"]))

    result = carry_out(MoveExecutor.open(desk.settings), to(desk.sessions, NAME, desk.other))
    assert result.moved, result.reason
    assert desk.sessions.ssh.options(NAME) == way
    assert desk.sessions.ssh.fingerprint(NAME) == fingerprint
    assert desk.run("id -u; cat mine") == f"{before.uid}\nkept"
    assert desk.session.environment == before.environment
    journal = Journal(open_database(desk.settings.database))
    check_nothing_is_left(desk.settings, desk.sessions, journal, NAME)


def seen_by_look(desk: Desk) -> str:
    """The evidence of a look that finds the session busy."""
    seen = probes.probe(desk.sessions.engine, desk.session, quiet=900)
    assert seen.verdict is Verdict.busy, seen
    return str(seen.evidence)


def test_f20_a_container_that_was_changed_by_hand_is_left_alone(desk: Desk) -> None:
    """The person who did that may have had a reason, which a new container would know nothing of."""
    engine, session, podman = desk.sessions.engine, desk.session, tools.podman(desk.settings)
    assert engine.by_hand(session) == ()
    command.run([*podman, "rename", session.container, "mine"], root=True)
    try:
        result = MoveExecutor.open(desk.settings).carry_out(to(desk.sessions, NAME, desk.other))
    finally:
        command.run([*podman, "rename", "mine", session.container], root=True)
    assert (result.state, result.moved) == (State.skipped, False)
    assert result.reason == "its container was changed by hand: it was renamed to mine"
    assert engine.by_hand(session) == ()


@pytest.mark.long
def test_f3_an_image_into_which_nobody_can_log_in_is_rolled_back(
    desk: Desk, registry: Registry, shared: Settings, base: Built
) -> None:
    broken = light(shared, registry, base, "ssh broken", before="pkill -x sshd")
    before = desk.session
    result = MoveExecutor.open(desk.settings).carry_out(to(desk.sessions, NAME, broken))
    assert result.state is State.rolled_back and "log in by ssh" in result.reason
    assert desk.session == before and desk.run("echo here") == "here"


@pytest.mark.long
def test_who_may_log_in_changes_at_once_and_strangers_never_may(desk: Desk, tmp_path: Path) -> None:
    stranger = replace(desk, key=tmp_path / "other")
    command.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "other", "-f", stranger.key])
    with pytest.raises(ProgramFailed, match="Permission denied"):
        stranger.run("true")
    public = read_keys(stranger.key.with_suffix(".pub").read_text(), "other.pub")
    change_keys(desk.sessions, NAME, lambda keys: added(keys, public))
    assert stranger.run("whoami") == desk.run("whoami") == "dev"
    change_keys(desk.sessions, NAME, lambda keys: without(keys, ["other"]))
    with pytest.raises(ProgramFailed, match="Permission denied"):
        stranger.run("true")


@pytest.mark.long
def test_a_session_that_is_closed_for_the_last_look_is_closed_to_ssh(desk: Desk) -> None:
    reopen = desk.sessions.engine.block_ingress(desk.session.container, desk.session.entry_ports)
    try:
        with pytest.raises(CommandTimeout):
            command.run(desk.call("true"), limit=3)
    finally:
        reopen()
    assert desk.run("echo open") == "open"


@pytest.mark.long
def test_the_private_host_key_is_the_sessions_alone_and_in_no_image_or_label(desk: Desk) -> None:
    folder = desk.sessions.ssh.folder(NAME)
    status = (folder / "host_key").stat()
    assert (status.st_mode & 0o777, status.st_uid) == (0o400, desk.session.uid)
    secret = (folder / "host_key").read_text().splitlines()[2]
    told = command.run([*tools.podman(desk.settings), "container", "inspect", desk.session.container], root=True).stdout
    assert secret not in told
    assert desk.run("touch /run/refit/ssh/mine 2>&1 || echo refused").endswith("refused")


@pytest.mark.long
def test_a_rehearsal_shows_whether_people_could_log_in(desk: Desk) -> None:
    rehearsal = rehearse(desk.settings, desk.sessions.homes, replace(desk.session, image=desk.other))
    assert ("ssh", True) in {(finding.check, finding.passed) for finding in rehearsal.findings}, rehearsal
