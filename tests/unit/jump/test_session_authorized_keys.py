"""Keys of people that can't be brought to a session at once: they are brought again, and connections end then."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.jump import direct
from flows.jump.session_authorized_keys import SessionAuthorizedKeys
from flows.sessions.model import Running
from flows.sessions.ssh.keys import PublicKey, read_keys
from tests.support.waiting import PATIENCE, wait_until

_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPxTeBnBYYPqTA2LkyOB+Xb2DHl5s8GFQBlVKnxmCHy bob@home"


class Ssh:
    """It writes keys down first, and then fails to bring them while it is `away`."""

    def __init__(self) -> None:
        self.has: tuple[PublicKey, ...] = read_keys(_KEY, "bob.pub")
        self.away, self.brought = True, 0

    def people_keys(self, _name: str) -> tuple[PublicKey, ...]:
        return self.has

    def addresses(self) -> dict[str, str]:
        return {}

    def authorize_people(self, _session: object, keys: Sequence[PublicKey]) -> None:
        self.has = tuple(keys)
        if self.away:
            raise RefitError("Kubelet doesn't bring them.")
        self.brought += 1


def test_a_key_that_went_is_taken_away_again_where_that_failed_and_its_connections_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, ended = Ssh(), list[object]()
    sessions = sessions_of(ssh, "ada")
    kept = frozenset({("192.0.2.7", 40001)})
    monkeypatch.setattr(SessionAuthorizedKeys, "_now_allowed", lambda _: {})
    monkeypatch.setattr(direct, "end_quietly", lambda _, name, spared: ended.append((name, spared)))
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
    monkeypatch.setattr(direct, "end_quietly", lambda *_: None)
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
        engine=SimpleNamespace(at_once=4),
        alone=lambda *_: nullcontext(),
        running=lambda _: Running.stopped,
    )


def let_pass(keeper: SessionAuthorizedKeys) -> None:
    """Let the time be over after which what has failed is tried again."""
    keeper._not_before = dict.fromkeys(keeper._not_before, 0.0)


def look(keeper: SessionAuthorizedKeys) -> None:
    """Let it look, and wait for what it has begun."""
    keeper.look()
    wait_until(lambda: not keeper._under_way)
