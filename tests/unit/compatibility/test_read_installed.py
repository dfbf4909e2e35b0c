"""The program that looks at what is installed in a session, with homes of the worst kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from flows.authoring.capture.facts import Installed, Package, Source
from flows.compatibility import read_installed

INSTALLED = TypeAdapter(Installed)


def read(home: Path) -> Installed:
    script = Path(read_installed.__file__).read_text()
    environment = {"HOME": str(home), "PATH": str(home / "nothing")}  # no apt-mark, which takes a second
    call = [sys.executable, "-I", "-B", "-"]
    done = subprocess.run(call, input=script.encode(), capture_output=True, check=True, env=environment, timeout=60)
    return INSTALLED.validate_json(done.stdout)


def site(home: Path, environment: str = ".local") -> Path:
    folder = home / environment / "lib" / "python3.11" / "site-packages"
    folder.mkdir(parents=True)
    if environment != ".local":
        (home / environment / "pyvenv.cfg").touch()
    return folder


def package(site: Path, name: str, version: str = "1.0", *, requested: bool = True, url: str = "") -> Path:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: other\n")
    if requested:
        (info / "REQUESTED").touch()
    if url:
        (info / "direct_url.json").write_text(json.dumps({"url": url}))
    return info


def packages(home: Path) -> tuple[Package, ...]:
    (place,) = read(home).places[1:]
    return place.packages


def test_packages_are_told_with_who_asked_for_them_and_where_they_came_from(tmp_path: Path) -> None:
    folder = site(tmp_path, "work/.venv")
    package(folder, "a")
    package(folder, "b", requested=False)
    package(folder, "c", url="https://example.org/c.git")
    (place,) = read(tmp_path).places[1:]
    assert (place.path, place.python) == ("work/.venv", "3.11")
    assert place.packages == (
        Package("a", "1.0", requested=True),
        Package("b", "1.0"),
        Package("c", "1.0", requested=True, url="https://example.org/c.git"),
    )


def test_the_needs_of_a_package_are_told_without_those_of_extras(tmp_path: Path) -> None:
    info = package(site(tmp_path), "a")
    needs = "Requires-Dist: certifi>=2017\nRequires-Dist: PySocks ; extra == 'socks'\nRequires-Dist: idna<4; x == 'y'\n"
    (info / "METADATA").write_text(f"Name: a\nVersion: 1.0\n{needs}")
    (info / "INSTALLER").write_text("uv\n")
    (one,) = packages(tmp_path)
    assert (one.installer, one.needs) == ("uv", ("certifi", "idna"))


def test_metadata_that_can_not_be_read_stop_nothing(tmp_path: Path) -> None:
    folder = site(tmp_path)
    for name in ("pipe", "linked", "empty", "folder"):
        (package(folder, name) / "METADATA").unlink()
    os.mkfifo(folder / "pipe-1.0.dist-info" / "METADATA")
    (folder / "linked-1.0.dist-info" / "METADATA").symlink_to("/etc/shadow")
    (folder / "empty-1.0.dist-info" / "METADATA").touch()
    (folder / "folder-1.0.dist-info" / "METADATA").mkdir()
    os.mkfifo(package(folder, "fine") / "direct_url.json")
    os.mkfifo(folder / "whole-1.0.dist-info")
    (folder / "away-1.0.dist-info").symlink_to("/etc")
    told = {one.name: one for one in packages(tmp_path)}
    assert told.pop("fine").url.startswith("a place that")
    assert told.keys() == {f"{name}-1.0.dist-info" for name in ("pipe", "linked", "empty", "folder")}
    assert all(one.problem and not one.requested for one in told.values())
    assert "root:" not in str(told)


def test_a_mark_that_is_no_plain_file_is_none(tmp_path: Path) -> None:
    info = package(site(tmp_path), "a", requested=False)
    (info / "REQUESTED").symlink_to("METADATA")
    (one,) = packages(tmp_path)
    assert not one.requested


def test_names_that_are_no_text_are_told(tmp_path: Path) -> None:
    folder = site(tmp_path)
    os.mkdir(os.fsencode(folder) + b"/\xff\n-1.0.dist-info")  # noqa: PTH102 - no text
    (one,) = packages(tmp_path)
    assert one.problem and "\n" in one.name


def test_other_things_of_the_home_are_told_by_name(tmp_path: Path) -> None:
    for path in (
        ".local/share/code-server/extensions/ms-python.python-2026.1.0-universal",
        "R/x86_64-pc-linux-gnu-library/4.2/dplyr",
        ".npm-global/lib/node_modules/typescript",
        ".local/share/jupyter/kernels/mine",
    ):
        (tmp_path / path).mkdir(parents=True)
    others = read(tmp_path).others
    assert others[Source.vscode] == ("ms-python.python 2026.1.0",)
    assert (others[Source.r], others[Source.kernel]) == (("dplyr",), ("mine",))
    assert "typescript" in others[Source.npm]


def test_a_home_that_is_deep_or_large_ends_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_installed, "ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"folder-{number}").mkdir()
    bounds = read_installed.Bounds()
    assert not list(read_installed.environments(tmp_path, bounds)) and bounds.missed
    (tmp_path / "loop").symlink_to(tmp_path)
    deep = tmp_path / "/".join("d" * 50)
    deep.mkdir(parents=True)
    monkeypatch.setattr(read_installed, "ENTRIES", 10_000)
    assert not list(read_installed.environments(tmp_path, read_installed.Bounds()))


@pytest.fixture
def dnf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of rpm, whose dnf prints the record that it finds in the folder that it is told; returns the record."""
    record = tmp_path / "history.sqlite"
    monkeypatch.setattr(read_installed, "DPKG", tmp_path / "no-dpkg")
    monkeypatch.setattr(read_installed, "HISTORY", (record, tmp_path / "history.sqlite-wal"))
    program = tmp_path / "bin" / "dnf"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nfor word; do case $word in --setopt=persistdir=*) cat "${word##*=}"/*;; esac; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return record


def test_dnf_is_asked_with_a_copy_of_its_record(dnf: Path) -> None:
    dnf.write_text("editor\n\n  R\n")
    dnf.with_name("history.sqlite-wal").write_text("tool.noarch:x\n")
    assert read_installed.system() == ["editor", "R", "tool.noarch"]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "large"])
def test_a_record_that_can_not_be_read_tells_nothing(dnf: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_installed, "MOST_HISTORY", 10)
    if kind == "pipe":
        os.mkfifo(dnf)
    elif kind == "link":
        dnf.symlink_to("/etc/passwd")
    elif kind == "folder":
        dnf.mkdir()
    else:
        dnf.write_text("editor\n" * 10)
    assert read_installed.system() is None


def test_a_dnf_that_fails_or_is_gone_tells_nothing(dnf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dnf.parent / "bin" / "dnf").write_text("#!/bin/sh\necho editor\nexit 1\n")
    assert read_installed.system() is None
    monkeypatch.setenv("PATH", str(dnf.parent))
    assert read_installed.system() is None


def test_without_a_place_for_the_copy_nothing_is_told(dnf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dnf.write_text("editor\n")
    monkeypatch.setattr(tempfile, "tempdir", str(dnf.parent / "not there"))
    assert read_installed.system() is None
