"""Checks of an image whose own `python3` prints all that it is told, instead of running what it is given."""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from hashlib import sha256

import pytest
from pydantic import SecretStr

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.manifests import Manifest, canonical, digest_of
from flows.images.registry import Registry
from flows.publishing import checks
from flows.publishing.container_checks import ContainerLook
from tests.support.machine import RegistryServer, private_home

PASSWORDS = ("the-index-password", "the-proxy-password", "the-database-password", "the-metrics-token")
OF_THE_SHELL = "the-password-of-the-shell"
# As JSON: what it was called with, its environment, rights and mounts, the files that are mounted, its input.
TELLS = r"""#!/bin/sh
told() { for word; do printf '%s\n' "$word"; done; env; grep Cap /proc/self/status; cat /proc/self/mountinfo
  cat /run/refit/* /run/secrets/* 2>/dev/null; ls -R /run /home /root; cat; }
text=$(told "$@" 2>&1 | base64 -w 0)
printf '{"told": "%s"}' "$text"
"""
IDE = Access()


@pytest.fixture
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    index, proxy, database, metrics = PASSWORDS
    folder = tmp_path_factory.mktemp("hostile") / "home"
    with private_home(folder, registry_server.port, metrics_token=SecretStr(metrics)) as private:
        yield private.model_copy(
            update={
                "pip_index_url": SecretStr(f"https://reader:{index}@index.example/simple"),
                "apt_proxy": f"http://reader:{proxy}@proxy.example:3128",
                "database_url": f"postgresql://refit:{database}@db.example/refit",
            }
        )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that programs in the image print, as it came."""
    outputs: list[str] = []
    run = command.run

    def listening(*arguments: object, **options: object) -> command.Completed:
        done = run(*arguments, **options)  # type: ignore[arg-type]
        if '"told"' in done.stdout:
            outputs.append(decoded(done.stdout))
        return done

    monkeypatch.setattr(command, "run", listening)
    monkeypatch.setenv("https_proxy", f"http://reader:{OF_THE_SHELL}@proxy.example:3128")
    return outputs


def decoded(printed: str) -> str:
    return base64.b64decode(json.loads(printed)["told"]).decode(errors="replace")


def hostile(shared: Settings, registry: Registry, base: Built) -> str:
    """An image with that Python before its own; returns its reference."""
    source = f"{shared.repository}/stages"
    manifest = registry.manifest(source, base.digest)
    document, config = json.loads(json.dumps(manifest.document)), dict(registry.config(source, manifest))
    for layer in document["layers"]:
        registry.mount(shared.repository, layer["digest"], source, layer["size"])
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as tar:
        for name in ("opt/app-root/bin/python3", "usr/local/bin/python3", "opt/app-root/bin/python"):
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o755, len(TELLS)
            tar.addfile(entry, io.BytesIO(TELLS.encode()))
        entry = tarfile.TarInfo("opt/app-root/pyvenv.cfg")
        tar.addfile(entry, io.BytesIO())
    packed = gzip.compress(tree.getvalue(), mtime=0)
    registry.put_blob(shared.repository, packed)
    document["layers"].append({**document["layers"][0], "digest": digest_of(packed), "size": len(packed)})
    diffs = [*config["rootfs"]["diff_ids"], f"sha256:{sha256(tree.getvalue()).hexdigest()}"]
    inner = {**config["config"], "Cmd": ["sleep", "3000"]}
    written = canonical({**config, "config": inner, "rootfs": {"type": "layers", "diff_ids": diffs}, "history": []})
    registry.put_blob(shared.repository, written)
    document["config"] = {**document["config"], "digest": digest_of(written), "size": len(written)}
    image = canonical(document)
    made = Manifest(digest_of(image), manifest.media_type, image)
    registry.put_manifest(shared.repository, made.digest, made.content, made.media_type)
    return f"docker://{shared.registry_host}/{shared.repository}@{made.digest}"


@pytest.mark.long
def test_an_image_of_a_persons_own_hears_no_secret_and_gets_no_right(
    settings: Settings, told: list[str], shared: Settings, registry: Registry, base: Built
) -> None:
    image = hostile(shared, registry, base)
    assert {*PASSWORDS} <= {*checks.secret_values(settings).values()}
    with pytest.raises(RefitError, match="doesn't run the probe"):  # a report that isn't one is no report
        checks.run(image, "own", IDE, ["six"], settings, look=ContainerLook(), vouched=False)
    assert len(told) == 3 and "probe.py\nmodules" in told[1] and "probe.py\nfiles" in told[2]
    for text in told:
        assert "CapEff:\t0000000000000000" in text and "CapBnd:\t0000000000000000" in text
        heard = [secret for secret in (*PASSWORDS, OF_THE_SHELL, "proxy.example", "index.example") if secret in text]
        assert not heard
    assert told[2].endswith("{}")  # all that the look at files is given

    told.clear()  # for one that is vouched for, the same Python is told what it is to search for: so the test can fail
    with pytest.raises(RefitError, match="doesn't run the probe"):
        checks.run(image, "vouched", IDE, ["six"], settings, look=ContainerLook(), vouched=True)
    assert all(secret in told[-1] for secret in PASSWORDS) and OF_THE_SHELL not in "".join(told)
