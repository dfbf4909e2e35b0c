"""Changes that a lock may make while its release lives."""

from __future__ import annotations

import json
import tomllib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from flows.catalog.pins import Reach, Waiver, expired
from flows.locks import policy
from flows.locks.pipfile import read_pipfile
from flows.locks.policy import Bounds, Forbidden
from flows.locks.python_lockfile import LockChange, by_category
from tests.support.machine import ROOT

FIRST = {
    "packages": {"requests": "2.32.5", "idna": "3.10", "certifi": "2026.10.18"},
    "jupyter": {"idna": "3.10", "jupyterlab": "4.6.1", "tornado": "6.5.2"},
}
BOUNDS = Bounds("2026a", FIRST, {"certifi": Reach.any})
PIPFILE = {
    "source": [{"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": True}],
    "packages": {"Requests": {"version": "~=2.32", "extras": ["socks"]}, "idna": "*"},
    "jupyter": {"jupyterlab[extra]": "~=4.6"},
    "requires": {"python_version": "3.11"},
}


def waived(package: str, within: str) -> Bounds:
    waiver = Waiver(package=package, range=within, reason="CVE-2026-1", expires=date(2027, 1, 31))
    return Bounds("2026a", FIRST, waivers=(waiver,))


@pytest.mark.parametrize(
    ("version", "reach", "expected"),
    [
        ("2.32.5", Reach.patch, "==2.32.*,>=2.32.5"),
        ("2.32.5", Reach.minor, "==2.*,>=2.32.5"),
        ("2.32.5", Reach.any, ">=2.32.5"),
        ("3.10", Reach.patch, "==3.10.*,>=3.10"),
        ("25", Reach.patch, "==25.0.*,>=25"),
        ("1!2.0.4.post1", Reach.patch, "==1!2.0.*,>=1!2.0.4.post1"),
        ("2.9.1+cpu", Reach.patch, "==2.9.*,>=2.9.1"),
        ("1.0.0rc1", Reach.patch, "==1.0.*,>=1.0.0rc1"),
    ],
)
def test_bounds(version: str, reach: Reach, expected: str) -> None:
    assert policy.bound(version, reach) == expected


versions = st.lists(st.integers(0, 3000), min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))


@given(versions, versions)
def test_what_is_admitted_is_a_patch_and_not_older(first: str, other: str) -> None:
    admitted = SpecifierSet(policy.bound(first, Reach.patch)).contains(other)
    old, new = ((*Version(text).release, 0, 0)[:2] for text in (first, other))
    assert admitted == (old == new and Version(other) >= Version(first))


@given(versions, st.sampled_from(Reach))
def test_a_package_may_stay_where_it_began(first: str, reach: Reach) -> None:
    assert SpecifierSet(policy.bound(first, reach)).contains(first)


def test_the_pipfile_that_is_locked_names_every_package_within_its_bounds() -> None:
    made = tomllib.loads(policy.bounded(PIPFILE, ["packages", "jupyter"], BOUNDS))
    assert made["packages"] == {
        "Requests": {"version": "==2.32.*,>=2.32.5,~=2.32", "extras": ["socks"]},
        "idna": "==3.10.*,>=3.10",
        "certifi": ">=2026.10.18",
    }
    assert made["jupyter"] == {
        "jupyterlab[extra]": "==4.6.*,>=4.6.1,~=4.6",
        "idna": "==3.10.*,>=3.10",
        "tornado": "==6.5.*,>=6.5.2",
    }
    assert (made["source"], made["requires"]) == (PIPFILE["source"], PIPFILE["requires"])


@pytest.mark.parametrize("folder", sorted(ROOT.glob("bundles/*/py3*")), ids=lambda folder: "/".join(folder.parts[-2:]))
def test_each_package_is_bound_in_each_category_that_has_it(folder: Path) -> None:
    # As a first lock lies on disk: its categories in the order of the alphabet.
    first = json.loads(json.dumps(by_category(folder), sort_keys=True))
    pipfile = read_pipfile(folder / "Pipfile")
    made = tomllib.loads(policy.bounded(pipfile.data, pipfile.categories, Bounds("2026b", first)))
    for category, packages in first.items():
        asked = {
            canonicalize_name(name.partition("[")[0]): how["version"] if isinstance(how, dict) else how
            for name, how in made[category].items()
        }
        assert asked.keys() == packages.keys()
        for name, version in packages.items():
            assert asked[name].startswith(policy.bound(version, Reach.patch))


