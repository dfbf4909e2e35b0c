"""Keys of people that can't be brought to a session at once: they are brought again, and connections end then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.jump import direct, session_authorized_keys
from flows.jump.session_authorized_keys import SessionAuthorizedKeys
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running
from flows.sessions.ssh.keys import PublicKey, read_keys

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
    ssh, ended, at = Ssh(), list[str](), [time.monotonic()]
    store = SimpleNamespace(sessions=lambda: [SimpleNamespace(name="ada")], session=lambda name: name)
    sessions: Any = SimpleNamespace(
        store=store, ssh=ssh, alone=lambda *_: nullcontext(), running=lambda _: Running.stopped
    )
    monkeypatch.setattr(Sessions, "open", lambda *_: sessions)
    monkeypatch.setattr(SessionAuthorizedKeys, "_now_allowed", lambda _: {})
    monkeypatch.setattr(direct, "end_quietly", lambda _, name: ended.append(name))
    monkeypatch.setattr(session_authorized_keys.time, "monotonic", lambda: at[0])
    settings = Settings(home=tmp_path / "refit")
    keeper = SessionAuthorizedKeys(settings, open_database(f"sqlite:///{tmp_path}/refit.db"))
    for _ in range(2):
        keeper.look()
        assert ssh.has == () and ssh.brought == 0 and ended == []
        at[0] += 61
    ssh.away = False
    keeper.look()
    assert ssh.brought == 1 and ended == ["ada"]
    at[0] += 61
    keeper.look()
    assert ssh.brought == 1 and ended == ["ada"]
