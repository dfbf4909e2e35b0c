"""The rooms and the direction of imports, held by walking the syntax trees."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FLOWS = Path(__file__).parents[2] / "flows"
UNIT_TESTS = Path(__file__).parent
TESTS = UNIT_TESTS.parent

# From the ground up; a room imports only from rooms below its own and from itself. A file at the root is a flow.
LAYERS = (
    ("core",),
    ("catalog", "gateway", "host", "signing"),
    ("locks",),
    ("images",),
    ("authoring", "publishing"),
    ("releases", "sessions"),
    ("compatibility",),
    ("migrations",),
    ("jump", "services", "waiting_page"),
    ("metrics", "orchestration"),
    ("approve_wave", "build_stages", "change_session", "create_session", "lock_requirements", "prune_images"),
    ("build_own_profile", "build_profiles", "cut_release", "migrate_sessions"),
    ("build_asked_profiles", "prove_capture", "rebuild_own_profiles"),
    ("nightly",),
    ("web",),
    ("cli",),
)
HEIGHT = {room: height for height, layer in enumerate(LAYERS) for room in layer}
FLOW_FILES = {path.stem for path in FLOWS.glob("*.py")} - {"__init__"}
# Modules that reach a program, the network, the database, the registry or an engine.
EFFECTS = {
    "flows.core.programs.command",
    "flows.core.database",
    "flows.core.programs.spawn",
    "flows.core.leases",
    "flows.core.outside",
    "flows.gateway.proxy",
    "flows.host.containers",
    "flows.host.tools",
    "flows.images.registry",
    "flows.sessions.containers.podman",
}
MODULES = sorted(FLOWS.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(FLOWS.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path): path for path in MODULES}


def room(path: Path) -> str:
    return path.relative_to(FLOWS).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a module's syntax tree."""
    return tuple(ast.walk(tree(path)))


def relative(path: Path) -> str:
    return str(path.relative_to(FLOWS))


@cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_modules(path: Path) -> set[str]:
    """The modules of Refit that a module imports, without the packages around them."""
    named = {name for name in imports(path) if name in NAMES}
    return {name for name in named if not any(other.startswith(f"{name}.") for other in named)}


def own_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("flows.")}


def test_each_room_has_a_place_in_the_layers() -> None:
    assert {*map(room, MODULES)} - {"__init__"} == HEIGHT.keys()


def test_imports_point_downwards() -> None:
    upwards = [
        f"{relative(path)} → {other}"
        for path in MODULES
        if (here := room(path)) != "__init__"
        for other in own_rooms(path)
        if other != here and HEIGHT.get(other, 99) >= HEIGHT[here]
    ]
    assert upwards == []


def part(name: str) -> str:
    """A part that stands by itself in a room: a folder, or a module that is in none."""
    return ".".join(name.split(".")[:3])


@pytest.mark.parametrize("here", sorted(HEIGHT.keys() - FLOW_FILES))
def test_inside_a_room_imports_go_round_in_no_circle(here: str) -> None:
    """Not between folders either: each of them can be read without those that stand on it."""
    inside = {name: path for name, path in NAMES.items() if room(path) == here}
    arrows: dict[str, set[str]] = {}
    for name, path in inside.items():
        below = {part(other) for other in own_modules(path) if other in inside}
        arrows.setdefault(part(name), set()).update(below - {part(name)})
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_a_file_at_the_root_is_a_flow() -> None:
    for name in FLOW_FILES:
        decorators = {
            getattr(decorator.func, "id", "")
            for node in tree(FLOWS / f"{name}.py").body
            if isinstance(node, ast.FunctionDef)
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Call)
        }
        assert "flow" in decorators, name


def pure(path: Path) -> bool:
    """Whether a module says of itself that it is pure: plain data and decisions, no effect."""
    return "Pure." in (ast.get_docstring(tree(path)) or "")


def test_no_path_of_imports_leads_from_what_is_pure_to_an_effect() -> None:
    modules = [*filter(pure, MODULES)]
    assert len(modules) > 50
    assert [led for path in modules for led in effects(path)] == []


def effects(path: Path) -> Iterator[str]:
    """The paths of imports that lead from a module to an effect."""
    paths, todo = {dotted(path): dotted(path)}, [dotted(path)]
    while todo:
        here = todo.pop()
        for other in own_modules(NAMES[here]) - paths.keys():
            paths[other] = f"{paths[here]} → {other}"
            if other in EFFECTS:
                yield paths[other]
            todo.append(other)


