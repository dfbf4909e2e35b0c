"""Which packages an image has, and what differs between two."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from flows.images.stages import Kind, Stage
from flows.publishing.evidence import PACKAGES, SBOM, changes, of_stages, packages_of

STAGES = (
    Stage("base", Kind.bootstrap, None, "", system=("tzdata=2026a-0+deb12u1", "libc6=2.36-9+deb12u14")),
    Stage(
        "libraries",
        Kind.instructions,
        "base",
        "",
        requirements=("-i https://pypi.org/simple", "Tz_Data[x]==2026.1; python_version >= '3.9' --hash=sha256:00", ""),
    ),
)


def test_both_worlds_may_use_one_name() -> None:
    assert packages_of(STAGES) == {
        "deb/tzdata": "2026a-0+deb12u1",
        "deb/libc6": "2.36-9+deb12u14",
        "pypi/tz-data": "2026.1",
    }


def test_evidence_holds_the_packages_and_each_lock() -> None:
    files = of_stages(STAGES)
    assert sorted(files) == ["base.system.txt", "libraries.requirements.txt", PACKAGES, SBOM]
    assert json.loads(files[PACKAGES]) == packages_of(STAGES)
    assert b"libc6=2.36-9+deb12u14\n" in files["base.system.txt"]


def test_changes() -> None:
    found = changes({"deb/a": "1", "deb/b": "1", "deb/c": "1"}, {"deb/b": "2", "deb/c": "1", "deb/d": "1"})
    assert (found.added, found.removed, found.changed) == ({"deb/d": "1"}, {"deb/a": "1"}, {"deb/b": ("1", "2")})
    assert found
    assert not changes({"deb/a": "1"}, {"deb/a": "1"})


PACKAGE_LISTS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("123"))


@given(PACKAGE_LISTS, PACKAGE_LISTS)
def test_changes_lead_from_the_old_to_the_new(old: dict[str, str], new: dict[str, str]) -> None:
    found = changes(old, new)
    made = {**old, **found.added, **{name: to for name, (_, to) in found.changed.items()}}
    assert {name: version for name, version in made.items() if name not in found.removed} == new
