"""The registry client against servers that answer badly: a person is told which host, why, and which setting."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from tempfile import TemporaryFile

import pytest
from pydantic import SecretStr

from flows.core.settings import Settings
from flows.images.manifests import MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import BlobLost, RegistryError
from tests.support.waiting import free_port, serving

Answer = tuple[int, Mapping[str, str], bytes]
HELLO: Answer = (200, {"Docker-Distribution-Api-Version": "registry/2.0"}, b"{}")


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], Answer]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
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

    with serving(Handler) as port:
        yield port


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


@pytest.mark.slow
def test_a_registry_that_is_down_names_host_and_setting(settings: Settings) -> None:
    port = free_port()
    with pytest.raises(RegistryError, match=f"127.0.0.1:{port}") as caught:
        client(settings, port).digest("images", "tag")
    assert "registry_port" in caught.value.hint


@pytest.mark.slow
def test_a_registry_that_comes_back_in_time_is_no_error(settings: Settings) -> None:
    asked: list[str] = []

    def busy_at_first(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        return HELLO if len(asked) > 2 else (503, {}, b"")

    with server(busy_at_first) as port:
        client(settings, port).ping()
    assert len(asked) == 3


@pytest.mark.slow
def test_a_blob_that_somebody_else_stores_just_then_is_waited_for(settings: Settings) -> None:
    asked: list[str] = []
    unknown = b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"blob unknown to registry"}]}'

    def unknown_at_first(request: BaseHTTPRequestHandler) -> Answer:
        if request.command != "PUT":
            return HELLO
        asked.append(request.path)
        return (201, {}, b"") if len(asked) > 1 else (400, {}, unknown)

    with server(unknown_at_first) as port:
        assert client(settings, port).put_manifest("images", "tag", b"{}", MANIFEST) == digest_of(b"{}")
    assert len(asked) == 2


def unfinished(request: BaseHTTPRequestHandler) -> Answer:
    said = b'{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":{}}]}'
    return HELLO if ping(request) else (500, {}, said)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [Registry.digest, Registry.find, Registry.has_blob, Registry.tags, Registry.get_file])
def test_what_somebody_is_just_writing_is_read_a_moment_later(settings: Settings, reads: Callable[..., object]) -> None:
    asked: list[str] = []

    def unfinished_at_first(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        return unfinished(request) if len(asked) < 4 else _NO

    with server(unfinished_at_first) as port, TemporaryFile() as target, suppress(BlobLost):
        given = {Registry.tags: (), Registry.get_file: (digest_of(b""), target, 9)}.get(reads, (digest_of(b""),))
        assert not reads(client(settings, port), "images", *given)
    assert len(asked) == 4 + (reads is Registry.get_file)  # that asks whether a blob that isn't given is there


@pytest.mark.slow
def test_what_can_not_be_read_for_long_is_broken_and_what_can_not_be_stored_at_once(settings: Settings) -> None:
    asked: list[str] = []

    def broken(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.command)
        return unfinished(request)

    with server(broken) as port:
        registry = client(settings, port)
        with pytest.raises(RegistryError, match="is broken"):
            registry.find("images", "tag")
        with pytest.raises(RegistryError, match="is broken"):
            registry.put_manifest("images", "tag", b"{}", MANIFEST)
    assert asked == ["GET", *["GET"] * 4, "PUT"]


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


@pytest.mark.slow
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
            registry.blob("images", wanted, 100)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b"{}",
        canonical({"config": descriptor("c", b"")}),
        canonical({"config": descriptor("c", b""), "layers": 7}),
        canonical({"config": descriptor("c", b""), "layers": [{"size": 1}]}),
        canonical({"config": {"digest": "../../tags/list", "size": 1}, "layers": []}),
        canonical({"config": descriptor("c", b"", annotations=None), "layers": []}),
        canonical({"manifests": [descriptor("m", b""), "another"]}),
    ],
)
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
        assert "registry_password" in caught.value.hint
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
            login: dict[str, object] = {"registry_user": "ann", "registry_password": SecretStr("secret")}
            registry = client(settings, port, registry_realms=(f"http://127.0.0.1:{realm}",), **login)
            registry.ping()
            registry.ping()
    assert asked == ["/token?service=reg&scope=repository%3Aimages%3Apull"]


@pytest.mark.parametrize(
    "body", [b"not json", b"null", b"[]", b'"tags"', b'{"tags": 7}', b'{"tags": [7]}', b'{"manifests": {}}']
)
def test_lists_that_are_none(settings: Settings, body: bytes) -> None:
    with server(lambda request: HELLO if request.path == "/v2/" else (200, {}, body)) as port:
        registry = client(settings, port)
        asked = registry.referrers if b"manifests" in body else lambda name, _: registry.tags(name)
        with pytest.raises(RegistryError, match="doesn't answer as"):
            asked("images", digest_of(b""))


def test_a_list_of_tags_without_an_end(settings: Settings) -> None:
    def circle(request: BaseHTTPRequestHandler) -> Answer:
        following = {"Link": '</v2/images/tags/list?n=1000>; rel="next"'}
        return HELLO if request.path == "/v2/" else (200, following, b'{"tags": ["one"]}')

    with server(circle) as port, pytest.raises(RegistryError, match="doesn't answer as"):
        client(settings, port).tags("images")


@pytest.mark.parametrize("config", [b"not json", b"[]", b"{}", b'{"config": null}'])
def test_a_configuration_that_is_none(settings: Settings, config: bytes) -> None:
    manifest = image(config)
    with (
        server(lambda request: HELLO if request.path == "/v2/" else (200, {}, config)) as port,
        pytest.raises(RegistryError, match="doesn't answer as"),
    ):
        client(settings, port).config("images", manifest)


@pytest.mark.parametrize("token", [b"[]", b"7", b'"t0ken"', b"not json"])
def test_a_token_that_is_none(settings: Settings, token: bytes) -> None:
    def tokens(request: BaseHTTPRequestHandler) -> Answer:
        if request.path.startswith("/token"):
            return 200, {}, token
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{request.headers["Host"]}/token"'}, b"{}"

    with server(tokens) as port, pytest.raises(RegistryError, match="refuses"):
        client(settings, port).ping()


def test_an_upload_that_is_sent_nowhere(settings: Settings) -> None:
    def nowhere(request: BaseHTTPRequestHandler) -> Answer:
        return (202, {"Location": "http://[::"}, b"") if request.command == "POST" else HELLO if ping(request) else _NO

    with server(nowhere) as port, pytest.raises(RegistryError, match="doesn't answer as"):
        client(settings, port).put_blob("images", b"content")


def ping(request: BaseHTTPRequestHandler) -> bool:
    return request.path == "/v2/"


def image(config: bytes, *layers: bytes) -> Manifest:
    content = canonical({"config": descriptor("c", config), "layers": [descriptor("l", layer) for layer in layers]})
    return Manifest(digest_of(content), MANIFEST, content)


def test_what_the_registry_has_lost_of_an_image_is_found(settings: Settings) -> None:
    there = {digest_of(content) for content in (b"config", b"first")}

    def lossy(request: BaseHTTPRequestHandler) -> Answer:
        if request.command == "POST":
            return 202, {"Location": "/v2/elsewhere/blobs/uploads/1"}, b""
        return HELLO if ping(request) or request.path.rpartition("/")[2] in there else _NO

    with server(lossy) as port:
        registry = client(settings, port)
        lost = image(b"config", b"first", b"second", b"third", b"second")
        assert registry.missing("images", lost) == (digest_of(b"second"), digest_of(b"third"))
        assert registry.missing("images", image(b"config", b"first")) == ()
        with pytest.raises(BlobLost, match=digest_of(b"second")):
            registry.blob("images", digest_of(b"second"), 6)
        with pytest.raises(BlobLost, match="has lost") as caught:
            registry.mount("elsewhere", digest_of(b"third"), "images", 5)
    assert "refit build" in caught.value.hint


def test_what_is_known_by_its_digest_is_asked_for_once_unless_it_may_be_lost(settings: Settings) -> None:
    config, asked = canonical({"config": {}}), list[str]()
    mine = image(config, b"layer")

    def forgetful(request: BaseHTTPRequestHandler) -> Answer:
        if ping(request):
            return HELLO
        asked.append(f"{request.command} {request.path.split('/')[-2]}")
        if request.command == "POST":
            return 202, {"Location": "/v2/images/blobs/uploads/1"}, b""
        return (201, {}, b"") if request.command == "PUT" else _NO

    with server(forgetful) as port:
        registry = client(settings, port)
        registry.put_config("images", config)
        registry.put_manifest("images", "tag", mine.content, MANIFEST)
        asked.clear()
        assert registry.find("images", mine.digest, recall=True) == mine
        assert registry.config("images", mine) == {"config": {}}
        assert asked == []
        assert registry.find("images", mine.digest) is None  # it has lost it
        assert registry.find("elsewhere", mine.digest, recall=True) is None
        assert registry.missing("images", mine)
        assert asked[:2] == ["GET manifests"] * 2


class Unsteady:
    """A registry that holds blobs, and whose connections break: by what it got or gave, as often as it is told."""

    def __init__(self, breaks: int, **held: bytes) -> None:
        self.breaks, self.uploads = breaks, 0
        self.held = {digest_of(content): content for content in held.values()}

    @contextmanager
    def serve(self) -> Iterator[int]:
        unsteady = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def say(self, status: int, content: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def breaks(self) -> bool:
                unsteady.breaks -= 1
                self.close_connection = unsteady.breaks >= 0
                return self.close_connection

            def do_GET(self) -> None:
                content = b"{}" if ping(self) else unsteady.held.get(self.path.rpartition("/")[2])
                if content is None:
                    self.say(404)
                elif self.command == "GET" and not ping(self) and self.breaks():
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content[: len(content) // 2])
                else:
                    self.say(200, content)

            do_HEAD = do_GET  # noqa: N815

            def do_POST(self) -> None:
                unsteady.uploads += 1
                self.say(202, Location=f"/v2/images/blobs/uploads/{unsteady.uploads}")

            def do_DELETE(self) -> None:
                self.say(204)

            def do_PUT(self) -> None:
                length = int(self.headers["Content-Length"])
                if self.breaks():
                    self.rfile.read(length // 2)
                    return
                content = self.rfile.read(length)
                unsteady.held[digest_of(content)] = content
                self.say(201)

            def log_message(self, *_: object) -> None:
                pass

        with serving(Handler) as port:
            yield port


LARGE = bytes(range(256)) * 40_000


@pytest.mark.slow
def test_an_upload_that_breaks_begins_anew_and_whole(settings: Settings) -> None:
    registry = Unsteady(2)
    with registry.serve() as port:
        digest = client(settings, port).put_blob("images", LARGE)
    assert registry.held[digest] == LARGE
    assert registry.uploads == 3


@pytest.mark.slow
def test_a_copy_whose_download_breaks_is_whole(settings: Settings) -> None:
    registry = Unsteady(2, large=LARGE)
    whole = registry.held.copy()

    with registry.serve() as port:
        found = client(settings, port)
        with TemporaryFile() as copy:
            found.get_file("images", digest_of(LARGE), copy, len(LARGE))
            assert copy.read() == LARGE
    assert whole == registry.held
    assert registry.breaks < 0


@pytest.mark.slow
def test_connections_that_break_for_ever_are_an_error_of_the_registry(settings: Settings) -> None:
    with Unsteady(1000, large=LARGE).serve() as port, TemporaryFile() as copy:
        registry, unreachable = client(settings, port), f"The image registry 127.0.0.1:{port} doesn't answer"
        with pytest.raises(RegistryError, match=unreachable):
            registry.put_blob("images", b"another")
        with pytest.raises(RegistryError, match=unreachable):
            registry.get_file("images", digest_of(LARGE), copy, len(LARGE))


def test_a_body_is_sent_again_when_the_registry_wants_a_new_token(settings: Settings) -> None:
    got: list[bytes] = []

    def expiring(request: BaseHTTPRequestHandler) -> Answer:
        if request.command == "POST":
            return 202, {"Location": "/v2/images/blobs/uploads/1"}, b""
        if request.command != "PUT":
            return HELLO if ping(request) else _NO
        got.append(request.body)  # type: ignore[attr-defined]
        return (201, {}, b"") if len(got) > 1 else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"{}")

    with server(expiring) as port:
        client(settings, port, registry_user="ann").put_blob("images", LARGE)
    assert got == [LARGE, LARGE]
