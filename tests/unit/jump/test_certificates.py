"""People are led to a new sshd when it shows its certificate, and not much later where it never does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flows.core.database import open_database
from flows.core.settings import Settings
from flows.jump import certificates as module
from flows.jump.certificates import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    settings = Settings(home=tmp_path, hub=True)
    return Certificates(settings, open_database(settings.database))


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
