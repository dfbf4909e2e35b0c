import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog import load
from flows.catalog.model import Base
from flows.core.documents import Mistakes
from flows.images import stages
from flows.images.recipe import Assembler
from flows.images.rendering.templates import read_templates
from flows.images.stages import Kind, Stage
from flows.locks.pipfile import read_pipfile
from flows.locks.python_lockfile import exports
from flows.publishing.checks import in_config

ROOT = Path(__file__).parents[3]
JUPYTER = "jupyter-minimal-deb12-py311"
RUNTIME = "runtime-minimal-deb12-py311"
LOCKS = "bundles/1-minimal/py311"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of this repository's catalog, to change."""
    for kind in ("base", "bundles", "ides", "releases", "snippets"):
        shutil.copytree(ROOT / kind, tmp_path / kind)
    return tmp_path


def resolve(base: Base) -> tuple[str, ...]:
    return tuple(sorted(f"{name}=1" for name in (*base.packages, "libc6")))


def chain(root: Path, stem: str = JUPYTER) -> tuple[Stage, ...]:
    catalog = load.load_catalog(root)
    return Assembler(catalog, resolve).chain(load.profile(catalog, "2026a", stem))


def mistakes(root: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(Mistakes) as error:
        chain(root)
    return [(m.file.relative_to(root).as_posix(), m.line, m.what) for m in error.value.mistakes]


def append(file: Path, text: str) -> int:
    """Adds a line to a file; returns its number."""
    content = file.read_text()
    file.write_text(f"{content}{text}\n")
    return len(content.splitlines()) + 1


def test_the_stages_of_a_profile(root: Path) -> None:
    base, python, packages, ide = chain(root)
    assert (base.name, base.kind, base.parent, base.suite) == ("base-deb12-py311", Kind.bootstrap, None, "bookworm")
    assert "openssh-server=1" in base.system
    assert "files/bash.bashrc" in base.files
    assert (python.name, python.kind, python.parent) == ("minimal-deb12-py311", Kind.closed, base.name)
    assert python.files == {"requirements.txt": (root / LOCKS / "requirements.txt").read_bytes()}
    assert python.writes == packages.writes == ("/opt/app-root",)
    assert python.abi == packages.abi == {"os": "deb12", "suite": "bookworm", "python": "py311"}
    assert (packages.name, packages.kind, packages.parent) == (f"{JUPYTER}-packages", Kind.closed, python.name)
    assert packages.files == {"requirements.txt": (root / LOCKS / "requirements-jupyter.txt").read_bytes()}
    assert any(line.startswith("jupyterlab==") for line in packages.requirements)
    assert (ide.name, ide.kind, ide.parent) == (JUPYTER, Kind.closed, packages.name)
    assert ide.files["files/start-jupyter"] == (root / "ides/1-jupyter/files/start-jupyter").read_bytes()


def test_every_base_renders_to_instructions_that_a_shell_can_read() -> None:
    catalog = load.load_catalog(ROOT)
    for base in catalog.bases.values():
        for python in base.config.pythons:
            text = Assembler(catalog, resolve).foundation(base, python).text
            commands = re.findall(r"^RUN ((?:.*\\\n)*.*)$", text, re.MULTILINE)
            assert commands
            for body in commands:
                subprocess.run(["sh", "-n"], input=body, text=True, check=True)


def test_a_base_of_rpm_stands_on_its_image_with_the_packages_of_its_python(root: Path) -> None:
    catalog = load.load_catalog(root)
    base = catalog.bases["c9s"]
    stage = Assembler(catalog, resolve).foundation(base, "py312")
    assert (stage.kind, stage.parent, stage.image) == (Kind.instructions, None, base.config.image)
    assert "python3.12=1" in stage.system and "python3.11=1" not in stage.system
    assert "python3.12-1 " in stage.text or "python3.12-1;" in stage.text
    names = ("bash.bashrc", "dnf.conf", "profile.sh", "sshd_config", "start-session")
    assert stage.files.keys() == {f"files/{name}" for name in names}
    other = replace(stage, image=stage.image.replace("@sha256:d", "@sha256:e"))
    assert stages.key(other, None, {}) != stages.key(stage, None, {})


def test_a_bundle_s_system_packages_come_from_the_base_s_repositories(root: Path) -> None:
    (root / "bundles/1-minimal/os").mkdir()
    (root / "bundles/1-minimal/os/os-packages.txt").write_text("gcc\n")
    catalog = load.load_catalog(root)
    there = load.profile(catalog, "2026a", JUPYTER)
    system = Assembler(catalog, resolve).chain(replace(there, base=catalog.bases["c9s"]))[1]
    assert (system.name, system.family, system.system) == ("minimal-os-c9s-py311", "rpm", ("gcc=1",))
    assert "gcc-1;" in system.text and "apt-get" not in system.text
    assert system.files.keys() == {"files/dnf.conf"}


def test_where_java_comes_in_the_dates_of_its_authorities_go(root: Path) -> None:
    (root / "bundles/1-minimal/os").mkdir()
    packages = root / "bundles/1-minimal/os/os-packages.txt"
    for name, files in (("gcc", set()), ("ca-certificates-java", {"files/keystore.py"})):
        packages.write_text(f"{name}\n")
        system = chain(root)[1]
        assert system.files.keys() == files
        assert ("/mnt/files/files/keystore.py" in system.text) == bool(files)


def test_profiles_share_every_stage_up_to_the_ide(root: Path) -> None:
    graph = stages.join({stem: chain(root, stem) for stem in (JUPYTER, RUNTIME)})
    assert list(graph.stages) == ["base-deb12-py311", "minimal-deb12-py311", f"{JUPYTER}-packages", JUPYTER, RUNTIME]


def test_every_run_takes_what_is_the_machine_s_own_from_the_mount_alone(root: Path) -> None:
    text = "\n".join(stage.text for stage in chain(root))
    runs = [line for line in text.splitlines() if line.startswith("RUN ")]
    assert runs
    assert all(line.startswith("RUN . /mnt/env.sh; set -eu;") and "SOURCE_DATE_EPOCH=" in line for line in runs)
    assert "ARG " not in text
    assert "2026a" not in text


def test_a_bundle_s_system_packages_get_a_stage_with_what_the_base_lacks(root: Path) -> None:
    (root / "bundles/1-minimal/os").mkdir()
    (root / "bundles/1-minimal/os/os-packages.txt").write_text("gfortran\ngit\n")
    base, system, python, *_ = chain(root)
    assert (system.name, system.parent, python.parent) == ("minimal-os-deb12-py311", base.name, system.name)
    assert system.system == ("gfortran=1",)
    assert "gfortran=1;" in system.text


def test_a_bundle_s_system_packages_that_the_base_has_need_no_stage(root: Path) -> None:
    (root / "bundles/1-minimal/os").mkdir()
    (root / "bundles/1-minimal/os/os-packages.txt").write_text("git\n")
    assert len(chain(root)) == 4


@pytest.mark.slow
def test_a_bundle_s_own_instructions_stand_after_its_packages(root: Path) -> None:
    (root / "bundles/1-minimal/custom").mkdir()
    (root / "bundles/1-minimal/custom/custom.snippet.j2").write_text("RUN echo {{ bundle }} on {{ os }}")
    _, python, custom, packages, ide = chain(root)
    assert (custom.name, custom.parent, custom.kind) == ("minimal-custom-deb12-py311", python.name, Kind.instructions)
    assert custom.text == "RUN echo minimal on deb12\n"
    # Nobody can tell their effects in the environment, so the packages above them can't be carried to another parent.
    assert (packages.kind, packages.parent, ide.kind) == (Kind.instructions, custom.name, Kind.closed)


def take_as_source(root: Path, *names: str) -> None:
    """Let the bundle take packages of its lock as source, and lock what they are built with."""
    bundle, folder = root / "bundles/1-minimal", root / LOCKS
    (bundle / "builder").mkdir()
    (bundle / "builder/sources.txt").write_text("".join(f"{name}\n" for name in names))
    (bundle / "builder/os-packages.txt").write_text("gcc\ngit\n")
    (folder / "Pipfile").write_text((folder / "Pipfile").read_text() + '\n[builder]\nsetuptools = "*"\n')
    pipfile, lock = read_pipfile(folder / "Pipfile"), json.loads((folder / "Pipfile.lock").read_text())
    lock["_meta"]["hash"]["sha256"] = pipfile.digest
    lock["builder"] = {"setuptools": {"version": "==80.0", "hashes": ["sha256:aa"]}}
    for name, content in {**exports(lock, pipfile), "Pipfile.lock": json.dumps(lock)}.items():
        (folder / name).write_text(content)


def test_packages_that_are_taken_as_source_are_built_in_a_stage_of_their_own(root: Path) -> None:
    before = chain(root)
    take_as_source(root, "PyYAML", "jupyterlab")
    base, python, packages, _ = chain(root)
    wheels, of_ide = python.wheels, packages.wheels
    assert wheels and of_ide
    assert (wheels.name, wheels.kind, wheels.parent) == ("minimal-wheels-deb12-py311", Kind.wheels, base.name)
    assert (of_ide.name, of_ide.parent) == ("minimal-jupyter-wheels-deb12-py311", base.name)
    assert wheels.files["requirements.txt"] == b"setuptools==80.0 --hash=sha256:aa\n"
    assert wheels.files["sources.txt"].startswith(b"pyyaml==")
    assert wheels.system == ("gcc=1",)  # git is the base's
    # The rest is installed as before, and both are in the image.
    assert b"pyyaml" not in python.files["requirements.txt"] and b"requests" in python.files["requirements.txt"]
    assert python.requirements == before[1].requirements
    assert "-r /mnt/built/requirements.txt" in python.text and "/mnt/built" not in before[1].text
    for body in re.findall(r"^RUN ((?:.*\\\n)*.*)$", wheels.text, re.MULTILINE):
        subprocess.run(["sh", "-n"], input=body, text=True, check=True)


def test_what_a_bundle_says_of_its_own_about_building_comes_right_before(root: Path) -> None:
    take_as_source(root, "pyyaml")
    (root / "bundles/1-minimal/builder/builder.snippet.j2").write_text("ENV OF={{ bundle }}\n")
    wheels = chain(root)[1].wheels
    assert wheels and wheels.text.index("ENV OF=minimal\nRUN ") > wheels.text.index("/opt/builder/bin/python")


def test_a_source_that_nothing_asks_for_is_named_with_its_line(root: Path) -> None:
    take_as_source(root, "pyyaml", "pyyam1")
    ((file, line, what),) = mistakes(root)
    assert (file, line) == ("bundles/1-minimal/builder/sources.txt", 2)
    assert what == "pyyam1 is not in py311/Pipfile.lock"


@pytest.mark.parametrize("line", ["RUN true", "CMD --verbose", "EXPOSE 1-5", 'ENV "open'])
def test_an_ide_that_runs_programs_or_cant_be_recomputed_is_no_closed_stage(root: Path, line: str) -> None:
    append(root / "ides/1-jupyter/jupyter.snippet.j2", line)
    assert chain(root)[-1].kind is Kind.instructions


def test_with_pip_the_version_of_the_base_s_pip_counts(root: Path) -> None:
    def with_pip(base: Base) -> tuple[str, ...]:
        return (*resolve(base), "python3-pip-whl=23.0.1")

    catalog = load.load_catalog(root)
    python = Assembler(catalog, with_pip, "pip").chain(load.profile(catalog, "2026a", RUNTIME))[1]
    assert python.abi["pip"] == "python3-pip-whl=23.0.1"
    assert "-m pip install --require-hashes --only-binary :all:" in python.text
    assert "/mnt/uv" not in python.text


@pytest.mark.parametrize(
    ("file", "line", "what"),
    [
        ("base/deb12/base.snippet.j2", "RUN echo {{ colour }}", "'colour' is undefined"),
        ("ides/1-jupyter/jupyter.snippet.j2", "RUN {{ port.remove() }}", "has no attribute 'remove'"),
        ("ides/1-jupyter/jupyter.snippet.j2", "{% if port %}", "Unexpected end of template"),
        ("ides/1-jupyter/jupyter.snippet.j2", '{% include "snippets/none.j2" %}', "no template 'snippets/none.j2'"),
        ("ides/1-jupyter/jupyter.snippet.j2", "{{ 'one' | format(2) }}", "not all arguments converted"),
        ("snippets/environment.snippet.j2", "{{ python }", "unexpected '}'"),
    ],
)
def test_a_mistake_in_a_template_is_told_with_its_file_and_line(root: Path, file: str, line: str, what: str) -> None:
    number = append(root / file, line)
    ((place, at, why),) = mistakes(root)
    assert (place, at) == (file, number)
    assert what in why


def test_a_mistake_in_an_included_snippet_is_told_where_it_stands(root: Path) -> None:
    lines = (root / "snippets/packages.j2").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if "pip check" in line)
    lines[at] += "; {{ missing }}"
    (root / "snippets/packages.j2").write_text("\n".join(lines))
    assert mistakes(root) == [("snippets/packages.j2", at + 1, "'missing' is undefined")]


