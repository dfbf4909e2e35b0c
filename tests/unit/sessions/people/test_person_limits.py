"""The rule for limits of a person: the most generous group, what counts, what is refused and in which words."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.core.settings.person_limits import PersonLimits
from flows.sessions.people.person_limits import NO_LIMITS, Account, Amounts, OverLimit, Resource, allowed, home, takes

GB = 10**9
LIMITS = PersonLimits.model_validate(
    {
        "sessions": 2,
        "memory_gb": 8,
        "gpus": 1,
        "groups": {
            "class": {"sessions": 1},
            "staff": {"sessions": 10, "cpus": 4, "gpus": 2},
            "root": {"memory_gb": 0, "gpus": 0},
            "small": {"memory_gb": 2.5},
        },
    }
)
some = st.one_of(st.just(0.0), st.floats(0, 1e6), st.just(math.inf))
amounts = st.builds(Amounts, some, some, some, some)


def test_without_a_setting_nothing_is_limited() -> None:
    assert allowed(PersonLimits(), ()) == allowed(PersonLimits(), ("staff",)) == NO_LIMITS
    assert Account(NO_LIMITS, {"a": takes(0, 0)}).refusal(takes(0, 0)) is None
    assert str(Account(NO_LIMITS, {"a": takes(0, 0)})) == ""
    assert allowed(PersonLimits(sessions=0, memory_gb=0, cpus=0), ()) == NO_LIMITS


@pytest.mark.parametrize(
    ("groups", "most"),
    [
        ((), Amounts(2, 8 * GB, math.inf, 1)),
        (("strangers",), Amounts(2, 8 * GB, math.inf, 1)),
        (("class",), Amounts(1, 8 * GB, math.inf, 1)),
        (("class", "staff"), Amounts(10, 8 * GB, 4, 2)),
        (("small",), Amounts(2, 2.5 * GB, math.inf, 1)),
        (("small", "root"), Amounts(2, math.inf, math.inf, math.inf)),
    ],
)
def test_the_most_generous_group_holds_for_each_amount(groups: tuple[str, ...], most: Amounts) -> None:
    assert allowed(LIMITS, groups) == allowed(LIMITS, groups[::-1]) == most


def test_the_last_place_is_given_and_the_next_is_refused_with_words() -> None:
    used = {"ada": takes(4 * GB, 1), "ada--gpu": takes(4 * GB, 1, runs=False)}
    told = Account(Amounts(3, 8 * GB, 2, math.inf), used)
    assert told.total == Amounts(2, 4 * GB, 1)
    assert told.refusal(takes(4 * GB, 1)) is None
    refused = told.refusal(takes(5 * GB, 1))
    assert refused and refused.resource is Resource.memory
    assert refused.why == "You may have 8 GB of memory. It takes 5, and your sessions that run take 4."
    assert refused.hint.startswith("stop another session first")
    full = Account(Amounts(2, math.inf, math.inf, math.inf), used).refusal(takes(1, 1))
    assert full and full.resource is Resource.sessions
    assert full.why == "You have 2 sessions, and may have 2."
    assert str(told) == "You have 2 of 3 sessions. Those that run take 4 of 8 GB of memory and 1 of 2 cores."
    of_cores = Account(Amounts(math.inf, math.inf, 2, math.inf), used)
    assert str(of_cores) == "Your sessions that run take 1 of 2 cores."


def test_homes_have_the_limit_of_the_most_generous_group() -> None:
    limits = PersonLimits.model_validate(
        {
            "home_gb": 2,
            "groups": {"staff": {"home_gb": 5}, "class": {"home_gb": 1}, "free": {"home_gb": 0}, "other": {}},
        }
    )
    assert home(PersonLimits(), ("staff",)) is None
    assert home(limits, ()) == home(limits, ("other", "strangers")) == 2 * GB
    assert home(limits, ("class",)) == GB
    assert home(limits, ("class", "staff")) == 5 * GB
    assert home(limits, ("class", "free")) == 0


def test_gpus_of_sessions_that_run_are_counted() -> None:
    used = {"a": takes(GB, 1, 1), "b": takes(GB, 1, 4, runs=False)}
    told = Account(Amounts(math.inf, 8 * GB, 4, 2), used)
    assert told.refusal(takes(GB, 1, 1)) is None
    refused = told.refusal(takes(GB, 1, 2))
    assert refused and refused.resource is Resource.gpus
    assert refused.why == "You may have 2 GPUs. It takes 2, and your sessions that run take 1."
    assert str(told) == "Your sessions that run take 1 of 8 GB of memory, 1 of 4 cores and 1 of 2 GPUs."


def test_a_session_without_a_limit_of_its_own_takes_all() -> None:
    limited = Amounts(9, 8 * GB, 2)
    refused = Account(limited, {}).refusal(takes(1 * GB, 0))
    assert refused and refused.resource is Resource.cpus and "no limit of its own" in refused.why
    behind = Account(limited, {"ada": takes(1 * GB, 0)}).refusal(takes(1 * GB, 1))
    assert behind and behind.resource is Resource.cpus and "take all that there is" in behind.why
    too_large = Account(limited, {}).refusal(takes(9 * GB, 1))
    assert too_large and too_large.hint.startswith("choose a smaller profile")


def test_a_limit_that_was_lowered_takes_nothing_away() -> None:
    used = {"a": takes(4 * GB, 1), "b": takes(4 * GB, 1, runs=False), "c": takes(4 * GB, 1, runs=False)}
    now = Account(Amounts(1, 4 * GB, 1), used)
    assert now.refusal(takes(4 * GB, 1), "a") is None
    assert now.refusal(takes(2 * GB, 1), "a") is None
    for asked, session in ((takes(4 * GB, 1), "b"), (takes(5 * GB, 1), "a"), (takes(1, 0.1), "")):
        assert isinstance(now.refusal(asked, session), OverLimit)


@given(amounts, st.lists(amounts, max_size=5), amounts)
def test_what_is_allowed_stays_within_the_limits(most: Amounts, have: list[Amounts], asked: Amounts) -> None:
    account = Account(most, {str(number): one for number, one in enumerate(have)})
    refusal = account.refusal(asked)
    for resource in Resource:
        fits = asked.of(resource) == 0 or account.total.of(resource) + asked.of(resource) <= most.of(resource)
        assert fits or refusal
        assert refusal is None or refusal.resource is not resource or not fits
    assert "inf" not in f"{account} {refusal}" and "nan" not in f"{account} {refusal}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"sessions": -1},
        {"sessions": 1.5},
        {"memory_gb": math.nan},
        {"memory_gb": math.inf},
        {"cpus": -0.1},
        {"cpus": "many"},
        {"gpus": 0.5},
        {"disk_gb": 3},
        {"groups": {"": {"sessions": 1}}},
        {"groups": {"x" * 256: {}}},
        {"groups": {"class": {"groups": {}}}},
        {"groups": {"class": 3}},
        {"groups": ["class"]},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PersonLimits.model_validate(wrong)
