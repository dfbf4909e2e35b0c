"""A registry that sends elsewhere: no other host gets the login."""

from __future__ import annotations

import json
import secrets
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.core.settings import Settings
from flows.images.manifests import digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.images.stages import Kind, Stage
from tests.support.certificates import make_authority
from tests.support.liars import PASSWORD, USER, WORD, Eavesdropper, Liar, Lie, Request, Said
from tests.support.lies import (
    IMAGES,
    LAYER,
    Scene,
    build,
    client,
    download,
    find,
    list_tags,
    of,
    redirect,
    upload,
    where,
)
from tests.support.machine import RegistryServer


@pytest.fixture
def elsewhere() -> Iterator[Eavesdropper]:
    def reply(request: Request) -> Said:
        body = LAYER if "layer" in request.path else b"{}"
        return Said(200, {"content-length": str(len(body)), "location": "/x"}, body)

    with Eavesdropper(reply).serve() as eavesdropper:
        yield eavesdropper


def refusing(scheme: str) -> Callable[[Request], Said]:
    def reply(request: Request) -> Said:
        realm = f"http://{request.headers['Host']}/token"
        return Said(401, {"www-authenticate": f'{scheme} realm="{realm}"', "content-length": "0"})

    return reply


def test_redirect_of_a_blob_to_another_host(scene: Scene, elsewhere: Eavesdropper) -> None:
    scene.hear(redirect(f"{elsewhere.url}/layer"))
    assert download(scene.registry) == LAYER
    assert elsewhere.told and not elsewhere.knows


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_redirect_of_a_blob_to_another_host_that_asks_for_a_login(
    scene: Scene, elsewhere: Eavesdropper, scheme: str
) -> None:
    elsewhere.reply = refusing(scheme)
    scene.hear(redirect(f"{elsewhere.url}/layer"))
    with pytest.raises(RegistryError, match="refuses"):
        download(scene.registry)
    assert len(elsewhere.told) == 1 and not elsewhere.knows


def test_redirect_with_a_login_in_it(scene: Scene, elsewhere: Eavesdropper) -> None:
    scene.hear(redirect(f"http://{USER}:{PASSWORD}@127.0.0.1:{elsewhere.port}/layer"))
    assert download(scene.registry) == LAYER
    assert not elsewhere.knows


def test_redirect_to_another_host_and_back(scene: Scene, elsewhere: Eavesdropper) -> None:
    back = f"http://127.0.0.1:{scene.liar.port}/v2/{IMAGES}/blobs/{digest_of(LAYER)}?back"
    elsewhere.reply = lambda _: Said(302, {"location": back, "content-length": "0"})
    lie = redirect(f"{elsewhere.url}/layer")
    scene.hear(lambda request, said: said if request.path.endswith("?back") else lie(request, said))
    assert download(scene.registry) == LAYER
    assert elsewhere.told and not elsewhere.knows


@pytest.mark.parametrize("deed", [upload, Registry.try_storing])
def test_upload_with_a_location_at_another_host(
    scene: Scene, elsewhere: Eavesdropper, deed: Callable[[Registry], object]
) -> None:
    scene.hear(where(of("uploads", "POST"), lambda _, said: said.but(location=f"{elsewhere.url}/x")))
    with pytest.raises(RegistryError, match="sends an upload to another address") as caught:
        deed(scene.registry)
    assert elsewhere.url in caught.value.why
    assert not elsewhere.told


def test_next_page_at_another_host(scene: Scene, elsewhere: Eavesdropper) -> None:
    scene.hear(where(of("tags"), lambda _, said: said.but(link=f'<{elsewhere.url}/x>; rel="next"')))
    with pytest.raises(RegistryError, match="sends the next page to another address"):
        list_tags(scene.registry)
    assert not elsewhere.told


