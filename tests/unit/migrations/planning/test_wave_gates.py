from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.core.settings.policy import RolloutPolicy
from flows.migrations.planning.rollout import Health
from flows.migrations.planning.wave_gates import Approval, Tally, Trial, canary, gates, judge, position, title, wave

NOW, HOUR = datetime(2026, 11, 21, 9, tzinfo=UTC), timedelta(hours=1)
PERCENTS = (1.0, 10.0, 50.0, 100.0)
NAMES = [f"s{number}" for number in range(4000)]


def test_waves_grow_as_the_policy_says() -> None:
    waves = [wave(position(name, "sha256:new"), PERCENTS) for name in NAMES]
    shares = [sum(number <= limit for number in waves) / len(NAMES) for limit in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.01, 0.1, 0.5, 1.0], abs=0.02)


def test_the_next_image_begins_with_others() -> None:
    first, second = ({name for name in NAMES if position(name, image) < 10} for image in ("sha256:a", "sha256:b"))
    assert len(first & second) < len(first) / 4


@given(st.text(), st.text())
def test_every_session_has_a_wave(name: str, image: str) -> None:
    assert 0 <= position(name, image) < 100
    assert 1 <= wave(position(name, image), PERCENTS) <= len(PERCENTS)


def test_somebody_always_goes_first() -> None:
    few = [(name, "sha256:new") for name in NAMES[:3]]
    assert canary(few, PERCENTS) == min(few, key=lambda session: position(*session))[0]
    assert canary([(name, "sha256:new") for name in NAMES], PERCENTS) == ""
    assert canary([], PERCENTS) == ""


def test_waves_have_names() -> None:
    assert [title(number, PERCENTS) for number in (0, 1, 4)] == ["volunteers", "1 %", "100 %"]


@pytest.mark.parametrize(
    ("tally", "health"),
    [
        (Tally(moved=100, baked=600), Health.passed),
        (Tally(moved=100, baked=599), Health.open),
        (Tally(moved=50, left=50), Health.open),
        (Tally(moved=95, failed=5, baked=600), Health.passed),
        (Tally(moved=94, failed=6), Health.failed),
        (Tally(moved=10, failed=6, left=84), Health.failed),  # whatever becomes of the others
        (Tally(moved=999, failed=1, damaged=1), Health.failed),
        (Tally(moved=99, unknown=1, baked=600), Health.inconclusive),
        (Tally(), Health.inconclusive),
    ],
)
def test_a_wave_is_judged_by_what_became_of_it(tally: Tally, health: Health) -> None:
    assert judge(tally, RolloutPolicy(failures=5, bake_minutes=10)) is health


def health(trials: list[Trial], left: int = 0, approved: Approval | None = None, **policy: object) -> Health:
    approvals = {"new": approved} if approved else {}
    written = RolloutPolicy.model_validate({"waves": [50, 100], **policy})
    return gates(trials, {("new", 1): left}, approvals, written, NOW)["new", 1].health


MOVED, FAILED = (Trial("new", 1, NOW - HOUR, moved=moved, failed=not moved) for moved in (True, False))


@pytest.mark.parametrize(
    ("trials", "left", "says"),
    [
        ([MOVED], 0, Health.passed),
        ([MOVED], 1, Health.open),
        ([MOVED, Trial("new", 1, None)], 0, Health.open),
        ([MOVED, FAILED], 0, Health.failed),
        ([MOVED, FAILED], 40, Health.open),
        ([replace(FAILED, damaged=True)], 1000, Health.failed),
        ([MOVED, Trial("new", 2, NOW, moved=True)], 9, Health.passed),
        ([FAILED, Trial("new", 2, NOW, moved=True)], 0, Health.failed),
        ([MOVED, replace(MOVED, fell=True)], 0, Health.failed),
        ([MOVED, replace(MOVED, fell=True), Trial("new", 2, NOW, moved=True)], 0, Health.passed),
    ],
)
def test_a_wave_says_what_its_moves_have_shown(trials: list[Trial], left: int, says: Health) -> None:
    assert health(trials, left) is says


def test_a_wave_bakes_from_its_last_move_on() -> None:
    assert health([MOVED], bake_minutes=61) is Health.open
    assert health([MOVED], bake_minutes=59) is Health.passed


def test_an_approval_holds_for_what_had_happened_by_then() -> None:
    assert health([MOVED], approval=True) is Health.unapproved
    assert health([MOVED], approval=True, approved=(1, NOW)) is Health.passed
    assert health([MOVED], approval=True, approved=(0, NOW)) is Health.unapproved
    assert health([FAILED], approved=(1, NOW)) is Health.passed
    assert health([replace(MOVED, fell=True)], approved=(1, NOW)) is Health.passed
    assert health([FAILED], approved=(1, NOW - 2 * HOUR)) is Health.failed
