"""Text of others is printed as text: no markup, nothing that controls a terminal, no line that they didn't have."""

from __future__ import annotations

import dataclasses
import inspect
import io
import json
import logging
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pydantic import BaseModel
from rich.table import Table

from flows import lock_requirements, prune_images
from flows.catalog.model import Access
from flows.cli import console, main, tables
from flows.cli.console import Printer
from flows.cli.screen import Screen
from flows.core.errors import RefitError
from flows.core.formatting import Printable, as_cells, in_markdown, on_a_line, printable
from flows.core.lazily import import_all
from flows.core.progress import Report, State
from flows.migrations.results import Result
from flows.orchestration import queues
from flows.releases.report import BuildReport
from flows.sessions.activity.evidence import Process
from flows.sessions.activity.hook import last_words
from flows.sessions.model import HomeRef, Running, Session, TokenRef, Volume
from flows.sessions.overview import Status
from tests.support.examples import several

AT = datetime(2026, 11, 22, 12, tzinfo=UTC)
PIECES = (
    ":bug:",
    "[/]",
    "[/usr/sbin/iptables]",
    "[red]",
    "[link=x]y",
    "\x1b]0;owned\x07",
    "\x1b[31m",
    "\x9b2J",
    "\x00",
    "\r",
)
PLAIN: dict[Any, Any] = {
    int: 3,
    float: 3.0,
    bool: True,
    datetime: AT,
    date: AT.date(),
    Path: Path("/x"),
    UUID: UUID(int=7),
}
MORE = (
    "\u202e",
    "\u2066",
    "\u200b",
    "\ud800",
    "\udcff",
    "\n",
    "\r\n",
    "\t",
    "|",
    "<script>",
    "![x](http://x)",
    ":bug:",
)
STRANGE = st.lists(st.one_of(st.sampled_from((*PIECES, *MORE)), st.text(max_size=8)), max_size=8).map("".join)
UNTIL_SEEN = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def filled(kind: Any, text: str) -> Any:
    """A value of a type in which every text is this one."""
    if origin := typing.get_origin(kind):
        return _filled_with(origin, typing.get_args(kind), text)
    if kind in PLAIN:
        return PLAIN[kind]
    if kind in (str, object, Any):
        return text
    if issubclass(kind, Enum):
        return next(iter(kind))
    if issubclass(kind, BaseModel):
        return kind.model_construct(**{name: filled(one.annotation, text) for name, one in kind.model_fields.items()})
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    return kind(**{one.name: filled(hints[one.name], text) for one in dataclasses.fields(kind) if one.init})


def _filled_with(origin: Any, inner: tuple[Any, ...], text: str) -> Any:
    if origin in (typing.Union, types.UnionType):
        return filled(inner[0], text)
    if issubclass(origin, Mapping):
        read = defaultdict[str, object](lambda: text)  # what was read from a document
        return read if inner == (str, object) else {filled(inner[0], text): filled(inner[1], text)}
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(filled(each, text) for each in inner)
    return (filled(inner[0], text),)


def told_by_tables() -> list[Callable[..., object]]:
    """Every function that makes what a person sees of results."""
    made = inspect.getmembers(tables, lambda one: inspect.isfunction(one) and one.__module__ == tables.__name__)
    return [function for name, function in made if not name.startswith("_") and name not in ("table", "least_width")]


def arguments(function: Callable[..., object], text: str) -> dict[str, object]:
    import_all(vars(tables))
    own_names = {
        **vars(tables),
        **{each.__name__: each for each in (BuildReport, lock_requirements.Lock, Result)},
        **{each.__name__: each for each in (prune_images.PruneReport, queues.Queue, queues.Run)},
    }
    hints = typing.get_type_hints(function, own_names)
    return {name: filled(hints[name], text) for name in inspect.signature(function).parameters}


def printed(*things: object, **more: Any) -> str:
    paper = io.StringIO()
    Printer(file=paper, width=200, color_system=None).print(*things, **more)
    return paper.getvalue()


