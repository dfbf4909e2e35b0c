"""Keys of people that can't be brought to a session at once: they are brought again, and connections end then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from sqlalchemy import Engine

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.leases import LeaseTaken
from flows.core.settings import Settings
from flows.jump import direct
from flows.jump.session_authorized_keys import SessionAuthorizedKeys
from flows.sessions.kubernetes.refusals import ClusterAway
from flows.sessions.model import Running
from flows.sessions.ssh.keys import PublicKey, read_keys
from tests.support.waiting import PATIENCE, wait_until

_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPxTeBnBYYPqTA2LkyOB+Xb2DHl5s8GFQBlVKnxmCHy bob@home"


class Ssh:
    """It writes keys down first, and then fails to bring them while it is `away`."""

    def __init__(self) -> None:
        self.has: tuple[PublicKey, ...] = read_keys(_KEY, "bob.pub")
        self.away, self.brought, self.told = True, 0, True
        self.waits, self.error = list[float](), RefitError("Kubelet doesn't bring them.")

    def people_keys(self, _name: str) -> tuple[PublicKey, ...]:
        return self.has

    def addresses(self) -> dict[str, str]:
        return {}

    def authorize_people(self, _session: object, keys: Sequence[PublicKey], wait: float) -> None:
        self.has = tuple(keys)
        self.waits.append(wait)
        if self.away:
            raise self.error
        self.brought += 1
        self.told = True

    def is_told(self, _session: object) -> bool:
        return self.told


def test_a_key_that_went_is_taken_away_again_where_that_failed_and_its_connections_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, ended = Ssh(), list[object]()
    sessions = sessions_of(ssh, "ada")
    kept = frozenset({("192.0.2.7", 40001)})
    monkeypatch.setattr(SessionAuthorizedKeys, "_now_allowed", lambda _: {})
    monkeypatch.setattr(direct, "end_those_without_a_key", lambda _, name, spared: ended.append((name, spared)))
    keeper = SessionAuthorizedKeys(
        Settings(home=tmp_path / "refit"), database(tmp_path), lambda: sessions, lambda _: kept
    )
    for _ in range(2):
        look(keeper)
        assert ssh.has == () and ssh.brought == 0 and ended == []
        ssh.away = False
        look(keeper)
        assert ssh.brought == 0, "it isn't tried again at once"
        ssh.away = True
        let_pass(keeper)
    ssh.away = False
    look(keeper)
    assert ssh.brought == 1 and ended == [("ada", kept)]
    let_pass(keeper)
    look(keeper)
    assert ssh.brought == 1 and ended == [("ada", kept)]


def test_a_session_that_takes_its_keys_slowly_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on Kubernetes can hold the program that brings them."""
    begun, released = list[str](), Event()

    class Slow(Ssh):
        def people_keys(self, name: str) -> tuple[PublicKey, ...]:
            begun.append(name)
            return () if name == "eve" and released.wait(PATIENCE) else super().people_keys(name)

    monkeypatch.setattr(SessionAuthorizedKeys, "_now_allowed", lambda _: {})
    monkeypatch.setattr(direct, "end_those_without_a_key", lambda *_: None)
    ssh = Slow()
    ssh.away = False
    names = ["eve", "fay", "guy"]
    settings, sessions = Settings(home=tmp_path / "refit"), sessions_of(ssh, *names)
    keeper = SessionAuthorizedKeys(settings, database(tmp_path), lambda: sessions, lambda _: ())
    try:
        keeper.look()
        wait_until(lambda: keeper._under_way == {"eve"})
        assert sorted({*begun}) == names
        begun.clear()
        keeper.look()
        assert begun == [], "it isn't begun twice"
    finally:
        released.set()
    wait_until(lambda: not keeper._under_way)


def test_a_key_that_went_is_not_forgotten_where_somebody_acts_on_its_session_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = Ssh()
    keeper, sessions = keeper_of(ssh, tmp_path, monkeypatch, {})
    look(keeper)

    def taken(*_: object) -> NoReturn:
        raise LeaseTaken("Somebody acts on it.")

    free, sessions.alone = sessions.alone, taken
    ssh.away = False
    for _ in range(3):
        let_pass(keeper)
        look(keeper)
        assert ssh.brought == 0
    sessions.alone = free
    look(keeper)
    assert ssh.brought == 1


def test_a_key_that_came_in_part_is_taken_away_where_its_person_may_no_longer_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, allowed = Ssh(), dict[str, tuple[PublicKey, ...]]()
    bobs, ssh.has, ssh.away = ssh.has, (), False
    keeper, _ = keeper_of(ssh, tmp_path, monkeypatch, allowed)
    look(keeper)
    assert keeper._applied == {"ada": ()}
    ssh.away, allowed["ada"] = True, bobs
    look(keeper)
    assert ssh.has == bobs
    allowed.clear()
    ssh.away = False
    let_pass(keeper)
    look(keeper)
    assert ssh.has == () and ssh.brought == 1


