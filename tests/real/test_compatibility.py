"""Homes of real sessions beside real images, and containers that somebody changed by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.compatibility.changes import hand_made
from flows.compatibility.facts import Kind
from flows.compatibility.judge import Verdict
from flows.compatibility.obstacles import Scans, obstacles, recent
from flows.compatibility.replay import NotReplayed, replay
from flows.compatibility.scan import of_folder, of_image, scan
from flows.core.database import open_database
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.publishing import image_comparison
from flows.sessions.engine import Engine
from flows.sessions.homes.folders import folder_of
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.wishes import PreferenceStore
from tests.support.machine import RegistryServer, private_home
from tests.support.moving import opened, to
from tests.support.scan_contract import ScanContract
from tests.support.variants import LIGHT, light

NAME = "ida"
FURNISH = """
python3 -m venv --without-pip project/.venv
mkdir -p .local/bin .local/share/jupyter/kernels/mine tool
printf '{"argv": ["%s/project/.venv/bin/python"]}' "$HOME" >.local/share/jupyter/kernels/mine/kernel.json
printf '#!/usr/bin/perl\\n' >.local/bin/git && chmod +x .local/bin/git
cp /bin/ls tool/own && ln -s /etc/shadow .bashrc && mkfifo tool/pipe
"""


@pytest.fixture(scope="module")
def settings(registry_server: RegistryServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("compatibility") / "home"
    with private_home(folder, registry_server.port, stop_grace_seconds=3.0) as settings:
        yield settings


@pytest.fixture
def sessions(settings: Settings) -> Iterator[Sessions]:
    with opened(settings, NAME) as sessions:
        yield sessions


@pytest.fixture
def session(sessions: Sessions, shared: Settings, registry: Registry, base: Built) -> Session:
    image = light(shared, registry, base, "scanned")
    made = sessions.create(NAME, "light-minimal-deb12-py311", "2026a", image, LIGHT)
    sessions.execute(NAME, ["sh", "-euc", FURNISH])
    return made


def test_a_home_is_read_as_its_owner_and_goes_with_a_newer_build(
    sessions: Sessions, session: Session, settings: Settings, shared: Settings, registry: Registry, base: Built
) -> None:
    times = sessions.execute(NAME, ["sh", "-c", "find . -type f -printf '%p %A@\\n' | sort"])
    home = of_folder(folder_of(session.home), session.uid, "/home/dev")
    assert not home.missed and {group.path: group.kind for group in home.groups} == {
        "project/.venv": Kind.venv,
        "tool": Kind.loose,
    }
    assert sessions.execute(NAME, ["sh", "-c", "find . -type f -printf '%p %A@\\n' | sort"]) == times
    report = scan(settings, sessions.engine, session, light(shared, registry, base, "the next"))
    assert report.verdict is Verdict.ok and report.files > 20
    assert [finding.path for finding in report.findings] == [".local/bin/git"]
    sessions.engine.execute(session.container, ["rm", "-r", "project/.venv/bin"])
    again = scan(settings, sessions.engine, session, session.image)
    (broken,) = (f for f in again.findings if f.path == "project/.venv")
    assert "on the old image either" in broken.what


def test_what_was_installed_by_hand_is_found_with_the_commands_that_do_it_again(
    sessions: Sessions, session: Session, settings: Settings, tmp_path: Path
) -> None:
    assert not hand_made(settings, sessions.engine, session)
    _install(settings, session, _package(tmp_path))
    changes = hand_made(settings, sessions.engine, session)
    assert changes.system.added == {"refit-trial": "1.2-3"}
    assert changes.files == ("/etc/by-hand",)
    assert changes.recipe[0].endswith("refit-trial=1.2-3")


def _package(folder: Path) -> Path:
    """A package of Debian with one file."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/trial").write_text("#!/bin/sh\n")
    (tree / "DEBIAN/control").write_text(
        "Package: refit-trial\nVersion: 1.2-3\nArchitecture: all\nMaintainer: Refit <refit@localhost>\nDescription: x\n"
    )
    command.run(["dpkg-deb", "--build", "--root-owner-group", tree, folder / "trial.deb"])
    return folder / "trial.deb"


