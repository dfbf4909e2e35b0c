"""Decisions on what becomes part of a bundle, with names and versions of the worst kind."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from flows.authoring.capture.bundle import custom, pipfile, texts
from flows.authoring.capture.decide import MOST_FILE, MOST_NAMED, decide, is_file_name, missing_in, specifier, without
from flows.authoring.capture.facts import OWN, Capture, Choice, Given, Installed, Package, Place, Reason, Source

GIVEN = Given("minimal", "py311", {"requests": "2.32.0", "Six": "1.16.0"}, {"tree": "1"}, frozenset({"rich"}))


def requested(name: str, version: str = "1.2.3", **more: object) -> Package:
    return Package(name, version, requested=True, **more)  # type: ignore[arg-type]


def decided(*packages: Package, environments: tuple[str, ...] = (), **more: object) -> Capture:
    places = (Place(OWN, "3.11", packages), Place("work/.venv", "3.11", (requested("Polars", "1.0"),)))
    installed = Installed("3.11", places, **{"system": (), **more})  # type: ignore[arg-type]
    return decide(installed, GIVEN, Choice("mine", environments))


def reasons(capture: Capture) -> dict[str, Reason]:
    return {left.name: left.reason for left in capture.left}


def test_wishes_are_taken_and_what_came_along_or_was_there_is_not() -> None:
    made = decided(
        requested("Foo.Bar"), Package("needed", "1.0"), requested("six", "1.16.0"), requested("requests", "2.33.0")
    )
    assert made.packages == {"foo-bar": "~=1.2.3", "requests": "~=2.33.0"}
    assert reasons(made) == {"work/.venv": Reason.not_chosen}


def test_of_an_installer_that_marks_everything_those_count_that_nothing_needs() -> None:
    made = decided(
        requested("requests-cache", installer="uv", needs=("Certifi", "requests-cache")),
        requested("certifi", installer="uv"),
        requested("idna", installer="pip"),
        requested("other", installer="uv", needs=("idna",)),
    )
    assert made.packages.keys() == {"requests-cache", "idna", "other"}


def test_an_environment_is_taken_only_if_said() -> None:
    made = decided(environments=("work/.venv",))
    assert made.packages == {"polars": "~=1.0"} and not made.left


def test_an_environment_of_another_python_is_not_taken() -> None:
    installed = Installed("3.11", (Place("old", "3.9", (requested("six"),)),), system=())
    made = decide(installed, GIVEN, Choice("mine", ("old",)))
    assert not made and reasons(made) == {"old": Reason.other_python}


def test_an_environment_that_marks_nothing_is_told() -> None:
    installed = Installed("3.11", (Place("conda", "3.11", (Package("numpy", "2.0"),)),), system=())
    assert reasons(decide(installed, GIVEN, Choice("mine", ("conda",)))) == {"conda": Reason.unmarked}


def test_a_git_dependency_and_a_package_of_the_bundle_are_told() -> None:
    made = decided(requested("tool", url="git+https://example.org/tool"), requested("Rich", "9.0"))
    assert not made.packages
    assert reasons(made) == {
        "tool": Reason.direct_url,
        "rich": Reason.in_bundle,
        "work/.venv": Reason.not_chosen,
    }


def test_of_two_versions_the_first_is_taken_and_the_other_told() -> None:
    made = decided(requested("polars", "2.0"), environments=("work/.venv",))
    assert made.packages == {"polars": "~=2.0"} and reasons(made) == {"polars": Reason.twice}


@pytest.mark.parametrize(
    ("version", "asked"),
    [
        ("1.2.3", "~=1.2.3"),
        ("2024", "==2024.*"),
        ("5rc1", "==5rc1"),
        ("2.0.0rc1", "~=2.0.0rc1"),
        ("1!2.0", "~=1!2.0"),
        ("2.1.0+cu118", "~=2.1.0"),
        ("v1.0", "~=1.0"),
    ],
)
def test_later_fixes_of_a_version_count(version: str, asked: str) -> None:
    assert specifier(version) == asked


HOSTILE = [
    'six = "*"\n[source]\nurl = "https://example.org"',
    "six\n",
    "../six",
    "six]",
    "-r/etc/shadow",
    "{{ shell }}",
    "",
    "ſix",
    "six\x1b[2J",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_or_version_becomes_a_line_of_its_own(name: str) -> None:
    made = decided(requested(name), requested("fine", name))
    assert not made.packages and {left.reason for left in made.left} == {Reason.unusable_name, Reason.not_chosen}


def test_names_of_both_kinds_of_system_packages_are_taken_and_nothing_that_apt_reads_otherwise() -> None:
    names = ("libstdc++6", "R", "Image_Tool", "java-1.8.0", "g++", "removed-", "-o", "a b", "x;y", "n\u0430no", "")
    made = decided(system=names)
    assert made.system == ("Image_Tool", "R", "g++", "java-1.8.0", "libstdc++6")
    unusable = [left for left in made.left if left.reason is Reason.unusable_name]
    assert len(unusable) == len(names) - len(made.system)


@for_all(st.text(), st.text())
def test_whatever_is_installed_the_pipfile_has_packages_alone(name: str, version: str) -> None:
    read = tomllib.loads(pipfile(decided(requested(name, version), requested(name, "1.0"), requested("fine", version))))
    assert read.keys() == {"packages", "requires"} and read["requires"] == {"python_version": "3.11"}
    assert all(isinstance(asked, str) for asked in read["packages"].values())


def test_five_hundred_packages_are_taken_and_of_long_names_none() -> None:
    made = decided(*(requested(f"package-{number}") for number in range(500)), requested("x" * 10_000))
    assert len(made.packages) == 500
    assert max(len(left.name) for left in made.left) == MOST_NAMED


def test_what_can_not_be_read_is_told() -> None:
    made = decided(Package("broken.dist-info", problem="Permission denied"), missed=("only so many",))
    assert reasons(made) == {
        "broken.dist-info": Reason.unreadable,
        "work/.venv": Reason.not_chosen,
        "the home": Reason.out_of_bounds,
    }


def test_system_packages_that_the_image_lacks_are_taken_by_name() -> None:
    made = decided(system=("htop", "tree", "evil; rm -rf /", "a\nb", "removed-"))
    assert made.system == ("htop",)
    assert {left.name for left in made.left if left.source is Source.system} == {"evil; rm -rf /", "a\nb", "removed-"}
    assert reasons(decided(system=None))["all"] is Reason.unreadable


def test_what_lies_in_the_home_stays_there() -> None:
    made = decided(others={Source.vscode: ("ms-python.python 1.0",), Source.npm: ("typescript",)})
    assert made.left[-1].reason is made.left[-2].reason is Reason.in_home


def test_files_are_taken_only_if_said_and_by_plain_paths() -> None:
    files = {"/etc/tool.conf": b"x", "/etc/large": bytes(MOST_FILE + 1), "/etc/a b": b"x"}
    installed = Installed("3.11", system=())
    made = decide(installed, GIVEN, Choice("mine", (), files), ["/etc/tool.conf", "/etc/other", "/opt/thing"])
    assert made.files == {"/etc/tool.conf": b"x"}
    assert reasons(made) == {
        "/etc/large": Reason.too_large,
        "/etc/a b": Reason.unusable_name,
        "/etc/other": Reason.not_chosen,
    }
    for path in ("/etc/../root/x", "/root/x", "/etc", "/etc/x\n", "/etc/$(id)", "/etc/{{x}}", "/etc/./x", "/etc//x"):
        assert not is_file_name(path)


def test_the_content_of_a_file_is_no_instruction() -> None:
    text = custom({"/etc/tool.conf": b"'\nRUN id\n{{ shell }}" + bytes(300)})
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("RUN")] == ["RUN {{ shell.begin() }} \\"]
    assert "shell }}" not in text and max(map(len, lines)) < 120


def test_a_bundle_has_a_file_for_each_thing() -> None:
    made = Capture("mine", "minimal", "py311", {"six": "~=1.16"}, ("htop",), {"/etc/x": b"x"}, ())
    assert texts(made, "ada").keys() == {
        "display.txt",
        "bundle.yaml",
        "py311/Pipfile",
        "os/os-packages.txt",
        "custom/custom.snippet.j2",
    }


def test_packages_of_no_index_are_told_and_a_build_is_compared_by_name() -> None:
    made = without(
        decided(requested("gone"), requested("here"), system=("htop",)), ["gone"], Reason.not_in_index, "why"
    )
    assert made.packages == {"here": "~=1.2.3"} and reasons(made)["gone"] is Reason.not_in_index
    assert not missing_in(made.packages, made.system, ["Here"], {"htop"})
    assert [left.name for left in missing_in(made.packages, made.system, (), ())] == ["here", "htop"]


def test_packages_that_nothing_else_explains_came_with_an_extra() -> None:
    dask = requested(
        "Dask", extras=(("array", "numpy"), ("frame", "Pandas"), ("frame", "numpy"), ("all", "distributed"))
    )
    came = (Package("numpy", "2.0"), Package("pandas", "2.2"), Package("pip", "24"))
    made = decided(dask, *came)
    assert made.extras == {"dask": ("array", "frame")} and made.packages == {"dask": "~=1.2.3"}
    assert 'dask = {version = "~=1.2.3", extras = ["array", "frame"]}' in pipfile(made)
    assert decided(dask, *came, requested("other", needs=("numpy", "pandas"))).extras == {}
    assert decided(dask, requested("numpy"), Package("pandas", "2.2")).extras == {"dask": ("frame",)}
    assert decided(dask, Package("pandas", "2.2")).extras == {}  # not all of it is there
    odd = requested("odd", extras=(('x"]\n', "numpy"), ("a" * 51, "numpy")))
    assert decided(odd, Package("numpy", "2.0")).extras == {}
