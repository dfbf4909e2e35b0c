"""Ends of connections as the kernel writes them, and which machines answer."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.host import sockets


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_an_end_is_written_as_the_kernel_does(family: int, address: str) -> None:
    with (
        socket.create_server((address, 0), family=socket.AddressFamily(family)) as listener,
        socket.create_connection(listener.getsockname()[:2]) as connection,
    ):
        own, port = connection.getsockname()[:2]
        table = Path("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp").read_text()
        local = {line.split()[1] for line in table.splitlines()[1:]}
        assert {*sockets.written_ends(own, port)} & local


def test_an_end_at_a_listener_for_both_families_is_written_as_the_kernel_does() -> None:
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener,
        socket.create_connection(("127.0.0.1", listener.getsockname()[1])) as connection,
    ):
        remote = {line.split()[2] for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]}
        assert {*sockets.written_ends(*connection.getsockname())} & remote


def test_a_machine_that_answers_is_reached_whether_or_not_anybody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert sockets.why_unreached("127.0.0.1", port, 5) == ""
    assert sockets.why_unreached("127.0.0.1", port, 5) == ""
    monkeypatch.setattr(socket, "create_connection", _raising(OSError(113, "No route to host")))
    assert sockets.why_unreached("192.0.2.7", 2222, 5) == "No route to host"
    monkeypatch.setattr(socket, "create_connection", _raising(TimeoutError("timed out")))
    assert "in time" in sockets.why_unreached("192.0.2.7", 2222, 5)


def _raising(error: OSError) -> Callable[..., socket.socket]:
    def connect(*_: object) -> socket.socket:
        raise error

    return connect
