"""A conversation with a program in a Pod whose connection is lost: an error like all others, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from flows.sessions.kubernetes.programs import talk
from flows.sessions.kubernetes.refusals import ClusterAway


def lost(*_: object) -> Any:
    raise ConnectionClosedError(None, None)


def fails(ask: Callable[[str], str]) -> None:
    with pytest.raises(ClusterAway):
        ask("question")


@pytest.mark.parametrize("broken", ["write", "output"])
def test_a_lost_connection_is_known_inside_the_conversation(broken: str) -> None:
    def output(*_: object) -> Iterator[bytes]:
        yield from (b"", lost() if broken == "output" else b"ready\n")

    @contextmanager
    def program(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(write=lost if broken == "write" else lambda _: None, output=output)

    with talk(SimpleNamespace(program=program), "p", "a", ["python3"], 1.0) as ask:  # type: ignore[arg-type]
        fails(ask)
