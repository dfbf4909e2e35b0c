"""Answers of the command line to a catalog that is none, or more than one may be; in JSON, too."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from flows.authoring.lint.catalog import lint
from flows.catalog import load, tree
from flows.catalog.tree import NoCatalog
from flows.cli import build, console, main
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.core.settings import default_folders
from tests.support.apart import apart
from tests.support.machine import ROOT

TODAY = date(2026, 11, 21)
RELEASE = "release: 2026a\nprofiles:\n  - {ide: runtime, bundle: minimal, os: deb12, python: py311}\n"
IDE = "ides/2-runtime/runtime.snippet.j2"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        return " ".join(f"{self.out} {self.err}".split())


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A small catalog that can be planned."""
    folder = tmp_path / "catalog"
    for part in ("base/deb12", "bundles/1-minimal", "ides/1-jupyter", "ides/2-runtime", "ides/3-terminal", "snippets"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "releases").mkdir()
    (folder / "releases" / "2026a.yaml").write_text(RELEASE)
    return folder


@pytest.fixture
def refit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Said]]:
    """The command line, in this process."""
    monkeypatch.setenv("REFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REFIT_REGISTRY_PORT", "9")
    monkeypatch.setenv("REFIT_PREFECT_PORT", "9")

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["refit", *map(str, words)])
        console._shown.clear()
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        code = ended.value.code
        return Said(code if isinstance(code, int) else int(bool(code)), *capfd.readouterr())

    yield run
    console._shown.clear()


def error_of(said: Said) -> dict[str, object]:
    answer = json.loads(said.out)["error"]
    assert answer.keys() == {"what", "why", "hint", "mistakes"} and answer["what"]
    assert isinstance(answer, dict)
    return answer


def half(folder: Path) -> Path:
    for part in ("base", "bundles", "ides", "snippets"):
        (folder / part).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("place", ["/nonexistent", "/etc/passwd", "/proc", "empty", "half"])
def test_lint_fails_where_no_catalog_is(refit: Callable[..., Said], tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    half(tmp_path / "half")
    path = tmp_path / place  # a whole path stays what it is
    said = refit("lint", path)
    assert said.code == 2 and f"{path} is no catalog." in said.words and "Hint:" in said.words
    assert "No mistakes" not in said.words
    told = error_of(refit("lint", "--json", path))
    assert told["what"] == f"{path} is no catalog." and told["hint"]


@pytest.mark.parametrize("words", [("plan",), ("plan", "2026a"), ("build",), ("new", "ide", "mine")])
def test_a_part_of_a_catalog_is_not_replaced_by_another(
    refit: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(half(tmp_path / "mine"))
    monkeypatch.delenv("REFIT_CATALOG", raising=False)
    assert default_folders.default_catalog() == tmp_path / "mine"
    said = refit(*words)
    if words[0] != "build":  # without services, that is said first
        assert said.code == 2 and "lacks releases/" in said.words
    assert not list((tmp_path / "mine" / "ides").iterdir())
    monkeypatch.chdir(tmp_path)
    assert default_folders.default_catalog() == ROOT


@pytest.mark.slow
def test_it_is_said_which_catalog_was_taken(refit: Callable[..., Said], catalog: Path) -> None:
    (catalog / "snippets" / "odd").symlink_to("/etc/hostname")
    report = json.loads(refit("lint", "--json", catalog).out)
    assert [(mistake["file"], mistake["line"]) for mistake in report["mistakes"]] == [(f"{catalog}/snippets/odd", 0)]
    (catalog / "snippets" / "odd").unlink()
    said = refit("lint", catalog)
    assert (said.code, "No mistakes in" in said.words) == (0, True) and f"Catalog: {catalog}" in said.words
    assert console.shown_catalog(ROOT) in (f"Catalog: {ROOT}", f"Catalog: {ROOT}, which came with Refit")


def device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))


