"""From a person's own machine into their sessions: ssh, scp, rsync and git through the jump host, by real programs."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from subprocess import Popen
from time import monotonic

from flows.migrations.executor import MoveExecutor
from flows.sessions.history import History
from flows.sessions.reconfigure import change_keys
from flows.sessions.ssh.keys import added, read_keys, without
from tests.support.laptops import SECONDS, Laptop
from tests.support.moving import carry_out, to
from tests.support.office import TO_BOB, Office, ready
from tests.support.people import OUT_SECONDS
from tests.support.waiting import free_port, running_seconds, wait_until

EXITS = "ExitOnForwardFailure=yes"
ECHO_PORT = 7007
ECHO = f"""
import socket
listener = socket.create_server(('127.0.0.1', {ECHO_PORT}))
print('here')
one, _ = listener.accept()
while said := one.recv(100):
    one.sendall(said)
"""


def test_every_program_of_ssh_gets_into_a_session_by_its_name(ada: Laptop) -> None:
    said = ada.run("ada", 'whoami; echo "$REFIT_SESSION"')
    assert said.stdout == "dev\nada\n", said.stderr
    (ada.folder / "notes").write_text("from my laptop\n")
    assert ada.call("scp", *ada.ssh.split()[1:], "notes", "ada.refit:copied").returncode == 0
    assert ada.call("rsync", "-e", ada.ssh, "ada.refit:copied", "back").returncode == 0
    assert (ada.folder / "back").read_text() == "from my laptop\n"
    ada.run("ada", "git init -q --bare project.git")
    made = "git init -q work && git -C work -c user.name=a -c user.email=a@b commit -q --allow-empty -m first"
    pushed = f"{made} && git -C work push -q ada.refit:project.git HEAD:main"
    assert ada.call("sh", "-c", pushed).returncode == 0
    assert ada.call("git", "clone", "-q", "-b", "main", "ada.refit:project.git", "again").returncode == 0
    assert (ada.folder / "again" / ".git").is_dir()


def test_the_jump_host_has_no_shell_and_leads_nowhere_else(office: Office, ada: Laptop) -> None:
    hint = ada.call(*ada.ssh.split(), "jump.host.refit", "id")
    assert "leads to sessions" in hint.stdout and "uid=" not in hint.stdout
    [address] = {office.sessions.ssh.addresses()["ada"]}
    for target in ("127.0.0.1:2222", f"{address}:2222", f"{address}:8000", "bob.refit:2222", "ada.refit:8000"):
        refused = ada.call(*ada.ssh.split(), "-W", target, "jump.host.refit")
        assert refused.returncode != 0 and "prohibited" in refused.stderr, target
    back = ada.call(*ada.ssh.split(), "-N", "-R", f"{free_port()}:ada.refit:2222", "-o", EXITS, "jump.host.refit")
    assert back.returncode != 0 and "forwarding failed" in back.stderr
    assert "monitor" not in ada.call(*ada.ssh.split(), "-s", "jump.host.refit", "sftp").stdout


def test_an_open_connection_ends_with_a_move_and_the_next_one_needs_nothing_new(office: Office, ada: Laptop) -> None:
    open_one = ada.open("ada.refit", "echo here; exec sleep 1000")
    assert open_one.stdout and open_one.stdout.readline() == "here\n"
    session = office.sessions.store.session("ada")
    other = next(image for image in office.images if image != session.image)
    move = to(office.sessions, "ada", other)

    def is_put_off() -> bool:
        deferred = MoveExecutor.open(office.settings).carry_out(move)
        assert not deferred.moved
        return "an ssh connection" in deferred.reason

    wait_until(is_put_off)  # somebody works there; also one that couldn't be looked at is
    moved = carry_out(MoveExecutor.open(office.settings), replace(move, forced=True))
    assert moved.moved, moved.reason
    assert open_one.wait(SECONDS) != 0
    open_one.communicate()
    wait_until(lambda: ada.run("ada", "true").returncode == 0)
    assert ada.run("ada", "echo $REFIT_SESSION").stdout == "ada\n"


def test_a_guest_comes_in_by_ssh_and_is_out_when_the_share_ends(office: Office, ada: Laptop) -> None:
    office.say(TO_BOB)
    bob = ready(office, "bob", "ada")
    assert bob.run("ada", "whoami").stdout == "dev\n"
    history = History(office.sessions.store.database)
    wait_until(lambda: [event for event in history.events("ada") if event.by == "bob"])
    stays = bob.open("ada.refit", "echo here; exec sleep 1000")
    assert stays.stdout and stays.stdout.readline() == "here\n"
    office.say()
    stays.wait(SECONDS)
    stays.communicate()
    wait_until(lambda: not office.knows("ada", bob))
    # A login that is under way when a key leaves the session ends as well.
    wait_until(lambda: office.knows("ada", ada) and ada.run("ada", "true").returncode == 0)
    assert bob.run("ada", "true").returncode != 0


def test_a_tunnel_of_a_guest_ends_in_time_with_the_share(office: Office, ada: Laptop) -> None:
    """By the command, and by what is connected through it to a port of the session."""
    office.say(TO_BOB)
    bob, port = ready(office, "bob", "ada"), free_port()
    ssh = bob.open("-o", EXITS, "-L", f"{port}:127.0.0.1:{ECHO_PORT}", "ada.refit", f'exec python3 -uc "{ECHO}"')
    assert ssh.stdout and ssh.stdout.readline() == "here\n"
    with socket.create_connection(("127.0.0.1", port), SECONDS) as tunnel:
        tunnel.sendall(b"x")
        assert tunnel.recv(1) == b"x"
        office.say()
        begun = running_seconds()
        with suppress(ConnectionResetError):
            assert tunnel.recv(1) == b""
        assert running_seconds() - begun < OUT_SECONDS
    assert ssh.wait(SECONDS) != 0
    ssh.communicate()
    # A login that is under way when a key leaves the session ends as well.
    wait_until(lambda: ada.run("ada", "true").returncode == 0)


def test_a_connection_past_the_jump_host_ends_with_the_share_too(office: Office, ada: Laptop) -> None:
    """Bob has a login on this machine itself, and goes to the session's address."""
    office.say(TO_BOB)
    bob = ready(office, "bob", "ada")

    def come_directly(laptop: Laptop) -> Popen[str]:
        address = office.sessions.ssh.addresses()["ada"]
        plain = ("-o", "ProxyJump=none", "-o", f"HostName={address}", "-o", "StrictHostKeyChecking=no")
        one = laptop.open(*plain, "ada.refit", "echo here; exec sleep 1000")
        assert one.stdout and one.stderr and one.stdout.readline() == "here\n", one.stderr.read()
        return one

    adas, bobs = come_directly(ada), come_directly(bob)
    try:
        begun = monotonic()
        office.say()
        bobs.wait(SECONDS)
        print(f"ended after {monotonic() - begun:.1f} s")
        assert adas.poll() is None
    finally:
        for one in (adas, bobs):
            one.kill()
            one.communicate()


def test_keys_of_a_session_of_its_own_stay_beside_those_of_people(office: Office, ada: Laptop) -> None:
    eve = office.stranger("eve")
    public = read_keys(eve.key.with_suffix(".pub").read_text(), "eve")
    change_keys(office.sessions, "ada", lambda keys: added(keys, public))
    assert office.sessions.ssh.keys("ada") == public and office.knows("ada", ada)
    later = ready(office, "ada")
    assert office.sessions.ssh.keys("ada") == public and office.knows("ada", later)
    change_keys(office.sessions, "ada", lambda keys: without(keys, [public[0].fingerprint]))
    assert not office.sessions.ssh.keys("ada") and office.knows("ada", later)