def is_plain(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


@pytest.mark.parametrize("function", told_by_tables(), ids=lambda function: function.__name__)
@given(text=STRANGE)
@examples(max_examples=several(10), **UNTIL_SEEN)
def test_no_table_and_no_sentence_lets_text_of_others_do_anything(function: Callable[..., Any], text: str) -> None:
    made = function(**arguments(function, text))
    for part in made if isinstance(made, (tuple, Iterator)) else (made,):
        seen = printed(part) if isinstance(part, Table) else printed(str(part))
        assert is_plain(seen)


@given(text=STRANGE)
@examples(**UNTIL_SEEN)
def test_errors_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def failing() -> None:
        raise RefitError(f"It failed: {text}", why=f"{text} [/usr/sbin/iptables -t nat]", hint=text)

    paper = io.StringIO()
    monkeypatch.setattr(main, "app", failing)
    monkeypatch.setattr(console, "err", Printer(file=paper, width=100, color_system=None))
    with pytest.raises(SystemExit):
        main.main()
    assert is_plain(paper.getvalue().expandtabs()) and "[/usr/sbin/iptables -t nat]" in paper.getvalue()


@given(text=STRANGE)
@examples(**UNTIL_SEEN)
def test_progress_is_printed_as_it_is(text: str) -> None:
    paper = io.StringIO()
    screen = Screen(Printer(file=paper, width=200, color_system=None))
    screen(Report(text, State.failed, text))
    assert is_plain(paper.getvalue()) and is_plain(printed(screen))


@given(text=STRANGE)
@examples(**UNTIL_SEEN)
def test_json_has_the_same_text_and_may_be_shown(text: str) -> None:
    paper, before = io.StringIO(), console.out
    console.out = Printer(file=paper, width=100, color_system=None)
    try:
        console.show_json({"text": text})
    finally:
        console.out = before
    assert is_plain(paper.getvalue()) and json.loads(paper.getvalue()) == json.loads(json.dumps({"text": text}))


def test_scripts_find_the_volumes_of_a_session_under_the_keys_that_they_always_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    volume = Volume("data", "/data", HomeRef("/volumes/ada/data"))
    ada = Session("ada", "p", "2026a", "sha256:1", 1, HomeRef("/home"), TokenRef("/t"), Access(), volumes=(volume,))
    for shown in (Status(ada, Running.running, True), [Status(ada, Running.running, True)]):
        paper = io.StringIO()
        monkeypatch.setattr(console, "out", Printer(file=paper, width=100, color_system=None))
        console.show_json(shown)
        told = json.loads(paper.getvalue())
        (found,) = (told[0] if isinstance(told, list) else told)["session"]["volumes"]
        assert found == {
            "name": "data",
            "path": "/data",
            "folder": "/volumes/ada/data",
            "read_only": False,
            "shared": False,
        }


@given(text=STRANGE)
def test_text_of_others_stays_one_line_where_there_is_one(text: str) -> None:
    assert "\n" not in on_a_line(text) and is_plain(on_a_line(text)) and is_plain(printable(text).replace("\t", ""))
    assert is_plain(last_words(text)) and "\n" not in last_words(text)
    process = Process(7, 1, ("train", text), text)
    assert is_plain(on_a_line(str(process)))


@given(text=STRANGE)
def test_markdown_shows_text_of_others_as_it_is(text: str) -> None:
    [row] = as_cells([{"why": text, "number": 7}])
    page = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(f"| a |\n|---|\n| {in_markdown(text)} |\n")
    assert row == {"why": in_markdown(text), "number": 7}
    assert not [tag for tag in ("<a", "<img", "<script", "<code", "<em", "<h1") if tag in page]
    assert page.count("<tr>") == 2 and page.count("<td>") == 1


def test_logs_are_printable(caplog: pytest.LogCaptureFixture) -> None:
    line = Printable("refit", logging.WARNING, "x.py", 1, "%s [/]", ("\x1b[31m",), None)
    assert line.getMessage() == r"\x1b[31m [/]"
