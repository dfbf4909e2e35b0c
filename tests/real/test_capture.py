"""Captures of real sessions in which a person, and an administrator, have installed things by hand."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from flows.authoring.capture.facts import Reason
from flows.authoring.lint.catalog import lint
from flows.catalog import load
from flows.cli import capture as cli
from flows.cli import session as session_cli
from flows.compatibility.capture import Wish, capture, write
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Built
from flows.images.registry import Registry
from flows.prove_capture import Proof
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from tests.support.machine import ROOT, RegistryServer, private_home
from tests.support.moving import opened
from tests.support.package_index import make_wheel, serve_index, write_page
from tests.support.variants import LIGHT, light

NAME, PROFILE = "cap", "runtime-minimal-deb12-py311"
# As pip leaves it: a package that was asked for, one that came along, one of a repository, and one of no index.
BY_HAND = """
site=$1
add() {
    mkdir -p "$site/$1-$2.dist-info"
    printf 'Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n' "$1" "$2" >"$site/$1-$2.dist-info/METADATA"
}
add bee 1.0.0 && touch "$site/bee-1.0.0.dist-info/REQUESTED"
add ant 1.0.0
add gone 3.0 && touch "$site/gone-3.0.dist-info/REQUESTED"
add own 2.0 && touch "$site/own-2.0.dist-info/REQUESTED"
echo '{"url": "git+https://example.org/own"}' >"$site/own-2.0.dist-info/direct_url.json"
add cat 1.0.0 && touch "$site/cat-1.0.0.dist-info/REQUESTED"
printf 'Requires-Dist: %s\\n' 'dog>1 ; extra == "pets"' 'eel; sys_platform == "win32" and extra == "sea"' \\
    >>"$site/cat-1.0.0.dist-info/METADATA"
