"""A web server that answers as a registry does, as far as a test says, and a client of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from flows.core.settings import Settings
from flows.images.manifests import MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from tests.support.waiting import serving

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


NOT_THERE: Answer = (404, {}, b"")


def ping(request: BaseHTTPRequestHandler) -> bool:
    return request.path == "/v2/"


def image(config: bytes, *layers: bytes) -> Manifest:
    content = canonical({"config": descriptor("c", config), "layers": [descriptor("l", layer) for layer in layers]})
    return Manifest(digest_of(content), MANIFEST, content)


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
