"""How things are written in messages."""

from __future__ import annotations

import pytest

from flows.core.formatting import duration, exact_duration, first_sentence, gigabytes, megabytes, short, some


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ((), ""),
        (("a",), "a"),
        (("a", "b"), "a, b"),
        (("a", "b", "c"), "a, b and 1 more"),
        ((1, 2, 3, 4), "1, 2 and 2 more"),
    ],
)
def test_no_more_things_are_named_than_asked_for(things: tuple[object, ...], said: str) -> None:
    assert some(things, most=2) == said


@pytest.mark.parametrize(
    ("seconds", "coarse", "exact"),
    [
        (0, "0 s", "0.0 s"),
        (59.94, "60 s", "1 min 0 s"),
        (119.7, "120 s", "2 min 0 s"),
        (130, "2 min", "2 min 10 s"),
        (7199, "120 min", "119 min 59 s"),
        (7200, "2 h", "120 min 0 s"),
        (200_000, "2 d", "3333 min 20 s"),
    ],
)
def test_durations_have_the_unit_that_fits(seconds: float, coarse: str, exact: str) -> None:
    assert (duration(seconds), exact_duration(seconds)) == (coarse, exact)


def test_a_digest_is_as_short_with_its_algorithm_as_without() -> None:
    assert short(f"sha256:{'0123456789' * 4}") == short("0123456789" * 4) == "012345678901"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", ""),
        ("the rollout is paused", "the rollout is paused"),
        ("It ended. Then: podman run --rm …\nand 130 lines more.", "It ended."),
        ("podman 4.3.1 took 1.5 s\nand said nothing", "podman 4.3.1 took 1.5 s"),
        (300 * "x", f"{199 * 'x'}…"),
    ],
)
def test_a_column_has_room_for_the_first_sentence(text: str, first: str) -> None:
    assert first_sentence(text) == first


def test_sizes_are_in_units_of_a_thousand() -> None:
    assert (megabytes(1_234_567), megabytes(1_260_000, 1), gigabytes(2_350_000_000.0)) == ("1 MB", "1.3 MB", "2.4 GB")
    assert gigabytes(0) == "0.0 GB"
