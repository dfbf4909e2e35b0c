"""Whether what recipes download can be had here: only a clear no counts."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import pytest

from flows.core.settings import Settings
from flows.images.builder import fetching
from tests.support.waiting import PATIENCE, free_port, serving


class Picky(BaseHTTPRequestHandler):
    """Answers GET alone, and not for everything."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/there" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Slow(Picky):
    """Doesn't answer before the patience of whoever asks has ended."""

    def do_GET(self) -> None:
        self.connection.settimeout(20)
        self.rfile.read(1)  # until the other side hangs up


@pytest.mark.slow
def test_only_what_is_surely_not_to_be_had_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PATIENCE", PATIENCE)
    nobody = f"http://127.0.0.1:{free_port()}/"
    with serving(Picky) as port, serving(Slow) as slow:
        there, gone = f"http://127.0.0.1:{port}/there", f"http://127.0.0.1:{port}/gone"
        result = fetching.unreachable([there, gone, nobody], settings)
        monkeypatch.setattr(fetching, "_PATIENCE", 0.2)
        assert not fetching.unreachable([f"http://127.0.0.1:{slow}/"], settings)
    assert result.keys() == {gone, nobody}
    assert result[gone] == "it answers 404"


def test_nothing_is_asked_for_nothing(settings: Settings) -> None:
    assert fetching.unreachable([], settings) == {}
