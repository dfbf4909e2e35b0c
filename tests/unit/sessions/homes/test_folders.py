"""Homes as folders: what is known of them, and by whom."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from flows.sessions.homes import folders
from flows.sessions.homes.folders import folder_of, ref_of

FLOWS = Path(__file__).parents[4] / "flows"
NO_SESSIONS = {"settings", "chosen", "image", "Path"}
MAKERS = {"Path", "PurePath", "PosixPath", "PurePosixPath", "open", "join", "listdir", "scandir", "walk", "stat"}


def test_a_folder_is_found_again_by_what_its_keeper_calls_it() -> None:
    assert folder_of(ref_of(Path("/homes/ana"))) == Path("/homes/ana")


def knows_folders(text: str) -> bool:
    """Whether a module imports from `folders`, or makes a path of a reference by itself."""
    return any(_imports_folders(node) or _makes_a_path(node) for node in ast.walk(ast.parse(text)))


def _imports_folders(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return folders.__name__ in {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return folders.__name__ in {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return False


def _makes_a_path(node: ast.AST) -> bool:
    """`Path(session.home)`, `Path(ref) / …`, `open(volume.ref)`, `f"{session.home}/…"` and the like."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in MAKERS:
        return any(_is_ref(each) for each in (*node.args, *(keyword.value for keyword in node.keywords)))
    if isinstance(node, ast.JoinedStr):
        pairs = pairwise(node.values)
        return any(isinstance(a, ast.FormattedValue) and _is_ref(a.value) and _begins_below(b) for a, b in pairs)
    return isinstance(node, ast.BinOp) and _is_ref(node.left) and _begins_below(node.right)


def _begins_below(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).startswith("/")


def _is_ref(node: ast.AST) -> bool:
    """Whether it is called as references are. The home of the settings is a folder, that of an image a path in it."""
    if isinstance(node, ast.Attribute) and node.attr == "home":
        return ast.unparse(node.value).rpartition(".")[2].lstrip("_") not in NO_SESSIONS
    return (isinstance(node, ast.Attribute) and node.attr == "ref") or (isinstance(node, ast.Name) and node.id == "ref")


@pytest.mark.parametrize(
    "text",
    [
        "from flows.sessions.homes.folders import folder_of",
        "from flows.sessions.homes import folders",
        "import flows.sessions.homes.folders",
        "Path(session.home)",
        "pathlib.Path(volume.ref, 'x')",
        "open(move.before.home)",
        "os.path.join(ref, 'x')",
        "f'{session.home}/x'",
        "session.home + '/x'",
    ],
)
def test_who_knows_homes_as_folders_is_seen(text: str) -> None:
    assert knows_folders(text) and not knows_folders("Path(settings.home) / f'{session.home} is there'")


def test_only_podmans_rooms_know_homes_as_folders() -> None:
    texts = {str(path.relative_to(FLOWS)): path.read_text(encoding="utf-8") for path in FLOWS.rglob("*.py")}
    texts.pop("sessions/homes/folders.py")
    knowing = {path for path, text in texts.items() if knows_folders(text)}
    podmans = {path for path in knowing if path.startswith(("sessions/homes/", "sessions/containers/"))}
    assert podmans and knowing - podmans == {"compatibility/scan.py", "sessions/reconfigure.py"}
