import shutil
from collections.abc import Callable
from datetime import date
from itertools import product
from pathlib import Path

import pytest
from prefect.client.schemas.schedules import CronSchedule
from pydantic import TypeAdapter, ValidationError

from flows.catalog import load
from flows.catalog.model import Access, Resources
from flows.core.cron import Schedule
from flows.core.documents import Mistakes
from flows.core.errors import RefitError, UnknownName

ROOT = Path(__file__).parents[3]
PIPFILE = "bundles/1-minimal/py311/Pipfile"
RELEASE = "releases/2026a.yaml"

Change = Callable[[Path], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of this repository's catalog, to spoil."""
    for kind in ("base", "bundles", "ides", "releases"):
        shutil.copytree(ROOT / kind, tmp_path / kind)
    return tmp_path


def mistakes(root: Path) -> list[tuple[str, int, str]]:
    """file, line, and what is wrong together with how to mend it."""
    with pytest.raises(Mistakes) as error:
        load.load_catalog(root)
    return [(m.file.relative_to(root).as_posix(), m.line, f"{m.what}: {m.hint}") for m in error.value.mistakes]


def write(file: str, text: str) -> Change:
    def change(root: Path) -> None:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)

    return change


def replace(file: str, old: str, new: str) -> Change:
    def change(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text
        (root / file).write_text(text.replace(old, new))

    return change


def delete(file: str) -> Change:
    return lambda root: (root / file).unlink()


def rename(old: str, new: str) -> Change:
    return lambda root: (root / old).rename(root / new)


def release(*profiles: str) -> Change:
    return write(RELEASE, "release: 2026a\nprofiles:\n" + "".join(f"  - {{{profile}}}\n" for profile in profiles))


NO_PATHS_OF_HOMES = ("/etc/passwd", "../x", "a/../b", ".", "a//b", "a/", "*.key", "")
GOOD = "ide: jupyter, bundle: minimal, os: deb12, python: py311"


def excepted(*packages: str) -> Change:
    lines = [f'  - {{package: {name}, range: ">1", reason: x, expires: 2027-01-31}}\n' for name in packages]
    return write(RELEASE, f"release: 2026a\nprofiles:\n  - {{{GOOD}}}\nexceptions:\n{''.join(lines)}")


def schedule(text: str) -> Change:
    nights = f"nightly: '{text}'\nsupported_until: 2027-06-30\n"
    return write(RELEASE, f"release: 2026a\nprofiles:\n  - {{{GOOD}}}\n{nights}")


@pytest.mark.parametrize("written", ["0 2 * * *", "*/15  0-4,22 1,15 * 1-5", "0 0 31 2 0"])
def test_the_nights_of_a_release(root: Path, written: str) -> None:
    schedule(written)(root)
    release = load.load_catalog(root).releases["2026a"]
    assert release.nightly == CronSchedule(cron=release.nightly).cron == " ".join(written.split())
    assert release.is_supported(date(2027, 6, 30)) and not release.is_supported(date(2027, 7, 1))


@pytest.mark.parametrize(
    "text", ["", "0 2 * * * *", "60 * * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5/15 * * * *"]
)
@pytest.mark.parametrize(
    "also", [str, lambda text: text.replace("*", "x", 1), lambda text: text.replace("*", "*/0", 1)]
)
def test_what_is_no_schedule(text: str, also: Callable[[str], str]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Schedule).validate_python(also(text))


def test_a_release_without_them_is_supported_for_ever_and_waits_for_somebody(root: Path) -> None:
    release = load.load_catalog(root).releases["2026a"]
    assert release.nightly == "" and release.is_supported(date.max)


@pytest.mark.parametrize(("written", "budget"), [("450 MB", 450_000_000), ("1.5GiB", 3 * 2**29)])
def test_the_size_budget_of_a_profile(root: Path, written: str, budget: int) -> None:
    release(f"{GOOD}, size_budget: {written}")(root)
    (profile,) = load.load_catalog(root).releases["2026a"].profiles
    assert profile.size_budget == budget


def test_without_a_name_the_newest_release_is_meant(tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    for name in ("2026b.yaml", "2025c.yaml", "2026c.lock.json", "draft.yaml"):
        (tmp_path / "releases" / name).touch()
    assert load.newest_release(tmp_path) == "2026b"
    with pytest.raises(RefitError, match="is no catalog"):
        load.newest_release(tmp_path / "releases")


def test_what_the_sessions_of_a_profile_have(root: Path) -> None:
    resources = "{gpus: 1, memory: 16 GB, cpus: 0.5}"
    release(f'{GOOD}, resources: {resources}, volumes: ["data:/data:ro"]')(root)
    (profile,) = load.load_catalog(root).releases["2026a"].profiles
    assert profile.resources == Resources.model_validate({"gpus": 1, "memory": "16 GB", "cpus": 0.5})
    assert profile.volumes == ("data:/data:ro",)


def test_secrets_of_a_profile_are_those_of_its_ide_and_of_its_line_in_the_release(root: Path) -> None:
    own = load.load_catalog(root).releases["2026a"].profiles[0]
    assert own.access is own.ide.config.access and "secrets" not in own.access.as_label()
    release(f"{GOOD}, secrets: [.netrc, .config/..x/a.b, -rf]")(root)
    ide = own.ide.folder / "ide.yaml"
    ide.write_text(ide.read_text().replace("access:\n", "access:\n  secrets: [.netrc, keys]\n"))
    (profile,) = load.load_catalog(root).releases["2026a"].profiles
    assert profile.access.secrets == ("-rf", ".config/..x/a.b", ".netrc", "keys")
    assert Access.model_validate_json(profile.access.as_label()) == profile.access


@pytest.mark.slow
def test_this_repository_s_own_catalog_is_in_order() -> None:
    catalog = load.load_catalog(ROOT)
    assert list(catalog.ides)[:2] == ["jupyter", "runtime"]
    assert "openssh-server" in catalog.bases["deb12"].packages
    assert catalog.bundles["minimal"].categories["py311"] == ("packages", "jupyter", "web")
    profile = load.profile(catalog, "2026a", "jupyter-minimal-deb12-py311")
    assert (profile.ide.display, profile.ide.config.access.port) == ("JupyterLab", 8888)


def test_this_repository_s_release_has_what_people_come_from_workbench_images_for() -> None:
    catalog = load.load_catalog(ROOT)
    shipped = {(p.bundle.name, p.ide.name, p.cuda_level) for p in catalog.releases["2026a"].profiles}
    matrix = product(
        ("minimal", "datascience", "r", "spark", "langchain", "timefold"), ("jupyter", "terminal", "runtime"), ("",)
    )
    more = {("langflow", "langflow", ""), ("pytorch", "jupyter", ""), ("tensorflow", "jupyter", "")}
    assert {*matrix, *more, ("minimal", "runtime", "devel"), ("r", "rstudio", "")} <= shipped
    assert load.profile(catalog, "2026a", "jupyter-minimal-deb13-py313").python == "py313"


def test_numbers_give_the_order_of_menus_and_are_no_part_of_names(root: Path) -> None:
    shutil.copytree(root / "ides/2-runtime", root / "ides/10-last")
    (root / "ides/10-last/runtime.snippet.j2").rename(root / "ides/10-last/last.snippet.j2")
    (root / "ides/2-runtime").rename(root / "ides/0-runtime")
    ides = list(load.load_catalog(root).ides)
    assert (ides[:2], ides[-1]) == (["runtime", "jupyter"], "last")


def test_comments_and_blank_lines_are_no_packages(root: Path) -> None:
    write("base/deb12/os-packages.txt", "# for people\n\n  git   # sources\nlibstdc++6\n")(root)
    assert load.load_catalog(root).bases["deb12"].packages == ("git", "libstdc++6")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "file", "line", "words"),
    [
        (rename("ides/1-jupyter", "ides/jupyter"), "ides/jupyter", 0, "no number: call it 1-jupyter"),
        (rename("ides/2-runtime", "ides/2-Run_time"), "ides/2-Run_time", 0, "'Run_time' has something other"),
        (rename("ides/2-runtime", "ides/3-jupyter"), "ides/3-jupyter", 0, "another recipe 'jupyter'"),
        (delete("ides/1-jupyter/display.txt"), "ides/1-jupyter/display.txt", 0, "this file is missing"),
        (write("ides/1-jupyter/display.txt", "\n"), "ides/1-jupyter/display.txt", 1, "must be one line"),
        (delete("ides/1-jupyter/ide.yaml"), "ides/1-jupyter/ide.yaml", 0, "this file is missing"),
        (delete("ides/1-jupyter/jupyter.snippet.j2"), "ides/1-jupyter/jupyter.snippet.j2", 0, "this file is missing"),
        (replace("ides/1-jupyter/ide.yaml", "port: 8888", "prot: 8888"), "ides/1-jupyter/ide.yaml", 3, "mean 'port'"),
        (
            write("ides/1-jupyter/ide.yml", ""),
            "ides/1-jupyter/ide.yml",
            0,
            "nothing reads this: did you mean 'ide.yaml'",
        ),
        (delete("base/deb12/base.yaml"), "base/deb12/base.yaml", 0, "this file is missing"),
        (delete("base/deb12/base.snippet.j2"), "base/deb12/base.snippet.j2", 0, "this file is missing"),
        (replace("base/deb12/base.yaml", "py311", "python3"), "base/deb12/base.yaml", 3, "should match pattern"),
        (
            write("base/deb12/os-packages.txt", "git\n#\nless nano\n"),
            "base/deb12/os-packages.txt",
            3,
            "one name a line",
        ),
        (write("base/deb12/os-packages.txt", "git\ngit=1:2\n"), "base/deb12/os-packages.txt", 2, "not the name of a"),
        (write("base/deb12/os-packages.txt", "git\n\ngit\n"), "base/deb12/os-packages.txt", 3, "already in line 1"),
        (write("bundles/1-minimal/os/x", ""), "bundles/1-minimal/os/os-packages.txt", 0, "this file is missing"),
        (write("bundles/1-minimal/custom/x", ""), "bundles/1-minimal/custom/custom.snippet.j2", 0, "file is missing"),
        (delete(PIPFILE), PIPFILE, 0, "this file is missing"),
        (replace(PIPFILE, "[packages]", "[packages"), PIPFILE, 8, "this is not valid TOML"),
        (write(PIPFILE, '[packages]\nsix = """'), PIPFILE, 2, "this is not valid TOML"),
        (replace(PIPFILE, '"3.11"', '"3.12"'), PIPFILE, 28, 'python_version = "3.11"'),
        (replace(PIPFILE, "[[source]]", "[scripts]"), PIPFILE, 1, "it has no [[source]]"),
        (release(GOOD.replace("jupyter", "jupiter")), RELEASE, 3, "no ide 'jupiter': did you mean 'jupyter'?"),
        (release(GOOD, GOOD.replace("minimal", "minimum")), RELEASE, 4, "no bundle 'minimum': did you mean 'minimal'?"),
        (release(GOOD.replace("deb12", "deb112")), RELEASE, 3, "no os 'deb112': did you mean 'deb12'?"),
        (release(GOOD.replace("py311", "py312")), RELEASE, 3, "deb12 has no 'py312': did you mean 'py311'?"),
        (release(GOOD, GOOD), RELEASE, 4, "jupyter-minimal-deb12-py311 stands already in line 3"),
        (release(f"{GOOD}, size_budget: 450"), RELEASE, 3, "a number with its unit"),
        (release(f"{GOOD}, size_budget: 0 MB"), RELEASE, 3, "greater than 0"),
        (release(f"{GOOD}, resources: {{gpus: -1}}"), RELEASE, 3, "greater than or equal to 0"),
        (release(f"{GOOD}, volumes: [data]"), RELEASE, 3, "should match pattern"),
        *((release(f"{GOOD}, secrets: ['{path}']"), RELEASE, 3, "should match pattern") for path in NO_PATHS_OF_HOMES),
        (release(GOOD.replace("bundle", "bundel")), RELEASE, 3, "did you mean 'bundle'?"),
        (replace(RELEASE, "release: 2026a", "release: 2026b"), RELEASE, 1, "not called like its file: write '2026a'"),
        (replace(RELEASE, "release: 2026a", "release: next"), RELEASE, 1, "'next' is not a year and a letter"),
        (write(RELEASE, "release: 2026a\nprofiles: []\n"), RELEASE, 2, "at least 1 item"),
        (schedule("0 2 * *"), RELEASE, 4, "a schedule has 5 fields"),
        (schedule("0 25 * * *"), RELEASE, 4, "'25' is no hour: it goes from 0 to 23"),
        (schedule("0 0 30 2 *"), RELEASE, 4, "no month 2 has a day 30"),
        (write(RELEASE, f"release: 2026a\nsupported_until: 2027\nprofiles:\n  - {{{GOOD}}}\n"), RELEASE, 2, "date"),
        (excepted("Six", "idna", "six"), RELEASE, 7, "six is excepted already in line 5: keep one of them"),
        (replace(PIPFILE, "[jupyter]", "[notebook]"), RELEASE, 3, "has no [jupyter] for the packages of this IDE"),
    ],
)
def test_a_mistake_is_told_with_its_file_and_line(root: Path, change: Change, file: str, line: int, words: str) -> None:
    change(root)
    assert [one for one in mistakes(root) if one[:2] == (file, line) and words in one[2]], mistakes(root)


