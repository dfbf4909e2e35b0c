"""Which machines are called for a build, without a server."""

from __future__ import annotations

import pytest

from flows.orchestration.builders import chosen


@pytest.mark.parametrize(
    ("there", "at_most", "called"),
    [
        ({"deb12": ["a", "b", "c"]}, 2, {"a": ("deb12",), "b": ("deb12",)}),
        ({"deb12": ["a"], "c9s": []}, 2, {"a": ("deb12",)}),
        # A builder that builds for one system anyway is the first to be asked for another.
        ({"deb12": ["a", "b"], "c9s": ["b"]}, 1, {"b": ("c9s", "deb12")}),
        ({"deb12": ["a"], "c9s": ["b"]}, 1, {"a": ("deb12",), "b": ("c9s",)}),
    ],
)
def test_each_system_has_as_many_machines_as_shall_be_and_together_they_are_few(
    there: dict[str, list[str]], at_most: int, called: dict[str, tuple[str, ...]]
) -> None:
    assert chosen(there, at_most) == called
