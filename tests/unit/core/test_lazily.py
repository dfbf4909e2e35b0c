"""Imports that are put off until a name is used, and what the first second of a command may import at all."""

from __future__ import annotations

import ast
import builtins
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.core.lazily import lazily

FLOWS = Path(__file__).parents[3] / "flows"
IMPORTING = [path for path in sorted(FLOWS.rglob("*.py")) if "with lazily(globals())" in path.read_text()]
ROOM = {"__name__": "room", "__builtins__": builtins}


def run(text: str) -> dict[str, object]:
    """The names in a module of this text."""
    scope: dict[str, object] = {**ROOM, "lazily": lazily}
    exec(compile(text, "room.py", "exec"), scope)
    return scope


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that nobody has imported."""
    (tmp_path / "far_away.py").write_text(
        "class Ship:\n    wheels = 0\n    def sail(self): return 'far'\n\n\ndef greet(name): return f'ahoy {name}'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "far_away"
    sys.modules.pop("far_away", None)


def test_a_module_is_imported_when_one_of_its_names_is_used(far: str) -> None:
    scope = run(f"with lazily(globals()):\n    from {far} import Ship, greet as hail\ndef ask(): return hail('ada')")
    assert far not in sys.modules
    assert scope["ask"]() == "ahoy ada"  # type: ignore[operator]
    assert scope["hail"] is sys.modules[far].greet
    assert scope["Ship"] is not sys.modules[far].Ship, "it was not used"


@pytest.mark.parametrize(
    ("use", "result"), [("Ship.wheels", 0), ("Ship().sail()", "far"), ("isinstance(3, Ship)", False)]
)
def test_a_name_may_be_called_asked_and_be_a_class(far: str, use: str, result: object) -> None:
    assert run(f"with lazily(globals()):\n    from {far} import Ship\nfound = {use}")["found"] == result


def test_a_module_of_a_package_can_be_put_off() -> None:
    scope = run("with lazily(globals()):\n    from xml import dom\nfound = dom.Node")
    assert scope["found"] is sys.modules["xml.dom"].Node


def test_what_is_imported_elsewhere_meanwhile_is_imported(far: str) -> None:
    scope: dict[str, object] = {**ROOM}
    with lazily(scope):
        from far_away import Ship  # noqa: PLC0415
    assert Ship.__module__ == far and Ship().sail() == "far"


def test_a_module_can_be_put_off_by_its_own_name(far: str) -> None:
    scope = run(f"with lazily(globals()):\n    import {far}\ndef ask(): return {far}.greet('ada')")
    assert far not in sys.modules
    assert scope["ask"]() == "ahoy ada"  # type: ignore[operator]
    assert scope[far] is sys.modules[far]


@pytest.mark.parametrize("statement", ["import os.path", "from . import json"])
def test_other_imports_cannot_be_put_off(statement: str) -> None:
    before = builtins.__import__
    with pytest.raises(ImportError, match="only `import x`"):
        run(f"with lazily(globals()):\n    {statement}")
    assert builtins.__import__ is before


def test_what_is_not_there_says_so_when_it_is_used(far: str) -> None:
    scope = run(f"with lazily(globals()):\n    from {far} import Nobody\ndef ask(): return Nobody()")
    with pytest.raises(AttributeError, match="Nobody"):
        scope["ask"]()  # type: ignore[operator]


def put_off(tree: ast.Module) -> set[str]:
    """The names that a module imports lazily."""
    blocks = [node for node in tree.body if isinstance(node, ast.With) and "lazily" in ast.unparse(node.items[0])]
    return {alias.asname or alias.name for block in blocks for node in block.body for alias in node.names}  # type: ignore[attr-defined]


def used(tree: ast.AST) -> Iterator[ast.Name]:
    """The names that are read by code that runs: annotations don't."""
    for field, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and field not in ("annotation", "returns"):
                yield from [node] if isinstance(node, ast.Name) else used(node)