def test_packages_of_a_category_that_is_gone_stay_with_the_bundle() -> None:
    pipfile: dict[str, dict[str, str]] = {"packages": {}}
    made = tomllib.loads(policy.bounded(pipfile, ["packages"], BOUNDS))
    assert set(made["packages"]) == {"requests", "idna", "certifi", "jupyterlab", "tornado"}


def test_an_exception_stands_in_the_place_of_bound_and_pipfile() -> None:
    made = tomllib.loads(policy.bounded(PIPFILE, ["packages", "jupyter"], waived("requests", ">=3.1,<4")))
    assert made["packages"]["Requests"]["version"] == ">=3.1,<4"


def test_patches_calendars_and_packages_that_go_are_allowed() -> None:
    policy.check(BOUNDS, {"requests": "2.32.9", "idna": "3.10.1", "certifi": "2027.1.1"})


def test_all_that_is_forbidden_is_named_at_once_with_the_exception_that_would_allow_it() -> None:
    with pytest.raises(Forbidden) as caught:
        policy.check(BOUNDS, {"requests": "2.33.0", "idna": "3.9", "urllib3": "2.7.0"})
    text = str(caught.value)
    assert "requests would be 2.33.0, but may be ==2.32.*,>=2.32.5" in text
    assert "idna would be 3.9" in text
    assert "urllib3 2.7.0 would be new" in text
    assert '{package: urllib3, range: "==2.7.*,>=2.7.0", reason: …, expires: YYYY-MM-DD}' in text


def test_an_exception_lets_a_package_move_or_come_within_its_range() -> None:
    policy.check(waived("requests", ">=2.33,<3"), {"requests": "2.33.0"})
    policy.check(waived("urllib3", ">=2.7"), {"urllib3": "2.7.0"})
    with pytest.raises(Forbidden):
        policy.check(waived("urllib3", ">=2.8"), {"urllib3": "2.7.0"})


def test_a_new_package_that_only_others_need_is_led_into_its_exception() -> None:
    bounds = waived("urllib3", ">=2.8")
    resolved = {"packages": {"requests": "2.32.5", "urllib3": "2.7.0"}, "jupyter": {"urllib3": "2.7.0"}}
    assert policy.astray(bounds, {"packages": {"urllib3": "2.8.1"}}) == {}
    assert policy.astray(waived("requests", ">=3"), resolved) == {}  # it is named already
    astray = policy.astray(bounds, resolved)
    assert astray == {"packages": ("urllib3",), "jupyter": ("urllib3",)}
    made = tomllib.loads(policy.bounded(PIPFILE, ["packages", "jupyter"], bounds, astray))
    assert made["packages"]["urllib3"] == made["jupyter"]["urllib3"] == ">=2.8"


def test_what_would_have_moved_but_may_not() -> None:
    now = {"requests": "2.32.5", "idna": "3.10", "certifi": "2026.10.18"}
    free = {"requests": "2.33.0", "idna": "3.10.1", "certifi": "2027.1.1", "urllib3": "2.7.0"}
    assert policy.held(BOUNDS, now, free) == LockChange({"requests": ("2.32.5", "2.33.0")}, {"urllib3": "2.7.0"}, {})


def test_years_are_calendars() -> None:
    assert [v for v in ("2026.10.18", "2025.2", "26.0", "3.10", "20240101") if policy.is_calendar(v)] == [
        "2026.10.18",
        "2025.2",
    ]


def test_an_expired_exception_is_named_with_its_line() -> None:
    text = "release: 2026a\nexceptions:\n  - package: a\n    range: '>1'\n    reason: x\n    expires: 2026-01-31\n"
    waiver = Waiver(package="a", range=">1", reason="x", expires=date(2026, 1, 31))
    assert list(expired(Path("f"), text, (waiver,), date(2026, 1, 31))) == []
    (mistake,) = expired(Path("f"), text, (waiver,), date(2026, 2, 1))
    assert (mistake.line, "held until 2026-01-31" in mistake.what) == (6, True)
