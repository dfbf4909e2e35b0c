"""The snapshot of all texts that a person can see: a change of one is read in its place, beside the others."""

from __future__ import annotations

import difflib

from tests.support.messages import SNAPSHOTS, messages

TO_RENEW = "Read these lines; where they are meant so: .venv/bin/python -m tests.support.messages"


def test_the_messages_are_those_of_the_snapshot() -> None:
    old = {path.stem: path.read_text() for path in SNAPSHOTS.glob("*.txt")}
    new = messages()
    changed = [
        line
        for room in sorted(old.keys() | new.keys())
        for line in difflib.unified_diff(
            old.get(room, "").splitlines(), new.get(room, "").splitlines(), room, room, lineterm="", n=0
        )
    ]
    assert not changed, "\n".join([TO_RENEW, *changed])


def test_the_kinds_of_texts_are_listed() -> None:
    lines = "\n".join(messages().values()).splitlines()
    for line in (
        "__init__ hint | a tag looks like {EXAMPLE}.",  # an error's advice
        "help | List all sessions.",  # a command's help
        "confirm | Remove it?",  # a question
        "print | Nothing had to be built.",  # output
    ):
        assert line in lines
