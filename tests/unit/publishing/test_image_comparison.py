"""The differences between two images."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.publishing.image_comparison import changes


def test_another_python_cuda_or_system_is_named_before_all_packages() -> None:
    old = {"deb/python3.11": "3.11.2-6", "deb/python3": "3.11", "deb/base-files": "12.4+deb12u5", "pypi/a": "1"}
    new = {"deb/python3.13": "3.13.5-2", "deb/python3": "3.13", "deb/base-files": "13.8", "pypi/b": "1"}
    assert str(changes(old, new)).startswith("Python 3.11 → 3.13, Debian 12 → 13, +python3.13")
    cuda = {"rpm/cuda-cudart-12-9": "12.9.79", "rpm/python3.11": "3.11.13"}
    newer = {"rpm/cuda-cudart-13-5": "13.5.1", "rpm/python3.11": "3.11.14"}
    assert str(changes(cuda, newer)).startswith("CUDA 12.9 → 13.5, +cuda-cudart-13-5")
    assert str(changes(old, {**old, "pypi/a": "2", "rpm/cuda-cudart-12-9": "12.9"})).startswith("CUDA none → 12.9, +")
    assert str(changes({}, cuda)).startswith("+cuda-cudart-12-9")  # nothing is known of the other
    assert str(changes(old, {**old, "deb/base-files": "12.7+deb12u6"})).startswith("base-files 12.4")


def test_changes() -> None:
    result = changes({"deb/a": "1", "deb/b": "1", "deb/c": "1"}, {"deb/b": "2", "deb/c": "1", "deb/d": "1"})
    assert (result.added, result.removed, result.changed) == ({"deb/d": "1"}, {"deb/a": "1"}, {"deb/b": ("1", "2")})
    assert result
    assert not changes({"deb/a": "1"}, {"deb/a": "1"})


PACKAGE_LISTS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("123"))


@pytest.mark.slow
@given(PACKAGE_LISTS, PACKAGE_LISTS)
def test_changes_lead_from_the_old_to_the_new(old: dict[str, str], new: dict[str, str]) -> None:
    result = changes(old, new)
    made = {**old, **result.added, **{name: to for name, (_, to) in result.changed.items()}}
    assert {name: version for name, version in made.items() if name not in result.removed} == new
