"""Mistakes on the command line: exit codes and words, never a traceback."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import cast

import pytest
import typer
from typer.core import TyperGroup

from flows import lock_requirements
from flows.catalog import load
from flows.cli.main import app
from flows.core.errors import UnknownName
from flows.images import patience
from flows.sessions.inside import client
from tests.support.command_line import in_process
from tests.support.machine import ROOT

REFIT = Path(sys.executable).parent / "refit"
LIST = Path(__file__).with_name("commands.txt")


@pytest.mark.slow
def test_the_program_says_a_mistake_without_a_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "REFIT_HOME": str(tmp_path)}
    words = [REFIT, "session", "show", "ada"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "There is no session 'ada'" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("session", "show", "ada"), "There is no session 'ada'"),
        (("session", "rm", "ada"), "There is no session 'ada'"),
        (("session", "exec", "ada", "--", "ls", "-l"), "There is no session 'ada'"),
        (("build",), "run `refit up`"),
        (("images",), "registry"),
    ],
)
def test_what_a_person_can_mend_is_exit_code_1_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(patience, "_FIRST_SECONDS", 0.01)
    done = in_process(tmp_path, *words, REFIT_REGISTRY_PORT="9", REFIT_PREFECT_PORT="9")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [("biuld",), ("build", "--frobnicate"), ("session", "create", "ada")])
def test_words_that_are_off_are_exit_code_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert in_process(tmp_path, *words).returncode == 2


def test_reset_keeps_homes_and_what_knows_whose_they_are_unless_told(tmp_path: Path) -> None:
    (tmp_path / "homes" / "ada").mkdir(parents=True)
    (tmp_path / "refit.db").touch()
    (tmp_path / "logs").mkdir()
    assert in_process(tmp_path, "reset", "--yes").returncode == 0
    assert (tmp_path / "homes" / "ada").is_dir() and (tmp_path / "refit.db").exists()
    assert not (tmp_path / "logs").exists()
    assert in_process(tmp_path, "reset", "--homes", "--yes").returncode == 0
    assert not (tmp_path / "homes").exists() and not (tmp_path / "refit.db").exists()


def test_an_empty_list_is_said_to_be_empty(tmp_path: Path) -> None:
    assert in_process(tmp_path, "session", "list").stdout == "Sessions: none.\n"
    assert in_process(tmp_path, "session", "list", "--json").stdout == "[]\n"


def test_reset_asks_first(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    done = in_process(tmp_path, "reset", typed="n\n")
    assert done.returncode == 1 and "Remove it?" in done.stdout and str(tmp_path) in done.stdout.replace("\n", "")
    assert (tmp_path / "logs").is_dir()


def test_a_long_path_in_an_error_stays_in_one_piece(tmp_path: Path) -> None:
    home = tmp_path / ("a-long-name-of-a-folder" * 4)
    home.mkdir()
    (home / "settings.yaml").write_text("registry_prot: 1\n")
    assert str(home / "settings.yaml") in in_process(home, "images", COLUMNS="80").stderr


def test_a_bundle_that_is_not_shipped_is_refused_with_the_nearest() -> None:
    release = load.release(load.load_catalog(ROOT), "2026a")
    with pytest.raises(UnknownName) as unknown:
        lock_requirements.targets([release], ["minimial"])
    assert "Did you mean 'minimal'?" in str(unknown.value)


def test_a_recipe_is_begun_and_a_catalog_looked_at(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    for part in ("base/deb12", "bundles/1-minimal", "ides/1-jupyter", "ides/2-runtime", "ides/3-terminal", "snippets"):
        shutil.copytree(ROOT / part, catalog / part)
    (catalog / "releases").mkdir()
    begun = in_process(tmp_path, "new", "ide", "mine", REFIT_CATALOG=str(catalog))
    assert (begun.returncode, begun.stdout.count("wrote ")) == (0, 4), begun.stderr
    looked = in_process(tmp_path, "lint", str(catalog))
    assert (looked.returncode, "No mistakes in" in looked.stdout) == (0, True), looked.stderr
    (catalog / "ides/4-mine/mine.snippet.j2").write_text("RUN chmod -R g+w /opt\n")
    looked = in_process(tmp_path, "lint", str(catalog))
    assert looked.returncode == 1 and "mine.snippet.j2:1: 'chmod -R' copies" in looked.stderr
    refused = in_process(tmp_path, "import", "workbench-images", str(catalog), REFIT_CATALOG=str(catalog))
    assert refused.returncode == 1 and "is no checkout of workbench-images" in refused.stderr


def commands(group: TyperGroup, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands, by their words; of a group its own as well."""
    for name, command in group.commands.items():
        yield (*prefix, name)
        whole = getattr(command, "whole", command)
        if isinstance(whole, TyperGroup):
            yield from commands(whole, (*prefix, name))


NAMED = 400  # at least, on the pages and in the messages
COMMANDS = frozenset(commands(cast("TyperGroup", typer.main.get_command(app))))
INSIDE_A_SESSION = frozenset(("session", verb) for verb in client.VERBS)


def test_the_commands_are_those_of_the_list() -> None:
    """A renamed command shows in a diff: `COMMANDS_WRITE=1 pytest` writes the list anew."""
    listed = "".join(f"{' '.join(words)}\n" for words in sorted(COMMANDS))
    if os.environ.get("COMMANDS_WRITE"):
        LIST.write_text(listed, encoding="utf-8")
    assert LIST.read_text(encoding="utf-8") == listed


def named(text: str) -> Iterator[str]:
    """Commands in a text: in backticks, and at the beginning of the lines of its examples."""
    yield from re.findall(r"`refit ([a-z][^`]*)`", text)
    yield from re.findall(r"(?m)^refit ([a-z].*)$", text)


def exists(typed: str) -> bool:
    """Whether a text names a command that there is."""
    there = COMMANDS | INSIDE_A_SESSION
    words = list(takewhile(lambda word: re.fullmatch(r"[a-z][a-z-]*", word), typed.split()))
    prefix = max(
        (words[:length] for length in range(len(words) + 1) if (*words[:length],) in there), key=len, default=[]
    )
    is_group = any(other[: len(prefix)] == (*prefix,) and len(other) > len(prefix) for other in there)
    # A word after a command that is no group is an argument.
    return bool(prefix) and (not is_group or len(prefix) == len(words))


def test_commands_that_a_page_or_a_message_names_exist() -> None:
    flows = ROOT / "flows"
    pages = {*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *flows.rglob("*.py"), *flows.rglob("*.html")}
    pages.remove(ROOT / "CHANGELOG.md")  # it names former ones, too
    results = [
        (str(page.relative_to(ROOT)), typed) for page in sorted(pages) for typed in named(page.read_text("utf-8"))
    ]
    assert len(results) > NAMED
    assert [f"{page}: refit {typed}" for page, typed in results if not exists(typed)] == []


def test_the_version_is_printed(tmp_path: Path) -> None:
    said = in_process(tmp_path, "--version")
    assert (said.returncode, said.stdout) == (0, f"refit {version('refit')}\n")
