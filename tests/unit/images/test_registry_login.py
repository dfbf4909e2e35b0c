"""Logins at a registry: passwords, tokens, and answers that are no token."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler

import pytest
from pydantic import SecretStr

from flows.core.settings import Settings
from flows.images.registry_errors import RegistryError
from tests.support.small_registry import HELLO, LARGE, NOT_THERE, Answer, client, ping, server


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


@pytest.mark.parametrize("token", [b"[]", b"7", b'"t0ken"', b"not json"])
def test_a_token_that_is_none(settings: Settings, token: bytes) -> None:
    def tokens(request: BaseHTTPRequestHandler) -> Answer:
        if request.path.startswith("/token"):
            return 200, {}, token
        return 401, {"WWW-Authenticate": f'Bearer realm="http://{request.headers["Host"]}/token"'}, b"{}"

    with server(tokens) as port, pytest.raises(RegistryError, match="refuses"):
        client(settings, port).ping()


def test_a_body_is_sent_again_when_the_registry_wants_a_new_token(settings: Settings) -> None:
    got: list[bytes] = []

    def expiring(request: BaseHTTPRequestHandler) -> Answer:
        if request.command == "POST":
            return 202, {"Location": "/v2/images/blobs/uploads/1"}, b""
        if request.command != "PUT":
            return HELLO if ping(request) else NOT_THERE
        got.append(request.body)  # type: ignore[attr-defined]
        return (201, {}, b"") if len(got) > 1 else (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"{}")

    with server(expiring) as port:
        client(settings, port, registry_user="ann").put_blob("images", LARGE)
    assert got == [LARGE, LARGE]
