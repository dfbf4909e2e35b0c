from dataclasses import replace

import pytest

from flows.images import stages
from flows.images.stages import Kind, Stage

BASE = Stage("base", Kind.bootstrap, None, "ADD base.tar /", system=("git=1",), suite="bookworm")
PYTHON = Stage("python", Kind.instructions, "base", "RUN pip", {"requirements.txt": b"six"}, requirements=("six",))
IDE = Stage("ide", Kind.instructions, "python", "CMD lab")
OTHER = Stage("other", Kind.instructions, "python", "CMD wait")
TOOLS = {"buildah": "1.28.2"}


def key(stage: Stage = PYTHON, parent: str | None = "sha256:aa", tools: dict[str, str] = TOOLS) -> str:
    return stages.key(stage, parent, tools)


def test_equal_stages_are_in_the_graph_once() -> None:
    graph = stages.join({"a": [BASE, PYTHON, IDE], "b": [BASE, PYTHON, OTHER]})
    assert list(graph.stages) == ["base", "python", "ide", "other"]
    assert graph.tops == {"a": "ide", "b": "other"}
    assert graph.ancestry("other") == (BASE, PYTHON, OTHER)
    assert graph.children("python") == (IDE, OTHER)


def test_two_different_stages_with_one_name_are_a_bug() -> None:
    with pytest.raises(ValueError, match="'python'"):
        stages.join({"a": [BASE, PYTHON], "b": [BASE, replace(PYTHON, text="RUN uv")]})


@pytest.mark.parametrize(
    "other",
    [
        replace(PYTHON, kind=Kind.bootstrap),
        replace(PYTHON, text="RUN uv"),
        replace(PYTHON, files={"requirements.txt": b"five"}),
        replace(PYTHON, files={"requirements.in": b"six"}),
        replace(PYTHON, system=("git=1",)),
        replace(PYTHON, requirements=("five",)),
        replace(PYTHON, suite="trixie"),
    ],
)
def test_whatever_goes_in_changes_the_key(other: Stage) -> None:
    assert key(other) != key()


def test_parent_and_tools_change_the_key() -> None:
    assert len({key(), key(parent="sha256:bb"), key(parent=None), key(tools={"buildah": "1.29"})}) == 4


WHEELS = Stage("wheels", Kind.wheels, "base", "RUN pip wheel", system=("gcc=12.2",), requirements=("six==1.0",))


def test_wheels_depend_on_no_parent_but_what_needs_them_on_all_that_is_in_them() -> None:
    assert key(WHEELS) == key(WHEELS, parent="sha256:bb") != key(replace(WHEELS, system=("gcc=12.3",)))
    one, other = (replace(PYTHON, wheels=replace(WHEELS, system=(gcc,))) for gcc in ("gcc=12.2", "gcc=12.3"))
    assert len({key(), key(one), key(other)}) == 3
    assert key(one) == key(replace(one, wheels=replace(WHEELS, parent="another")))
    (change,) = stages.differences(stages.inputs(one, None, TOOLS), stages.inputs(other, None, TOOLS))
    assert (change.sort, change.name, change.old, change.new) == ("wheels", "system gcc", "12.2", "12.3")


def test_wheels_that_several_need_are_there_once_and_before_these() -> None:
    graph = stages.join({"a": [BASE, replace(PYTHON, wheels=WHEELS)], "b": [BASE, replace(IDE, wheels=WHEELS)]})
    assert [stage.name for stage in graph.everything()] == ["base", "wheels", "python", "ide"]
    assert list(graph.stages) == ["base", "python", "ide"]


def test_names_and_the_order_of_things_do_not_change_the_key() -> None:
    one = replace(PYTHON, files={"a": b"1", "b": b"2"}, system=("a=1", "b=1"))
    two = replace(one, name="p", parent="q", files={"b": b"2", "a": b"1"}, system=("b=1", "a=1"))
    assert key(one) == key(two)
    assert len(key()) == 64
