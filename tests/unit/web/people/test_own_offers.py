"""Offers of people's own profiles: to whom, and as what."""

from __future__ import annotations

import pytest

from flows.core.database import now
from flows.publishing.own_profiles import OwnProfile
from flows.web.people.own_offers import may_start, packages_of

FILES = {
    "display.txt": b"Tools\n",
    "bundle.yaml": b"extends: minimal\n",
    "py311/Pipfile": b'[packages]\niniconfig = "~=2.0"\n"b" = "*"\n\n[requires]\npython_version = "3.11"\n',
}
MINE = OwnProfile("mine", "ada", "jupyter-mine-deb12-py311", "2026a", FILES, ("lab", "team"), now())


@pytest.mark.parametrize(
    ("person", "groups", "may"),
    [
        ("ada", (), True),
        ("bob", ("lab",), True),
        ("bob", ("other", "team"), True),
        ("bob", ("labs", ""), False),
        ("lab", (), False),
        ("", (), False),
    ],
)
def test_its_owner_and_members_of_its_groups_may_start_it(person: str, groups: tuple[str, ...], may: bool) -> None:
    assert may_start(MINE, person, groups) is may


def test_its_packages_are_named() -> None:
    assert packages_of(MINE) == ("b", "iniconfig")