@pytest.mark.slow
def test_a_value_over_many_lines_is_found_where_it_stands(root: Path) -> None:
    write(RELEASE, "release: 2026a\nprofiles:\n  - ide: jupyter\n    bundle: none\n    os: deb12\n    python: py399\n")(
        root
    )
    assert [(file, line) for file, line, _ in mistakes(root)] == [(RELEASE, 4), (RELEASE, 6)]


def test_a_profile_may_be_moved_in_another_way_than_its_release(root: Path) -> None:
    policies = "migration: {mode: ask, quiet: ['22:00-07:00']}\n"
    profile = f"  - {{{GOOD}, migration: {{mode: next-start}}}}\n"
    write(RELEASE, f"release: 2026a\n{policies}profiles:\n{profile}")(root)
    (catalog,) = load.load_catalog(root).releases["2026a"].profiles
    assert (catalog.migration.mode, [str(hours) for hours in catalog.migration.quiet]) == (
        "next-start",
        ["22:00-07:00"],
    )
    write(RELEASE, f"release: 2026a\nprofiles:\n  - {{{GOOD}, migration: {{quiet: [at night]}}}}\n")(root)
    assert [(file, line) for file, line, what in mistakes(root) if "22:00-07:00" in what] == [(RELEASE, 3)]


def test_all_mistakes_of_the_whole_catalog_come_at_once(root: Path) -> None:
    delete("base/deb12/display.txt")(root)
    replace(PIPFILE, "[packages]", "[packages")(root)
    rename("ides/2-runtime", "ides/2-run.time")(root)
    release(GOOD, GOOD.replace("jupyter", "vim"))(root)
    write("releases/2026b.yaml", "release: 2026b\nprofiles: {}\n")(root)
    assert [(file, line) for file, line, _ in mistakes(root)] == [
        ("base/deb12/display.txt", 0),
        (PIPFILE, 8),
        ("ides/2-run.time", 0),
        (RELEASE, 4),
        ("releases/2026b.yaml", 2),
    ]


def test_a_recipe_with_a_mistake_is_not_called_unknown_as_well(root: Path) -> None:
    delete("ides/1-jupyter/display.txt")(root)
    assert len(mistakes(root)) == 1


def test_unknown_names_come_with_the_nearest(root: Path) -> None:
    catalog = load.load_catalog(root)
    with pytest.raises(UnknownName, match="2026b") as unknown:
        load.release(catalog, "2026b")
    assert "2026a" in unknown.value.hint
    with pytest.raises(UnknownName, match="release 2026a") as unknown:
        load.profile(catalog, "2026a", "jupyter-minimal-deb12-py312")
    assert "'jupyter-minimal-deb12-py311'" in unknown.value.hint