def importers(root: str) -> set[Path]:
    """The modules that import a package or something in it."""
    return {path for path in MODULES if root in {name.partition(".")[0] for name in imports(path)}}


def test_only_flows_import_prefect_and_only_the_door_imports_sh() -> None:
    assert {room(path) for path in importers("prefect")} <= {"orchestration", *FLOW_FILES}
    assert {dotted(path) for path in importers("sh")} == {"flows.core.programs.command"}
    # These run inside an image, where nothing of Refit is.
    inside = ("probe", "inspect_processes", "answer_questions", "read_image", "read_installed", "supervise")
    door = {"flows.core.programs.command", "flows.core.programs.process_tree", "flows.core.programs.spawn"}
    assert {dotted(path) for path in importers("subprocess") if path.stem not in inside} <= door


# Each keeps threads that don't end with a call, or begins what it can't list before, or runs inside a container.
POOLS = {
    "core/database.py",
    "core/programs/spawn.py",
    "core/threads.py",
    "images/distributed/build_worker.py",
    "migrations/lost_sessions.py",
    "migrations/rollouts/concurrency.py",
    "publishing/probe.py",
    "releases/plan.py",
    "sessions/activity/inspect_processes.py",
    "sessions/ide/end_kernels.py",
    "web/my_sessions/actions.py",
}


def test_thread_pools_are_those_of_core_threads_but_for_a_few() -> None:
    own = {relative(path) for path in MODULES for name, _ in calls(path) if name == "ThreadPoolExecutor"}
    assert own == POOLS


def test_the_lock_has_no_package_that_takes_a_second_to_be_imported() -> None:
    """`[tool.uv]` of pyproject.toml leaves it out."""
    assert 'name = "rfc3987-syntax"\nversion' not in (FLOWS.parent / "uv.lock").read_text()


def test_each_client_of_httpx_is_told_whom_it_trusts() -> None:
    """By itself it reads all authorities, which takes 20 ms of CPU, also where it speaks plain HTTP."""
    made = {"httpx.Client", "httpx.HTTPTransport", "httpx.get", "httpx.post", "httpx.request", "httpx.stream"}
    told = {"verify", "transport"}
    clients = [
        (relative(path), call.lineno, told.isdisjoint(option.arg for option in call.keywords))
        for path in MODULES
        for _, call in calls(path)
        if ast.unparse(call.func) in made
    ]
    assert len(clients) > 5
    assert [one for one in clients if one[-1]] == []


def test_no_module_bears_the_name_of_a_dependency() -> None:
    text = (FLOWS.parent / "uv.lock").read_text()
    packages = {line.split('"')[1].replace("-", "_") for line in text.splitlines() if line.startswith("name = ")}
    assert not {path.stem for path in MODULES} & (packages - {"refit"})


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a module, with the name of what is called."""
    for node in nodes(path):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            yield name, node


def test_only_the_database_begins_transactions_that_write() -> None:
    """Everything else writes by `database.write`: on SQLite, one thread writes for all."""
    begin = {
        relative(path)
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.With)
        and any(ast.unparse(item.context_expr).endswith(".begin()") for item in node.items)
    }
    assert begin == {"core/database.py", "core/schema_versions.py"}


# Attributes with text for people, and calls by which a program would decide by it.
FOR_PEOPLE = {"note", "what", "why", "detail", "text", "brief", "reason"}
MATCHING = {"startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "split", "find"}
DECIDING = sorted(
    path for path in MODULES if room(path) in ("migrations", "sessions", "migrate_sessions", "waiting_page")
)
# Enums are called so as well; and the same notice isn't told twice.
NO_TEXTS = {"line.reason not in _OVER", "line.reason not in _SILENT", "last[-1].what != text"}
NO_TEXTS |= {"outcome.why == 'time'", "outcome.why == 'output'", "line.reason in _CLOSED"}


def matched(path: Path) -> Iterator[str]:
    """Every expression in which a text for people is compared with something, or taken apart."""
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name), attr=method)):
                texts = name in FOR_PEOPLE and method in MATCHING
            case ast.Compare(left=left, comparators=others):
                sides = [side for side in (left, *others) if isinstance(side, ast.Attribute)]
                texts = any(side.attr in FOR_PEOPLE for side in sides)
            case _:
                continue
        if texts:
            yield ast.unparse(node)


def test_nothing_is_decided_by_text_for_people() -> None:
    decided = {
        expression
        for path in DECIDING
        for expression in matched(path)
        if "Reason." not in expression and "Why." not in expression
    }
    assert decided <= NO_TEXTS


def markup(path: Path) -> Iterator[str]:
    """Every call by which text of others would reach a terminal or a page without being made printable."""
    the_way = path == FLOWS / "cli" / "console.py"
    for name, call in calls(path):
        options = {option.arg: option.value for option in call.keywords}
        chosen = options.get("markup")
        plain = chosen is None or (isinstance(chosen, ast.Constant) and chosen.value is False)
        allowed = plain and name not in ("from_markup", "render_str", "Console")
        if room(path) == "cli":
            allowed &= the_way or name != "echo"
            allowed &= not isinstance(call.func, ast.Name) or name != "print"
        if name == "create_table_artifact":
            cells = options.get("table", call.args[0] if call.args else None)
            allowed &= isinstance(cells, ast.Call) and getattr(cells.func, "id", "") == "as_cells"
        if not allowed:
            yield f"{relative(path)}:{call.lineno}: {ast.unparse(call)}"


def test_nothing_is_printed_as_markup() -> None:
    """Text of others reaches a terminal only by what makes it printable, and Prefect's pages only as cells."""
    assert [call for path in MODULES for call in markup(path)] == []


