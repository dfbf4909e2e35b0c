import datetime
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.catalog import tag
from flows.catalog.tag import IllegalTag, Tag

NAMES = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True)
TAGS = st.builds(
    Tag,
    cuda=st.booleans(),
    ide=NAMES,
    bundle=NAMES,
    os=NAMES,
    python=NAMES,
    release=st.from_regex(r"20[0-9]{2}[a-z]", fullmatch=True),
    date=st.dates(),
    number=st.integers(min_value=0, max_value=10_000),
)
# Texts that are tags, or are not by little: pieces that belong into one, in any order.
PIECES = st.sampled_from(
    ["cuda", "jupyter", "deb12", "py311", "2026a", "20261120", "20260230", "1", "01", "-", "_", ".", "٢"]
)
NEARLY_TAGS = st.one_of(
    st.lists(PIECES, max_size=16).map("".join),
    st.from_regex(r"([a-z0-9]{1,4}-){2,5}[a-z0-9]{1,4}_20[0-9]{2}[a-z]_[0-9]{8}(\.[0-9]{1,2})?", fullmatch=True),
)
FIRST = tag.parse(tag.EXAMPLE)


@pytest.mark.slow
@given(TAGS)
def test_what_is_written_is_read_back(made: Tag) -> None:
    assert tag.parse(str(made)) == made


@pytest.mark.slow
@given(NEARLY_TAGS)
def test_what_is_read_is_written_back(text: str) -> None:
    with suppress(IllegalTag):
        assert str(tag.parse(text)) == text


def test_the_parts_of_a_tag() -> None:
    made = Tag(True, "jupyter", "pytorch", "c9s", "py311", "2026a", datetime.date(2026, 11, 20), 1)
    assert str(made) == "cuda-jupyter-pytorch-c9s-py311_2026a_20261120.1"
    assert (made.stem, made.alias) == ("cuda-jupyter-pytorch-c9s-py311", "cuda-jupyter-pytorch-c9s-py311_2026a")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not made of names, a release and a date"),
        ("jupyter-minimal-deb12-py311_2026a", "not made of names, a release and a date"),
        ("jupyter-minimal-deb12-py311_2026a_20261120.0", "not made of names, a release and a date"),
        ("jupyter-minimal-deb12-py311_2026a_20261120\n", "not made of names, a release and a date"),
        ("jupyter-minimal-deb12_2026a_20261120", "'jupyter-minimal-deb12' is not IDE, bundle"),
        ("gpu-jupyter-minimal-deb12-py311_2026a_20261120", "is not IDE, bundle"),
        ("jupyter--deb12-py311_2026a_20261120", "The bundle '' has something other"),
        ("Jupyter-minimal-deb12-py311_2026a_20261120", "The ide 'Jupyter' has something other"),
        ("jupyter-minimal-deb12-py3.11_2026a_20261120", "The python 'py3.11' has something other"),
        ("jupyter-minimal-deb12-py311_2026_20261120", "The release '2026' is not a year and a letter"),
        ("jupyter-minimal-deb12-py311_2026a_20260230", "20260230 is not a day of the calendar"),
        (f"jupyter-{'x' * 100}-deb12-py311_2026a_20261120", "a registry takes 128"),
    ],
)
def test_what_is_no_tag_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(IllegalTag, match=tag.EXAMPLE) as refused:
        tag.parse(text)
    assert reason in refused.value.why


def test_a_tag_is_not_made_of_illegal_parts() -> None:
    with pytest.raises(IllegalTag, match="The number -1 is negative"):
        Tag(False, "jupyter", "minimal", "deb12", "py311", "2026a", datetime.date(2026, 11, 20), -1)


@pytest.mark.parametrize(
    ("existing", "free"),
    [
        ([], ""),
        ([FIRST.alias, "latest", "jupyter-minimal-deb12-py311_2026a_20261119.7"], ""),
        ([str(FIRST)], ".1"),
        ([f"{FIRST}.4", str(FIRST), f"{FIRST}.10"], ".11"),
    ],
)
def test_the_next_free_number_of_a_day(existing: list[str], free: str) -> None:
    assert str(FIRST.free(existing)) == f"{FIRST}{free}"
    assert str(tag.parse(f"{FIRST}.3").free(existing)) == f"{FIRST}{free}"