def test_keys_that_a_killed_process_wrote_down_alone_are_brought_and_connections_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, ended = Ssh(), list[object]()
    ssh.has, ssh.away, ssh.told = (), False, False
    keeper, _ = keeper_of(ssh, tmp_path, monkeypatch, {})
    monkeypatch.setattr(direct, "end_those_without_a_key", lambda _, name, spared: ended.append((name, spared)))
    for _ in range(2):
        look(keeper)
        assert ssh.brought == 1 and ended == [("ada", ())]


def test_connections_that_cannot_be_ended_are_ended_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh, tried = Ssh(), list[str]()
    ssh.away = False
    keeper, _ = keeper_of(ssh, tmp_path, monkeypatch, {})

    def end(_: object, name: str, _kept: object) -> None:
        tried.append(name)
        if len(tried) == 1:
            raise RefitError("The session holds the program that ends them.")

    monkeypatch.setattr(direct, "end_those_without_a_key", end)
    for _ in range(3):
        look(keeper)
        let_pass(keeper)
    assert tried == ["ada", "ada"] and keeper._applied == {"ada": ()}


def test_a_session_that_holds_its_keys_is_asked_less_and_less_often_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, allowed = Ssh(), dict[str, tuple[PublicKey, ...]]()
    bobs = ssh.has
    keeper, _ = keeper_of(ssh, tmp_path, monkeypatch, allowed)
    for number in range(1, 9):
        look(keeper)
        failure = keeper._failures["ada"]
        pause = min(60.0 * 2 ** (number - 1), 3600.0)
        assert not failure.is_over((), failure.at + pause - 1) and failure.is_over((), failure.at + pause)
        assert failure.is_over(bobs, failure.at + 60), "a key that has to go waits for no hour"
        let_pass(keeper)
    assert ssh.waits == [120.0, *[10.0] * 7]
    ssh.away = False
    look(keeper)
    allowed["ada"], ssh.away = bobs, True
    look(keeper)
    assert keeper._failures["ada"].count == 1 and ssh.waits[-1] == 120.0


def test_an_engine_that_is_away_counts_against_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = Ssh()
    ssh.error = ClusterAway("The API server doesn't answer.")
    keeper, _ = keeper_of(ssh, tmp_path, monkeypatch, {})
    for _ in range(8):
        look(keeper)
        failure = keeper._failures["ada"]
        assert not failure.is_over((), failure.at + 59) and failure.is_over((), failure.at + 60)
        let_pass(keeper)
    assert {*ssh.waits} == {120.0}, "kubelet may never have been told"


def keeper_of(
    ssh: Ssh, folder: Path, monkeypatch: pytest.MonkeyPatch, allowed: Mapping[str, tuple[PublicKey, ...]]
) -> tuple[SessionAuthorizedKeys, Any]:
    """A keeper of one session, `ada`, which has the keys that are allowed; and its sessions."""
    sessions = sessions_of(ssh, "ada")
    monkeypatch.setattr(SessionAuthorizedKeys, "_now_allowed", lambda _: dict(allowed))
    monkeypatch.setattr(direct, "end_those_without_a_key", lambda *_: None)
    keeper = SessionAuthorizedKeys(Settings(home=folder / "refit"), database(folder), lambda: sessions, lambda _: ())
    return keeper, sessions


def test_one_look_is_enough_for_more_sessions_than_are_served_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, names = Ssh(), [f"s{number}" for number in range(40)]
    ssh.away = False
    keeper, sessions = keeper_of(ssh, tmp_path, monkeypatch, {})
    sessions.store.sessions = lambda: [SimpleNamespace(name=name) for name in names]
    look(keeper)
    assert keeper._applied == dict.fromkeys(names, ())


def database(folder: Path) -> Engine:
    return open_database(f"sqlite:///{folder}/refit.db")


def sessions_of(ssh: Ssh, *names: str) -> Any:
    """Some sessions that are stopped."""
    store = SimpleNamespace(
        sessions=lambda: [SimpleNamespace(name=name) for name in names],
        session=lambda name: name,
    )
    return SimpleNamespace(
        store=store,
        ssh=ssh,
        engine=SimpleNamespace(at_once=4, sshd=ssh),
        alone=lambda *_: nullcontext(),
        running=lambda _: Running.stopped,
    )


def let_pass(keeper: SessionAuthorizedKeys) -> None:
    """Let the time be over after which what has failed is tried again."""
    keeper._failures = {name: replace(failure, at=-math.inf) for name, failure in keeper._failures.items()}


def look(keeper: SessionAuthorizedKeys) -> None:
    """Let it look, and wait for what it has begun."""
    keeper.look()
    wait_until(lambda: not keeper._under_way)
