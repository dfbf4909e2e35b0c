"""The forwarder for ssh: it takes up ports and addresses while it runs, and who is connected notices nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import pytest

from flows.core.settings import Settings
from flows.services import embedded, process
from flows.sessions.ssh.forwarder import Forwarder
from tests.support.waiting import PATIENCE, free_span


class Answer(StreamRequestHandler):
    """Answers each line with the port of the server, as long as somebody asks."""

    def handle(self) -> None:
        for _ in self.rfile:
            self.wfile.write(f"{self.server.server_address[1]}\n".encode())


@pytest.fixture
def servers() -> Iterator[tuple[str, str]]:
    """The addresses of two servers."""
    with ExitStack() as things:
        addresses = []
        for _ in range(2):
            server = things.enter_context(ThreadingTCPServer(("127.0.0.1", 0), Answer))
            server.daemon_threads = True
            Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            things.callback(server.shutdown)
            addresses.append(f"127.0.0.1:{server.server_address[1]}")
        yield addresses[0], addresses[1]


@pytest.fixture
def forwarder(tmp_path: Path) -> Iterator[tuple[Forwarder, int]]:
    """One that runs, and the first of the ports that are its own; its folder is too long for the path of a socket."""
    settings, first = Settings(home=tmp_path / ("long" * 30)), free_span().first
    told = Forwarder(settings)
    told.listen([first])
    service = embedded.forwarder(settings)
    try:
        process.start(service)
        process.wait_until_answering(service)
        yield told, first
    finally:
        process.end(service)
        process.supervisor_of(service).end()


class Person:
    """Somebody who is connected."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._answers = self._connection.makefile("r")

    def reaches(self, address: str) -> bool:
        self._connection.sendall(b"who?\n")
        return self._answers.readline().strip() == address.rpartition(":")[2]


def test_ports_and_addresses_change_while_it_runs(forwarder: tuple[Forwarder, int], servers: tuple[str, str]) -> None:
    told, port = forwarder
    told.point(port, servers[0])
    early = Person(port)
    assert early.reaches(servers[0])
    told.listen([port, port + 1])
    told.point(port + 1, servers[0])
    told.point(port, servers[1])
    assert Person(port).reaches(servers[1]) and Person(port + 1).reaches(servers[0])
    assert early.reaches(servers[0])


def test_ports_that_come_one_right_after_the_other_all_lead_somewhere(
    forwarder: tuple[Forwarder, int], servers: tuple[str, str]
) -> None:
    """HAProxy takes no orders while it reads its ports anew."""
    told, first = forwarder
    for count in range(2, 9):
        ports = range(first, first + count)
        told.listen(ports)
        told.point(ports[-1], servers[count % 2])
        assert Person(ports[-1]).reaches(servers[count % 2])


@pytest.mark.long
def test_who_comes_while_a_session_is_away_waits_for_it(
    forwarder: tuple[Forwarder, int], servers: tuple[str, str]
) -> None:
    told, port = forwarder
    told.point(port, servers[0])
    told.point(port, "")
    late = Person(port)
    told.point(port, servers[1])
    assert late.reaches(servers[1])
    told.point(port, "")
    assert not Person(port).reaches(servers[1])


def test_what_it_was_told_it_knows_after_a_restart(forwarder: tuple[Forwarder, int], servers: tuple[str, str]) -> None:
    told, port = forwarder
    told.point(port, servers[0])
    service = next(each for each in embedded.all_services(Settings(home=told.folder.parents[1])) if each.socket)
    assert process.end(service)
    told.point(port, servers[1])
    process.start(service)
    process.wait_until_answering(service)
    assert Person(port).reaches(servers[1])