def test_a_lock_of_another_pipfile_is_refused(root: Path) -> None:
    pipfile = root / LOCKS / "Pipfile"
    pipfile.write_text(pipfile.read_text().replace("[packages]\n", '[packages]\nsix = "~=1.16"\n'))
    with pytest.raises(Mistakes, match="1 mistake") as error:
        chain(root)
    assert f"{LOCKS}/Pipfile.lock" in error.value.why
    assert "run `refit lock`" in error.value.why


def test_an_export_that_was_edited_is_refused(root: Path) -> None:
    append(root / LOCKS / "requirements-jupyter.txt", "six==1.16.0 --hash=sha256:00")
    assert [one[:2] for one in mistakes(root)] == [(f"{LOCKS}/requirements-jupyter.txt", 113)]


@pytest.mark.parametrize("name", ["Pipfile.lock", "requirements.txt"])
def test_a_lock_that_is_missing_is_told(root: Path, name: str) -> None:
    (root / LOCKS / name).unlink()
    assert mistakes(root) == [(f"{LOCKS}/{name}", 0, "this file is missing")]


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_what_installs_packages_tells_nothing_in_the_history_that_the_checks_refuse(installer: str) -> None:
    variables = {"python_version": "3.11", "built": True, "indexes": ("https://index.example/simple",)}
    text = read_templates(ROOT).render("snippets/packages.snippet.j2", installer=installer, **variables)
    assert "/mnt/built" in text and "index.example" in text
    assert in_config({"history": [{"created_by": text}]}, {}) == []
