"""A session that the operator makes for a person, where no Hub runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.settings import Settings
from flows.create_session import create_session
from flows.images.build import Built
from flows.sessions.lifecycle import Sessions
from flows.sessions.store import HomeTaken
from tests.support.hub import made, publish
from tests.support.machine import FIRST, ROOT, RegistryServer, private_home


@pytest.fixture
def own(
    registry_server: RegistryServer, base: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    with private_home(tmp_path / "home", registry_server.port, catalog=ROOT) as settings:
        publish(settings, made(settings, base, "of an operator"))
        monkeypatch.setattr("flows.create_session.load_settings", lambda: settings)
        yield settings


def test_it_is_its_owners_from_its_first_moment_and_so_is_its_home(own: Settings) -> None:
    sessions = Sessions.open(own)
    create_session("notes", FIRST, owner=" ada ")
    assert sessions.store.owners() == {"notes": "ada"}
    sessions.remove("notes")
    with pytest.raises(HomeTaken):
        create_session("notes", FIRST, owner="bob")
    create_session("notes", FIRST, owner="ada")
    sessions.remove("notes", purge=True)
