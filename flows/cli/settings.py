"""`refit settings`: every setting with its meaning, its default, and what it is here; also the page of them in docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from flows.cli.console import Json, show_data, show_text
from flows.core.lazily import lazily

with lazily(globals()):
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from flows.cli import tables
    from flows.core import settings
    from flows.core.programs.program_output import redacted

HIDDEN = "(set, not shown)"
_PAGE = """\
# Settings

Each setting is a key of `$REFIT_HOME/settings.yaml`, or a variable: `registry_port` is `REFIT_REGISTRY_PORT`.
A variable goes before the file. A name with dots is nested: `migration.waves` is the key `waves` below `migration`.
`refit settings` shows what is set on a machine. This page is made by `refit settings --markdown`.

| setting | default | meaning |
|---|---|---|
"""


@dataclass(frozen=True)
class Line:
    """One setting.

    Attributes:
        name: its key, with dots where it is nested.
        here: its value on this machine, as plain data; secrets are not in it.
        default: its value where nobody sets it; empty for one that depends on the machine.
        meaning: in words, with its unit.
    """

    name: str
    here: Any
    default: Any
    meaning: str


def show_settings(
    name: Annotated[str, typer.Argument(metavar="PART", help="Only settings with this part in their names.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of docs/settings.md.")] = False,
    as_json: Json = False,
) -> None:
    """Show all settings: what they are here, their defaults, and what they mean."""
    if markdown:
        show_text(page())
        return
    chosen = [line for line in lines(settings.load()) if name in line.name]
    rows = (
        (
            setting.name,
            _text(setting.here) if setting.here != setting.default else "",
            _text(setting.default),
            setting.meaning,
        )
        for setting in chosen
    )
    show_data(as_json, chosen, tables.table("Settings", ("setting", "here", "default", "meaning"), rows))


def page() -> str:
    """All settings as Markdown."""
    rows = ((f"`{line.name}`", _text(line.default), line.meaning) for line in lines(settings.Settings))
    return _PAGE + "".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |\n" for row in rows)


def lines(values: settings.Settings | type[settings.Settings]) -> tuple[Line, ...]:
    """Every setting, in the order of the model; of the model alone nothing is known but its defaults."""
    kind = values if isinstance(values, type) else type(values)
    return tuple(_lines(kind, None if isinstance(values, type) else values))


def _lines(kind: type[BaseModel], value: BaseModel | None, prefix: str = "") -> Iterator[Line]:
    for name, field in kind.model_fields.items():
        if field.exclude:
            continue
        default, key = "" if field.default_factory else field.default, f"{prefix}{name}"
        here = default if value is None else getattr(value, name)
        if isinstance(default, BaseModel) and not _is_value(default):
            yield from _lines(type(default), here if isinstance(here, BaseModel) else None, f"{key}.")
        else:
            yield Line(key, _plain(here), _plain(default), _meaning(field))


def _is_value(model: BaseModel) -> bool:
    """Whether a model is one value and no group of settings: a span of numbers."""
    return set(type(model).model_fields) == {"first", "last"}


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").strip()


def _plain(value: Any) -> Any:
    """A value as plain data, without secrets."""
    from pydantic import BaseModel, SecretStr  # noqa: PLC0415 - patterns need the classes themselves

    match value:
        case SecretStr():
            return HIDDEN if value.get_secret_value() else ""
        case BaseModel():
            return value.model_dump(mode="json")
        case Mapping():
            return {str(key): _plain(part) for key, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case None | bool() | int() | float():
            return value
        case _:
            return redacted(str(value))  # a URL may have a password


def _text(value: Any) -> str:
    match value:
        case {"first": first, "last": last}:
            return f"{first}-{last}"
        case Mapping():
            return ", ".join(f"{key}: {_text(part)}" for key, part in value.items())
        case list():
            return ", ".join(map(_text, value))
        case None | bool():
            return str(value).lower()
        case _:
            return f"{value:g}" if isinstance(value, float) else str(value)
