"""Uploads and copies: what the registry has, has lost, or loses in the middle."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from tempfile import TemporaryFile

import pytest

from flows.core.settings import Settings
from flows.images.manifests import MANIFEST, canonical, digest_of
from flows.images.registry_errors import BlobLost, RegistryError
from tests.support.small_registry import HELLO, LARGE, NOT_THERE, Answer, Unsteady, client, image, ping, server


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
        return (
            HELLO
            if request.path == "/v2/"
            else ((status, {}, said.encode()) if request.command == "PUT" else NOT_THERE)
        )

    with server(full) as port, pytest.raises(RegistryError, match=f"is {problem}") as caught:
        client(settings, port).put_blob("images", b"content")
    assert said in caught.value.why


def test_an_upload_that_is_sent_nowhere(settings: Settings) -> None:
    def nowhere(request: BaseHTTPRequestHandler) -> Answer:
        return (
            (202, {"Location": "http://[::"}, b"")
            if request.command == "POST"
            else HELLO
            if ping(request)
            else NOT_THERE
        )

    with server(nowhere) as port, pytest.raises(RegistryError, match="doesn't answer as"):
        client(settings, port).put_blob("images", b"content")


def test_what_the_registry_has_lost_of_an_image_is_found(settings: Settings) -> None:
    there = {digest_of(content) for content in (b"config", b"first")}

    def lossy(request: BaseHTTPRequestHandler) -> Answer:
        if request.command == "POST":
            return 202, {"Location": "/v2/elsewhere/blobs/uploads/1"}, b""
        return HELLO if ping(request) or request.path.rpartition("/")[2] in there else NOT_THERE

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
        return (201, {}, b"") if request.command == "PUT" else NOT_THERE

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
        result = client(settings, port)
        with TemporaryFile() as copy:
            result.get_file("images", digest_of(LARGE), copy, len(LARGE))
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
