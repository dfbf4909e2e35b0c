"""Captures of a session whose system packages are of rpm: the real dnf of Debian, with packages that hold nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from flows.authoring.capture.facts import Left, Reason, Source
from flows.compatibility.capture import Wish, capture
from flows.compatibility.changes import hand_made
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Builder, Built
from flows.images.registry import Registry
from flows.images.stages import Kind, Stage
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.reconfigure import install_packages
from tests.support.machine import ROOT, RegistryServer, private_home
from tests.support.moving import opened
from tests.support.rpms import serve_repository
from tests.support.variants import LIGHT, light

NAME, PROFILE = "rob", "runtime-minimal-deb12-py311"
# name → what it needs
PACKAGES = {
    **{"shell": "", "unused": "", "editor": "library", "library": "", "Image_Tool": ""},
    **{"R": "", "marked": "lent", "lent": "", "operators": "library"},
}
# An image in which nothing tells of Debian's packages, with two packages of the repository and no record of dnf's.
_IMAGE = """\
RUN . /mnt/env.sh; set -eu; apt-get update -q; apt-get install -q -y --no-install-recommends dnf rpm gpg
COPY files/repository /opt/repository
COPY files/made-up.repo /etc/yum.repos.d/made-up.repo
COPY files/macros /etc/rpm/macros
RUN set -eu; rm -rf /var/lib/dpkg /usr/bin/apt-get; mkdir -p /var/lib/rpm; dnf install -q -y shell-1.0 unused; \\
    rm -rf /var/cache/dnf /var/lib/dnf/history.sqlite*
"""
_FILES = {
    "files/made-up.repo": b"[made-up]\nname=made-up\nbaseurl=file:///opt/repository/\ngpgcheck=0\n",
    "files/macros": b"%_dbpath /var/lib/rpm\n",  # Debian's is below HOME
}
_BY_HAND = """
dnf install -q -y editor Image_Tool marked
dnf mark install lent
dnf upgrade -q -y shell
dnf remove -q -y unused
rpm --install /opt/repository/noarch/R-1.0-1.el9.noarch.rpm
rpm --import /opt/repository/key.asc
"""

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Scene:
    """A session and its settings."""

    session: Session
    settings: Settings
    sessions: Sessions

    def by_root(self, text: str) -> str:
        call = ["exec", "--privileged", "--user", "0:0", self.session.container, "sh", "-euc", text]
        return command.run([*tools.podman(self.settings), *call], root=True, limit=600).stdout


@pytest.fixture(scope="module")
def image(builder: Builder, base: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    with serve_repository(tmp_path_factory.mktemp("rpm") / "repository") as repository:
        for name, needs in PACKAGES.items():
            repository.publish(name, "1.0", requires=needs)
        repository.publish("shell", "1.1")
        repository.make_key()
        repository.refresh()
        files = _FILES | {
            f"files/repository/{path.relative_to(repository.folder)}": path.read_bytes()
            for path in repository.folder.rglob("*")
            if path.is_file()
        }
    stage = Stage("of-rpm", Kind.instructions, base.stage, _IMAGE, files, suite="bookworm")
    return builder.build(stage, base)


@pytest.fixture(scope="module")
def scene(
    image: Built,
    registry_server: RegistryServer,
    shared: Settings,
    registry: Registry,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("captured")
    with private_home(folder / "home", registry_server.port) as settings, opened(settings, NAME) as sessions:
        session = sessions.create(NAME, PROFILE, "2026a", light(shared, registry, image, "of-rpm"), LIGHT)
        scene = Scene(session, settings.model_copy(update={"catalog": ROOT}), sessions)
        scene.by_root(_BY_HAND)
        yield scene


def test_packages_that_were_wanted_are_captured_and_those_that_came_along_are_not(scene: Scene) -> None:
    made = capture(scene.settings, NAME, Wish("ofrpm")).capture
    assert made.system == ("Image_Tool", "R", "editor", "lent", "marked")
    assert [left for left in made.left if left.source is Source.system] == [
        Left(Source.system, "unused", Reason.removed, "a bundle removes nothing")
    ]


def test_all_that_differs_is_told_with_the_commands_that_make_it_anew(scene: Scene) -> None:
    made = hand_made(scene.settings, scene.sessions.engine, scene.session)
    new = {"Image_Tool", "R", "editor", "lent", "library", "marked"}
    assert made.system.added.keys() == new and made.system.removed.keys() == {"unused"}
    assert made.system.changed == {"shell": ("1.0-1.el9", "1.1-1.el9")}
    assert made.manager == "dnf" and "gpg-pubkey" not in str(made.recipe)
    scene.by_root("\n".join(made.recipe))  # it is all there by now
    assert hand_made(scene.settings, scene.sessions.engine, scene.session).system == made.system


def test_an_operator_installs_packages_of_rpm_that_a_capture_then_has(scene: Scene) -> None:
    outcome = install_packages(scene.sessions, scene.settings, NAME, ["operators", "editor", "refit-none"], "root")
    assert outcome.there == {"operators": "1.0-1.el9", "editor": "1.0-1.el9"}
    assert outcome.missing == {"refit-none": "no repository has it"}
    assert install_packages(scene.sessions, scene.settings, NAME, ["operators"], "root").missing == {}
    assert "operators" in capture(scene.settings, NAME, Wish("ofrpm")).capture.system


def test_where_the_reasons_can_not_be_read_nothing_is_taken(scene: Scene) -> None:
    def system() -> tuple[tuple[str, ...], list[Left]]:
        made = capture(scene.settings, NAME, Wish("ofrpm")).capture
        return made.system, [left for left in made.left if left.reason is Reason.unreadable]

    for spoil, mend in (
        ("chmod 600 /var/lib/dnf/history.sqlite", "chmod 644 /var/lib/dnf/history.sqlite"),
        ("mv /usr/bin/dnf /usr/bin/none", "mv /usr/bin/none /usr/bin/dnf"),
    ):
        scene.by_root(spoil)
        try:
            taken, (left,) = system()
            assert not taken and (left.source, left.name) == (Source.system, "all")
        finally:
            scene.by_root(mend)
    assert system()[0] and not system()[1]