def _install(settings: Settings, session: Session, package: Path) -> None:
    """The help of an administrator."""
    podman = tools.podman(settings)
    command.run([*podman, "cp", package, f"{session.container}:/tmp/trial.deb"], root=True)
    by_hand = "dpkg --install /tmp/trial.deb && echo x >/etc/by-hand"
    command.run([*podman, "exec", "--privileged", "--user", "0:0", session.container, "sh", "-c", by_hand], root=True)


@pytest.mark.long
def test_f18_a_plan_waits_for_the_owner_where_only_the_owner_knows_how_to_mend_a_home(
    sessions: Sessions, session: Session, settings: Settings, shared: Settings, registry: Registry, base: Built
) -> None:
    engine, new = sessions.engine, light(shared, registry, base, "older C library")
    folder = settings.folder("cache", "compatibility")
    before = set(folder.iterdir())
    of_image(settings, new)
    (kept,) = set(folder.iterdir()) - before
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "interfaces": {"GLIBC": "2.17"}}))
    why = obstacles(settings, engine, {NAME: (session, new)}).blocked
    assert why.keys() == {NAME} and "tool: tool/own needs GLIBC" in why[NAME]
    shutil.rmtree(folder_of(session.home) / "tool")
    assert obstacles(settings, engine, {NAME: (session, new)}).blocked == why  # a plan is made again and again
    assert recent(settings, engine, session, session.image).verdict is Verdict.ok
    assert obstacles(settings, engine, {NAME: (session, new)}) == Scans()


@pytest.mark.long
def test_what_was_installed_by_hand_comes_along_if_its_owner_wants_it(
    sessions: Sessions, session: Session, settings: Settings, shared: Settings, registry: Registry, base: Built
) -> None:
    by_hand = "apt-get update -q && apt-get install -qy --no-install-recommends tree && apt-get clean"
    call = ["exec", "--privileged", "--user", "0:0", session.container, "sh", "-c", by_hand]
    command.run([*tools.podman(settings), *call], root=True, limit=600)
    packages = sessions.execute(NAME, ["dpkg-query", "--show", "tree"])
    new = light(shared, registry, base, "replayed")
    PreferenceStore(open_database(settings.database)).change(NAME, NAME, replay=True)
    executor = MoveExecutor.open(settings)
    result = executor.carry_out(to(sessions, NAME, new))
    assert result.moved, result.reason
    assert sessions.execute(NAME, ["dpkg-query", "--show", "tree"]) == packages
    (note,) = (
        e.note for e in executor.journal.entries(executor.journal.latest()[NAME]) if e.note and e.step == "create"
    )
    assert note == "installed again: tree"
    moved = sessions.store.session(NAME)
    assert hand_made(settings, sessions.engine, moved).system.added.keys() == {"tree"}  # and so to the next one, too

    other = image_comparison.Changes({"refit-gone": "1"}, {}, {})
    gone = replace(hand_made(settings, sessions.engine, moved), system=other)
    sessions.stop(NAME)
    with pytest.raises(NotReplayed, match="can't be installed"):
        replay(settings, gone, moved.container)


class TestScansOnThisMachine(ScanContract):
    """The whole contract."""

    @pytest.fixture
    def engine(self, sessions: Sessions) -> Engine:
        return sessions.engine

    @pytest.fixture
    def session(self, sessions: Sessions, shared: Settings, registry: Registry, base: Built) -> Session:
        image = light(shared, registry, base, "scanned")
        return sessions.create(NAME, "light-minimal-deb12-py311", "2026a", image, LIGHT)

    @pytest.fixture
    def another(self, shared: Settings, registry: Registry, base: Built) -> str:
        return light(shared, registry, base, "the next")
