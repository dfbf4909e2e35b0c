"""The report of a night for a person."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import date
from pathlib import Path

from flows.images.build import Built
from flows.publishing.published import Published
from flows.releases.night_report import GraftProof, ImageNews, LockNews, Night, NightFailed, ReleaseNight, markdown
from flows.releases.report import BuildReport

DAY = date(2026, 11, 21)
BASE = Built("base-deb12-py311", "k1", None, "sha256:1")
CUSTOM = Built("one-custom", "k2", None, "sha256:2", False, 75.0, Path("/log"), "no layer | of its own")
LEAF = Built("runtime-one", "k3", "l3", "sha256:3", False, 0.04, None, "its layer was made on sha256:9")


def image(profile: str, new: bool) -> Published:
    return Published(profile, f"{profile}_2026a_20261121", "sha256:a", "sha256:b", 110_200_000, new, 9.5)


def release(*images: Published, failures: dict[str, str] | None = None) -> ReleaseNight:
    report = BuildReport(images, (BASE, CUSTOM, LEAF), failures or {}, {"c9s": "it is held"})
    news = tuple(ImageNews(i, 1_500_000, "elk 1.0 → 2.0") for i in images if i.new)
    return ReleaseNight("2026a", report, news, seconds=80)


def test_a_quiet_night_is_told_in_a_few_lines() -> None:
    nothing = ReleaseNight("2026a", BuildReport((image("runtime-one", False),), (BASE,), {}), seconds=0.8)
    night = Night(DAY, 8, (), (nothing,), {"2025b": date(2026, 6, 30)}, 1.25)
    assert night.failures == {}
    assert markdown(night).splitlines() == [
        "# Night of 2026-11-21: 0 new images, 1 unchanged",
        "",
        "It took 1.2 s.",
        "",
        "## Locks",
        "",
        "8 of 8: the indexes say the same of all packages.",
        "",
        "## Release 2026a, in 0.8 s",
        "",
        "Stages: 0 built, 0 grafted, 1 reused.",
        "",
        "Left as they are, because nothing that goes into them has changed: `runtime-one_2026a_20261121`.",
        "",
        "Release 2025b was left out: it was supported until 2026-06-30.",
    ]


def test_what_was_done_stands_in_tables_with_sizes_times_and_reasons() -> None:
    locks = (LockNews("one", "py311", "the index says something else of elk", "elk 1.0 → 2.0"),)
    text = markdown(Night(DAY, 2, locks, (release(image("runtime-one", True)),), seconds=81))
    assert "| one py311 | elk 1.0 → 2.0 | the index says something else of elk |" in text
    assert "| `runtime-one_2026a_20261121` | 110.2 MB (+1.5) | 9.5 s | elk 1.0 → 2.0 |" in text
    assert "Stages: 1 built, 1 grafted, 1 reused." in text
    assert "| `one-custom` | built | 1 min 15 s | no layer \\| of its own |" in text
    assert "| `runtime-one` | grafted | 0.0 s | its layer was made on sha256:9 |" in text
    assert "Nothing was done for c9s: it is held." in text
    assert "Left as they are" not in text


def test_what_this_machine_cant_build_is_told_and_no_failure() -> None:
    report = BuildReport((image("runtime-one", False),), (BASE,), {}, unbuildable={"rstudio-r": "x: it answers 403"})
    night = Night(DAY, releases=(ReleaseNight("2026a", replace(report, again={"runtime-one": "tmux"})),))
    assert "`runtime-one` was resolved anew, and tried again: tmux" in markdown(night)
    assert not night.failures and "`rstudio-r` can't be built here: x: it answers 403" in markdown(night)


def test_a_first_image_has_nothing_before_it() -> None:
    night = ReleaseNight("2026a", BuildReport((), (), {}), (ImageNews(image("runtime-one", True)),))
    assert "| 110.2 MB | 9.5 s | the first one |" in markdown(Night(DAY, releases=(night,)))


def test_failures_come_first_and_not_at_full_length() -> None:
    locks = (LockNews("two", "py311", "moved", problem="its requirements contradict each other"),)
    lost = ReleaseNight("2026b", None, problem="the registry doesn't answer")
    long = "\n".join(f"line {number}" for number in range(40))
    night = Night(DAY, 2, locks, (release(failures={"runtime-two": long}), lost))
    assert list(night.failures) == ["lock of two py311", "release 2026b", "runtime-two of 2026a"]
    text = markdown(night)
    assert text.index("## Failed") < text.index("line 11") < text.index("… and 28 lines more") < text.index("## Locks")
    assert "line 12" not in text
    assert "| two py311 | the last one stays | moved |" in text


def test_what_no_night_looks_at_is_named_in_a_line() -> None:
    alone = ReleaseNight(
        "2026a", BuildReport((), (), {}), by_hand=("ides/4-vscode/npm/package-lock.json", "x@sha256:1")
    )
    line = "Not looked at, because only a person moves it: `ides/4-vscode/npm/package-lock.json`, `x@sha256:1`."
    assert line in markdown(Night(DAY, releases=(alone,))).splitlines()


def test_the_error_says_all_of_it_and_survives_a_pickle() -> None:
    error = NightFailed(Night(DAY, releases=(release(failures={"runtime-two": "no disk"}),)))
    again = pickle.loads(pickle.dumps(error))
    assert again.night == error.night
    assert str(again) == "Night of 2026-11-21: 0 new images, 0 unchanged, 1 failed.\nruntime-two of 2026a: no disk"


def test_a_graft_that_a_build_does_not_give_is_a_failure() -> None:
    report = BuildReport((), (BASE, LEAF), {})
    same = ReleaseNight("2026a", report, proof=GraftProof(LEAF.stage))
    assert Night(DAY, releases=(same,)).failures == {}
    assert "The graft of `runtime-one` was made again, and came out the same." in markdown(Night(DAY, releases=(same,)))
    other = ReleaseNight("2026a", report, proof=GraftProof(LEAF.stage, ("files /opt/x: a file → none",)))
    assert Night(DAY, releases=(other,)).failures == {"graft of runtime-one of 2026a": "files /opt/x: a file → none"}
    assert "came out the same" not in markdown(Night(DAY, releases=(other,)))


def test_an_image_that_could_not_be_compared_is_in_the_report_all_the_same() -> None:
    lone = ImageNews(image("runtime-one", True), problem="the registry doesn't answer")
    night = Night(DAY, releases=(ReleaseNight("2026a", BuildReport((lone.image,), (), {}), (lone,)),))
    assert night.failures == {"comparison of runtime-one of 2026a": "the registry doesn't answer"}
    assert "| 110.2 MB | 9.5 s | it wasn't compared with the one before |" in markdown(night)
