"""Examples in the documentation can be typed: their options exist, and no argument is missing or too many."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from flows.cli.main import app
from flows.sessions.inside import client
from tests.support.machine import ROOT

LEAST = 120  # examples in blocks of code: fewer would mean that they aren't found any more
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")})


def examples(text: str) -> Iterator[tuple[int, str]]:
    """The lines in blocks of code that begin with `refit`, with their numbers; several words for one are left out."""
    in_block = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            in_block = not in_block
        elif in_block and (typed := line.removeprefix("$ ")).startswith("refit ") and not re.search(r"\w\|\w", typed):
            yield number, typed


def mistake(typed: str) -> str:
    """The reason why a line can't be typed; empty: it can."""
    words = shlex.split(typed, comments=True)[1:]
    command: Any = typer.main.get_command(app)
    context = command.context_class(command, info_name="refit")
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        if (verb := command.get_command(context, words[0])) is None:
            return "" if command.name == "session" and words[0] in client.VERBS else f"no command {words[0]!r}"
        command, words = verb, words[1:]
        context = verb.context_class(verb, parent=context, info_name=verb.name)
    try:
        given, extra, _ = command.make_parser(context).parse_args(list(words))
    except Exception as error:  # typer brings its own click
        return str(getattr(error, "message", error))
    required = [name.name for name in command.params if name.required and not given.get(name.name)]
    if required == ["name"] and command.name in client.VERBS:
        return ""  # inside a session it names none
    if extra and not hasattr(command, "get_command"):
        return f"too much: {extra}"
    return f"lacks {', '.join(required)}" if required else ""


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("refit session show ada", ""),
        ("refit session show ada --frob", "--frob"),
        ("refit session stop", "lacks name"),
        ("refit session show ada eve", "too much: ['eve']"),
        ("refit session frob ada", "no command 'frob'"),
        ("refit session snooze 3h", ""),  # inside a session
        ("refit session show", ""),
        ("refit session exec ada -- ls -l", ""),
    ],
)
def test_an_example_that_cant_be_typed_is_seen(typed: str, says: str) -> None:
    assert says in mistake(typed) and bool(says) == bool(mistake(typed))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_a_page_can_be_typed(page: Path) -> None:
    text = page.read_text("utf-8")
    wrong = [(number, typed, mistake(typed)) for number, typed in examples(text)]
    assert [f"{page.name}:{number}: {typed}: {why}" for number, typed, why in wrong if why] == []


def test_examples_are_found() -> None:
    assert sum(1 for page in PAGES for _ in examples(page.read_text("utf-8"))) > LEAST
