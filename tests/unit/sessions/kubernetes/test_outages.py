"""An API server that is away, or has too much to do, seen by a connection that had an answer before, and by one that
had none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
import yaml
from websockets.exceptions import InvalidMessage

from flows.sessions.kubernetes import api_server, cluster
from flows.sessions.kubernetes.cluster import Cluster, ClusterError
from flows.sessions.kubernetes.manifests import ClusterOptions
from flows.sessions.kubernetes.refusals import ClusterAway
from tests.support.waiting import free_port

OPTIONS = ClusterOptions("registry.example.com", "images")
POD = {"metadata": {"name": "p", "resourceVersion": "1"}}


class Server:
    """An API server that gives these answers first, then good ones; it remembers what it was asked."""

    def __init__(self, port: int, *first: int) -> None:
        self.asked: list[str] = []
        answers, asked = list(first), self.asked

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                asked.append(self.command)
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status = answers.pop(0) if answers else 200
                if not status:  # it dies with the answer in its hand
                    self.close_connection = True
                    return
                content = json.dumps(POD if status == 200 else {"message": f"no: {status}"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        for method in ("GET", "POST", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    port = free_port()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(api_server, "OUTAGE_PAUSE_SECONDS", 0.02)
    return port


def test_a_cluster_that_never_answered_is_not_waited_for(port: int) -> None:
    begun = time.monotonic()
    with pytest.raises(ClusterAway, match="doesn't answer"):
        Cluster(OPTIONS).list("pods")
    assert time.monotonic() - begun < api_server._OUTAGE_SECONDS / 2


def test_one_that_comes_back_is_waited_for(port: int) -> None:
    asked = Cluster(OPTIONS)
    with Server(port).running():
        assert asked.find("pods", "p") == POD
    second = Server(port)
    Timer(0.3, lambda: Thread(target=second._server.serve_forever, daemon=True).start()).start()
    assert asked.patch("pods", "p", {}) == POD
    second._server.shutdown()
    second._server.server_close()


@pytest.mark.parametrize("status", [429, 503])
def test_one_that_has_too_much_to_do_is_asked_again(port: int, status: int) -> None:
    with Server(port, 200, status, status).running() as server:
        asked = Cluster(OPTIONS)
        asked.find("pods", "p")
        assert asked.create("pods", POD) == POD
    assert server.asked == ["GET", "POST", "POST", "POST"]


def test_what_it_says_at_last_is_told(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "_OUTAGE_SECONDS", 0.1)
    with Server(port, 200, *[429] * 100).running():
        asked = Cluster(OPTIONS)
        asked.find("pods", "p")
        with pytest.raises(ClusterError, match="refuses to get pods") as error:
            asked.find("pods", "p")
    assert "too much to do" in error.value.hint


def test_a_lost_answer_is_asked_for_again_but_nothing_is_made_twice(port: int) -> None:
    with Server(port, 200, 0, 200, 0).running() as server:
        asked = Cluster(OPTIONS)
        asked.find("pods", "p")
        assert asked.patch("pods", "p", {}) == POD
        with pytest.raises(ClusterAway):
            asked.create("pods", POD)
    assert server.asked == ["GET", "PATCH", "PATCH", "POST"]


@pytest.mark.parametrize("failure", [InvalidMessage("no answer"), ConnectionResetError(), TimeoutError()])
def test_a_program_is_begun_by_another_connection_where_one_got_no_answer(
    port: int, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    answers: list[Exception | Told] = [failure, failure, Told()]

    def socket(*_: object) -> Told:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(cluster, "socket", socket)
    monkeypatch.setattr(cluster, "OUTAGE_PAUSE_SECONDS", 0.02)
    with Cluster(OPTIONS).program("p", "c", ["id"]) as program:
        assert [*program.output(5, 100)] == [b"uid=0"]


def test_a_handshake_whose_answer_is_lost_leaves_time_for_another_one(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def socket(*asked: Any) -> Told:
        given.append(asked[-1])
        if len(given) == 1:
            raise TimeoutError
        return Told()

    monkeypatch.setattr(cluster, "socket", socket)
    with Cluster(OPTIONS).program("p", "c", ["id"]):
        pass
    first, second = given
    assert first < cluster._CONNECT_SECONDS * 2 / 3 and second < first


class Told:
    """A connection to a program that says its user and ends."""

    def __init__(self) -> None:
        self._messages = [b"\1uid=0", b'\3{"status": "Success"}']

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, data: bytes) -> None:
        assert data == b"\0" + b"0\n"

    def recv(self, **_: object) -> bytes:
        return self._messages.pop(0)


def test_a_question_stands_behind_those_of_others_for_seconds_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_QUEUE_SECONDS", 0.01)
    asked = Cluster(OPTIONS)
    monkeypatch.setattr(asked, "each", lambda *_, **__: ("told",))
    for _ in range(cluster._QUESTIONS):
        assert asked._questions.acquire(blocking=False)  # by questions that the API server doesn't answer
    assert asked.of_session("pods", "ada", "session", dict) == ("told",)
    asked._questions.release()
    assert asked.of_session("pods", "ada", "session", dict) == ("told",)
    assert asked._questions.acquire(blocking=False) and not asked._questions.acquire(blocking=False)
