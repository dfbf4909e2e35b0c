"""Reading what people write: YAML files, validated at the edge, every mistake at once with file and line.

All such files and texts are read here: no regular file, or one too long or too deep, is a mistake.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.core.documents import bounds
from flows.core.documents.bounds import OutOfBounds
from flows.core.errors import RefitError
from flows.core.lazily import lazily

with lazily(globals()):
    import yaml

Key = str | int
_TOO_DEEP = "too many lists and tables are in each other here"
_TOLD = 100  # mistakes of one file that are looked for, and of all that are printed


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
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else str(self.file)
        return f"{place}: {self.what}{f' ({self.hint})' if self.hint else ''}"


class Mistakes(RefitError):
    """All mistakes that were found in what a person wrote."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(sorted(set(mistakes)))
        count, lines = len(self.mistakes), [f"  {mistake}" for mistake in self.mistakes[:_TOLD]]
        more = [f"  … and {count - _TOLD} more"] if count > _TOLD else []
        super().__init__(
            "1 mistake was found:" if count == 1 else f"{count} mistakes were found:", why="\n".join([*lines, *more])
        )


def read(path: Path, model: type[Model]) -> Model:
    """Read a YAML file into `model`.

    Raises:
        Mistakes: the file is missing, is not YAML, or does not fit the model; one mistake each, with its line.
    """
    try:
        text = bounds.read_text(path, bounds.YAML)
    except FileNotFoundError:
        raise Mistakes([Mistake(path, 0, "this file is missing")]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Mistakes([unreadable(path, error)]) from None
    return parse(text, path, model)


def text_of(path: Path, limit: int = bounds.TEXT) -> str:
    """The text of a file.

    Raises:
        Mistakes: it can't be read, is no regular file, or has more bytes than `limit`.
    """
    try:
        return bounds.read_text(path, limit)
    except (OSError, UnicodeDecodeError) as error:
        raise Mistakes([unreadable(path, error)]) from None


def unreadable(path: Path, error: Exception, hint: str = "") -> Mistake:
    """That a file can't be read, with the line where its text ends to be one."""
    line = error.object.count(b"\n", 0, error.start) + 1 if isinstance(error, UnicodeDecodeError) else 0
    return Mistake(path, line, f"this file can't be read: {error}", hint)


def parse(text: str, path: Path, model: type[Model]) -> Model:
    """Read YAML text that came from `path` into `model`; raises as `read` does."""
    node = compose(text, path)
    data = _constructed(text, path, node)
    twice = list(islice(_repeated_keys(path, node), _TOLD))
    try:
        document = model.model_validate({} if data is None else data)
    except ValidationError as error:
        raise Mistakes([*twice, *_model_mistakes(path, node, model, error)]) from None
    if twice:
        raise Mistakes(twice)
    return document


def parse_plain(text: str, path: Path) -> Any:
    """YAML text that came from `path` as plain data.

    Raises:
        Mistakes: it is not YAML, or more than may be parsed; with the line.
    """
    return _constructed(text, path, compose(text, path))


def compose(text: str, path: Path) -> yaml.Node | None:
    """The nodes of YAML text that came from `path`, not to be changed; none: there is nothing in it.

    Raises:
        Mistakes: it is not YAML, or more than may be parsed; with the line.
    """
    try:
        return _composed(text)
    except (yaml.YAMLError, ValueError) as error:
        raise Mistakes([_yaml_mistake(path, text, None, error)]) from None


@lru_cache(maxsize=4)
def _composed(text: str) -> yaml.Node | None:
    """The text is parsed again for the lines of its mistakes."""
    bounds.check_yaml(text)
    node: yaml.Node | None = yaml.CSafeLoader(text).get_single_node()  # in C: ten times as fast as SafeLoader
    return node


def _constructed(text: str, path: Path, node: yaml.Node | None) -> Any:
    try:
        # Where keys are merged, what is constructed changes its nodes.
        loader = yaml.CSafeLoader(text if "<<" in text else "")
        return loader.construct_document(loader.get_single_node() if "<<" in text else node) if node else None
    except Exception as error:  # the constructor of a tag that is written out raises whatever Python does
        raise Mistakes([_yaml_mistake(path, text, node, error)]) from None


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """TOML text that came from `path` as plain data.

    Raises:
        Mistakes: it is not TOML, or more than may be parsed; with the line.
    """
    try:
        bounds.check_toml(text)
        data = tomllib.loads(text)
        bounds.check_depth(data)
    except (OutOfBounds, RecursionError) as error:
        line, what = (error.line, str(error)) if isinstance(error, OutOfBounds) else (_deepest(text), _TOO_DEEP)
        raise Mistakes([Mistake(path, line, what)]) from None
    except ValueError as error:
        what, _, place = str(error).rpartition(" (at ")
        number = re.match(r"line (\d+)", place)
        line = int(number[1]) if number else len(text.splitlines())
        raise Mistakes([Mistake(path, line, f"this is not valid TOML: {what or error}")]) from None
    return data


def _deepest(text: str) -> int:
    """The line, from 1, with the most brackets that open: nothing else tells where a parser gave up."""
    counts = [line.count("[") + line.count("{") for line in text.split("\n")]
    return counts.index(max(counts)) + 1


def parse_json(text: str, path: Path, model: type[BaseModel], hint: str = "") -> dict[str, Any]:
    """JSON text that came from `path` as plain data, which fits `model`. Lines are looked for only if it doesn't.

    Raises:
        Mistakes: it is not JSON, or does not fit the model; one mistake each, with its line.
    """
    data = parse_plain_json(text, path, hint)
    try:
        model.model_validate(data)
    except ValidationError as error:
        node: yaml.Node | None = None
        with suppress(Mistakes):
            node = compose(text, path)
        raise Mistakes(
            replace(mistake, hint=mistake.hint or hint) for mistake in _model_mistakes(path, node, model, error)
        ) from None
    return dict(data)


def parse_plain_json(text: str, path: Path, hint: str = "") -> Any:
    """JSON text that came from `path` as plain data.

    Raises:
        Mistakes: it is not JSON, or more than may be parsed; with the line.
    """
    try:
        bounds.check_json(text)
        return json.loads(text)
    except OutOfBounds as error:
        raise Mistakes([Mistake(path, error.line, str(error), hint)]) from None
    except ValueError as error:
        raise Mistakes([Mistake(path, getattr(error, "lineno", 1), f"this is not valid JSON: {error}", hint)]) from None


def _yaml_mistake(path: Path, text: str, node: yaml.Node | None, error: Exception) -> Mistake:
    if isinstance(error, OutOfBounds):
        return Mistake(path, error.line, str(error))
    mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
    problem = getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
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
    except Exception:  # as in `_constructed`
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
    for detail in islice(error.errors(include_url=False), _TOLD):
        location: Sequence[Key] = detail["loc"]
        name = ".".join(str(key) for key in location)
        what = f"{name}: {detail['msg']}" if name else detail["msg"]
        hint = ""
        if detail["type"] == "extra_forbidden":
            near = get_close_matches(str(location[-1]), list(_fields(model)), n=1)
            what, hint = f"{name}: unknown key", f"did you mean {near[0]!r}?" if near else ""
        elif detail["type"] == "missing":
            what = f"{name}: this key is missing"
        yield Mistake(path, line_of(root, location), what, hint)


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
