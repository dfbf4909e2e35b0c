"""When a build of a release has failed: by what was tried, not by what this machine can't build."""

from __future__ import annotations

import pickle

import pytest

from flows.build_profiles import BuildFailed, BuildReport, has_failed, summary
from flows.images.plan import Plan
from flows.images.stages import Graph
from flows.plan_release import NotBuildable, ReleasePlan
from flows.publishing.publish import Published

IMAGE = Published("runtime-one", "runtime-one_2026a_20261121", "sha256:a", "sha256:b", 110_200_000, True, 9.5)
NO_WAY = {"rstudio-r": "https://nowhere/rstudio.deb: it answers 403"}
LOST = {"runtime-two": "no disk"}


@pytest.mark.parametrize(
    ("report", "named", "failed"),
    [
        (BuildReport((IMAGE,), (), {}), False, False),
        (BuildReport((IMAGE,), (), LOST), False, True),
        (BuildReport((IMAGE,), (), {}, unbuildable=NO_WAY), False, False),
        (BuildReport((IMAGE,), (), {}, unbuildable=NO_WAY), True, True),
        (BuildReport((), (), {}, unbuildable=NO_WAY), False, True),
    ],
)
def test_what_this_machine_cant_build_is_no_failure_unless_it_was_named_or_all_there_is(
    report: BuildReport, named: bool, failed: bool
) -> None:
    assert has_failed(report, named=named) is failed


def test_both_are_told_apart_and_whatever_was_not_built_has_its_reason() -> None:
    planned = ReleasePlan((), Graph({}, {}), Plan({}), LOST, NO_WAY)
    report = summary(planned, {})
    assert (report.failures, report.unbuildable) == (LOST, NO_WAY)
    tried = pickle.loads(pickle.dumps(BuildFailed(BuildReport((IMAGE,), (), LOST, unbuildable=NO_WAY))))
    assert str(tried).startswith("1 of 3 profiles failed.\nruntime-two: no disk\nrstudio-r: https://nowhere/")
    alone = str(BuildFailed(BuildReport((), (), {}, unbuildable=NO_WAY)))
    assert alone.startswith("1 of 1 profiles can't be built here.\nrstudio-r: ") and "To mend: build it on" in alone
    assert str(NotBuildable(planned)).startswith("2 of 2 profiles can't be built here.\n")
