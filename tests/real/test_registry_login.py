"""The embedded registry answers Refit alone: the client, buildah, skopeo and Podman have its login, nobody else has."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from flows import services
from flows.core import documents
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.host import containers
from flows.images.build import Builder
from flows.images.manifests import CONFIG, MANIFEST, canonical, descriptor
from flows.images.registry import Registry
from flows.images.registry_errors import RegistryError
from flows.images.stages import Kind, Stage
from flows.services import embedded, garbage, process
from tests.support.live_folders import contents, paths_below
from tests.support.machine import private_home
from tests.support.waiting import PATIENTLY, free_port, wait_until

ALIAS = "jupyter-minimal-deb12-py311_2026a"
STAGE = Stage("said", Kind.instructions, None, "COPY files/hello /hello", {"files/hello": b"hello"})


@contextmanager
def running(settings: Settings, *names: str) -> Iterator[None]:
    services.up(settings, names)
    try:
        yield
    finally:
        services.down(settings)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A home with the embedded registry and its reader."""
    port = free_port()
    with (
        private_home(tmp_path_factory.mktemp("login") / "home", port, registry_read_port=free_port()) as settings,
        running(settings, "registry", "reader"),
    ):
        yield settings


@pytest.fixture(scope="module")
def image(home: Settings) -> str:
    """Digest of an image to which an alias points."""
    registry = Registry(home)
    config = canonical({"config": {}, "rootfs": {"type": "layers", "diff_ids": []}})
    registry.put_blob(home.repository, config)
    written = canonical({"schemaVersion": 2, "mediaType": MANIFEST, "config": descriptor(CONFIG, config), "layers": []})
    return registry.put_manifest(home.repository, ALIAS, written, MANIFEST)


def ask(port: int, method: str, path: str, **options: object) -> httpx.Response:
    """As another user of this machine does."""
    return httpx.request(method, f"http://127.0.0.1:{port}/v2/{path}", **PATIENTLY, **options)  # type: ignore[arg-type]


def test_who_has_no_login_neither_writes_nor_deletes_nor_reads(home: Settings, image: str) -> None:
    manifests, kind = f"{home.repository}/manifests", {"Content-Type": MANIFEST}
    other = json.dumps({**Registry(home).manifest(home.repository, image).document, "annotations": {"x": "y"}})
    for port, refused in ((home.registry_port, 401), (home.registry_read_port, 405)):
        tries = (
            ask(port, "PUT", f"{manifests}/{ALIAS}", content=other, headers=kind),
            ask(port, "DELETE", f"{manifests}/{image}"),
            ask(port, "POST", f"{home.repository}/blobs/uploads/"),
        )
        assert [answer.status_code for answer in tries] == [refused] * 3
    assert ask(home.registry_port, "GET", f"{manifests}/{ALIAS}").status_code == 401
    guessed = ask(home.registry_port, "GET", f"{manifests}/{ALIAS}", auth=("refit", "refit"))
    assert guessed.status_code == 401
    assert Registry(home).digest(home.repository, ALIAS) == image


def test_reading_is_open_where_a_port_was_chosen_for_it(home: Settings, image: str, tmp_path: Path) -> None:
    read = ask(home.registry_read_port, "GET", f"{home.repository}/manifests/{ALIAS}", headers={"Accept": MANIFEST})
    assert read.headers["docker-content-digest"] == image
    unchosen = Settings(home=tmp_path, registry_port=free_port())
    assert "reader" not in {service.name for service in embedded.all_services(unchosen)}


def test_buildah_skopeo_and_podman_log_in(home: Settings, tmp_path: Path) -> None:
    built = Builder(home, Registry(home)).build(STAGE, None)
    other = replace(STAGE, name="more", parent="said", text="COPY files/hello /more")
    password = (home.home / "services/registry/password").read_text()
    with private_home(
        tmp_path / "home", home.registry_port, registry_user="refit", registry_password=password
    ) as elsewhere:
        # Storage in which nothing is yet: the parent comes by skopeo.
        top = Builder(elsewhere, Registry(elsewhere)).build(other, built)
        name = f"docker://{home.registry_host}/{home.repository}/stages@{top.digest}"
        assert containers.pull(elsewhere, name) == name.removeprefix("docker://")
        strange = elsewhere.model_copy(update={"registry_user": ""})
        with pytest.raises(ProgramFailed, match=r"unauthorized|authentication required"):
            containers.pull(strange, name.replace("@", ":none@").partition("@")[0])


def test_the_password_is_in_one_file_of_its_owner_and_nowhere_else(home: Settings, image: str) -> None:
    password = (home.home / "services/registry/password").read_text()
    assert len(password) >= 32
    files = contents(path for path in paths_below(home.home) if "containers" not in path.parts)
    holding = [path for path, content in files.items() if password.encode() in content]
    assert [path.name for path in holding] == ["password"]
    for name in ("password", "htpasswd", "config.yml"):
        assert (home.home / "services/registry" / name).stat().st_mode & 0o777 == 0o600
    for each in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            told = (Path(f"/proc/{each.pid}/{part}").read_bytes() for part in ("cmdline", "environ"))
            assert not any(password.encode() in words for words in told)


def test_garbage_is_collected_behind_the_login(home: Settings, image: str) -> None:
    garbage.collect(home)
    assert Registry(home).digest(home.repository, ALIAS) == image
    assert ask(home.registry_port, "GET", f"{home.repository}/tags/list").status_code == 401


def test_a_registry_of_before_is_started_anew_with_a_login_and_keeps_its_images(tmp_path: Path) -> None:
    with private_home(tmp_path / "home", free_port()) as settings:
        now = embedded.registry(settings)
        open_to_all = {name: part for name, part in embedded.registry_config(settings).items() if name != "auth"}
        before = replace(now, login=None, files={now.folder / "config.yml": documents.dump(open_to_all)})
        process.start(before)
        process.wait_until_answering(before)
        assert ask(settings.registry_port, "GET", "_catalog").status_code == 200
        kept = Registry(settings).put_blob(settings.repository, b"kept")
        with running(settings, "registry"):
            assert ask(settings.registry_port, "GET", "_catalog").status_code == 401
            assert Registry(settings).blob(settings.repository, kept, 4) == b"kept"


STRANGER = """
import http.server, sys
class Asks(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.headers.get("Authorization", "nothing"), flush=True)
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="refit"')
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_HEAD = do_POST = do_PUT = do_GET
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Asks).serve_forever()
"""


def test_another_user_who_listens_in_the_place_of_the_registry_is_told_no_password(settings: Settings) -> None:
    settings = settings.model_copy(update={"registry_port": free_port()})
    service = embedded.registry(settings)
    assert service.login and settings.registry_login[1]
    asks = ["/usr/bin/python3", "-c", STRANGER, str(settings.registry_port)]
    call = [*([] if os.geteuid() == 0 else ["sudo", "-n"]), "setpriv", "--reuid=65534", "--clear-groups", *asks]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True, cwd="/") as stranger:
        try:
            wait_until(lambda: listens(settings.registry_port))
            with pytest.raises(RegistryError, match="Another user's program answers"):
                Registry(settings).digest(settings.repository, ALIAS)
            assert not process.answers(service)
        finally:
            stranger.kill()
        assert stranger.stdout
        assert set(stranger.stdout.read().split()) == {"nothing"}


def listens(port: int) -> bool:
    with suppress(httpx.TransportError):
        return bool(ask(port, "GET", "").status_code)
    return False
