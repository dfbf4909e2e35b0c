"""Reading what people write: YAML files, validated at the edge, every mistake at once with file and line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from flows.errors import RefitError

Key = str | int


class Document(BaseModel):
    """Base of all models of files that people write: unknown keys are refused, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, order=True)
class Mistake:
    """One mistake in a file: where (line counts from 1; 0 is the file as a whole), what is wrong, how to mend it."""

    file: Path
    line: int
    what: str
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{place}: {self.what}{f' ({self.fix})' if self.fix else ''}"


class Mistakes(RefitError):
    """All mistakes that were found in what a person wrote."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(sorted(set(mistakes)))
        count = len(self.mistakes)
        super().__init__(
            "1 mistake was found:" if count == 1 else f"{count} mistakes were found:",
            why="\n".join(f"  {mistake}" for mistake in self.mistakes),
        )


def read(path: Path, model: type[Model]) -> Model:
    """Read a YAML file into `model`.

    Raises:
        Mistakes: the file is missing, is not YAML, or does not fit the model; one mistake each, with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Mistakes([Mistake(path, 0, "this file is missing")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Mistakes([unreadable(path, error)]) from None
    return parse(text, path, model)


def unreadable(path: Path, error: Exception, fix: str = "") -> Mistake:
    """That a file can't be read, with the line where its text ends to be one."""
    line = error.object.count(b"\n", 0, error.start) + 1 if isinstance(error, UnicodeDecodeError) else 0
    return Mistake(path, line, f"this file can't be read: {error}", fix)


def parse(text: str, path: Path, model: type[Model]) -> Model:
    """Read YAML text that came from `path` into `model`; raises as `read` does."""
    node: yaml.Node | None = None
    try:
        loader = yaml.CSafeLoader(text)  # the same as SafeLoader, in C: ten times as fast
        node = loader.get_single_node()
        data = loader.construct_document(node) if node else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Mistakes([_yaml_mistake(path, text, node, error)]) from None
    twice = list(_repeated_keys(path, node))
    try:
        document = model.model_validate({} if data is None else data)
    except ValidationError as error:
        raise Mistakes([*twice, *_model_mistakes(path, node, model, error)]) from None
    if twice:
        raise Mistakes(twice)
    return document


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """TOML text that came from `path` as plain data.

    Raises:
        Mistakes: it is not TOML; with the line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).rpartition(" (at ")
        number = re.match(r"line (\d+)", place)
        line = int(number[1]) if number else len(text.splitlines())
        raise Mistakes([Mistake(path, line, f"this is not valid TOML: {what}")]) from None


def parse_json(text: str, path: Path, model: type[BaseModel], fix: str = "") -> dict[str, Any]:
    """JSON text that came from `path` as plain data, which fits `model`. Lines are looked for only if it doesn't.

    Raises:
        Mistakes: it is not JSON, or does not fit the model; one mistake each, with its line.
    """
    try:
        data: dict[str, Any] = json.loads(text)
        model.model_validate(data)
    except ValidationError as error:
        node: yaml.Node | None = None
        with suppress(yaml.YAMLError, RecursionError):
            node = yaml.compose(text, Loader=yaml.CSafeLoader)
        raise Mistakes(replace(one, fix=one.fix or fix) for one in _model_mistakes(path, node, model, error)) from None
    except (ValueError, RecursionError) as error:
        raise Mistakes([Mistake(path, getattr(error, "lineno", 1), f"this is not valid JSON: {error}", fix)]) from None
    return data


def _yaml_mistake(path: Path, text: str, node: yaml.Node | None, error: Exception) -> Mistake:
    mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark:
        line = mark.line + 1
    elif position is not None:
        line = text.count("\n", 0, position) + 1
    else:
        line = next((value.start_mark.line + 1 for value in _scalars(node) if _is_none(value)), 1)
    return Mistake(path, line, f"this is not valid YAML: {problem}")


def _scalars(root: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    pending, looked_at = [root], set[int]()
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.ScalarNode):
            yield node
        elif node is not None and id(node) not in looked_at:
            looked_at.add(id(node))
            pending += [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]


def _is_none(node: yaml.ScalarNode) -> bool:
    """Whether a value is none of its own type, as 2026-13-01 is no day."""
    try:
        yaml.CSafeLoader("").construct_object(node)
    except (ValueError, yaml.YAMLError):
        return True
    return False


def _repeated_keys(path: Path, node: yaml.Node | None, looked_at: set[int] | None = None) -> Iterable[Mistake]:
    """YAML lets a later key silently win over an earlier one; nobody who wrote both meant that."""
    looked_at = set() if looked_at is None else looked_at
    if id(node) in looked_at:
        return  # an alias; it may even be inside of what it stands for
    looked_at.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                yield Mistake(path, line, f"{key.value!r} stands already in line {seen[key.value]}", "keep one of them")
            seen.setdefault(str(key.value), line)
            yield from _repeated_keys(path, value, looked_at)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(path, value, looked_at)


def _model_mistakes(
    path: Path, root: yaml.Node | None, model: type[BaseModel], error: ValidationError
) -> Iterable[Mistake]:
    for detail in error.errors(include_url=False):
        location: Sequence[Key] = detail["loc"]
        name = ".".join(str(key) for key in location)
        what = f"{name}: {detail['msg']}" if name else detail["msg"]
        fix = ""
        if detail["type"] == "extra_forbidden":
            near = get_close_matches(str(location[-1]), list(_fields(model)), n=1)
            what, fix = f"{name}: unknown key", f"did you mean {near[0]!r}?" if near else ""
        elif detail["type"] == "missing":
            what = f"{name}: this key is missing"
        yield Mistake(path, line_of(root, location), what, fix)


def _fields(model: type[BaseModel]) -> Iterable[str]:
    for name, field in model.model_fields.items():
        yield name
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _fields(part)


def line_of(node: yaml.Node | None, location: Sequence[Key]) -> int:
    """The line, from 1, of the deepest node on the way to `location`."""
    line = node.start_mark.line + 1 if node else 1
    for key in location:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(key)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            pair = (node.value[key], node.value[key])
        else:
            pair = None
        if pair is None:
            break
        line, node = pair[0].start_mark.line + 1, pair[1]
    return line


def dump(data: Any) -> str:
    """YAML text of plain data, keys in the order given."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
