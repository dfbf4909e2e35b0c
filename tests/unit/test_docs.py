"""The pages of the documentation: their links lead somewhere, and each decision is in the index."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
TEST_FILE = re.compile(r"`(?:tests/)?((?:real|unit|kube|faults|support)/[\w/]+\.py)(?:::(\w+))?`")
# Pages of which each line has to be held by a test.
MANY_TESTS = {"security": 50, "your-sessions": 20}
MODULE = re.compile(r"`(flows/[\w/]+(?:\.py|/))`")


def test_links_and_modules_of_pages_exist() -> None:
    texts = {page: page.read_text() for page in PAGES}
    links = [(page, page.parent / link) for page, text in texts.items() for link in LINK.findall(text)]
    modules = [(page, ROOT / module) for page, text in texts.items() for module in MODULE.findall(text)]
    assert links and modules
    assert [f"{page}: {there}" for page, there in (*links, *modules) if not there.exists()] == []


def test_a_link_to_a_part_of_a_page_names_one_of_its_headings() -> None:
    links = [(page, *link) for page in PAGES for link in ANCHOR.findall(page.read_text())]
    assert links
    wrong = [
        f"{page}: {to}#{part}" for page, to, part in links if part not in anchors(page.parent / to if to else page)
    ]
    assert not wrong


def anchors(page: Path) -> set[str]:
    """The parts of a page to which a link can lead, as GitHub names them after their headings."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if TEST_FILE.search(page.read_text())], ids=lambda page: page.stem
)
def test_each_test_that_a_page_names_is_there(page: Path) -> None:
    named = TEST_FILE.findall(page.read_text())
    assert len(named) > MANY_TESTS.get(page.stem, 0)
    missing = [file for file, _ in named if not (ROOT / "tests" / file).is_file()]
    assert not missing
    texts = {file: (ROOT / "tests" / file).read_text() for file, test in named if test}
    assert not [(file, test) for file, test in named if test and f"\ndef {test}(" not in texts[file]]


def test_a_fault_or_a_right_without_a_test_is_none_that_is_held() -> None:
    rows = _table("## Faults at the door") + _table("## How each right is held")
    assert not [row for row in rows if not re.search(r"`(real|unit|kube|faults)/", row)]


def _table(heading: str) -> list[str]:
    """The rows of the table below a heading of the page of security."""
    below = (ROOT / "docs" / "security.md").read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in below.splitlines() if line.startswith("| ")]
    assert len(rows) > 3
    return rows[2:]


def test_each_decision_is_in_the_index_and_numbered_once() -> None:
    folder = ROOT / "docs" / "decisions"
    files = sorted(path.name for path in folder.glob("0*.md"))
    assert sorted(LINK.findall((folder / "README.md").read_text())) == files
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))


def test_each_decision_has_a_title_and_a_date() -> None:
    begins = re.compile(r"# \S.*\n\n20\d\d-\d\d-\d\d\b")
    files = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [path.name for path in files if not begins.match(path.read_text())] == []


def test_each_page_is_in_the_index_by_reader() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [
        path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md" and path.name not in index
    ] == []


# Features that have only seen made-up inputs: words of `--help` and of the README, which both mark them.
EXPERIMENTAL = {
    "GPUs of this machine": "GPUs",
    "from their own machines": "from people's own machines",
    "Machines that share the stages": "builders on several machines",
    "systemd units": "units of systemd",
}


@pytest.mark.parametrize(("in_help", "in_readme"), EXPERIMENTAL.items())
def test_help_and_readme_say_what_is_experimental(in_help: str, in_readme: str) -> None:
    texts = (ROOT / "tests" / "snapshots" / "messages" / "cli.txt").read_text().splitlines()
    assert [line for line in texts if in_help in line and "(experimental)" in line]
    assert re.search(rf"{re.escape(in_readme)}[^,.:;(]*\(experimental\)", (ROOT / "README.md").read_text())


HOP = re.compile(r"(?m)^\| (?:↳ )?`(flows/[\w/]+\.py)` \| ([^|]+) \|")
HOPS = HOP.findall((ROOT / "docs" / "architecture.md").read_text())


@pytest.mark.parametrize(("module", "names"), HOPS, ids=[f"{module} {names}" for module, names in HOPS])
def test_a_hop_of_a_walk_is_where_the_page_says(module: str, names: str) -> None:
    defined = set[str]()
    for node in ast.parse((ROOT / module).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    assert {name.strip(" `") for name in names.split(",")} <= defined