LONGEST = 40  # lines of a function, with its docstring


def test_each_function_can_be_seen_whole() -> None:
    lengths = {
        f"{relative(path)}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {function: lines for function, lines in lengths.items() if lines > LONGEST} == {}


def test_unit_tests_lie_where_what_they_test_lies() -> None:
    folders = {path.relative_to(UNIT_TESTS) for path in UNIT_TESTS.rglob("*/") if path.name != "__pycache__"}
    assert not {folder for folder in folders if not (FLOWS / folder).is_dir()}


MOST_LINES = 400


@pytest.mark.parametrize("room", [FLOWS, TESTS], ids=["flows", "tests"])
def test_no_module_has_more_than_400_lines(room: Path) -> None:
    lengths = {str(path.relative_to(room)): len(path.read_text().splitlines()) for path in room.rglob("*.py")}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_LINES}


def test_a_test_module_takes_nothing_from_another_one() -> None:
    """Code that several share is in `tests/support`, or a fixture of their folder."""
    tests = {f"tests.{'.'.join(path.relative_to(TESTS).with_suffix('').parts)}" for path in TESTS.rglob("test_*.py")}
    importing = re.compile(r"^\s*(from|import) tests\b.*\btest_", re.MULTILINE)
    suspects = [path for path in TESTS.rglob("*.py") if importing.search(path.read_text())]
    taken = {path: tests.intersection(imports(path)) for path in suspects}
    assert not {str(path.relative_to(TESTS)): names for path, names in taken.items() if names}


# Participles that say of a value how it came, where a noun says what it is.
PARTICIPLES = {"found", "known", "wanted"}


def names(path: Path) -> Iterator[tuple[str, int]]:
    """The names that a module gives to values, attributes and functions, each with its line."""
    for node in nodes(path):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno


def test_a_value_is_called_by_a_noun() -> None:
    named = [(relative(path), line, name) for path in MODULES for name, line in names(path)]
    assert [one for one in named if one[-1] in PARTICIPLES] == []


HOP = re.compile(r"(?m)^\| (↳ )?`(flows/[\w/]+)\.py` \|")
WALKS = (FLOWS.parent / "docs" / "architecture.md").read_text().split("\n## ")[1:]


@pytest.mark.parametrize("walk", WALKS, ids=[walk.partition("\n")[0] for walk in WALKS])
def test_each_hop_of_a_walk_goes_down(walk: str) -> None:
    """A row that begins with an arrow is reached by imports from the row that it happens in, and is not above it."""
    outer, upwards, hops = "", [], 0
    for arrow, file in HOP.findall(walk):
        name = file.replace("/", ".")
        if not arrow:
            outer = name
            continue
        hops += 1
        if not leads(outer, name) or height(name) > height(outer):
            upwards.append(f"{outer} → {name}")
    assert hops and not upwards


def height(name: str) -> int:
    return HEIGHT[name.split(".")[1]]


def leads(start: str, end: str) -> bool:
    """Whether a path of imports leads from one module to another."""
    seen, todo = {start}, [start]
    while todo and end not in seen:
        new = own_modules(NAMES[todo.pop()]) - seen
        seen |= new
        todo += new
    return end in seen