def bearer(realm: str) -> Lie:
    def lie(request: Request, said: Said) -> Said:
        if request.headers["Authorization"] == "Bearer t0ken":
            return said
        return Said(401, {"www-authenticate": f'Bearer realm="{realm}/token",service="x"', "content-length": "0"})

    return lie


class TokenLiar(Liar):
    """One that asks for tokens alone."""

    needs_login = False


def test_realm_at_another_host(truthful: RegistryServer, elsewhere: Eavesdropper, settings: Settings) -> None:
    with TokenLiar(truthful.port, bearer(elsewhere.url)).serve() as liar:
        with pytest.raises(RegistryError, match="sends us to") as caught:
            find(client(settings, liar.port))
        assert f"registry_realms: ['{elsewhere.url}']" in caught.value.hint
        assert not elsewhere.told
        elsewhere.reply = lambda _: Said(200, {"content-length": "17"}, b'{"token":"t0ken"}')
        assert find(client(settings, liar.port, registry_realms=(elsewhere.url,)))
        assert all(f"Basic {WORD}" in told for told in elsewhere.told)
        elsewhere.told.clear()
        # Nobody's password: anybody may ask for a token of nobody's.
        assert find(client(settings, liar.port, registry_user=""))
        assert elsewhere.told and not elsewhere.knows


@pytest.mark.parametrize("token", [["t0ken"], "t0\nken: x", "tökén", "", None, "x" * 20_000])
def test_a_token_that_is_no_header(
    truthful: RegistryServer, elsewhere: Eavesdropper, settings: Settings, token: object
) -> None:
    body = json.dumps({"token": token}).encode()
    elsewhere.reply = lambda _: Said(200, {"content-length": str(len(body))}, body)
    with TokenLiar(truthful.port, bearer(elsewhere.url)).serve() as liar, pytest.raises(RegistryError, match="refuses"):
        find(client(settings, liar.port, registry_realms=(elsewhere.url,)))


def test_a_secure_registry_sends_nobody_to_plain_http(
    truthful: RegistryServer, elsewhere: Eavesdropper, settings: Settings, tmp_path: Path
) -> None:
    authority = make_authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate, authority.key)
    secure = {"registry_tls": True, "ca_bundle": authority.bundle}
    with Liar(truthful.port, tls=context).serve() as liar:
        registry = client(settings, liar.port, **secure)
        assert find(registry)
        liar.lie = redirect(f"{elsewhere.url}/layer")
        with pytest.raises(RegistryError, match="from https to 'http:"):
            download(registry)
        plain = f"http://127.0.0.1:{liar.port}/v2/x"
        liar.lie = where(of("uploads", "POST"), lambda _, said: said.but(location=plain))
        with pytest.raises(RegistryError, match="from https to 'http:"):
            upload(registry)
        assert not elsewhere.told
    with TokenLiar(truthful.port, bearer(elsewhere.url), tls=context).serve() as liar:
        with pytest.raises(RegistryError, match="sends us to"):
            find(client(settings, liar.port, registry_realms=(elsewhere.url,), **secure))
        assert not elsewhere.told


@pytest.mark.parametrize("to", ["location", "realm"])
def test_buildah_is_given_no_password_for_a_registry_that_sends_elsewhere(
    workshop: tuple[Liar, Settings], elsewhere: Eavesdropper, to: str
) -> None:
    liar, settings = workshop
    challenge = {"www-authenticate": f'Bearer realm="{elsewhere.url}/token"', "content-length": "0"}

    def lie(request: Request, said: Said) -> Said:
        if to == "realm":
            return Said(401, challenge)
        return said.but(location=f"{elsewhere.url}/x") if request.command == "POST" else said

    liar.lie = lie
    stage = Stage(f"sent-{to}", Kind.instructions, None, "COPY files/x /x", {"files/x": secrets.token_bytes(9)})
    with pytest.raises(RegistryError, match="to another address" if to == "location" else "refuses"):
        build(settings, stage)
    assert not elsewhere.told