def well_used(tree: ast.Module) -> set[ast.Name]:
    """The names that are called, gone through, asked for an attribute, or what something is an instance of."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    kinds = [call.args[1] for call in calls if ast.unparse(call.func) == "isinstance"]
    asked = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    rounds = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    return {node for node in (*kinds, *asked, *rounds, *(call.func for call in calls)) if isinstance(node, ast.Name)}


def hidden(tree: ast.Module) -> set[ast.AST]:
    """The names in functions that have something of their own under them."""
    results: set[ast.AST] = set()
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        inside = [*ast.walk(function)]
        own = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        own |= {node.arg for node in inside if isinstance(node, ast.arg)}
        imports = [node for node in inside if isinstance(node, ast.ImportFrom)]
        own |= {alias.asname or alias.name for node in imports for alias in node.names}
        results |= {node for node in inside if isinstance(node, ast.Name) and node.id in own}
    return results


@pytest.mark.parametrize("path", IMPORTING, ids=lambda path: str(path.relative_to(FLOWS)))
def test_a_name_that_is_put_off_is_never_passed_on(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = put_off(tree)
    passed_on = {name for name in used(tree) if name.id in names} - well_used(tree) - hidden(tree)
    assert not sorted(f"{path.name}:{name.lineno}: {name.id}" for name in passed_on)


# Modules that `--help` and completion may import beyond Python itself: Typer, rich and what they need …
LIGHT = {
    "annotated_doc",
    "attr",
    "flows",
    "markdown_it",
    "mdurl",
    "pygments",
    "rich",
    "shellingham",
    "typer",
    "typing_extensions",
}
# … and what Typer reads the words of a verb with.
READING = {"annotated_types", "pydantic", "pydantic_core", "typing_inspection"}
OWN = {"flows.core", "flows.core.errors", "flows.core.formatting", "flows.core.lazily"}
PROGRAM = """
import atexit, sys
def tell():
    print(*sorted(set(sys.modules) - sys.stdlib_module_names), file=sys.stderr)
atexit.register(tell)
sys.argv[0] = "refit"
from flows.cli.main import main
main()
"""


def imported(*words: str, **variables: str) -> set[str]:
    """The modules that a command has imported at its end, in an interpreter of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("_REFIT", "COMP_"))}
    call = [sys.executable, "-c", PROGRAM, *words]
    ended = subprocess.run(call, env=environment | variables, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    return set(ended.stderr.split()) - {"__main__"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["--help"], {}),
        (["session", "--help"], {}),
        (["build", "--help"], {}),
        ([], {"_REFIT_COMPLETE": "complete_bash", "COMP_WORDS": "refit ", "COMP_CWORD": "1"}),
        ([], {"_REFIT_COMPLETE": "complete_bash", "COMP_WORDS": "refit session ", "COMP_CWORD": "2"}),
        ([], {"_REFIT_COMPLETE": "complete_bash", "COMP_WORDS": "refit session stop --", "COMP_CWORD": "3"}),
    ],
    ids=["help", "help of a group", "help of a verb", "verbs", "verbs of a group", "options"],
)
def test_help_and_completion_import_nothing_heavy(words: list[str], variables: dict[str, str]) -> None:
    modules = imported(*words, **variables)
    tops = {top for name in modules if not (top := name.partition(".")[0]).startswith("_")} - sys.stdlib_module_names
    assert tops <= (LIGHT | READING if "stop" in variables.get("COMP_WORDS", "") else LIGHT)
    assert {name for name in modules if name.startswith("flows.") and not name.startswith("flows.cli")} <= OWN


@pytest.mark.slow
def test_help_imports_no_more_of_its_own_than_it_shows() -> None:
    assert not {"flows.cli.session", "flows.cli.tables", "flows.cli.home"} & imported("--help")
    assert {"flows.cli.session", "flows.cli.home"} <= imported("session", "--help")


@pytest.mark.slow
def test_a_list_of_no_session_opens_neither_database_nor_engine(tmp_path: Path) -> None:
    home = {"REFIT_HOME": str(tmp_path)}
    imported("session", "list", **home)  # makes the database
    modules = imported("session", "list", **home)
    heavy = {"sqlalchemy", "alembic", "prefect", "httpx", "sh", "psutil", "yaml", "packaging"}
    tops = {name.partition(".")[0] for name in modules}
    assert not tops.intersection(heavy)
    assert not {"flows.core.database", "flows.sessions.containers.podman", "flows.sessions.lifecycle"} & modules


WAITING_PAGE = """
import sys
from flows.waiting_page import app, housekeeping
assert {steps!r} not in sys.modules
housekeeping.MoveExecutor.open
assert {steps!r} in sys.modules
"""


@pytest.mark.slow
def test_the_waiting_page_imports_the_steps_of_moves_when_it_carries_one_out() -> None:
    program = WAITING_PAGE.format(steps="flows.migrations.steps.forward")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


LOOKS = """
import gc
import flows.web.my_sessions.pages
print(sum(generation["collections"] for generation in gc.get_stats()))
"""


@pytest.mark.slow
def test_few_looks_for_unreachable_objects_are_taken_while_a_page_is_imported() -> None:
    ended = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True)
    assert 0 < int(ended.stdout) < 100, "with Python's own threshold it takes 300"


PLUGINS = """
import importlib.metadata

def read(**which):
    raise SystemExit(f"looks for {which} among all installed packages")

importlib.metadata.entry_points = read
import flows.core.settings
"""


@pytest.mark.slow
def test_settings_are_imported_without_a_look_for_plugins_among_all_packages() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    ended = subprocess.run(
        [sys.executable, "-c", PLUGINS], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
