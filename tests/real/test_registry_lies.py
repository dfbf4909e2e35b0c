"""The client against a registry that lies: a real one, behind a proxy that changes what it says.

Whatever it says, the client ends in time, takes little memory, tells the password to nobody else, and takes nothing for
what it isn't.
"""

from __future__ import annotations

import json
import secrets
import ssl
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event

import pytest
from pydantic import SecretStr

from flows.core import command, progress
from flows.core.errors import RefitError
from flows.core.progress import Report, State
from flows.core.settings import Settings
from flows.images import registry as module
from flows.images.build import Builder, Built
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import NoAnswer, RegistryError
from flows.images.stages import Kind, Stage
from tests.support.certificates import make_authority
from tests.support.liars import PASSWORD, USER, WORD, Eavesdropper, Liar, Lie, Request, Said, honest, nothing
from tests.support.machine import RegistryServer, private_home, serve_registry
from tests.support.waiting import free_port

IMAGES = "images"
LAYER, CONFIGURATION = secrets.token_bytes(1 << 20), canonical({"config": {}, "rootfs": {"diff_ids": []}})
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
IMAGE = canonical(
    {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, CONFIGURATION),
        "layers": [descriptor(GZIP, LAYER)],
    }
)
DIGEST = digest_of(IMAGE)
DEEP = b"[" * 200_000 + b"]" * 200_000
HTML = Said(200, {"content-type": "text/html", "content-length": "18"}, b"<html>hello</html>")
MOST_MEMORY = 48 << 20  # bytes; four megabytes of a manifest, and what they are as data
MOST_SECONDS = 60.0  # on a machine that has a lot to do
SHORT_SECONDS = 1.0  # for what would never end


@pytest.fixture(scope="module")
def truthful(tmp_path_factory: pytest.TempPathFactory, module_settings: Settings) -> Iterator[RegistryServer]:
    """A registry of this module's, with an image in it."""
    with serve_registry(tmp_path_factory.mktemp("truthful")) as server:
        registry = Registry(module_settings.model_copy(update={"registry_port": server.port}))
        registry.put_blob(IMAGES, LAYER)
        registry.put_blob(IMAGES, CONFIGURATION)
        registry.put_manifest(IMAGES, "tag", IMAGE, MANIFEST)
        yield server


@pytest.fixture(scope="module")
def module_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("liars"))


@dataclass
class Scene:
    """A liar in front of a registry, and a client that knows its password."""

    liar: Liar
    registry: Registry

    def hear(self, lie: Lie) -> None:
        """Lie from now on; what the client has asked before was answered honestly."""
        self.liar.lie = lie


@pytest.fixture
def scene(truthful: RegistryServer, settings: Settings) -> Iterator[Scene]:
    with Liar(truthful.port).serve() as liar:
        yield Scene(liar, client(settings, liar.port))


def client(settings: Settings, port: int, **more: object) -> Registry:
    login = {"registry_port": port, "registry_user": USER, "registry_password": SecretStr(PASSWORD)}
    return Registry(settings.model_copy(update={**login, "registry_wait_seconds": 3.0, **more}))


# --- What is said is not what is there ----------------------------------------------------------------------------


def of(kind: str, *methods: str) -> Callable[[Request], bool]:
    """Requests for manifests, blobs or tags."""
    return lambda request: f"/{kind}/" in request.path and request.command in (methods or ("GET",))


def where(asked: Callable[[Request], bool], lie: Lie) -> Lie:
    """Lie to these requests alone."""
    return lambda request, said: lie(request, said) if asked(request) else said


def manifests(**changes: str) -> Lie:
    return where(of("manifests", "GET", "HEAD"), lambda _, said: said.but(**changes))


def bodies(kind: str, change: Callable[[bytes], bytes], **headers: str) -> Lie:
    return where(of(kind), lambda _, said: said.but(body=change(said.body), **headers))


def always(said: Said) -> Lie:
    return lambda _, __: said


def find(registry: Registry) -> object:
    return registry.find(IMAGES, DIGEST)


def find_tag(registry: Registry) -> object:
    return registry.find(IMAGES, "tag")


