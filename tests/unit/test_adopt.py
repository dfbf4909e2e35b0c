"""A checkout of workbench-images becomes a catalog: with all its oddities, and a word about each that is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings

from flows.adopt import Adoption, adopt
from flows.catalog import load
from flows.catalog.model import Base, Catalog
from flows.catalog.tag import ForeignTag, parse_foreign
from flows.errors import RefitError
from flows.images.recipe import Assembler
from flows.locks import python
from tests.machine import ROOT
from tests.unit.test_broken_files import Spoil, spoilt

PIPFILE = """\
[[source]]
url = "https://pypi.org/simple"
verify_ssl = true
name = "pypi"

[dev-packages]

[packages]
six = "~=1.16" # a comment

[requires]
python_version = "3.9"
"""
# As pipenv writes it for that Pipfile.
LOCK = """\
{"_meta": {"hash": {"sha256": "%s"}, "pipfile-spec": 6, "requires": {"python_version": "3.9"},
 "sources": [{"name": "pypi", "url": "https://pypi.org/simple", "verify_ssl": true}]},
 "default": {"six": {"hashes": ["sha256:aa"], "index": "pypi", "version": "==1.16.0"}}, "develop": {}}
"""
DIGEST = "ca429625ea49d54e94a162c6bdea0da403e2746e8e101cfc5b1c2def2e558f19"
CUSTOM = "USER 0\n\nRUN echo '{{ x }}' >> /etc/r && \\\n    true\n\nENV LIBLOC /usr/lib64\n"
SNIPPET = """\
USER 1001
COPY --chown=1001:0 utils ./run.sh utils/
COPY --from=builder /a /b
RUN cp x /opt/app-root/lib/$PYTHON_FOLDER/y
RUN ["true"]
CMD run.sh ${CUDA}${RELEASE}
"""


def write(root: Path, path: str, text: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture(scope="module")
def own() -> Catalog:
    return load.load_catalog(ROOT)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    for number, name, display in ((1, "minimal", "Minimal\n"), (2, "two", "Two 1.0\n\n"), (8, "r", "R 4.3.1")):
        write(root, f"snippets/bundles/{number}-{name}/display.txt", display)
    write(root, "snippets/bundles/1-minimal/py39/Pipfile", PIPFILE)
    write(root, "snippets/bundles/1-minimal/py39/Pipfile.lock", LOCK % DIGEST)
    write(root, "snippets/bundles/2-two/py39/Pipfile", PIPFILE.replace("verify_ssl = true", "verify_ssl = false"))
    write(root, "snippets/bundles/2-two/py39/grap.txt")
    write(root, "snippets/bundles/2-two/builder/builder.snippet", "FROM ${BASE_IMAGE} as builder\n")
    write(root, "snippets/bundles/2-two/custom/custom.snippet", "COPY --from=builder /spark /spark\n")
    write(root, "snippets/bundles/8-r/custom/custom.snippet", CUSTOM)
    write(root, "snippets/bundles/8-r/os/os-packages.txt", "R\nR\n\nnot a package\n")
    write(root, "snippets/bundles/8-r/selection-override")
    write(root, "snippets/bundles/10-stability-studio/display.txt", "Stable Studio\n")
    write(root, "snippets/ides/1-jupyter/jupyter.snippet", SNIPPET)
    write(root, "snippets/ides/5-runtime/runtime.snippet", "USER 1001\n")
    write(root, "snippets/ides/6-stability-studio/stability-studio.snippet", SNIPPET)
    write(root, "snippets/ides/6-stability-studio/files/run.sh", "#!/bin/sh\n")
    write(root, "snippets/ides/7-nothing/display.txt", "x\n")
    write(root, "base/c9s/Containerfile")
    write(root, "base/c9s/os-packages.txt", "git\nunzip # for wheels\n\nperl\nunzip\n")
    write(root, "base/ubi9/os-packages.txt", "git\n")
    write(root, "cuda-layer/Makefile")
    for name in (
        "runtime-minimal-c9s-py39_2023c_20230925",
        "cuda-runtime-minimal-c9s-py39_2023c_20230925",
        "runtime-r-c9s-py39_2023c_20230925",
        "stability-studio-two-c9s-py39_2023b_latest",
        "jupyter-minimal-c9s-py311_2023c_20230925",
        "base-c9s-py311_2023c_20230925",
        "stable-studio-rhel9-no_py-_2023c_20231117",
    ):
        write(root, f"recipes/{name}/Containerfile")
    return root


@pytest.fixture
def adopted(checkout: Path, own: Catalog, tmp_path: Path) -> Adoption:
    return adopt(checkout, tmp_path / "catalog", own)


def test_what_comes_out_is_a_catalog_with_a_release_of_all_that_it_can_make(adopted: Adoption) -> None:
    catalog = load.load_catalog(adopted.catalog)
    assert [(b.name, b.display) for b in catalog.bundles.values()] == [
        ("minimal", "Minimal"),
        ("two", "Two 1.0"),
        ("r", "R 4.3.1"),
        ("stabilitystudio", "Stable Studio"),
    ]
    assert [profile.stem for profile in catalog.releases["2023c"].profiles] == [
        "cuda-runtime-minimal-c9s-py39",
        "runtime-minimal-c9s-py39",
        "runtime-r-c9s-py39",
        "stabilitystudio-two-c9s-py39",
    ]
    assert adopted.profiles == 4


def test_nothing_is_left_out_without_a_word(adopted: Adoption) -> None:
    said = dict(note.split(": ", 1) for note in sorted(adopted.notes))
    assert said["snippets/bundles/10-stability-studio"].startswith("is called stabilitystudio here")
    assert said["snippets/bundles/2-two/builder"].startswith("was left out: stages that copy from each other")
    assert said["snippets/bundles/2-two/custom"].startswith("was left out: it copies files")
    assert any(note.startswith("snippets/bundles/2-two/py39: has to be locked") for note in adopted.notes)
    assert any("verify_ssl was false" in note for note in adopted.notes)
    assert said["snippets/bundles/8-r/os"] == "these are no names of packages, and were left out: not a package"
    assert said["r"] == "has no Python of its own: it got that of minimal"
    assert "Refit's own jupyter takes its place" in said["snippets/ides/1-jupyter"]
    assert said["snippets/ides/7-nothing"] == "was left out: it has no nothing.snippet"
    assert said["recipes/stable-studio-rhel9-no_py-_2023c_20231117"] == (
        "was left out: its name isn't that of a profile"
    )
    assert said["recipes/cuda-runtime-minimal-c9s-py39_2023c_20230925"].startswith(
        "was carried over with the level runtime-cudnn"
    )
    assert said["recipes/jupyter-minimal-c9s-py311_2023c_20230925"].startswith(
        "was left out: this catalog can't make it: bundle minimal has no 'py311'"
    )
    assert said["base/c9s/os-packages.txt"] == "these of its packages are not in Refit's c9s: unzip, perl"
    assert said["base/ubi9/os-packages.txt"] == "these of its packages are not in Refit's ubi9: git"
    assert {"base", "cuda-layer"} <= said.keys()


def test_locks_that_fit_come_along_and_profiles_can_be_assembled(adopted: Adoption) -> None:
    python.verify(adopted.catalog / "bundles/1-minimal/py39")
    assert "# a comment" in (adopted.catalog / "bundles/1-minimal/py39/Pipfile").read_text()
    assert not (adopted.catalog / "bundles/2-two/py39/Pipfile.lock").exists()

    def resolve(base: Base) -> tuple[str, ...]:
        return tuple(f"{name}=1" for name in base.packages)

    catalog = load.load_catalog(adopted.catalog)
    chain = Assembler(catalog, resolve).chain(load.profile(catalog, "2023c", "runtime-r-c9s-py39"))
    [custom] = [stage for stage in chain if stage.name.startswith("r-custom")]
    assert "echo '{{ x }}' >> /etc/r && \\\n    true" in custom.text and "RUN . /mnt/env.sh;" in custom.text
    [system] = [stage for stage in chain if stage.name.startswith("r-os")]
    assert system.system == ("R=1",)


def test_an_ide_finds_its_files_and_its_python(adopted: Adoption) -> None:
    [folder] = (adopted.catalog / "ides").glob("*-stabilitystudio")
    text = (folder / "stabilitystudio.snippet.j2").read_text()
    assert "COPY --chown=1001:0 files/utils files/run.sh utils/\nCOPY --from=builder /a /b\n" in text
    assert "lib/python{{ python_version }}/y" in text and 'RUN ["true"]\nCMD run.sh\n' in text
    assert (folder / "files" / "run.sh").exists()


def test_an_ide_of_refit_s_stays_only_with_its_bundle(checkout: Path, own: Catalog, tmp_path: Path) -> None:
    rstudio = [ide for ide in own.ides.values() if any("r" in rule.bundle for rule in ide.config.only)]
    shutil.rmtree(checkout / "snippets/bundles/8-r")
    made = adopt(checkout, tmp_path / "new", own)
    assert rstudio and not {ide.name for ide in rstudio} & load.load_catalog(made.catalog).ides.keys()
    assert f"Refit's {rstudio[0].name}: was left out: it goes only with r" in made.notes


def test_a_folder_that_is_no_checkout_or_a_target_that_is_there(checkout: Path, own: Catalog, tmp_path: Path) -> None:
    with pytest.raises(RefitError, match="no checkout"):
        adopt(tmp_path, tmp_path / "new", own)
    with pytest.raises(RefitError, match="not empty"):
        adopt(checkout, checkout, own)


def test_a_checkout_without_recipes_gives_a_catalog_without_profiles(
    checkout: Path, own: Catalog, tmp_path: Path
) -> None:
    shutil.rmtree(checkout / "recipes")
    made = adopt(checkout, tmp_path / "new", own)
    assert made.profiles == 0 and any(note.startswith("recipes: no profile was found") for note in made.notes)
    load.load_catalog(made.catalog)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cuda-jupyter-pytorch-c9s-py311_2023c_20230925",
            ForeignTag(True, "jupyter", "pytorch", "c9s", "py311", "2023c"),
        ),
        ("a-b-c-d-c9s-py39_2023a_latest", ForeignTag(False, "a-b", "c-d", "c9s", "py39", "2023a")),
        ("cuda-c9s-py311-runtime-cudnn_2023c_20230925", None),
        ("base-c9s-py311_2023c_20230925", None),
        ("stable-studio-rhel9-no_py-_2023c_20231117", None),
        ("", None),
    ],
)
def test_foreign_tags(text: str, expected: ForeignTag | None) -> None:
    assert parse_foreign(text, ["a", "a-b", "jupyter"], ["pytorch", "c-d"]) == expected


def test_a_pipfile_that_a_catalog_refuses_is_left_out_with_the_reason(
    checkout: Path, own: Catalog, tmp_path: Path
) -> None:
    write(checkout, "snippets/bundles/2-two/py39/Pipfile", PIPFILE.replace("[dev-packages]", '[studio]\nsix = "*"'))
    notes = adopt(checkout, tmp_path / "catalog", own).notes
    assert "snippets/bundles/2-two/py39: was left out: no IDE has the category 'studio'" in notes
    assert "two: has no Python of its own: it got that of minimal" in notes


@pytest.mark.parametrize(
    "path",
    [
        "snippets/bundles/1-minimal/display.txt",
        "snippets/bundles/1-minimal/py39/Pipfile",
        "snippets/bundles/1-minimal/py39/Pipfile.lock",
        "snippets/bundles/8-r/custom/custom.snippet",
        "snippets/bundles/8-r/os/os-packages.txt",
        "snippets/ides/6-stability-studio/stability-studio.snippet",
    ],
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(spoil=spoilt())
def test_whatever_stands_in_a_checkout_it_is_taken_over_or_told(
    checkout: Path, own: Catalog, path: str, spoil: Spoil
) -> None:
    file, before = checkout / path, (checkout / path).read_bytes()
    file.write_bytes(spoil(before))
    with TemporaryDirectory() as target:
        made = adopt(checkout, Path(target), own)
        assert made.notes and load.load_catalog(Path(target))
    file.write_bytes(before)
