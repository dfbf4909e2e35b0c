"""Facts about a home, whoever wrote it, and their meaning for another image."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from flows.compatibility import elf, read_image
from flows.compatibility.changes import of_python, of_system
from flows.compatibility.facts import Distribution, Group, Home, Image, Kind, Native, Starter
from flows.compatibility.judge import Finding, Verdict, as_volume, judge, together, verdict
from flows.compatibility.read_home import BOUNDS, Bounds, Reader
from flows.publishing import image_comparison

SEEN_AS = "/home/dev"
OLD = Image(
    home=SEEN_AS,
    python="3.11",
    interpreters={"/usr/bin/python3": "3.11", "/usr/bin/python3.11": "3.11", "/opt/app-root/bin/python3": "3.11"},
    user_site=True,
    user_wins=False,
    distributions={"rich": "14.0"},
    system={},
    path=("/opt/app-root/bin", "/home/dev/.local/bin", "/usr/bin"),
    programs={"python3": "/opt/app-root/bin/python3", "git": "/usr/bin/git", "jupyter": "/opt/app-root/bin/jupyter"},
    files=frozenset({"/usr/bin/python3", "/usr/bin/git", "/usr/bin/perl", "/opt/app-root/bin/python3"}),
    libraries=frozenset({"libc.so.6", "libcudart.so.12", "libpython3.11.so.1.0"}),
    interfaces={"GLIBC": "2.36", "GLIBCXX": "3.4.30"},
)
SAME = replace(OLD, distributions={"rich": "14.1"})
NEW = replace(
    OLD,
    python="3.13",
    interpreters={"/usr/bin/python3": "3.13", "/usr/bin/python3.13": "3.13", "/opt/app-root/bin/python3": "3.13"},
    files=frozenset({"/usr/bin/python3", "/usr/bin/git", "/opt/app-root/bin/python3"}),
    libraries=frozenset({"libc.so.6", "libcudart.so.13", "libpython3.13.so.1.0"}),
    interfaces={"GLIBC": "2.34", "GLIBCXX": "3.4.30"},
)


# --- Reading ----------------------------------------------------------------------------------------------------------


def read(home: Path, bounds: Bounds = BOUNDS) -> Home:
    top = os.open(home, os.O_RDONLY)
    try:
        return Reader(top, SEEN_AS, bounds).read()
    finally:
        os.close(top)


def write(home: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def venv(home: Path, path: str, python: str = "/usr/bin/python3.11") -> None:
    write(home, {f"{path}/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.7\n"})
    (home / path / "bin").mkdir()
    (home / path / "bin/python3").symlink_to(python)
    (home / path / "bin/python").symlink_to("python3")


def test_an_environment_in_a_volume_is_judged_where_it_is(tmp_path: Path) -> None:
    venv(tmp_path, "envs/train")
    write(tmp_path, {"envs/train/lib/python3.11/site-packages/rich-14.0.dist-info/METADATA": ""})
    write(tmp_path, {"share/jupyter/kernels/mine/kernel.json": '{"argv": ["/gone/python"]}', "bin/git": ""})
    result = as_volume(read(tmp_path), "/data")
    assert judge(result, OLD, SAME) == ()
    (finding,) = judge(result, OLD, NEW)
    assert (finding.verdict, finding.path) == (Verdict.rebuild, "/data/envs/train")
    assert finding.recipe[:2] == (
        "mv /data/envs/train /data/envs/train.before",
        "python3 -m venv /data/envs/train",
    )
    other = Finding(Verdict.blocked, "work", "")
    assert together([finding, other]) == (other, finding)


def test_an_environment_is_found_with_its_python_and_its_packages(tmp_path: Path) -> None:
    venv(tmp_path, "work/.venv")
    site = "work/.venv/lib/python3.11/site-packages"
    write(tmp_path, {f"{site}/rich-14.0.dist-info/METADATA": "", f"{site}/mine-1.dist-info/direct_url.json": "{}"})
    (group,) = read(tmp_path).groups
    packages = (Distribution("mine", "1", elsewhere=True), Distribution("rich", "14.0"))
    assert group == Group("work/.venv", Kind.venv, "3.11", "/usr/bin/python3.11", packages)


def test_an_environment_on_a_python_of_the_home_depends_on_no_image(tmp_path: Path) -> None:
    write(tmp_path, {".local/share/uv/python/bin/python3.12": "", "work/.venv/pyvenv.cfg": "version_info = 3.12.1"})
    (tmp_path / "work/.venv/bin").mkdir()
    (tmp_path / "work/.venv/bin/python").symlink_to(f"{SEEN_AS}/.local/share/uv/python/bin/python3.12")
    (group,) = read(tmp_path).groups
    assert group.interpreter == ".local/share/uv/python/bin/python3.12"


def test_user_packages_conda_and_editor_extensions_are_told_apart(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".local/lib/python3.11/site-packages/numpy-2.0.dist-info/METADATA": "",
            "miniconda3/envs/deep/conda-meta/python-3.10.4-h1_0.json": "{}",
            ".vscode-server/extensions/ms-python.python-2024.1/package.json": "{}",
        },
    )
    assert [(group.path, group.kind, group.python) for group in read(tmp_path).groups] == [
        (".local/lib/python3.11/site-packages", Kind.user, "3.11"),
        (".vscode-server/extensions/ms-python.python-2024.1", Kind.editor, ""),
        ("miniconda3/envs/deep", Kind.conda, "3.10"),
    ]


def test_what_compiled_files_need_is_read(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    shutil.copy("/bin/ls", tmp_path / "tool/mine")
    write(tmp_path, {"tool/Makefile": "", "tool/text.so": "no library", "tool/script": "#!/bin/sh"})
    (group,) = read(tmp_path).groups
    assert (group.path, group.kind, group.source) == ("tool", Kind.loose, "tool/Makefile")
    assert "libc.so.6" in group.native.libraries
    version, example = group.native.versions["GLIBC"]
    assert elf.numbered(version) > (2, 1) and example == "tool/mine"


def test_kernels_and_scripts_say_what_they_start_and_where_that_leads(tmp_path: Path) -> None:
    venv(tmp_path, "work/.venv")
    kernels = ".local/share/jupyter/kernels"
    write(
        tmp_path,
        {
            f"{kernels}/mine/kernel.json": json.dumps({"argv": [f"{SEEN_AS}/work/.venv/bin/python", "-m", "x"]}),
            f"{kernels}/odd/kernel.json": '{"argv": []}',
            f"{kernels}/gone/kernel.json": json.dumps({"argv": [f"{SEEN_AS}/nowhere/python"]}),
            ".local/bin/tool": "#!/usr/bin/perl -w\n",
            ".local/bin/own": f"#!{SEEN_AS}/work/.venv/bin/python\n",
        },
    )
    home = read(tmp_path)
    assert sorted((kernel.name, kernel.leads_to) for kernel in home.kernels) == [
        ("gone", ""),
        ("mine", "/usr/bin/python3.11"),
    ]
    assert home.scripts == (Starter(".local/bin/tool", "tool", "/usr/bin/perl", "/usr/bin/perl"),)
    assert home.programs == {"own": ".local/bin/own", "tool": ".local/bin/tool"}


def test_of_startup_files_nothing_is_told_but_folders_of_path(tmp_path: Path) -> None:
    write(tmp_path, {".bashrc": 'export KEY=secret\nexport PATH="$HOME/tools/bin:~/x:/opt/y:$PATH"\n'})
    home = read(tmp_path)
    assert home.first == ("tools/bin", "x")
    assert "secret" not in repr(home)


def test_no_link_leads_out_of_a_home(tmp_path: Path) -> None:
    outside, home = tmp_path / "outside", tmp_path / "home"
    home.mkdir()
    write(outside, {"bin/hidden": "#!/usr/bin/perl\n", "kernels/x/kernel.json": '{"argv": ["/secret"]}'})
    write(outside, {"lib/python3.11/site-packages/secret-1.dist-info/METADATA": "", ".bashrc": "PATH=~/secret"})
    (home / ".local").symlink_to(outside)
    (home / "bin").symlink_to(outside / "bin")
    (home / ".bashrc").symlink_to(outside / ".bashrc")
    (home / "share/jupyter").mkdir(parents=True)
    (home / "share/jupyter/kernels").symlink_to(outside / "kernels")
    result = read(home)
    assert replace(result, files=0) == Home()


def test_pipes_circles_and_depth_hold_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".bashrc")
    (tmp_path / "bin").mkdir()
    os.mkfifo(tmp_path / "bin/pipe")
    write(tmp_path, {"v/pyvenv.cfg": ""})
    (tmp_path / "v/bin").mkdir()
    (tmp_path / "v/bin/python").symlink_to("python3")
    (tmp_path / "v/bin/python3").symlink_to("python")
    (group,) = read(tmp_path).groups
    assert group.interpreter == ""


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(files=5), "more than 5 files"),
        (Bounds(seconds=0), "more than 0 s"),
        (Bounds(size=0), "0 MiB had to be read"),
    ],
)
def test_what_is_beyond_the_bounds_is_left_and_said_so(tmp_path: Path, bounds: Bounds, why: str) -> None:
    write(tmp_path, {f"{number}/.bashrc": "x" for number in range(5)})
    write(tmp_path, {".bashrc": "x"})
    (said,) = read(tmp_path, bounds).missed
    assert why in said


def test_what_images_matter_to_is_looked_at_first(tmp_path: Path) -> None:
    write(tmp_path, {f"data/{number}/x": "" for number in range(50)})
    write(tmp_path, {".local/lib/python3.11/site-packages/rich-1.dist-info/METADATA": ""})
    home = read(tmp_path, Bounds(files=20))
    assert home.missed and [group.kind for group in home.groups] == [Kind.user]


def test_an_image_is_read_with_nothing_but_its_own_python() -> None:
    told = read_image.facts()
    assert set(Image.__dataclass_fields__) == set(told)
    assert told["python"] == "3.11" and "python3" in told["programs"]


# --- Judging ----------------------------------------------------------------------------------------------------------

USER = Group(".local/lib/python3.11/site-packages", Kind.user, "3.11", distributions=(Distribution("rich", "13.0"),))
VENV = Group("work/.venv", Kind.venv, "3.11", "/usr/bin/python3", (Distribution("pip", "1"), Distribution("rich", "1")))


def of(*groups: Group, **more: object) -> Home:
    return Home(groups=groups, **more)  # type: ignore[arg-type]


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.parametrize("home", [of(VENV), of(replace(VENV, kind=Kind.conda)), of(USER), Home()])
def test_a_home_stays_as_it_is_on_a_newer_build_of_the_same(home: Home) -> None:
    assert verdict(judge(home, OLD, SAME)) is Verdict.ok


def test_user_packages_of_another_python_are_installed_anew() -> None:
    result = only(judge(of(USER), OLD, NEW))
    assert (result.verdict, result.path) == (Verdict.rebuild, USER.path)
    assert "1 packages were installed for Python 3.11, and the new image has 3.13" in result.what
    assert result.recipe[0] == "python3 -m pip install --user rich==13.0"


def test_user_packages_of_a_python_that_isnt_used_concern_nobody() -> None:
    assert judge(of(replace(USER, python="3.9")), OLD, NEW) == ()


@pytest.mark.parametrize(
    ("interpreter", "why"),
    [
        ("/usr/bin/python3", "made for Python 3.11, and /usr/bin/python3 is 3.13"),
        ("/usr/bin/python3.11", "/usr/bin/python3.11, is not in the new image"),
    ],
)
def test_an_environment_whose_python_changes_is_made_anew(interpreter: str, why: str) -> None:
    result = only(judge(of(replace(VENV, interpreter=interpreter)), OLD, NEW))
    assert result.verdict is Verdict.rebuild and why in result.what
    assert result.recipe == (
        "mv ~/work/.venv ~/work/.venv.before",
        "python3 -m venv ~/work/.venv",
        "~/work/.venv/bin/python -m pip install rich==1",
        "rm -r ~/work/.venv.before  # when all is well",
    )


@pytest.mark.parametrize("interpreter", ["", "/usr/bin/python3.9"])
def test_what_is_broken_already_is_said_and_keeps_nobody(interpreter: str) -> None:
    result = only(judge(of(replace(VENV, interpreter=interpreter)), OLD, NEW))
    assert result.verdict is Verdict.ok and "on the old image either" in result.what


def test_an_environment_on_a_python_of_the_home_stays() -> None:
    assert judge(of(replace(VENV, interpreter=".local/python/bin/python3.11")), OLD, NEW) == ()


@pytest.mark.parametrize(
    ("native", "why"),
    [
        (Native(versions={"GLIBC": ("2.35", "tool/x")}), "tool/x needs GLIBC 2.35, and the new image has 2.34"),
        (Native(libraries={"libcudart.so.12": "tool/x"}), "libcudart.so.12 of CUDA, which the new image doesn't have"),
        (Native(libraries={"libpython3.11.so.1.0": "tool/x"}), "Python's own library"),
        (Native(tags={"cpython-311": "tool/x.so"}), "tool/x.so was compiled for Python 3.11"),
    ],
)
def test_own_programs_that_wont_start_need_consent_or_are_made_anew(native: Native, why: str) -> None:
    group = Group("tool", Kind.loose, native=native)
    result = only(judge(of(group), OLD, NEW))
    assert (result.verdict, result.recipe) == (Verdict.blocked, ()) and why in result.what
    result = only(judge(of(replace(group, source="tool/setup.py")), OLD, NEW))
    assert result.verdict is Verdict.rebuild
    assert result.recipe == ("cd ~/tool && python3 setup.py build_ext --inplace --force",)


@pytest.mark.parametrize(
    ("native", "libraries"),
    [
        (Native(versions={"GLIBC": ("2.34", "x")}), ()),
        (Native(versions={"OPENSSL": ("9.9", "x")}), ()),
        (Native(libraries={"libcudart.so.12": "x"}), ("libcudart.so.12",)),
        (Native(libraries={"libmine.so.1": "x"}), ()),
        (Native(tags={"abi3": "x.abi3.so"}), ()),
    ],
)
def test_programs_that_still_find_what_they_need_stay(native: Native, libraries: tuple[str, ...]) -> None:
    assert judge(of(Group("tool", Kind.loose, native=native), libraries=libraries), OLD, NEW) == ()


def test_versions_are_compared_as_numbers() -> None:
    group = Group("tool", Kind.loose, native=Native(versions={"GLIBC": ("2.4", "x")}))
    assert judge(of(group), OLD, NEW) == ()


@pytest.mark.parametrize(
    ("program", "leads_to", "expected"),
    [
        ("/usr/bin/python3.11", "/usr/bin/python3.11", Verdict.ok),
        ("/usr/bin/perl", "/usr/bin/perl", Verdict.blocked),
        ("/usr/bin/python3", "/usr/bin/python3", None),
        ("git", "", None),
        ("/home/dev/work/.venv/bin/python", "/usr/bin/python3.11", None),
    ],
)
def test_a_kernel_needs_what_it_starts(program: str, leads_to: str, expected: Verdict | None) -> None:
    kernel = Starter(".local/share/jupyter/kernels/x/kernel.json", "x", program, leads_to)
    result = judge(of(kernels=(kernel,)), OLD, NEW)
    if program.startswith(SEEN_AS):  # a part of an environment that is made anew
        result = tuple(f for f in judge(of(VENV, kernels=(kernel,)), OLD, NEW) if f.path == kernel.path)
    assert [finding.verdict for finding in result] == ([expected] if expected else [])


def test_a_script_gets_another_first_line_where_its_program_lies_elsewhere_now() -> None:
    script = Starter("bin/x y", "x y", "/usr/bin/perl", "/usr/bin/perl")
    assert only(judge(of(scripts=(script,)), OLD, NEW)).verdict is Verdict.blocked
    moved = replace(NEW, programs={**NEW.programs, "perl": "/opt/perl/bin/perl"})
    result = only(judge(of(scripts=(script,)), OLD, moved))
    assert result.recipe == ("sed -i '1s|^#!.*|#!/usr/bin/env perl|' ~/'bin/x y'",)


def test_who_wins_is_told_where_home_and_image_have_the_same() -> None:
    programs = {"git": ".local/bin/git", "jupyter": ".local/bin/jupyter"}
    assert [(f.path, f.verdict) for f in judge(of(programs=programs), OLD, SAME)] == [(".local/bin/git", Verdict.ok)]
    result = judge(of(programs=programs, first=(".local/bin",)), OLD, SAME)
    assert [finding.path for finding in result] == [".local/bin/git", ".local/bin/jupyter"]
    twice = only(judge(of(USER), OLD, SAME))
    assert "those of the image are used: rich 13.0 (the image's: 14.1)" in twice.what


def test_a_program_of_a_home_that_a_new_one_hides_is_told() -> None:
    tool = {**OLD.programs, "tool": "/opt/app-root/bin/tool"}
    result = only(judge(of(programs={"tool": ".local/bin/tool"}), OLD, replace(SAME, programs=tool)))
    assert "isn't used any more" in result.what


def test_what_was_installed_by_hand_is_made_again_by_whatever_installs_packages_there() -> None:
    changes = image_comparison.Changes({"tree": "2.1-1"}, {"nano": "7"}, {"jq": ("1.6", "1.7;x")})
    assert of_system(changes, "apt-get") == (
        "apt-get update && apt-get install --yes --no-install-recommends --allow-downgrades tree=2.1-1 'jq=1.7;x'",
        "apt-get remove --yes nano",
    )
    assert of_system(changes, "dnf")[1] == "dnf remove --assumeyes nano"
    assert of_system(changes, "dnf")[0].endswith("tree-2.1-1 'jq-1.7;x'")
    assert of_python(image_comparison.Changes({"humanize": "4"}, {}, {})) == ("python3 -m pip install humanize==4",)
    assert of_system(image_comparison.Changes({}, {}, {}), "apt-get") == ()


# --- Reports of liars -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["9" * 5_000, "1." * 5_000 + "1"])
def test_a_version_that_is_no_number_that_anybody_reads_is_none(version: str) -> None:
    assert elf.numbered(version) == ()
    group = Group("tool", Kind.loose, native=Native(versions={"GLIBC": (version, "tool/own")}))
    assert judge(Home(groups=(group,)), OLD, replace(NEW, interfaces={"GLIBC": version})) == ()


def test_a_program_that_path_does_not_find_is_before_none() -> None:
    lying = replace(NEW, programs={"git": "/elsewhere/git"}, path=("/usr/bin", f"{SEEN_AS}/bin"))
    (finding,) = judge(Home(programs={"git": "bin/git"}), OLD, lying)
    assert "in the place of" in finding.what


def test_to_judge_takes_no_longer_for_each_fact_the_more_there_are() -> None:
    many = range(20_000)
    native = Native(libraries={"libcudart.so.12": "x"})
    home = Home(
        groups=tuple(Group(f"e{n}", Kind.venv, "3.11", "/usr/bin/python3.11", native=native) for n in many),
        kernels=tuple(Starter(f"k{n}", "python3", f"{SEEN_AS}/none{n}/python", "") for n in many),
        programs={f"p{n}": f"folder{n}/p{n}" for n in many},
        first=tuple(f"folder{n}" for n in many),
        libraries=tuple(f"lib{n}.so" for n in many),
    )
    # In seconds of CPU. Each kernel beside each environment would take minutes.
    began = time.process_time()
    assert len(judge(home, OLD, replace(NEW, programs={f"p{n}": f"/usr/bin/p{n}" for n in many}))) >= len(many)
    assert time.process_time() - began < 20
