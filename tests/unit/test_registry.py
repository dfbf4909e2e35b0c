"""The registry client against servers that answer badly: a person is told which host, why, and which setting."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from flows.images.registry import MANIFEST, Manifest, Registry, RegistryError, canonical, descriptor, digest_of
from flows.settings import Settings
from tests.conftest import free_port

Answer = tuple[int, Mapping[str, str], bytes]
HELLO: Answer = (200, {"Docker-Distribution-Api-Version": "registry/2.0"}, b"{}")


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], Answer]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = answer(self)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield listening.server_port
    finally:
        listening.shutdown()
        listening.server_close()


def client(settings: Settings, port: int, **more: object) -> Registry:
    return Registry(settings.model_copy(update={"registry_port": port, **more}))


def plain(path: str) -> Callable[[BaseHTTPRequestHandler], Answer]:
    return lambda request: HELLO if request.path == "/v2/" else (404, {}, path.encode())


def test_a_manifest_counts_the_bytes_of_all_its_layers() -> None:
    document = {"config": descriptor("c", b"12"), "layers": [descriptor("l", b"345"), descriptor("l", b"6")]}
    content = canonical(document)
    assert Manifest(digest_of(content), MANIFEST, content).size == 6


def test_a_digest_is_that_of_the_raw_bytes() -> None:
    assert digest_of(b"{ }\n") == f"sha256:{hashlib.sha256(b'{ }' + bytes([10])).hexdigest()}"


def test_a_registry_that_is_down_names_host_and_setting(settings: Settings) -> None:
    port = free_port()
    with pytest.raises(RegistryError, match=f"127.0.0.1:{port}") as caught:
        client(settings, port).digest("images", "tag")
    assert "registry_port" in caught.value.fix


def test_a_registry_that_comes_back_in_time_is_no_error(settings: Settings) -> None:
    asked: list[str] = []

    def busy_at_first(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        return HELLO if len(asked) > 2 else (503, {}, b"")

    with server(busy_at_first) as port:
        client(settings, port).ping()
    assert len(asked) == 3


@pytest.mark.parametrize(
    "answer",
    [(200, {}, b"<html>hello</html>"), (200, {}, b'{"some": "thing"}'), (404, {}, b"not found"), (302, {}, b"")],
)
def test_another_web_server_is_no_registry(settings: Settings, answer: Answer) -> None:
    with (
        server(lambda _: answer) as port,
        pytest.raises(RegistryError, match="doesn't answer as an image registry") as caught,
    ):
        client(settings, port).digest("images", "tag")
    assert f"127.0.0.1:{port}" in str(caught.value)


def test_a_server_that_speaks_no_http(settings: Settings) -> None:
    def rubbish(request: BaseHTTPRequestHandler) -> Answer:
        request.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        request.close_connection = True
        return HELLO

    with server(rubbish) as port, pytest.raises(RegistryError, match="doesn't answer as an image registry"):
        client(settings, port).ping()


def test_content_that_is_not_what_its_digest_says_is_refused(settings: Settings) -> None:
    wanted = digest_of(b"the right content")

    def forged(request: BaseHTTPRequestHandler) -> Answer:
        return HELLO if request.path == "/v2/" else (200, {"Docker-Content-Digest": wanted}, b'{"layers": []}')

    with server(forged) as port:
        registry = client(settings, port)
        with pytest.raises(RegistryError, match="doesn't answer as"):
            registry.manifest("images", wanted)
        with pytest.raises(RegistryError, match="doesn't answer as"):
            registry.blob("images", wanted)


@pytest.mark.parametrize("body", [b"not json", b"[]"])
def test_a_manifest_that_is_no_manifest(settings: Settings, body: bytes) -> None:
    with server(lambda request: HELLO if request.path == "/v2/" else (200, {}, body)) as port:
        registry = client(settings, port)
        with pytest.raises(RegistryError, match="doesn't answer as"):
            registry.manifest("images", "tag")


@pytest.mark.parametrize(
    ("status", "said", "problem"),
    [
        (507, "Insufficient Storage", "full"),
        (500, '{"errors":[{"detail":{"Op":"mkdir","Err":28}}]}', "full"),
        (500, "write /x: no space left on device", "full"),
        (500, "something else", "broken"),
    ],
)
def test_a_registry_that_cannot_store(settings: Settings, status: int, said: str, problem: str) -> None:
    def full(request: BaseHTTPRequestHandler) -> Answer:
        if request.command == "POST":
            return 202, {"Location": "/v2/images/blobs/uploads/1"}, b""
        return HELLO if request.path == "/v2/" else ((status, {}, said.encode()) if request.command == "PUT" else _NO)

    with server(full) as port, pytest.raises(RegistryError, match=f"is {problem}") as caught:
        client(settings, port).put_blob("images", b"content")
    assert said in caught.value.why


_NO: Answer = (404, {}, b"")


def test_what_is_missing_is_said(settings: Settings) -> None:
    with server(plain("nothing")) as port:
        registry = client(settings, port)
        assert registry.digest("images", "tag") is None
        assert registry.tags("images") == ()
        with pytest.raises(RegistryError, match="has no images:tag"):
            registry.manifest("images", "tag")


def _needs(credentials: str, challenge: str, request: BaseHTTPRequestHandler) -> Answer:
    if request.headers.get("Authorization") == credentials:
        return HELLO
    return 401, {"WWW-Authenticate": challenge}, b"{}"


def test_basic_authentication(settings: Settings) -> None:
    word = "Basic " + base64.b64encode(b"ann:secret").decode()
    with server(lambda request: _needs(word, 'Basic realm="x"', request)) as port:
        client(settings, port, registry_user="ann", registry_password=SecretStr("secret")).ping()
        with pytest.raises(RegistryError, match="refuses") as caught:
            client(settings, port, registry_user="ann", registry_password=SecretStr("wrong")).ping()
        assert "registry_password" in caught.value.fix
        assert "wrong" not in str(caught.value)


def test_bearer_token_authentication(settings: Settings) -> None:
    asked: list[str] = []

    def tokens(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        assert request.headers["Authorization"] == "Basic " + base64.b64encode(b"ann:secret").decode()
        return 200, {}, json.dumps({"token": "t0ken"}).encode()

    with server(tokens) as realm:
        challenge = f'Bearer realm="http://127.0.0.1:{realm}/token",service="reg",scope="repository:images:pull"'
        with server(lambda request: _needs("Bearer t0ken", challenge, request)) as port:
            registry = client(settings, port, registry_user="ann", registry_password=SecretStr("secret"))
            registry.ping()
            registry.ping()
    assert asked == ["/token?service=reg&scope=repository%3Aimages%3Apull"]
