"""The registry client against servers that answer badly: a person is told which host, why, and which setting."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from tempfile import TemporaryFile

import pytest

from flows.core.settings import Settings
from flows.images.manifests import MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import BlobLost, RegistryError
from tests.support.small_registry import HELLO, NOT_THERE, Answer, client, image, ping, plain, server
from tests.support.waiting import free_port


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


def unfinished(request: BaseHTTPRequestHandler) -> Answer:
    said = b'{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":{}}]}'
    return HELLO if ping(request) else (500, {}, said)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [Registry.digest, Registry.find, Registry.has_blob, Registry.tags, Registry.get_file])
def test_what_somebody_is_just_writing_is_read_a_moment_later(settings: Settings, reads: Callable[..., object]) -> None:
    asked: list[str] = []

    def unfinished_at_first(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        return unfinished(request) if len(asked) < 4 else NOT_THERE

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
    digest = digest_of(b"the right content")

    def forged(request: BaseHTTPRequestHandler) -> Answer:
        return HELLO if request.path == "/v2/" else (200, {"Docker-Content-Digest": digest}, b'{"layers": []}')

    with server(forged) as port:
        registry = client(settings, port)
        with pytest.raises(RegistryError, match="doesn't answer as"):
            registry.manifest("images", digest)
        with pytest.raises(RegistryError, match="doesn't answer as"):
            registry.blob("images", digest, 100)


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


def test_what_is_missing_is_said(settings: Settings) -> None:
    with server(plain("nothing")) as port:
        registry = client(settings, port)
        assert registry.digest("images", "tag") is None
        assert registry.tags("images") == ()
        with pytest.raises(RegistryError, match="has no images:tag"):
            registry.manifest("images", "tag")


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
