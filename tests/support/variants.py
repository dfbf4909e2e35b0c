"""Images that differ from one that is there only in their configuration: made in milliseconds, nothing is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.manifests import Manifest, canonical, digest_of
from flows.images.registry import Registry
from flows.publishing import provenance
from flows.publishing.signatures import Publications

LIGHT = Access(port=8000, health="/api", protocol="none")
JUPYTER = Access(
    port=8888,
    health="/api",
    page="/lab?token={token}",
    protocol="jupyter",
    own_paths=("/.cache/", "/.ipython/", "/.jupyter/", "/.local/share/jupyter/"),
    heartbeat=".local/share/jupyter/heartbeat",
)
# No IDE to reach, and a start command that waits for the home.
LATE = Access(late_home=True)
WAITS = 'until [ -O "$HOME" ]; do : >/dev/shm/refit-waits; sleep 0.05; done; rm -f /dev/shm/refit-waits; cd "$HOME"'
_ANSWER = 'mkdir -p "/tmp/www$NB_PREFIX" && cd /tmp/www && touch ".$NB_PREFIX/api" && exec python3 -m http.server 8000'


def variant(
    settings: Settings,
    registry: Registry,
    digest: str,
    source: str,
    name: str,
    command: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> str:
    """Put an image into the repository that is the one in `source` but for labels and maybe what it starts.

    Returns its digest.
    """
    manifest = registry.manifest(source, digest)
    document, config = dict(manifest.document), registry.config(source, manifest)
    inner = dict(config.get("config", {}))
    inner["Labels"] = {**(inner.get("Labels") or {}), "io.refit.variant": name, **(labels or {})}
    if command:
        inner["Cmd"] = list(command)
    content = canonical({**config, "config": inner})
    for layer in document["layers"]:
        registry.mount(settings.repository, layer["digest"], source, layer["size"])
    registry.put_blob(settings.repository, content)
    document["config"] = {**document["config"], "digest": digest_of(content), "size": len(content)}
    written = canonical(document)
    image = Manifest(digest_of(written), manifest.media_type, written)
    registry.put_manifest(settings.repository, image.digest, image.content, image.media_type)
    sign(settings, registry, image, labels or {})
    return image.digest


def sign(settings: Settings, registry: Registry, image: Manifest, labels: Mapping[str, str]) -> None:
    """Let an image that a test has pushed count as published, for the profile of its labels."""
    made_for = labels.get("io.refit.profile", ""), labels.get("io.refit.release", "")
    said = canonical(provenance.statement(settings.repository, image.digest, provenance.asked(*made_for)))
    database = open_database(settings.database)
    try:
        Publications(settings, database, registry).sign(image, said, *made_for)
    finally:
        database.dispose()


def light(
    settings: Settings,
    registry: Registry,
    base: Built,
    name: str,
    before: str = "true",
    labels: Mapping[str, str] | None = None,
) -> str:
    """An image whose "IDE" is a small web server, up in a tenth of a second; `before` is shell text that runs first."""
    start = ["sh", "-c", f"{before}; {_ANSWER}"]
    return variant(settings, registry, base.digest, f"{settings.repository}/stages", name, start, labels)


def late(settings: Settings, registry: Registry, base: Built, name: str, before: str = "true") -> str:
    """A light image whose start command waits for the home; `before` is shell text that runs once it is there."""
    labels = {"io.refit.access": LATE.model_dump_json()}
    return light(settings, registry, base, name, f"{WAITS}; {before}", labels)
