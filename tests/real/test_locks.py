"""Locks by the real pipenv in the real base's container: against PyPI, and against an index of one's own."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from pydantic import SecretStr

from flows.core.errors import RefitError
from flows.core.programs import command, program_output
from flows.core.settings import Settings
from flows.host import containers, tools
from flows.images.build import Builder, Built
from flows.images.builder import locking_image
from flows.images.stages import Stage
from flows.locks import make_python_lock, policy, python_lockfile
from flows.locks.make_python_lock import Unresolvable
from flows.locks.policy import Bounds
from tests.support.package_index import (
    EXTENSION,
    PASSWORD,
    USER,
    make_sdist,
    make_wheel,
    serve_dated_index,
    serve_index,
    write_page,
)

ROOT = Path(__file__).parents[2]
HEAD = """\
[[source]]
name = "pypi"
url = "https://pypi.org/simple"
verify_ssl = true

"""


@pytest.fixture(scope="session")
def lock_image(builder: Builder, base: Built, base_stage: Stage) -> str:
    """Digest of the locker on the run's base."""
    return builder.build(locking_image.stage(base_stage, "py311", ROOT), base).digest


@pytest.fixture(scope="session")
def index_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index with a password: `bee` needs an old `ant`, `cow` a new one, `dog` and `chopper` have no wheel."""
    folder = tmp_path_factory.mktemp("index")
    make_wheel(folder / "ant", "ant", "1.0")
    make_wheel(folder / "ant", "ant", "2.0")
    make_wheel(folder / "bee", "bee", "1.0", ["ant<2"])
    make_wheel(folder / "cow", "cow", "1.0", ["ant>=2"])
    make_sdist(folder / "dog", "dog", "1.0")
    make_sdist(folder / "chopper", "chopper", "1.0", EXTENSION)
    with serve_index(folder) as url:
        yield url


@pytest.fixture
def indexed(shared: Settings, index_url: str) -> Settings:
    """The run's settings with that index."""
    return shared.model_copy(update={"pip_index_url": SecretStr(index_url)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle's folder."""
    (tmp_path / "py311").mkdir()
    return tmp_path / "py311"


def write(folder: Path, text: str) -> None:
    (folder / "Pipfile").write_text(HEAD + text)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_lock_against_pypi(folder: Path, lock_image: str, shared: Settings) -> None:
    write(folder, '[packages]\nsix = "*"\n\n[jupyter]\niniconfig = "*"\n\n[requires]\npython_version = "3.11"\n')
    change = make_python_lock.lock(folder, lock_image, shared)
    assert {"six", "iniconfig"} <= change.added.keys()
    python_lockfile.verify(folder)
    assert "iniconfig" in python_lockfile.versions(python_lockfile.read(folder, ["jupyter"]))
    assert "--hash=sha256:" in (folder / "requirements-jupyter.txt").read_text()

    before = files(folder)
    assert not make_python_lock.lock(folder, lock_image, shared)
    assert files(folder) == before

    # Pipenv itself would export the same.
    for category, name in (("packages", "requirements.txt"), ("jupyter", "requirements-jupyter.txt")):
        script = f'cp -r /in "$HOME/in"; cd "$HOME/in"; /opt/locker/bin/pipenv requirements --hash --exclude-index \
            --categories {category}'
        done = containers.run_once(
            shared,
            f"docker://{shared.registry_host}/{shared.repository}/stages@{lock_image}",
            ["sh", "-c", script],
            mounts=[containers.Mount(folder, "/in")],
            env={"HOME": "/tmp"},
        )
        assert sorted(done.stdout.splitlines()) == (folder / name).read_text().splitlines()


def test_the_index_of_the_settings_is_used_and_named_nowhere(
    folder: Path, lock_image: str, indexed: Settings, index_url: str, tmp_path: Path
) -> None:
    program_output.protect(index_url)
    write(folder, '[packages]\nbee = "*"\n\n[jupyter]\nant = "*"\n')
    with command.logged(tmp_path / "log"):
        change = make_python_lock.lock(folder, lock_image, indexed)
    assert change.added == {"ant": "1.0", "bee": "1.0"}  # not 2.0: all sections are locked together
    python_lockfile.verify(folder)
    assert files(folder).keys() == {"Pipfile", "Pipfile.lock", "requirements.txt", "requirements-jupyter.txt"}
    for name, content in {**files(folder), "log": (tmp_path / "log").read_bytes()}.items():
        for secret in (USER, PASSWORD, "127.0.0.1"):
            assert secret not in content.decode().replace(indexed.registry_host, ""), name

    write(folder, '[packages]\ncow = "*"\n')
    assert str(make_python_lock.lock(folder, lock_image, indexed)) == "ant 1.0 → 2.0, +cow 1.0, -bee 1.0"
    assert files(folder).keys() == {"Pipfile", "Pipfile.lock", "requirements.txt"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ('[packages]\nbee = "*"\ncow = "*"\n', ["bee 1.0 depends on ant<2", "cow 1.0 depends on ant>=2"]),
        ('[packages]\nbee = "*"\n[jupyter]\ncow = "*"\n', ["cow 1.0 depends on ant>=2", "[packages]"]),
        ('[packages]\nant = "*"\ndog = "*"\n', ["no wheel of dog"]),
        ('[packages]\nant = ">9"\n', ["ant"]),
    ],
)
def test_what_can_not_be_resolved_is_explained_and_changes_nothing(
    folder: Path, lock_image: str, indexed: Settings, asked: str, said: list[str]
) -> None:
    write(folder, asked)
    before = files(folder)
    with pytest.raises(Unresolvable) as caught:
        make_python_lock.lock(folder, lock_image, indexed)
    assert all(words in str(caught.value) for words in said)
    assert "Traceback" not in str(caught.value)
    assert files(folder) == before
    assert command.run([*tools.podman(indexed), "ps", "--all", "--quiet"], root=True).stdout == ""


def test_a_folder_of_wheels_supplies_what_the_index_lacks(
    folder: Path, lock_image: str, indexed: Settings, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "wheels", "dog", "1.0")
    write(folder, '[packages]\ndog = "*"\n')
    settings = indexed.model_copy(update={"wheel_folders": (wheel.parent,)})
    assert make_python_lock.lock(folder, lock_image, settings).added == {"dog": "1.0"}
    digest = command.run(["sha256sum", wheel]).stdout.split()[0]
    assert f"sha256:{digest}" in json.loads((folder / "Pipfile.lock").read_text())["default"]["dog"]["hashes"]
    python_lockfile.verify(folder)


def test_a_package_that_is_named_is_locked_as_source_and_no_other(
    folder: Path, lock_image: str, indexed: Settings
) -> None:
    sources = folder.parent / "builder" / "sources.txt"
    sources.parent.mkdir()
    sources.write_text("chopper\n")
    write(folder, '[packages]\nchopper = "*"\n\n[builder]\nant = "*"\n')
    assert make_python_lock.lock(folder, lock_image, indexed).added == {"ant": "2.0", "chopper": "1.0"}
    assert python_lockfile.read(folder, ["packages"])[0].startswith("chopper==1.0 --hash=sha256:")
    write(folder, '[packages]\nchopper = "*"\ndog = "*"\n\n[builder]\nant = "*"\n')
    with pytest.raises(Unresolvable, match="no wheel of dog") as caught:
        make_python_lock.lock(folder, lock_image, indexed)
    assert str(sources) in str(caught.value)


def test_a_pipfile_for_another_python(folder: Path, lock_image: str, indexed: Settings) -> None:
    write(folder, '[packages]\nant = "*"\n\n[requires]\npython_version = "3.12"\n')
    with pytest.raises(RefitError, match=r"is for Python 3\.12, but the base has Python 3\.11"):
        make_python_lock.lock(folder, lock_image, indexed)


@pytest.mark.long
def test_inside_a_release_only_patches_move(
    folder: Path, lock_image: str, shared: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    index = tmp_path_factory.mktemp("grown-index")
    for version in ("1.0.0", "1.0.3", "1.1.0"):
        make_wheel(index / "bee", "bee", version, ["ant"])
        make_wheel(index / "ant", "ant", version)
    write(folder, '[packages]\nbee = "*"\n')
    bounds = Bounds("2026a", {"packages": {"bee": "1.0.0", "ant": "1.0.0"}})
    with serve_index(index) as url:
        settings = shared.model_copy(update={"pip_index_url": SecretStr(url)})
        # Nobody asks for ant but bee: it is held all the same.
        assert make_python_lock.lock(folder, lock_image, settings, bounds).added == {"ant": "1.0.3", "bee": "1.0.3"}
        free = make_python_lock.without_bounds(folder, lock_image, settings)
        python_lockfile.verify(folder)
        held = policy.held(bounds, python_lockfile.locked(folder), free)
        assert str(held) == "ant 1.0.3 → 1.1.0, bee 1.0.3 → 1.1.0"

        before = files(folder)
        make_wheel(index / "cow", "cow", "1.0.0")
        make_wheel(index / "bee", "bee", "1.0.4", ["ant", "cow"])
        for package in ("cow", "bee"):
            write_page(index / package)
        with pytest.raises(policy.Forbidden, match=r"cow 1\.0\.0 would be new"):
            make_python_lock.lock(folder, lock_image, settings, bounds)
    assert files(folder) == before


@pytest.mark.long
def test_what_several_categories_have_moves_in_all_of_them_by_patches(
    folder: Path, lock_image: str, shared: Settings, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    for version in ("1.0.0", "1.0.1", "1.1.0"):
        make_wheel(index / "ant", "ant", version)
        make_wheel(index / "dog", "dog", version)
    for name, needs in (("bee", "ant"), ("cow", "ant"), ("elk", "dog"), ("fox", "dog")):
        make_wheel(index / name, name, "1.0.0", [needs])
    write(folder, '[packages]\nbee = "*"\n[jupyter]\ncow = "*"\nelk = "*"\n[web]\nfox = "*"\n')
    first = {
        "jupyter": {"ant": "1.0.0", "cow": "1.0.0", "dog": "1.0.0", "elk": "1.0.0"},
        "packages": {"ant": "1.0.0", "bee": "1.0.0"},
        "web": {"dog": "1.0.0", "fox": "1.0.0"},
    }
    with serve_index(index) as url:
        settings = shared.model_copy(update={"pip_index_url": SecretStr(url)})
        make_python_lock.lock(folder, lock_image, settings, Bounds("2026a", first))
    python_lockfile.verify(folder)
    now = python_lockfile.by_category(folder)
    assert {category: packages.keys() for category, packages in now.items()} == {
        category: packages.keys() for category, packages in first.items()
    }
    assert {python_lockfile.locked(folder)[name] for name in ("ant", "dog")} == {"1.0.1"}


@pytest.mark.long
def test_a_lock_with_a_cutoff_has_nothing_that_came_later(
    folder: Path, lock_image: str, shared: Settings, tmp_path: Path
) -> None:
    old, new = (make_wheel(tmp_path / "files", "ant", version) for version in ("1.0", "2.0"))
    late = shutil.copy(old, tmp_path / "files" / "ant-1.0-py2.py3-none-any.whl")
    with late.open("ab") as wheel:
        wheel.write(b"another")
    times = {old: "2026-01-01T00:00:00Z", new: "2026-03-01T00:00:00Z", late: "2026-03-01T00:00:00Z"}
    write(folder, '[packages]\nant = "*"\n')
    with serve_dated_index(times) as url:
        dated = shared.model_copy(update={"pip_index_url": SecretStr(url)})
        make_python_lock.lock(folder, lock_image, dated, until=date(2026, 2, 1))
        digest = hashlib.sha256(old.read_bytes()).hexdigest()
        assert (folder / "requirements.txt").read_text() == f"ant==1.0 --hash=sha256:{digest}\n"
        assert make_python_lock.lock(folder, lock_image, dated).moved == {"ant": ("1.0", "2.0")}
