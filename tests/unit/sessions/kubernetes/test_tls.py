"""A connection with TLS of which one thread reads while another writes, and which a third one ends."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpx2
import pytest
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from flows.sessions.kubernetes import streams
from flows.sessions.kubernetes.tls import OneAtATime, TlsSocket
from tests.support.certificates import Authority, make_authority
from tests.support.waiting import PATIENCE

LOTS = b"0123456789abcdef" * (1 << 17)  # 2 MiB: more than buffers on the way take


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))


def contexts(authority: Authority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Those of a server and of its client."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.certificate, authority.key)
    return server, ssl.create_default_context(cafile=str(authority.bundle))


@contextmanager
def connection(authority: Authority) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """A connection, and its other end."""
    server, client = contexts(authority)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(server.wrap_socket, theirs, server_side=True)
        connected = OneAtATime(client).wrap_socket(ours, server_hostname="localhost")
        other = answered.result(PATIENCE)
    with other:
        try:
            yield connected, other
        finally:
            connected.close()


def read(connected: TlsSocket | ssl.SSLSocket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size and (part := connected.recv(1 << 16)):
        got += part
    return bytes(got)


def test_one_thread_reads_while_another_writes(authority: Authority) -> None:
    with connection(authority) as (ours, theirs), ThreadPoolExecutor(2) as pool:
        echoed = pool.submit(lambda: theirs.sendall(read(theirs, len(LOTS))))
        got = pool.submit(read, ours, len(LOTS))
        ours.sendall(LOTS)
        assert got.result(PATIENCE) == LOTS
        echoed.result(PATIENCE)


def test_a_call_takes_no_longer_than_it_may(authority: Authority) -> None:
    with connection(authority) as (ours, _):
        ours.settimeout(0.05)
        with pytest.raises(TimeoutError):
            ours.recv(1)
        with pytest.raises(TimeoutError):  # nobody reads there
            while True:
                ours.sendall(LOTS)


def test_a_thread_that_waits_is_woken_by_the_end(authority: Authority) -> None:
    with connection(authority) as (ours, _), ThreadPoolExecutor(1) as pool:
        waits = threading.Event()

        def wait() -> bytes:
            waits.set()
            with suppress(OSError, ValueError):
                return ours.recv(1)
            return b""

        waiting = pool.submit(wait)
        assert waits.wait(PATIENCE)
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        assert waiting.result(PATIENCE) == b""


def test_a_thread_that_is_about_to_wait_waits_for_no_other_connection(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a closed file is the next one's: of 6,000 connections, 600 at a time, two waited for ever."""
    registered, goes_on = threading.Event(), threading.Event()
    waits = select.poll

    class Late:
        def __init__(self) -> None:
            self.register, self._waits = (real := waits()).register, real.poll

        def poll(self, milliseconds: float | None) -> list[tuple[int, int]]:
            registered.set()
            goes_on.wait(PATIENCE)
            return self._waits(milliseconds)

    with connection(authority) as (ours, _):
        ended: list[OSError] = []

        def read() -> None:
            try:
                ours.recv(1)
            except OSError as error:
                ended.append(error)

        thread = threading.Thread(target=read, daemon=True)
        with monkeypatch.context() as late:
            late.setattr(select, "poll", Late)
            thread.start()
            assert registered.wait(PATIENCE)
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        idle = [socket.socketpair() for _ in range(3)]
        goes_on.set()
        thread.join(PATIENCE)
        assert not thread.is_alive() and ended and ours.fileno() == -1
    for one in (each for pair in idle for each in pair):
        one.close()


def test_a_server_that_ends_it_is_heard(authority: Authority) -> None:
    with connection(authority) as (ours, theirs):
        theirs.sendall(b"last words")
        theirs.shutdown(socket.SHUT_RDWR)
        assert read(ours, 100) == b"last words"


@contextmanager
def echoing(context: ssl.SSLContext, **more: Any) -> Iterator[int]:
    """A server of websockets that sends back each message; its port."""

    def echo(there: ServerConnection) -> None:
        for message in there:
            there.send(message)

    with serve(echo, "localhost", 0, ssl=context, **more) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield serving.socket.getsockname()[1]
        finally:
            serving.shutdown()
            thread.join()


def test_messages_of_programs_in_pods_are_not_compressed(authority: Authority) -> None:
    """The tables of each connection take more memory than all else of it, and hundreds are open at the same time."""
    server, client = contexts(authority)
    with (
        echoing(server, subprotocols=["v4.channel.k8s.io"]) as port,
        streams.socket(httpx2.Request("GET", f"https://localhost:{port}/exec"), None, client, PATIENCE) as socket,
    ):
        socket.send(LOTS[:1000])
        assert socket.recv(timeout=PATIENCE) == LOTS[:1000]
        assert socket.protocol.extensions == []


def test_what_comes_after_the_end_of_a_connection_is_no_error(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server, client = contexts(authority)
    with (
        echoing(server, subprotocols=["v4.channel.k8s.io"]) as port,
        streams.socket(httpx2.Request("GET", f"https://localhost:{port}/exec"), None, client, PATIENCE) as socket,
    ):
        with socket.protocol_mutex:
            socket.protocol.receive_eof()  # as `close` does that has waited for a second
        socket.socket.sendall(b"\x81\x80\0\0\0\0")
        socket.recv_events_thread.join(PATIENCE)
        assert not socket.recv_events_thread.is_alive()
    assert "websockets.client" not in [record.name for record in caplog.records]


def test_websockets_talk_through_it(authority: Authority) -> None:
    """By two threads in OpenSSL, one of some hundred connections lost its first request or answer."""
    server, client = contexts(authority)

    def talk(number: int) -> bool:
        one = cast(ssl.SSLContext, OneAtATime(client))
        with connect(f"wss://localhost:{port}/", ssl=one, proxy=None, open_timeout=PATIENCE) as socket:
            for size in (0, 1, 70_000, number):
                socket.send(bytes(size))
                assert socket.recv(timeout=PATIENCE) == bytes(size)
        return True

    with echoing(server) as port, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(talk, range(200)))
