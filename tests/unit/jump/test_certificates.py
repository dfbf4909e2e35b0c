"""People are led to a new sshd when it shows its certificate, and not much later where it never does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.core.errors import RefitError
from flows.core.leases import LeaseTaken
from flows.core.settings import Settings
from flows.jump import certificates as module
from flows.jump.certificates import Certificates
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(lambda: Sessions.open(Settings(home=tmp_path, hub=True)))


def test_a_new_sshd_is_led_to_once_it_shows_its_certificate(certificates: Certificates) -> None:
    assert certificates.ready({"ada": "10.0.0.1"}) == {"ada": "10.0.0.1"}, "it was here before this process"
    moved = {"ada": "10.0.0.2", "bob": "10.0.0.3"}
    assert certificates.ready(moved) == {}
    certificates.look()  # no such session: there is nothing to wait for
    assert certificates.ready(moved) == moved
    assert certificates.ready({**moved, "ada": "10.0.0.4"}) == {"bob": "10.0.0.3"}


def test_an_sshd_that_never_shows_one_is_led_to_all_the_same(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.ready({})
    assert certificates.ready({"ada": "10.0.0.1"}) == {}
    late = time.monotonic() + module.HELD_SECONDS
    monkeypatch.setattr(module.time, "monotonic", lambda: late)
    assert certificates.ready({"ada": "10.0.0.1"}) == {"ada": "10.0.0.1"}


class Renewing:
    """A session that runs, whose certificate is due until somebody brings another one."""

    def __init__(self) -> None:
        self.due, self.taken, self.away, self.brought, self.shown = True, False, False, 0, 0
        self.store = SimpleNamespace(session=lambda name: SimpleNamespace(name=name))
        container = SimpleNamespace(name="refit-ada-1", running=Running.running)
        self.engine = SimpleNamespace(containers=lambda _: [container], address=lambda *_: ("10.0.0.1", 2222))
        self.ssh = SimpleNamespace(has_due_certificate=lambda _: self.due, prepare=self._prepare, present=self._present)

    @contextmanager
    def alone(self, name: str, wait: float) -> Iterator[None]:
        if self.taken:
            raise LeaseTaken(name, wait)
        yield

    def _prepare(self, _session: object) -> None:
        if self.away:
            raise RefitError("The cluster is away.")
        self.due, self.brought = False, self.brought + 1

    def _present(self, _session: object, _container: str) -> bool:
        self.shown += 1
        return True


def test_one_that_is_due_is_brought_where_nobody_else_writes_keys() -> None:
    """Of two that bring files at once, one would bring keys back that were taken away."""
    sessions = Renewing()
    double: Any = sessions
    certificates = Certificates(lambda: double)
    certificates.ready({})
    certificates.ready({"ada": "10.0.0.1"})
    sessions.taken = True
    certificates.look()
    assert (sessions.brought, sessions.shown) == (0, 0)
    sessions.taken = False
    for _ in range(2):
        certificates.look()
        assert (sessions.brought, sessions.shown) == (1, 1)


def test_a_cluster_that_is_away_keeps_nobody_from_others() -> None:
    sessions = Renewing()
    double: Any = sessions
    certificates = Certificates(lambda: double)
    certificates.ready({})
    sessions.away = True
    assert certificates.ready({"ada": "10.0.0.1"}) == {}
    certificates.look()
    assert certificates.ready({"ada": "10.0.0.1"}) == {"ada": "10.0.0.1"}
