"""Release files that are changed by lines: the text that people wrote around it stays."""

from __future__ import annotations

from datetime import date

import pytest
import yaml

from flows.catalog import edit
from flows.core.errors import RefitError

TEXT = """\
# The first release.
release: 2026a   # a year and a letter
supported_until: 2027-12-31
profiles:
  - {ide: jupyter, bundle: minimal, os: deb12, python: py311}
  # without anything to open
  - ide: runtime
    bundle: minimal
    os: deb12
    python: py311  # the only one
# nightly: "0 2 * * *"
reach:
  certifi: any
exceptions:
  - package: urllib3
    range: ">=2"
    reason: CVE
    expires: 2026-12-31
# The end.
"""
NEW = {"ide": "jupyter", "bundle": "r", "os": "deb12", "python": "py311"}


def test_a_profile_comes_after_the_last_one() -> None:
    text = edit.with_profile(TEXT, NEW)
    added = "  - {ide: jupyter, bundle: r, os: deb12, python: py311}\n"
    assert text == TEXT.replace("# the only one\n", f"# the only one\n{added}")
    assert yaml.safe_load(text)["profiles"][-1] == NEW


@pytest.mark.parametrize("profiles", ["profiles: []", "profiles: [{ide: jupyter}]", "profiles: {}", ""])
def test_a_list_that_is_not_written_line_by_line_is_left_alone(profiles: str) -> None:
    with pytest.raises(RefitError, match=r"- \{ide: jupyter, bundle: r, os: deb12, python: py311\}"):
        edit.with_profile(f"release: 2026a\n{profiles}\n", NEW)


def test_a_list_without_indentation() -> None:
    text = "release: 2026a\nprofiles:\n- {ide: a}\nnightly: x\n"
    assert yaml.safe_load(edit.with_profile(text, NEW))["profiles"] == [{"ide": "a"}, NEW]


def test_a_new_release_takes_over_what_is_not_the_others_own() -> None:
    text = edit.for_release(TEXT, "2026b", date(2028, 6, 30))
    data = yaml.safe_load(text)
    assert (data["release"], data["supported_until"]) == ("2026b", date(2028, 6, 30))
    assert data["profiles"] == yaml.safe_load(TEXT)["profiles"]
    assert data.keys() == {"release", "supported_until", "profiles"}
    for comment in ("# The first release.", "# a year", "# without anything", "# nightly", "# The end."):
        assert comment in text
    assert "supported_until" not in edit.for_release(TEXT, "2026b", None)


def test_packages_with_dates_for_versions() -> None:
    text = edit.with_reach("release: 2026b\n", ["certifi", "pytz"])
    assert yaml.safe_load(text)["reach"] == {"certifi": "any", "pytz": "any"}
    assert edit.with_reach("x: 1\n", []) == "x: 1\n"
    assert edit.with_reach(TEXT, ["certifi", "pytz"]) == TEXT.replace(
        "  certifi: any\n", "  certifi: any\n  pytz: any\n"
    )
