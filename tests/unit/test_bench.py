"""The list of benchmarks, what they write down, and the table that is made of it. Nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest

from bench import cli, downtime, fleet, grafts, kills, matrix, patch, real, results
from bench.cli import BENCHMARKS, README, main
from bench.lab import Answer, Client
from bench.matrix import Measured, Run
from bench.results import Benchmark, Row
from flows.catalog import load
from flows.images.build import Built
from flows.images.plan import Plan
from flows.images.stages import Graph, Kind, Stage
from flows.releases.plan import ReleasePlan

FOLDER = Path(results.__file__).parent
ROOT = FOLDER.parent
COLD = Row(
    "cold",
    "s",
    "≤ 20 s",
    16.0,
    True,
    {"naive": 78.0, "layers": 34.9},
    {"bake": "no daemon"},
    "matrix",
    "M",
    "2026-11-20",
)
STEPS = Row("steps", "steps", "exactly 10", 24, False, benchmark="matrix", machine="M", measured="2026-11-20")
PLAN = Row("plan", "s", "≤ 1 s", 0.25, True, benchmark="plan", machine="M", measured="2026-11-21")


def test_a_benchmark_s_new_figures_take_the_place_of_all_its_old_ones(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.save([COLD, STEPS], file)
    results.save([PLAN], file)
    results.save([replace(COLD, ours=15.0)], file)
    assert results.load(file) == (PLAN, replace(COLD, ours=15.0))
    assert json.loads(file.read_text())[1]["ratio"] == 5.2
    assert results.ordered(results.load(file), ["matrix", "plan"]) == [replace(COLD, ours=15.0), PLAN]


def test_the_table_says_what_was_not_reached_what_was_left_out_and_where_it_was_measured() -> None:
    assert results.table([COLD, STEPS, PLAN]).splitlines()[2:] == [
        "| cold | ≤ 20 s | 16 s | naive 78; layers 34.9; bake: no daemon | 4.88 |",
        "| steps | exactly 10 | 24 steps (not reached) | – | – |",
        "| plan | ≤ 1 s | 0.25 s | – | – |",
        "",
        "* M, 2026-11-20: matrix",
        "* M, 2026-11-21: plan",
    ]


@pytest.mark.parametrize("wrong", [{"unit": ""}, {"goal": ""}, {"ours": float("nan")}, {"peers": {"other": -1.0}}])
def test_what_is_no_figure_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no figure"):
        replace(COLD, **wrong)  # type: ignore[arg-type]


def test_the_readme_has_a_place_for_the_table() -> None:
    readme = README.read_text()
    assert results.with_table(readme, "| new |").count("| new |") == 1
    assert results.with_table(results.with_table(readme, "| new |"), "| newer |").count("| new |") == 0
    with pytest.raises(ValueError, match="lacks"):
        results.with_table("# Other", "")


def test_versions_are_those_of_the_programs() -> None:
    assert results.versions("bash")["bash"].startswith("GNU bash")


def test_a_measured_row_says_by_what_where_when_and_with_what() -> None:
    [row] = results.measure("mine", Benchmark(lambda: [COLD], ("bash",)))
    assert (row.benchmark, row.ours) == ("mine", 16.0)
    assert row.machine and row.measured and set(row.versions) == {"python", "bash"}


def test_a_measured_row_says_how_much_of_its_machine_was_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{"user": 10.0, "idle": 5.0, "steal": 1.0}, {"user": 60.0, "idle": 43.0, "steal": 13.0}])
    monkeypatch.setattr(results, "core_times", lambda: next(looks))
    [row] = results.measure("mine", Benchmark(lambda: [COLD]))
    assert row.machine.endswith(", 12 % of its cores' time taken by its hypervisor")


def test_every_benchmark_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed: set[Callable[[], list[Row]]] = {benchmark.run for benchmark in BENCHMARKS.values()}
    written = {file.stem for file in FOLDER.glob("*.py") if "def run() -> list[Row]:" in file.read_text()}
    assert {run.__module__ for run in listed} == {f"bench.{name}" for name in written}
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] and len(line.split()) > 3 for line in said) for name in BENCHMARKS)


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["matrx"])
    assert "Did you mean 'matrix'?" in capsys.readouterr().err


def test_a_benchmark_that_fails_keeps_nobody_from_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def bad() -> list[Row]:
        raise OSError("no space left")

    def worse() -> list[Row]:
        raise SystemExit("nothing came of it")

    file = tmp_path / "results.json"
    monkeypatch.setattr(
        cli, "BENCHMARKS", {"bad": Benchmark(bad), "worse": Benchmark(worse), "plan": Benchmark(lambda: [PLAN])}
    )
    monkeypatch.setattr(cli, "save", lambda rows: results.save(rows, file))
    monkeypatch.setattr(cli, "load", lambda: results.load(file))
    monkeypatch.setattr("logging.disable", lambda _: None)
    assert main([]) == 2
    told = capsys.readouterr()
    assert "no space left" in told.err and "rows of before: bad, worse" in told.err
    assert "| plan |" in told.out


def test_what_was_measured_is_of_benchmarks_that_are_there() -> None:
    assert {row.benchmark for row in results.load()} <= set(BENCHMARKS)


def test_the_matrix_is_held_against_the_naive_build_and_the_critical_path() -> None:
    naive = {"naive": Measured(78.0, 24), "other": Measured(15.0, 24)}
    assert [row.reached for row in matrix.rows(Measured(15.6, 10), naive)] == [True, True]
    assert [row.reached for row in matrix.rows(Measured(15.7, 11), naive)] == [False, False]
    assert not matrix.rows(Measured(15.6, 10), {"naive": Measured(70.0, 24)})[0].reached


LOG = Path("a.log")
BASE = Stage("base", Kind.bootstrap, None, "")
CLOSED, OPEN = Stage("closed", Kind.closed, "base", ""), Stage("open", Kind.instructions, "base", "")
GRAPH = Graph({stage.name: stage for stage in (BASE, CLOSED, OPEN)}, {"image": "closed"})
PATCHED = Run(
    12.0,
    {
        "base": Built("base", "", None, "", reused=False, seconds=10.0, log=LOG),
        "closed": Built("closed", "", None, "", reused=False, seconds=0.05),
        "open": Built("open", "", None, "", reused=False, seconds=1.0, log=LOG),
    },
)


def test_a_patch_is_held_against_its_limit_without_the_base() -> None:
    each, share = patch.rows(GRAPH, PATCHED, {"other": 48.0})
    assert (round(each.ours, 1), each.reached, dict(each.peers)) == (83.3, True, {"other": 2000.0})
    assert (share.ours, share.reached) == (100.0, True)
    assert not patch.rows(GRAPH, replace(PATCHED, seconds=13.0), {})[0].reached


def test_real_images_are_to_be_the_fastest_of_all_in_each_case() -> None:
    planned = ReleasePlan((load.load_catalog(ROOT).releases["2026a"].profiles[0],), GRAPH, Plan({}))
    runs = [Run(30.0, {}), Run(1.0, {}), PATCHED]
    result = real.rows(planned, runs, {"naive": [40.0], "layers": [29.0, 1.5, 30.0]}, {"bake": "no daemon"})
    assert [(row.ours, row.reached, len(row.peers)) for row in result] == [
        (30, False, 2),
        (1, True, 1),
        (2, True, 1),
    ]


def test_real_images_are_grafted_within_the_limit_without_the_base() -> None:
    profiles = load.load_catalog(ROOT).releases["2026a"].profiles[:20]
    planned = ReleasePlan(tuple(profiles), GRAPH, Plan({}))
    each, share = grafts.rows(planned, PATCHED)
    assert (each.ours, each.reached, each.peers) == (2000 / len(profiles), 2000 / len(profiles) <= 100, {})
    assert (share.ours, share.reached) == (100.0, True)
    assert not grafts.rows(replace(planned, profiles=planned.profiles[:1]), PATCHED)[0].reached


def test_images_that_can_be_grafted_have_nothing_but_closed_stages_above_their_base() -> None:
    above = replace(CLOSED, name="above", parent="open")
    graph = Graph({**GRAPH.stages, "above": above}, {"image": "closed", "other": "open", "third": "above"})
    assert grafts.closed(graph) == ("image",)


def test_a_session_is_away_between_the_last_answer_of_the_old_server_and_the_first_of_the_new() -> None:
    ours, theirs = Pipe()
    for answers in ([Answer("old", 1.0), Answer("old", 1.25)], [Answer("new", 3.5), Answer("new", 3.75)], []):
        theirs.send(answers)
    assert Client(ours).away() == 3.5 - 1.25


def test_downtimes_are_held_against_both_limits() -> None:
    both = downtime.rows([0.5] * 14 + [2.4], {"other": [3.0] * 15})
    assert [(row.ours, row.reached, row.ratio) for row in both] == [(0.5, True, 6.0), (pytest.approx(1.07), True, 2.8)]
    assert [row.reached for row in downtime.rows([0.5] * 12 + [2.6] * 3, {})] == [True, False]
    assert [row.goal for row in both] == ["p50 ≤ 1 s", "p95 ≤ 2.5 s"]


@pytest.mark.parametrize(
    ("moved", "lost", "cpu", "reached"),
    [(fleet.SESSIONS, 0, 90, True), (fleet.SESSIONS - 1, 0, 90, False), (fleet.SESSIONS, 1, 90, False)],
)
def test_all_sessions_are_to_be_moved_and_no_byte_lost(moved: int, lost: int, cpu: float, reached: bool) -> None:
    assert fleet.rows(moved, lost, 100.0, cpu)[0].reached is reached
    assert not fleet.rows(fleet.SESSIONS, 0, 100.0, 10.0)[0].reached


def test_a_mount_of_a_home_is_told_from_others() -> None:
    home, inside = "/tmp/home/homes/ada", "/home/dev"

    def shows(root: str, options: str = "rw,noatime", point: str = inside) -> bool:
        return kills.shows(f"36 35 98:0 {root} {point} {options} master:1 - ext4 /dev/root rw", home, inside)

    assert shows(home) and shows("/home/homes/ada")  # where /tmp is mounted
    assert not shows(home, "ro,noatime")
    assert not shows(home, point="/tmp/slots/refit-ada-2/dev")
    assert not shows("/home/homes/bob") and not shows("/")
