"""The rooms and the direction of imports, held by walking the syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FLOWS = Path(__file__).parents[2] / "flows"

# From the ground up; a room imports only from rooms below its own and from itself.
LAYERS = (
    ("errors", "fence"),
    ("alone", "command", "cron", "documents", "files", "hours", "progress", "seccomp", "words"),
    ("policy",),
    ("settings", "database", "schema"),
    ("adopted", "history", "host", "notices", "outside"),
    ("containers", "forwarding", "catalog", "gateway"),
    ("locks", "branches", "signing"),
    ("images",),
    ("publishing", "sharing", "lint", "adopt"),
    ("sessions",),
    ("compatibility",),
    ("migrations",),
    ("services", "porter"),
    ("doctor", "plan_release", "plan_migration", "orchestration"),
    ("queues",),
    ("metrics",),
    ("show_profile", "shipped", "start_sessions", "switch_session"),
    ("admission", "approve_wave", "build_stages"),
    (
        *("lock_requirements", "build_profiles", "create_session", "change_session", "migrate_sessions"),
        *("prune_images", "deploy", "work"),
    ),
    ("night",),
    ("demo", "nightly", "cut_release"),
    ("cli",),
)
HEIGHT = {room: height for height, layer in enumerate(LAYERS) for room in layer}
VERBS = {*LAYERS[HEIGHT["build_profiles"]], *LAYERS[HEIGHT["admission"]], "nightly", "demo", "cut_release"}
VERBS |= {"queues", "orchestration"}
MODULES = sorted(FLOWS.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(FLOWS).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("flows.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FLOWS)))
def test_imports_point_downwards(path: Path) -> None:
    here = room(path)
    if here == "__init__":
        return
    assert here in HEIGHT, f"{here} has no place in LAYERS"
    above = {other for other in own_rooms(path) if other != here and HEIGHT.get(other, 99) >= HEIGHT[here]}
    assert not above


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FLOWS)))
def test_only_verbs_import_prefect_and_only_the_door_imports_sh(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imports(path)}
    assert "prefect" not in roots or room(path) in VERBS
    assert "sh" not in roots or room(path) == "command"
    # These run inside an image, where nothing of Refit is.
    assert (
        "subprocess" not in roots
        or room(path) == "command"
        or path.stem in ("probe", "look", "read_image", "supervise")
    )


def test_no_module_bears_the_name_of_a_dependency() -> None:
    text = (FLOWS.parent / "uv.lock").read_text()
    packages = {line.split('"')[1].replace("-", "_") for line in text.splitlines() if line.startswith("name = ")}
    assert not {path.stem for path in MODULES} & (packages - {"refit"})


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a module, with the name of what is called."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            yield name, node


# What is written for people, and what a program would do with it to find out what to do.
FOR_PEOPLE = {"note", "what", "why", "detail", "text", "brief", "reason"}
MATCHING = {"startswith", "endswith", "partition", "rpartition", "removeprefix", "removesuffix", "split", "find"}
DECIDING = sorted(
    path for path in MODULES if room(path) in ("migrations", "sessions", "plan_migration", "migrate_sessions", "porter")
)
# Enums are called so as well; and the same notice isn't told twice.
NO_TEXTS = {"line.reason not in _OVER", "line.reason not in _SILENT", "last[-1].what != told"}
NO_TEXTS |= {"outcome.why == 'time'", "outcome.why == 'output'"}


def matched(path: Path) -> Iterator[str]:
    """Every expression in which a text for people is compared with something, or taken apart."""
    for node in ast.walk(ast.parse(path.read_text())):
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


@pytest.mark.parametrize("path", DECIDING, ids=lambda path: str(path.relative_to(FLOWS)))
def test_nothing_is_decided_by_text_for_people(path: Path) -> None:
    found = {expression for expression in matched(path) if "Reason." not in expression and "Why." not in expression}
    assert not found - NO_TEXTS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FLOWS)))
def test_nothing_is_printed_as_markup(path: Path) -> None:
    """Text of others reaches a terminal only by what makes it printable, and Prefect's pages only as cells."""
    the_way = path == FLOWS / "cli" / "console.py"
    for name, call in calls(path):
        options = {option.arg: option.value for option in call.keywords}
        where = f"{path.name}:{call.lineno}"
        markup = options.get("markup")
        assert markup is None or (isinstance(markup, ast.Constant) and markup.value is False), where
        assert name not in ("from_markup", "render_str", "Console"), where
        if room(path) == "cli":
            assert the_way or name != "echo", where
            assert not isinstance(call.func, ast.Name) or name != "print", where
        if name == "create_table_artifact":
            cells = options.get("table", call.args[0] if call.args else None)
            assert isinstance(cells, ast.Call) and getattr(cells.func, "id", "") == "as_cells", where