def configure(registry: Registry) -> object:
    return registry.config(IMAGES, Manifest(DIGEST, MANIFEST, IMAGE))


def download(registry: Registry) -> object:
    with TemporaryFile() as file:
        registry.get_file(IMAGES, digest_of(LAYER), file, len(LAYER))
        return file.read()


def list_tags(registry: Registry) -> object:
    return registry.tags(IMAGES)


def upload(registry: Registry) -> object:
    return registry.put_blob("others", secrets.token_bytes(1 << 17))


def write(registry: Registry) -> object:
    content = canonical({**json.loads(IMAGE), "annotations": {"io.refit.test": secrets.token_hex()}})
    return registry.put_manifest(IMAGES, digest_of(content), content, MANIFEST)


def change(content: bytes) -> bytes:
    return content.replace(b'"schemaVersion":2', b'"schemaVersion":3')


def flip(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def torn(request: Request, said: Said) -> None:
    request.close_connection = True
    request.answer(Said(said.status, said.headers, said.body[: len(said.body) // 2]))


def redirect(*places: str) -> Lie:
    def lie(request: Request, said: Said) -> Said:
        return Said(307, {"location": places[0], "content-length": "0"})

    return where(of("blobs"), lie)


def further(request: Request, said: Said) -> Said:
    return Said(307, {"location": f"{request.path}/{secrets.token_hex(4)}", "content-length": "0"})


def tags(*names: object) -> Lie:
    body = json.dumps({"name": IMAGES, "tags": names}).encode()
    return where(of("tags"), lambda _, said: said.but(body=body))


def pages(request: Request, said: Said) -> Said:
    """Each page has one more tag, and another after it."""
    name = secrets.token_hex(8)
    body = json.dumps({"tags": [name]}).encode()
    return said.but(200, body, link=f'</v2/{IMAGES}/tags/list?n=1&last={name}>; rel="next"')


def huge(request: Request, said: Said) -> None:
    request.answer(Said(200, {**said.headers, "content-length": str(200 << 20)}))
    request.drip(bytes(1 << 16))


def chunked(status: int, piece: bytes, pause: Callable[[], object] = lambda: None) -> Lie:
    """A body without an end."""

    def lie(request: Request, said: Said) -> None:
        request.answer(Said(status, {"transfer-encoding": "chunked", "content-type": MANIFEST}))
        request.drip(f"{len(piece):x}\r\n".encode() + piece + b"\r\n", pause=pause)

    return lie


def dripping_headers(request: Request, said: Said) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n")
    request.drip(b"X-More: 1\r\n", pause=nap)


def informing(request: Request, said: Said) -> None:
    request.drip(b"HTTP/1.1 103 Early Hints\r\n\r\n", pause=nap)


def silent(request: Request, said: Said) -> None:
    request.be_silent()


def bomb(request: Request, said: Said) -> Said:
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    return said.but(body=packed, content_encoding="gzip")


def nap() -> None:
    Event().wait(0.05)


SLOW = "took longer than"
OTHER_WORDS = "doesn't answer as an image registry"
LIES: dict[str, tuple[Lie, Callable[[Registry], object], type[RefitError], str]] = {
    "changed byte in a manifest, with its digest header": (bodies("manifests", change), find, RegistryError, "has the"),
    "changed byte in a manifest, without its digest header": (
        bodies("manifests", change, docker_content_digest=""),
        find,
        RegistryError,
        "has the digest",
    ),
    "digest header of zeros": (
        manifests(docker_content_digest=f"sha256:{'0' * 64}"),
        find_tag,
        RegistryError,
        "has the digest",
    ),
    "digest header of zeros, by digest": (
        manifests(docker_content_digest=f"sha256:{'0' * 64}"),
        find,
        RegistryError,
        "it calls",
    ),
    "digest header with ../": (manifests(docker_content_digest="../../x"), find_tag, RegistryError, OTHER_WORDS),
    "another manifest, by digest, with a header that fits": (
        where(
            of("manifests"),
            lambda _, said: said.but(body=change(said.body), docker_content_digest=digest_of(change(said.body))),
        ),
        find,
        RegistryError,
        "has the digest",
    ),
    "truncated blob": (bodies("blobs", lambda body: body[:-1]), download, RegistryError, "has the digest"),
    "flipped blob": (bodies("blobs", flip), download, RegistryError, "has the digest"),
    "flipped configuration": (bodies("blobs", flip), configure, RegistryError, "has the digest"),
    "blob that is longer than its descriptor says": (
        bodies("blobs", lambda body: body + b"x"),
        download,
        RegistryError,
        "longer than",
    ),
    "blob that ends before its length": (where(of("blobs"), torn), download, NoAnswer, "doesn't answer"),
    "HEAD 200, GET 404": (
        where(of("blobs"), lambda _, said: Said(404, {"content-length": "0"})),
        download,
        RegistryError,
        "says that it has",
    ),
    "HTML everywhere": (always(HTML), find, RegistryError, OTHER_WORDS),
    "HTML for all but /v2/": (
        where(lambda request: request.path != "/v2/", always(HTML)),
        find_tag,
        RegistryError,
        OTHER_WORDS,
    ),
    "HTML for PUT": (where(lambda request: request.command == "PUT", always(HTML)), write, RegistryError, OTHER_WORDS),
    "HTML for POST": (
        where(lambda request: request.command == "POST", always(HTML)),
        upload,
        RegistryError,
        OTHER_WORDS,
    ),
    "503 always": (always(Said(503, {"content-length": "0"})), find, NoAnswer, "is busy"),
    "503 and an hour to wait": (
        always(Said(503, {"content-length": "0", "retry-after": "3600"})),
        find,
        NoAnswer,
        "left alone for 3600 s",
    ),
    "redirects in a loop": (redirect(f"/v2/{IMAGES}/blobs/{digest_of(LAYER)}"), download, RegistryError, "sends us on"),
    "redirects without an end": (where(of("blobs"), further), download, RegistryError, "sends us on"),
    "redirect to file:": (redirect("file:///etc/shadow"), download, RegistryError, "sends us to 'file:"),
    "redirect of a PUT": (
        where(
            lambda request: request.command == "PUT",
            lambda _, __: Said(307, {"location": "/v2/", "content-length": "0"}),
        ),
        write,
        RegistryError,
        "it answers 307",
    ),
    "JSON 200,000 deep for a manifest": (
        bodies("manifests", lambda _: DEEP, docker_content_digest=""),
        find_tag,
        RegistryError,
        "no JSON that can be read",
    ),
    "JSON 200,000 deep for a list": (bodies("tags", lambda _: DEEP), list_tags, RegistryError, "no JSON that can be"),
    "a million objects for a list": (
        bodies("tags", lambda _: b'{"tags":[' + b"{}," * 1_000_000 + b"{}]}"),
        list_tags,
        RegistryError,
        "no JSON that can be read",
    ),
    "list of tags with numbers": (tags("tag", 7), list_tags, RegistryError, "has no list of tags"),
    "list of tags with escape sequences": (tags("tag", "\x1b[2Jtag"), list_tags, RegistryError, "has no list of tags"),
    "list of tags with ../": (tags("../../blobs/uploads"), list_tags, RegistryError, "has no list of tags"),
    "list of tags with a slash": (tags("a/b"), list_tags, RegistryError, "has no list of tags"),
    "pages without an end": (where(of("tags"), pages), list_tags, RegistryError, "has no end"),
    "200 MB of manifest": (where(of("manifests"), huge), find_tag, RegistryError, "longer than 4194304 bytes"),
    "200 MB of manifest, packed small": (where(of("manifests"), bomb), find_tag, RegistryError, "longer than 4194304"),
    "manifest without an end": (
        where(of("manifests"), chunked(200, bytes(1 << 16))),
        find_tag,
        RegistryError,
        "longer than",
    ),
    "list without an end": (where(of("tags"), chunked(200, bytes(1 << 16))), list_tags, RegistryError, "longer than"),
    "configuration without an end": (
        where(of("blobs"), chunked(200, bytes(1 << 16))),
        configure,
        RegistryError,
        "longer than",
    ),
    "blob without an end": (where(of("blobs"), chunked(200, bytes(1 << 16))), download, RegistryError, "longer than"),
    "error without an end": (where(of("manifests"), chunked(418, b"x" * 512)), find_tag, RegistryError, "answers 418"),
    "drip, a byte now and then": (where(of("manifests"), chunked(200, b"x", nap)), find_tag, NoAnswer, SLOW),
    "drip of a blob": (where(of("blobs"), chunked(200, b"x", nap)), download, NoAnswer, SLOW),
    "drip of an error": (where(of("manifests"), chunked(418, b"x", nap)), find_tag, NoAnswer, SLOW),
    "drip of headers": (where(of("manifests"), dripping_headers), find_tag, NoAnswer, SLOW),
    "hints without an end": (where(of("manifests"), informing), find_tag, NoAnswer, SLOW),
    "silence": (where(of("manifests"), silent), find_tag, NoAnswer, SLOW),
    "silence from the beginning": (silent, find, NoAnswer, SLOW),
    "silence after an upload": (where(of("uploads", "PUT"), silent), upload, NoAnswer, SLOW),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_an_error_in_time_and_in_little_memory(
    scene: Scene, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie, deed, kind, words = LIES[name]
    monkeypatch.setattr(module, "_MOST_PAGES", 30)
    if words == SLOW:
        monkeypatch.setattr(scene.registry, "_seconds", SHORT_SECONDS)
        monkeypatch.setattr(scene.registry, "_rate", 1e6)
    scene.hear(lie)
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(kind) as caught:
            deed(scene.registry)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert PASSWORD not in str(caught.value) and WORD not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert time.monotonic() - started < MOST_SECONDS
    assert peak < MOST_MEMORY


def test_what_a_lie_is_told_apart_from_is_answered(scene: Scene, settings: Settings) -> None:
    registry = scene.registry
    assert registry.manifest(IMAGES, "tag").digest == registry.digest(IMAGES, "tag") == DIGEST
    assert registry.config(IMAGES, registry.manifest(IMAGES, DIGEST))["config"] == {}
    assert download(registry) == LAYER
    assert "tag" in registry.tags(IMAGES)
    registry.try_storing()
    registry.mount("others", digest_of(LAYER), IMAGES, len(LAYER))
    assert registry.missing("others", Manifest(DIGEST, MANIFEST, IMAGE)) == (digest_of(CONFIGURATION),)


def test_an_answer_to_an_upload_is_not_read_to_its_end(scene: Scene) -> None:
    scene.hear(where(of("manifests", "PUT"), chunked(201, bytes(1 << 12))))
    assert write(scene.registry)


def test_an_error_names_two_digests_or_none(scene: Scene) -> None:
    scene.hear(manifests(docker_content_digest=f"sha256:{'0' * 64}"))
    with pytest.raises(RegistryError) as caught:
        find(scene.registry)
    assert caught.value.why.count(DIGEST) == 1
    assert "0" * 64 in caught.value.why


def test_what_is_remembered_has_a_limit_in_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = module._Memory[bytes]()
    for number in range(100):
        memory.put(IMAGES, str(number), bytes(8), 4 << 20)
    assert sum(memory.get(IMAGES, str(number)) is not None for number in range(100)) == 16


# --- A registry that is busy --------------------------------------------------------------------------------------


@dataclass
class Busy:
    """Says that it is busy, so many times; notes when it was asked."""

    times: int
    status: int = 503
    headers: Callable[[], dict[str, str]] = dict
    asked: list[float] = field(default_factory=list)

    def __call__(self, _: Request, said: Said) -> Said:
        self.asked.append(time.monotonic())
        if len(self.asked) > self.times:
            return said
        return Said(self.status, {"content-length": "0", **self.headers()})


@pytest.mark.parametrize("status", [429, 503])
def test_a_fifth_of_answers_busy_with_a_time_to_wait(scene: Scene, status: int) -> None:
    count = iter(range(10_000))

    def lie(_: Request, said: Said) -> Said:
        return Said(status, {"content-length": "0", "retry-after": "0"}) if next(count) % 5 == 0 else said

    scene.hear(lie)
    for _ in range(10):
        assert find(scene.registry)
        assert download(scene.registry) == LAYER
        assert write(scene.registry)


def test_a_registry_is_left_alone_as_long_as_it_asks(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    busy, reports = Busy(1, headers=lambda: {"retry-after": "1"}), list[Report]()
    scene.registry.ping()
    scene.hear(busy)
    with progress.listening(reports.append), caplog.at_level("WARNING", "refit.registry"):
        assert find(scene.registry)
    first, second = busy.asked
    assert second - first >= 1
    assert [report.state for report in reports] == [State.waiting, State.done]
    assert "asking again in 1 s" in caplog.text


def test_it_is_left_alone_until_a_date(scene: Scene) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    scene.hear(Busy(1, 429, lambda: {"retry-after": format_datetime(until, usegmt=True)}))
    assert find(scene.registry)
    assert datetime.now(UTC) >= until


def test_one_that_was_waited_for_in_vain_is_not_waited_for_again(scene: Scene) -> None:
    scene.hear(Busy(10_000))
    for limit in (30.0, 2.9):
        started = time.monotonic()
        with pytest.raises(NoAnswer, match="is busy"):
            find(scene.registry)
        assert time.monotonic() - started < limit
    scene.hear(always(Said(503, {"content-length": "0", "retry-after": "3600"})))
    with pytest.raises(NoAnswer, match="is busy"):
        find(scene.registry)
    scene.hear(honest)
    assert find(scene.registry)


def test_what_is_to_end_waits_for_no_registry(scene: Scene) -> None:
    over = Event()
    over.set()
    scene.hear(Busy(10_000, headers=lambda: {"retry-after": "2"}))
    with command.stopping(over), pytest.raises(NoAnswer, match="is busy"):
        find(scene.registry)


def test_the_mend_is_that_of_the_registry(scene: Scene, settings: Settings) -> None:
    scene.hear(always(Said(429, {"content-length": "0"})))
    elsewhere = client(
        settings, 1, registry=f"127.0.0.1:{scene.liar.port}", registry_tls=False, registry_wait_seconds=0.0
    )
    with pytest.raises(NoAnswer) as caught:
        find(elsewhere)
    assert "registry_wait_seconds" in caught.value.hint and "refit up" not in caught.value.hint
    gone = client(settings, 1, registry=f"127.0.0.1:{free_port()}", registry_tls=False)
    with pytest.raises(NoAnswer) as caught:
        find(gone)
    assert "refit up" not in caught.value.hint


# --- A registry that sends us elsewhere ---------------------------------------------------------------------------


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


# --- What is stored, and what is built ----------------------------------------------------------------------------


def test_201_for_a_manifest_that_is_not_kept(scene: Scene) -> None:
    content = canonical({**json.loads(IMAGE), "annotations": {"io.refit.test": secrets.token_hex()}})
    manifest = Manifest(digest_of(content), MANIFEST, content)
    scene.liar.swallows = of("manifests", "PUT")
    with pytest.raises(RegistryError, match="did not keep"):
        scene.registry.keep_manifest(IMAGES, manifest)
    scene.liar.swallows = nothing
    scene.registry.keep_manifest(IMAGES, manifest)


def test_201_for_a_blob_that_is_not_kept(scene: Scene) -> None:
    config = canonical({"config": {}, "author": secrets.token_hex()})
    content = canonical({**json.loads(IMAGE), "config": descriptor(CONFIG, config)})
    manifest = Manifest(digest_of(content), MANIFEST, content)
    scene.liar.swallows = of("uploads", "PUT")
    scene.registry.put_blob(IMAGES, config)
    # A registry that looks for what a manifest names refuses it; one that doesn't is found out.
    with pytest.raises(RegistryError, match="did not keep"):
        scene.registry.keep_manifest(IMAGES, manifest)
    scene.liar.swallows = of("manifests", "PUT")
    with pytest.raises(RegistryError, match="did not keep"):
        scene.registry.keep_manifest(IMAGES, manifest)


def test_201_for_a_blob_and_nobody_looks(scene: Scene) -> None:
    """A registry that takes a manifest though it lacks what that names."""
    config = canonical({"config": {}, "author": secrets.token_hex()})
    content = canonical({**json.loads(IMAGE), "config": descriptor(CONFIG, config)})
    manifest = Manifest(digest_of(content), MANIFEST, content)

    def pretending(request: Request, said: Said) -> Said:
        is_it = request.path.endswith(manifest.digest) and request.command in ("GET", "PUT")
        status = 201 if request.command == "PUT" else 200
        return Said(status, {"content-length": str(len(content))}, content) if is_it else said

    scene.liar.swallows = of("uploads", "PUT")
    scene.registry.put_blob(IMAGES, config)
    scene.hear(pretending)
    with pytest.raises(RegistryError, match=f"did not keep {digest_of(config)}"):
        scene.registry.keep_manifest(IMAGES, manifest)


STAGE = Stage("lied-about", Kind.instructions, None, "COPY files/hello /hello", {"files/hello": b"hello"})
ABOVE = Stage("above", Kind.instructions, "lied-about", "COPY files/more /more", {"files/more": b"more"})


@pytest.fixture(scope="module")
def workshop(truthful: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Liar, Settings]]:
    """A home that builds, and the liar between it and its registry."""
    login = {"registry_user": USER, "registry_password": SecretStr(PASSWORD)}
    folder = tmp_path_factory.mktemp("workshop") / "home"
    with Liar(truthful.port).serve() as liar, private_home(folder, liar.port, **login) as settings:
        yield liar, settings


def build(settings: Settings, stage: Stage, parent: Built | None = None) -> Built:
    return Builder(settings, Registry(settings)).build(stage, parent)


def swapping(key: str) -> Lie:
    """The manifest under a tag is another one, that says the same of itself."""

    def lie(request: Request, said: Said) -> Said:
        body = said.body + b" "
        return said.but(body=body, docker_content_digest=digest_of(body))

    return where(lambda request: request.command == "GET" and request.path.endswith(f"/manifests/{key}"), lie)


def test_manifest_under_a_tag_replaced_by_another(workshop: tuple[Liar, Settings]) -> None:
    liar, settings = workshop
    liar.lie = honest
    built, registry = build(settings, STAGE), Registry(settings)
    manifest = registry.manifest(registry.stages, built.digest)
    registry.put_manifest(registry.stages, built.key, manifest.content + b" ", MANIFEST)
    assert registry.digest(registry.stages, built.key) != built.digest
    again = build(settings, STAGE)
    assert again.reused and again.digest == built.digest
    assert registry.digest(registry.stages, built.key) == built.digest
    liar.lie = swapping(built.key)
    assert build(settings, STAGE).digest == built.digest


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


@pytest.mark.parametrize("program", ["buildah", "skopeo"])
def test_a_program_whose_registry_is_busy_is_run_again(
    workshop: tuple[Liar, Settings], truthful: RegistryServer, program: str, tmp_path: Path
) -> None:
    liar, settings = workshop
    refused = list[str]()

    def busy(request: Request, said: Said) -> Said:
        ours = request.headers.get("User-Agent", "").startswith("python-httpx")
        if ours or "/manifests/" not in request.path or refused:
            return said
        refused.append(request.command)
        return Said(500, {"content-length": "0"})

    liar.lie = honest
    below = build(settings, STAGE)
    if program == "buildah":
        liar.lie = busy
        stage = Stage("pushed", Kind.instructions, None, "COPY files/x /x", {"files/x": secrets.token_bytes(9)})
        assert not build(settings, stage).reused
        assert refused
        return
    login = {"registry_user": USER, "registry_password": SecretStr(PASSWORD)}
    with private_home(tmp_path / "home", liar.port, **login) as elsewhere:
        liar.lie = busy
        assert not build(elsewhere, ABOVE, below).reused
    assert refused == ["GET"]