def a_socket(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # a path to a socket may have 107 bytes


ODD: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device": device,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to what everybody has": lambda path: path.symlink_to("/etc/passwd"),
    "a link out": lambda path: path.symlink_to("../" * 20 + "etc/shadow"),
    "a link to a folder outside": lambda path: path.symlink_to("/etc"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}
PLACES = [
    "releases/2026b.yaml",
    "base/deb12/files/odd",
    "bundles/1-minimal/os",
    "bundles/1-minimal/custom",
    "bundles/9-odd",
    "ides/2-runtime/files",
    "snippets/base/files/odd",
    "snippets/web/odd.j2",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_of_the_catalog_is_a_mistake(catalog: Path, odd: str, place: str) -> None:
    if odd == "a device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    path = catalog / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        shutil.rmtree(path)
    ODD[odd](path)
    assert f"{path}: this " in apart(lambda: load.load_catalog(catalog))


@pytest.mark.slow
def test_lint_tells_of_what_is_no_file_and_goes_on(catalog: Path) -> None:
    for number, odd in enumerate(("a FIFO", "a link to /dev/zero", "a link to what everybody has")):
        ODD[odd](catalog / "snippets" / f"odd{number}")
    told = apart(lambda: lint(catalog, TODAY).mistakes)
    assert all(f"odd{number}" in told for number in range(3)) and "traceback" not in told and "root:" not in told, told


def test_a_socket_is_no_file(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_socket(catalog / "snippets" / "odd.j2", monkeypatch)
    assert "this is no file" in apart(lambda: load.load_catalog(catalog))


def test_a_link_within_the_catalog_is_one(catalog: Path) -> None:
    (catalog / "ides/2-runtime/files").mkdir(exist_ok=True)
    (catalog / "ides/2-runtime/files/a").write_text("a")
    (catalog / "ides/2-runtime/files/b").symlink_to("a")
    load.load_catalog(catalog)
    assert tree.read_files(catalog / "ides/2-runtime/files", catalog) == {"files/a": b"a", "files/b": b"a"}


def test_what_goes_into_an_image_is_bounded(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = catalog / "ides/2-runtime/files"
    files.mkdir(exist_ok=True)
    with (files / "large").open("wb") as file:
        file.truncate(1 << 40)
    told = apart(lambda: tree.read_files(files, catalog))
    assert told.startswith("Mistakes: ") and "more than 64 MB" in told
    (files / "large").unlink()
    monkeypatch.setattr(tree, "TOGETHER", 10)
    for name in "abc":
        (files / name).write_bytes(b"12345")
    with pytest.raises(Mistakes, match="1 mistake"):
        tree.read_files(files, catalog)
    monkeypatch.setattr(tree, "ENTRIES", 5)
    assert "more than 5 files" in apart(lambda: load.load_catalog(catalog))


def test_a_copy_of_a_catalog_has_files_alone(catalog: Path, tmp_path: Path) -> None:
    tree.copy(catalog / "ides", tmp_path / "copy", catalog)
    assert (tmp_path / "copy" / "1-jupyter/files/start-jupyter").stat().st_mode & 0o777 == (
        catalog / "ides/1-jupyter/files/start-jupyter"
    ).stat().st_mode & 0o777
    (catalog / "ides" / "x").symlink_to("/etc/hostname")
    with pytest.raises(Mistakes, match="1 mistake"):
        tree.copy(catalog / "ides", tmp_path / "other", catalog)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('RUN true\nRUN {{ cycler.__init__.__globals__.os.popen("touch /tmp/refit-mark").read() }}\n', 2, "unsafe"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", 1, "processor time"),
        ("{{ 'x' * 10**10 }}", 1, "memory"),
        ("\n{% extends 'ides/2-runtime/runtime.snippet.j2' %}", 2, "names itself"),
        ("\n{% include 'ides/2-runtime/runtime.snippet.j2' %}", 2, "names itself"),
    ],
)
def test_lint_runs_nothing_and_ends(refit: Callable[..., Said], catalog: Path, text: str, line: int, what: str) -> None:
    (catalog / IDE).write_text(text)
    said = refit("lint", catalog)
    assert said.code == 1 and f"{catalog / IDE}:{line}: " in said.err and what in said.words, said
    assert not Path("/tmp/refit-mark").exists()


@pytest.mark.slow
def test_lint_goes_on_after_a_profile_that_can_not_be(catalog: Path) -> None:
    shutil.copytree(ROOT / "base/cuda", catalog / "base/cuda")
    lock = catalog / "base/cuda/locks/runtime.txt"
    lock.write_text(lock.read_text() + "pyyaml==6.0.3 --hash=sha256:" + "0" * 64 + "\n")
    (catalog / IDE).write_text("RUN chmod -R g+w /opt\n")
    report = lint(catalog, TODAY)
    assert [mistake.line for mistake in report.mistakes if "'chmod -R'" in mistake.what] == [1]
    assert not [mistake for mistake in report.mistakes if "twice" in mistake.what]
    assert any("No release has cuda-runtime-minimal-deb12-py311" in reason for reason in report.left_out)
    (catalog / "releases/2026a.yaml").write_text(RELEASE.replace("py311}", "py311, cuda: runtime}"))
    [mistake] = [mistake for mistake in lint(catalog, TODAY).mistakes if "twice" in mistake.what]
    assert (mistake.file.name, mistake.line) == ("2026a.yaml", 3) and "cuda: driver" in mistake.hint


def test_a_long_name_is_refused(refit: Callable[..., Said], catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFIT_CATALOG", str(catalog))
    for kind in ("base", "ide", "bundle"):
        said = refit("new", kind, "a" * 300)
        assert said.code == 1 and "can't be the name of a recipe" in said.words


def test_a_recipe_that_can_not_be_written_is_an_error(
    refit: Callable[..., Said], catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFIT_CATALOG", str(catalog))
    monkeypatch.setattr("flows.catalog.skeletons.skeleton", lambda *_: {"../catalog/display.txt/x": ""})
    (catalog / "display.txt").touch()
    said = refit("new", "ide", "mine")
    assert said.code == 1 and "can't be written" in said.words


@pytest.mark.parametrize("into", ["/proc/x", "/dev/null", "file/x"])
def test_an_import_into_what_is_no_folder_is_an_error(
    refit: Callable[..., Said], catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    monkeypatch.setenv("REFIT_CATALOG", str(catalog))
    (tmp_path / "file").touch()
    (tmp_path / "theirs/snippets/bundles").mkdir(parents=True)
    said = refit("import", "workbench-images", tmp_path / "theirs", "--into", tmp_path / into, "--json")
    assert said.code == 1 and str(into) in str(error_of(said)["what"])


@pytest.mark.parametrize("file", ["/nonexistent/x.svg", "/proc/x", "/dev/null", "folder", "fifo", "n" * 300])
def test_a_picture_that_can_not_be_written_is_said_before_the_plan(
    refit: Callable[..., Said], catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("REFIT_CATALOG", str(catalog))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(build, "plan_release", lambda *_, **__: pytest.fail("it was planned"))
    said = refit("plan", "--picture", tmp_path / file)
    assert said.code == 1 and "The picture can't be written" in said.words
    said = refit("plan", "--json", "--picture", tmp_path / file)
    assert said.code == 1 and "The picture can't be written" in str(error_of(said)["what"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("images", "--json"), 1, "registry"),
        (("diff", "a", "b", "--json"), 1, ""),
        (("evidence", "a", "--json"), 1, ""),
        (("plan", "2031z", "--json"), 1, "There is no release '2031z'"),
        (("session", "show", "nobody", "--json"), 1, "There is no session 'nobody'"),
        (("plan", "--json", "--frobnicate"), 2, "No such option"),
        (("biuld", "--json"), 2, "No such command"),
        (("evidence", "--json"), 2, "Missing argument"),
        (("import", "workbench-images", "/nonexistent", "--json"), 1, "can't be read"),
    ],
)
def test_an_error_is_json_where_that_is_asked_for(
    refit: Callable[..., Said], words: tuple[str, ...], code: int, what: str
) -> None:
    said = refit(*words)
    assert said.code == code, said
    assert what in str(error_of(said)["what"]) and said.err.strip()
    plain = refit(*(word for word in words if word != "--json"))
    assert plain.code == code and plain.out == ""


def test_mistakes_are_told_one_by_one_in_json(refit: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "settings.yaml").write_text("registry_prot: 1\n" + "[" * 5_000)
    said = refit("images", "--json")
    assert said.code == 1
    [mistake] = error_of(said)["mistakes"]  # type: ignore[misc]
    assert mistake["file"].endswith("settings.yaml") and mistake["line"] == 2 and mistake["what"]
    assert mistake.keys() == {"file", "line", "what", "hint"}


def test_what_is_another_program_s_json_is_not_refit_s() -> None:
    assert main._wants_json(["plan", "--json"]) and main._wants_json(["session", "show", "a", "--json"])
    assert not main._wants_json(["session", "exec", "a", "x", "--json"])
    assert not main._wants_json(["plan", "--", "--json"])


def test_no_catalog_is_an_error_with_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(NoCatalog) as error:
        load.load_catalog(tmp_path / "none")
    assert error.value.exit_code == 2 and isinstance(error.value, RefitError)
