"""The pure parts of building: what of a machine reaches a build, and what was installed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import pytest
from pydantic import SecretStr

from flows.catalog.model import Base, BaseConfig
from flows.core.programs.command import CommandTimeout, ProgramFailed, stopping
from flows.core.settings import Settings
from flows.images.builder import stage_builder
from flows.images.builder.context import own_things, uv_program, write_files
from flows.images.builder.stage_builder import installed
from flows.images.registry_errors import RegistryError
from flows.images.stages import local_name
from flows.locks.apt import files, planned, sources

STATUS = """Package: tmux
Status: install ok installed
Architecture: amd64
Version: 3.3a-3

Package: gone
Status: deinstall ok config-files
Version: 1.0

Package: adduser
Status: install ok installed
Version: 3.134
Description: add and remove users
 Package: not a field
"""


def test_only_what_is_installed_counts() -> None:
    assert installed(STATUS) == ("adduser=3.134", "tmux=3.3a-3")


def test_a_simulation_names_each_package_once() -> None:
    output = (
        "Inst tmux (3.3a-3 Debian:12/oldstable [amd64])\nConf tmux (3.3a-3 x)\nInst a [1] (2~x+b1 Debian [all]) []\n"
    )
    assert planned(output + output) == ("a=2~x+b1", "tmux=3.3a-3")


def test_sources_cover_updates_and_security() -> None:
    lines = sources("bookworm", "http://mirror/").splitlines()
    assert [line.split()[2:4] for line in lines] == [
        ["http://mirror/debian", "bookworm"],
        ["http://mirror/debian", "bookworm-updates"],
        ["http://mirror/debian-security", "bookworm-security"],
    ]


def test_an_image_knows_the_public_mirrors() -> None:
    config = BaseConfig(family="deb", suite="trixie", pythons=("py313",))
    [(name, content)] = files(Base("deb13", Path(), "", config, ())).items()
    assert name == "files/debian.sources"
    assert content.decode().splitlines() == [
        "Types: deb",
        "URIs: http://deb.debian.org/debian",
        "Suites: trixie trixie-updates",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
        "",
        "Types: deb",
        "URIs: http://deb.debian.org/debian-security",
        "Suites: trixie-security",
        "Components: main",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]


def test_the_local_name_is_the_same_on_every_machine() -> None:
    assert local_name("sha256:00ff") == "localhost/refit/stage:00ff"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_files_stay_in_their_context(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        write_files(tmp_path / "context", {name: b""})
    assert not (tmp_path / "x").exists()


def test_a_build_sees_what_is_this_machines_own(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("authorities")
    chosen = settings.model_copy(
        update={
            "ca_bundle": tmp_path / "ca.pem",
            "pip_index_url": SecretStr("https://ann:it's@index/simple"),
            "wheel_folders": (tmp_path / "wheels",),
            "apt_proxy": "http://proxy:3142",
            "npm_registry": "https://npm.example",
            "cache_gb": 0.0,
        }
    )
    own = tmp_path / "own"
    own.mkdir()
    assert own_things(own, chosen) == (
        f"{own}:/mnt:ro",
        f"{uv_program()}:/mnt/uv:ro",
        f"{tmp_path / 'wheels'}:/mnt/wheels/0:ro",
        f"{own / 'apt'}:/mnt/apt",
    )
    script = f'. {own}/env.sh; echo "$PIP_CERT $NODE_EXTRA_CA_CERTS $PIP_INDEX_URL $PIP_FIND_LINKS $APT_CONFIG"'
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={}).stdout.split()
    assert said == ["/mnt/ca.pem", "/mnt/ca.pem", "https://ann:it's@index/simple", "/mnt/wheels/0", "/mnt/apt.conf"]
    assert "export NPM_CONFIG_REGISTRY=https://npm.example\n" in (own / "env.sh").read_text()
    assert 'Acquire::http::Proxy "http://proxy:3142";' in (own / "apt.conf").read_text()
    dnf = "export DNF_OPTIONS='--setopt=proxy=http://proxy:3142 --setopt=sslcacert=/mnt/ca.pem'"
    assert dnf in (own / "env.sh").read_text().splitlines()


def test_apt_takes_its_packages_from_the_mirror_of_the_settings(settings: Settings, tmp_path: Path) -> None:
    own_things(tmp_path, settings.model_copy(update={"debian_mirror": "https://mirror.example"}), "bookworm")
    assert 'Dir::Etc::SourceList "/mnt/sources.list";' in (tmp_path / "apt.conf").read_text()
    lines = (tmp_path / "sources.list").read_text().splitlines()
    assert len(lines) == 3
    assert all(" https://mirror.example/debian" in line for line in lines)


def test_a_build_sees_nothing_where_nothing_is_set(settings: Settings, tmp_path: Path) -> None:
    volumes = own_things(tmp_path, settings.model_copy(update={"cache_gb": 0.0}))
    assert volumes == (f"{tmp_path}:/mnt:ro", f"{uv_program()}:/mnt/uv:ro", f"{tmp_path / 'apt'}:/mnt/apt")
    names = [line.partition("=")[0] for line in (tmp_path / "env.sh").read_text().splitlines()]
    assert names == ["export APT_CONFIG", "export PIP_NO_CACHE_DIR", "export UV_NO_CACHE"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_builder, "_PAUSES", (0.0, 0.0))


def failing(times: int, kind: type[ProgramFailed] = ProgramFailed) -> tuple[list[int], Callable[[], None]]:
    """A program that fails so many times, and the list of its attempts."""
    attempts: list[int] = []

    def attempt() -> None:
        attempts.append(1)
        if len(attempts) <= times:
            raise kind(["skopeo"], "failed with exit code 1", "", None, 1)

    return attempts, attempt


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("times", "tried", "looked"), [(0, 1, 0), (1, 2, 1), (2, 3, 2), (9, 3, 2)])
def test_what_speaks_to_a_registry_is_tried_three_times(times: int, tried: int, looked: int) -> None:
    looks: list[int] = []
    attempts, attempt = failing(times)
    with pytest.raises(ProgramFailed) if times > 2 else nullcontext():
        stage_builder.again(attempt, lambda: looks.append(1))
    assert (len(attempts), len(looks)) == (tried, looked)


@pytest.mark.usefixtures("hasty")
def test_it_is_not_tried_again_where_that_has_no_point() -> None:
    def refuse() -> None:
        raise RegistryError("It is full.")

    attempts, attempt = failing(1)
    with pytest.raises(RegistryError):
        stage_builder.again(attempt, refuse)
    assert len(attempts) == 1
    attempts, attempt = failing(1, CommandTimeout)
    with pytest.raises(CommandTimeout):
        stage_builder.again(attempt)
    assert len(attempts) == 1
    over = Event()
    over.set()
    attempts, attempt = failing(1)
    with stopping(over), pytest.raises(ProgramFailed):
        stage_builder.again(attempt)
    assert len(attempts) == 1
