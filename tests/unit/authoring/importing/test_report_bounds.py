"""The report of an import of what was made to fill disks or hours: bounded, and it says how much it doesn't list."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from flows.authoring.importing.adoption import adopt
from flows.authoring.importing.report import OF_A_FILE, REPORT, TOGETHER
from flows.catalog.model import Catalog
from flows.core.errors import RefitError
from tests.support.checkout import RECIPE, Import, said, why, write

SECONDS = 60  # of processor time; each took hours, or all memory, before lines and reports had bounds
BASE, RECIPES = "base/c9s/Containerfile", f"recipes/{RECIPE}/Containerfile"
STUDIO = "snippets/ides/2-studio/studio.snippet"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "text"),
    [
        (BASE, "RUN a && \\\n" * 40_000),
        (BASE, f"RUN {'é' * 500_000}"),
        (BASE, f"RUN yum install {'.rp' * 300_000}"),
        pytest.param(BASE, "ENV " + "".join(f"A{n}={n} " for n in range(60_000)), marks=pytest.mark.long),
        (RECIPES, "RUN a\n" * 60_000),
        (RECIPES, f"RUN a{' ' * 900_000}b"),
        (STUDIO, "RUN echo " + "$CUDA" * 60_000),
        pytest.param(STUDIO, f"COPY {'x ' * 400_000}/y", marks=pytest.mark.long),
        (STUDIO, "RUN " + "${a" * 100_000),
        pytest.param(STUDIO, "WAS\n" * 60_000, marks=pytest.mark.long),
        (STUDIO, "RUN cat <<A " + "<<B" * 200_000),
        (f"recipes/{RECIPE}/requirements.txt", "a[\n" * 300_000),
        ("snippets/bundles/1-minimal/os/os-packages.txt", "".join(f"no name {n}\n" for n in range(80_000))),
    ],
)
def test_a_file_that_was_made_to_fill_the_report_does_not(
    checkout: Path, imported: Import, path: str, text: str
) -> None:
    write(checkout, STUDIO, "RUN true\n")
    write(checkout, path, text)
    begin = time.process_time()
    made = imported()
    assert time.process_time() - begin < SECONDS
    assert max(map(len, made.notes)) < 10_000 and sum(note.startswith(path) for note in made.notes) <= OF_A_FILE
    assert (made.catalog / REPORT).stat().st_size < TOGETHER // 2


@pytest.mark.slow
def test_lines_that_are_not_listed_are_counted_by_file(checkout: Path, imported: Import) -> None:
    write(checkout, BASE, "".join(f"RUN number {n}\n" for n in range(OF_A_FILE + 7)))
    made = imported()
    assert made.unlisted == {BASE: 7}
    assert said(made, f"{BASE}:{OF_A_FILE}") and not said(made, f"{BASE}:{OF_A_FILE + 1}")
    report = (made.catalog / REPORT).read_text()
    assert "7 more lines about 1 files are not listed here" in report and f"- [ ] {BASE}: 7 more\n" in report


@pytest.mark.slow
def test_many_files_together_don_t_fill_it_either(checkout: Path, own: Catalog, tmp_path: Path) -> None:
    for number in range(30_000):
        write(checkout, f"base/c9s/{number:05}-{'x' * 200}")
    made = adopt(checkout, tmp_path / "catalog", own)
    assert made.unlisted.total() > 0 and made.unlisted.total() + len(made.notes) > 30_000
    report = (made.catalog / REPORT).read_text()
    assert len(report) < TOGETHER * 1.2 and "other files" in report
    assert not why(made, RECIPE)


def test_more_recipes_than_anybody_has_are_refused(checkout: Path, own: Catalog, tmp_path: Path) -> None:
    for number in range(501):
        (checkout / f"recipes/{number}").mkdir()
    with pytest.raises(RefitError, match="has more than 500 folders"):
        adopt(checkout, tmp_path / "catalog", own)


@pytest.mark.slow
def test_a_pipfile_of_the_longest_lines_takes_no_hours(checkout: Path, imported: Import) -> None:
    rows = [" " * 9_990] * 80 + ['x = """', f"[{' ' * 9_000}", '"""']
    write(checkout, "snippets/bundles/1-minimal/py39/Pipfile", "\n".join(["[packages]", *rows]))
    write(checkout, "snippets/bundles/1-minimal/py39/Pipfile.lock", json.dumps({"_meta": {}}))
    begin = time.process_time()
    imported()
    assert time.process_time() - begin < SECONDS
