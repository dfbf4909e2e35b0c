"""A Hub, and people with sessions that answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hub import Hub, Person
from tests.support.people import People, people_alone


@pytest.fixture(scope="package")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    with people_alone(tmp_path_factory.mktemp("people") / "home") as people:
        yield people


@pytest.fixture(scope="package")
def hub(people: People) -> Hub:
    return people.hub


@pytest.fixture(scope="package")
def lin(people: People) -> Person:
    """Somebody with the session `papers`."""
    lin = people.hub.person("lin")
    people.session("papers", "lin")
    return lin


@pytest.fixture(scope="package")
def ben(hub: Hub) -> Person:
    return hub.person("ben")
