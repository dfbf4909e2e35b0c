"""Answers of sessions are bounded: its user may let one answer anything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.server import ServerConnection, serve

from flows.core.outside import TooLarge
from flows.core.programs.command import FOREIGN_OUTPUT
from flows.sessions.ide.asking import ask, client
from flows.sessions.ide.jupyter import Jupyter, JupyterError
from tests.support.waiting import PATIENCE, serving


def endless(handler: BaseHTTPRequestHandler) -> None:
    while True:
        handler.wfile.write(b"x" * 65536)


def dripping(handler: BaseHTTPRequestHandler) -> None:
    for _ in range(PATIENCE * 20):
        handler.wfile.write(b"x")
        time.sleep(0.05)


def answering(content: Callable[[BaseHTTPRequestHandler], None]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                if content is not dripping_headers:
                    self.send_response(200)
                    self.end_headers()
                content(self)
            except OSError:
                return  # nobody listens any more

        def log_message(self, *_: Any) -> None:
            return

    return Handler


def dripping_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    dripping(handler)


def test_an_answer_without_end_is_given_up_and_isnt_kept() -> None:
    before = psutil.Process().memory_info().rss
    with serving(answering(endless)) as port, client(timeout=PATIENCE) as mine:
        with pytest.raises(TooLarge, match=f"longer than {FOREIGN_OUTPUT} bytes"):
            ask(mine, "GET", f"http://127.0.0.1:{port}/")
        with pytest.raises(JupyterError, match="doesn't answer"):
            Jupyter(f"http://127.0.0.1:{port}", "token").used()
    assert psutil.Process().memory_info().rss - before < 100_000_000


@pytest.mark.slow
@pytest.mark.parametrize("drip", [dripping, dripping_headers])
def test_an_answer_that_drips_is_given_up(drip: Callable[[BaseHTTPRequestHandler], None]) -> None:
    began = time.monotonic()
    with serving(answering(drip)) as port, client(timeout=PATIENCE) as mine, pytest.raises(httpx.TimeoutException):
        ask(mine, "GET", f"http://127.0.0.1:{port}/", seconds=0.3)
    assert time.monotonic() - began < PATIENCE


def test_an_answer_comes_as_it_is() -> None:
    with (
        serving(answering(lambda handler: handler.wfile.write(b'{"a": 1}') and None)) as port,
        client(timeout=PATIENCE) as mine,
    ):
        answer = ask(mine, "GET", f"http://127.0.0.1:{port}/x")
        assert (answer.json(), answer.status_code, answer.url.path) == ({"a": 1}, 200, "/x")


@pytest.fixture(params=["one message", "many messages"])
def shouting(request: pytest.FixtureRequest) -> Iterator[str]:
    """A kernel that answers a cell without end."""

    def shout(channel: ServerConnection) -> None:
        asked = json.loads(channel.recv())
        stream = {"header": {"msg_type": "stream"}, "parent_header": asked["header"]}
        if request.param == "one message":
            channel.send(json.dumps({**stream, "content": {"text": "x" * (2 << 20)}}))
        while True:
            channel.send(json.dumps({**stream, "content": {"text": "x" * 1000}}))

    with serve(shout, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_kernel_that_answers_without_end_is_given_up(shouting: str) -> None:
    with pytest.raises((JupyterError, ConnectionClosedError)) as given_up:
        Jupyter(shouting, "token")._executed("kernel", "print(1)", time.monotonic() + PATIENCE)
    assert "without end" in str(given_up.value) or "1009" in str(given_up.value)
