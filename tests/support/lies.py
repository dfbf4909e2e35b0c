"""Lies of a registry, and what asks it."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryFile
from threading import Event

from pydantic import SecretStr

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.manifests import CONFIG, MANIFEST, Manifest, canonical, descriptor, digest_of
from flows.images.registry import Registry
from flows.images.registry_errors import NoAnswer, RegistryError
from flows.images.stages import Stage
from tests.support.liars import PASSWORD, USER, Liar, Lie, Request, Said

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


@dataclass
class Scene:
    """A liar in front of a registry, and a client that knows its password."""

    liar: Liar
    registry: Registry

    def hear(self, lie: Lie) -> None:
        """Lie from now on, and no answer before was a lie."""
        self.liar.lie = lie


def client(settings: Settings, port: int, **more: object) -> Registry:
    login = {"registry_port": port, "registry_user": USER, "registry_password": SecretStr(PASSWORD)}
    return Registry(settings.model_copy(update={**login, "registry_wait_seconds": 3.0, **more}))


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


def build(settings: Settings, stage: Stage, parent: Built | None = None) -> Built:
    return Builder(settings, Registry(settings)).build(stage, parent)