add dog 1.0.0
mkdir -p "$site/broken-1.dist-info" && mkfifo "$site/broken-1.dist-info/METADATA"
mkdir -p "$site/linked-1.dist-info" && ln -s /etc/shadow "$site/linked-1.dist-info/METADATA"
"""
IN_HOME = 'python3 -m venv --without-pip project/.venv; sh -euc "$1" sh project/.venv/lib/python3.11/site-packages'
BY_ROOT = "printf 'x = {{ y }}\\n' >/etc/tool.conf; echo secret >/usr/local/other"


@dataclass(frozen=True)
class Scene:
    """A session, its settings, and a copy of the catalog."""

    session: Session
    settings: Settings
    catalog: Path


@pytest.fixture(scope="module")
def scene(
    registry_server: RegistryServer,
    shared: Settings,
    registry: Registry,
    base: Built,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("capture")
    for part in ("base", "bundles", "ides", "releases", "snippets"):
        shutil.copytree(ROOT / part, folder / "catalog" / part)
    for name in ("bee", "cat"):
        make_wheel(folder / "index" / name, name, "1.0.0")
    with (
        private_home(folder / "home", registry_server.port) as settings,
        serve_index(folder / "index") as url,
        opened(settings, NAME) as sessions,
    ):
        own = settings.model_copy(update={"pip_index_url": SecretStr(url), "catalog": folder / "catalog"})
        session = sessions.create(NAME, PROFILE, "2026a", light(shared, registry, base, "captured"), LIGHT)
        sessions.execute(NAME, ["sh", "-euc", IN_HOME, "sh", BY_HAND])
        call = ["exec", "--privileged", "--user", "0:0", session.container, "sh", "-euc", BY_ROOT]
        command.run([*tools.podman(settings), *call], root=True)
        yield Scene(session, own, folder / "catalog")


def test_what_was_asked_for_becomes_a_bundle_that_lint_accepts(scene: Scene) -> None:
    wish = Wish("mine", ("project/.venv",), ("/etc/tool.conf",))
    before = sorted(path.name for path in (scene.catalog / "bundles").iterdir())
    made = capture(scene.settings, NAME, wish)
    assert sorted(path.name for path in (scene.catalog / "bundles").iterdir()) == before
    assert made.capture.packages == {"bee": "~=1.0.0", "cat": "~=1.0.0"}
    assert made.capture.extras == {"cat": ("pets",)}
    assert made.capture.files == {"/etc/tool.conf": b"x = {{ y }}\n"}
    reasons = {left.name: left.reason for left in made.capture.left}
    assert reasons == {
        "gone": Reason.not_in_index,
        "own": Reason.direct_url,
        "broken-1.dist-info": Reason.unreadable,
        "linked-1.dist-info": Reason.unreadable,
        "/usr/local/other": Reason.not_chosen,
    }
    folder = write(made)
    recipes = load.load_catalog(scene.catalog)
    profile = load.profile(recipes, "2026a", "runtime-mine-deb12-py311")
    assert profile.bundle.folder == folder and profile.bundle.lineage[-2].name == "1-minimal"
    (unlocked,) = lint(scene.catalog, date(2026, 11, 25)).mistakes
    assert (unlocked.file.name, unlocked.hint) == ("Pipfile.lock", "run `refit lock`")
    with pytest.raises(RefitError, match="already"):
        write(made)
    assert folder.is_dir() and not list((scene.catalog / "bundles").glob(".*"))


def test_each_command_of_the_chapter_does_what_it_says(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "load", lambda: scene.settings)
    proven: list[str] = []  # `test_prove_capture.py` proves one
    monkeypatch.setattr(
        cli, "_prove", lambda captured, *_, **__: proven.append(captured.profile) or Proof("sha256:1", ())
    )
    page = (ROOT / "docs" / "your-sessions.md").read_text(encoding="utf-8")
    commands = re.findall(r"(?m)^refit session (capture .*)$", page)
    assert len(commands) == 2
    for line in commands:
        words = [NAME if word == "ada" else word for word in shlex.split(line)]
        done = CliRunner().invoke(session_cli.app, words)
        assert done.exit_code == 0, (line, done.output, done.exception)
        there = bool(list((scene.catalog / "bundles").glob("*-mytools")))
        assert there is ("--dry-run" not in words) and "not-chosen" in done.output
    assert proven == ["runtime-mytools-deb12-py311"]
    assert "  refit session change-profile cap runtime-mytools-deb12-py311 --release 2026a" in done.output


def test_nothing_of_the_home_is_taken_that_nobody_named(scene: Scene) -> None:
    made = capture(scene.settings, NAME, Wish("nothing"))
    assert not made.capture
    assert {left.reason for left in made.capture.left} == {Reason.not_chosen}


@pytest.mark.long
def test_five_hundred_packages_by_hand_become_a_pipfile(scene: Scene) -> None:
    for number in range(500):
        write_page(make_wheel(scene.catalog.parent / "index" / f"p{number}", f"p{number}", "1.2").parent)
    make = """
        python3 -m venv --without-pip many && cd many/lib/python3.11/site-packages
        for number in $(seq 0 500); do
            mkdir "p$number-1.2.dist-info" && touch "p$number-1.2.dist-info/REQUESTED"
            printf 'Metadata-Version: 2.1\nName: p%s\nVersion: 1.2\n' "$number" >"p$number-1.2.dist-info/METADATA"
        done
    """
    sessions = Sessions.open(scene.settings)
    sessions.execute(NAME, ["sh", "-euc", make])
    try:
        made = capture(scene.settings, NAME, Wish("many", ("many",)))
    finally:
        sessions.execute(NAME, ["rm", "-r", "many"])
    assert len(made.capture.packages) == 500
    assert [left.name for left in made.capture.left if left.reason is Reason.not_in_index] == ["p500"]
    (pipfile,) = (text for path, text in made.files.items() if path.endswith("Pipfile"))
    assert pipfile.count('"~=1.2"') == 500


@pytest.mark.long
def test_a_session_whose_python_is_broken_says_so(scene: Scene) -> None:
    def by_root(text: str) -> None:
        call = ["exec", "--privileged", "--user", "0:0", scene.session.container, "sh", "-euc", text]
        command.run([*tools.podman(scene.settings), *call], root=True)

    broken = ("echo no such library >&2; exit 127", "echo '{}'", "yes", "kill -SEGV $$")
    for does in broken:
        by_root(
            f'(echo "#!/bin/sh"; echo {shlex.quote(does)}) >/usr/local/bin/python3; chmod 755 /usr/local/bin/python3'
        )
        try:
            with pytest.raises(RefitError, match="gave no report of what is installed"):
                capture(scene.settings, NAME, Wish("broken"))
        finally:
            by_root("rm /usr/local/bin/python3")


def test_what_can_not_be_had_is_refused_before_anything_is_written(scene: Scene) -> None:
    for wish, why in (
        (Wish("minimal"), "There is a bundle 'minimal' already"),
        (Wish("none"), "can't be the name of a bundle"),
        (Wish("../x"), "can't be the name of a bundle"),
        (Wish("other", ("/etc",)), "There is no environment '/etc'"),
        (Wish("other", (), ("/etc/../etc/shadow",)), "can't be part of a bundle"),
        (Wish("other", (), ("/etc/shadow",)), "Permission denied"),
        (Wish("other", (), ("/etc/none",)), "No such file"),
    ):
        with pytest.raises(RefitError) as error:
            capture(scene.settings, NAME, wish)
        assert why in str(error.value)
