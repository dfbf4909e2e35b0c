"""The monitor's bound on connections of one person, and answers in the face of odd questions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.jump import connection_monitor as module
from flows.jump.addresses import Addresses
from flows.jump.certificates import Certificates
from flows.jump.connection_monitor import ConnectionMonitor
from flows.jump.sandbox import Sandbox
from flows.jump.sshd_keeper import Forwarding
from flows.sessions.homes.folders import ref_of
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session, TokenRef
from flows.sessions.people.entitlements import Kind, Share
from flows.sessions.people.person_keys import PersonKeys
from tests.support.laptops import hear
from tests.support.person_keys import ADAS, BOBS
from tests.support.variants import LIGHT


@pytest.fixture
def monitor(tmp_path: Path) -> ConnectionMonitor:
    """The monitor of a host where Ada and Bob have keys, and Ada has an account."""
    settings = Settings(home=tmp_path, hub=True)
    database = open_database(settings.database)
    keys = PersonKeys(database)
    keys.add("ada", [ADAS])
    keys.add("bob", [BOBS])
    hear(settings, ["ada"])
    sessions = Sessions.open(settings, database)
    addresses, certificates = Addresses(sessions), Certificates(lambda: sessions)
    return ConnectionMonitor(settings, database, addresses, Sandbox(settings), certificates)


@pytest.fixture
def processes() -> Iterator[list[psutil.Process]]:
    """Some processes that could be those of connections."""
    with ExitStack() as stack:
        results = []
        for _ in range(4):
            one = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
            stack.callback(one.kill)
            results.append(psutil.Process(one.pid))
        yield results


def test_a_person_has_so_many_connections_and_those_that_ended_dont_count(
    monitor: ConnectionMonitor, processes: list[psutil.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 2)
    first, second, third, fourth = processes
    assert monitor.answer(ADAS.fingerprint, first).startswith("restrict ssh-ed25519")
    assert monitor.answer(ADAS.fingerprint, second)
    assert monitor.answer(ADAS.fingerprint, second)  # asked again about the same connection
    assert not monitor.answer(ADAS.fingerprint, third)
    assert len(monitor.connections()) == 2
    first.kill()
    first.wait()
    assert monitor.answer(ADAS.fingerprint, fourth)


def test_a_key_of_somebody_without_an_account_and_one_that_is_nobodys_let_nobody_in(
    monitor: ConnectionMonitor, processes: list[psutil.Process]
) -> None:
    assert not monitor.answer(BOBS.fingerprint, processes[0])
    assert not monitor.answer("SHA256:" + 43 * "A", processes[0])
    assert not monitor.connections()


def test_the_last_key_that_a_connection_asks_about_is_its_own(
    monitor: ConnectionMonitor, processes: list[psutil.Process], tmp_path: Path
) -> None:
    hear(Settings(home=tmp_path, hub=True), ["ada", "bob"])
    monitor.answer(ADAS.fingerprint, processes[0])
    monitor.answer(BOBS.fingerprint, processes[0])
    assert [login.person for login in monitor.connections()] == ["bob"]


def test_a_session_is_away_until_its_name_can_be_looked_up_again(
    monitor: ConnectionMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: dict[str, str] = {}
    away = []
    monkeypatch.setattr(Certificates, "ready", lambda *_: dict(addresses))
    monkeypatch.setattr(Sandbox, "publish_hosts", lambda *_: away.append(monitor._is_away("notes")))
    for present in ({"notes": "10.1.0.2"}, {}, {"notes": "10.1.0.3"}):
        addresses.clear()
        addresses.update(present)
        monitor.look()
    assert away == [False, True, True]
    assert not monitor._is_away("notes")


@pytest.fixture
def shared(
    monitor: ConnectionMonitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[int, frozenset[Forwarding]]:
    """Process → the connections to sessions that it has open. Ada shares her session `ada` with Bob, and `notes` is
    elsewhere.
    """
    settings = Settings(home=tmp_path, hub=True)
    hear(settings, ["ada", "bob"], [Share("ada", "ada", Kind.person, "bob")], ["ada"])
    forwardings: dict[int, frozenset[Forwarding]] = {}
    store = Sessions.open(settings).store
    for name, home in (("ada", "ada"), ("notes", "ada")):
        session = Session(name, "light", "2026a", "sha256:0", 0, ref_of(settings.home / name), TokenRef("token"), LIGHT)
        store.add(name, lambda uid, made=session: replace(made, uid=uid), uids=settings.session_uids, owner=home)
    monkeypatch.setattr(Addresses, "now", lambda _: {"ada": "10.0.0.1", "notes": "10.0.0.2"})
    monkeypatch.setattr(Sandbox, "forwardings", lambda _, pids: forwardings.get(next(iter(pids)), frozenset()))
    return forwardings


def test_connections_are_kept_by_their_ends_for_those_alone_who_may_still_use_the_session(
    monitor: ConnectionMonitor,
    processes: list[psutil.Process],
    shared: dict[int, frozenset[Forwarding]],
    tmp_path: Path,
) -> None:
    ada, bob = processes[:2]
    monitor.answer(ADAS.fingerprint, ada)
    monitor.answer(BOBS.fingerprint, bob)
    own, other = Forwarding("192.0.2.7", 40001, "10.0.0.1"), Forwarding("192.0.2.7", 40002, "10.0.0.2")
    guests = Forwarding("192.0.2.7", 40003, "10.0.0.1")
    shared |= {ada.pid: frozenset({own, other}), bob.pid: frozenset({guests})}
    assert monitor.kept("ada") == {("192.0.2.7", 40001), ("192.0.2.7", 40003)}
    assert monitor.kept("notes") == {("192.0.2.7", 40002)} and monitor.kept("gone") == frozenset()
    hear(Settings(home=tmp_path, hub=True), ["ada", "bob"], (), ["ada"])
    assert monitor.kept("ada") == {("192.0.2.7", 40001)}
    monitor._keys.remove("ada", [ADAS.fingerprint])
    assert monitor.kept("ada") == frozenset()


def test_one_with_more_forwardings_than_a_person_has_keeps_none_and_the_others_keep_theirs(
    monitor: ConnectionMonitor, processes: list[psutil.Process], shared: dict[int, frozenset[Forwarding]]
) -> None:
    ada, bob = processes[:2]
    monitor.answer(ADAS.fingerprint, ada)
    monitor.answer(BOBS.fingerprint, bob)
    shared[ada.pid] = frozenset({Forwarding("192.0.2.7", 30000, "10.0.0.1")})
    shared[bob.pid] = frozenset(Forwarding("192.0.2.7", 40000 + number, "10.0.0.1") for number in range(65))
    assert monitor.kept("ada") == {("192.0.2.7", 30000)}
