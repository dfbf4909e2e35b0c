"""A checkout of workbench-images becomes a catalog: with all its oddities, and a word about each that is lost."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings

from flows.authoring.importing.adoption import adopt
from flows.authoring.importing.report import REPORT, Adoption
from flows.catalog import load
from flows.catalog.model import Base, Catalog
from flows.catalog.tag import ForeignTag, parse_foreign
from flows.core.errors import RefitError
from flows.images.recipe import Assembler
from flows.locks import python_lockfile
from flows.locks.pipfile import digest
from tests.support.checkout import DIGEST, LOCK, PIPFILE, begins, write
from tests.support.examples import several
from tests.support.machine import ROOT
from tests.support.spoiling import Spoil, spoilt

CUSTOM = "USER 0\n\nRUN echo '{{ x }}' >> /etc/r && \\\n    true\n\nENV R_LIBS_USER=/opt/app-root/src/R\n"
BASE = """\
FROM ${BASE_IMAGE} as builder

# a comment
RUN yum install -y epel-release && \\
    # one in between
    yum install ffmpeg

ENV LC_ALL=en_US.UTF-8
"""
SNIPPET = """\
USER 1001
COPY --chown=1001:0 utils ./run.sh utils/
COPY --from=builder /a /b
RUN cp x /opt/app-root/lib/$PYTHON_FOLDER/y
RUN ["true"]
CMD run.sh ${CUDA}${RELEASE}
"""


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
    write(root, "base/c9s/Containerfile", BASE)
    write(root, "base/c9s/mssql.repo", "[mssql]\n")
    write(root, "base/c9s/os-packages.txt", "git\nunzip # for wheels\n\nperl\nunzip\n")
    write(root, "base/ubi9/os-packages.txt", "git\n")
    write(root, "cuda-layer/base/Containerfile", "FROM x\n\nENV NVARCH x86_64\nENV CUDA_VERSION 11.8.0\n")
    write(root, "snippets/ides/1-jupyter/os/os-packages.txt", "git\n# TeX\ntexlive\n")
    write(root, "snippets/ides/1-jupyter/utils/elyra.patch")
    for name in (
        "runtime-minimal-c9s-py39_2023c_20230925",
        "cuda-runtime-minimal-c9s-py39_2023c_20230925",
        "runtime-r-c9s-py39_2023c_20230925",
        "stability-studio-two-c9s-py39_2023b_latest",
        "jupyter-minimal-c9s-py311_2023c_20230925",
        "base-c9s-py311_2023c_20230925",
        "stable-studio-rhel9-no_py-_2023c_20231117",
    ):
        write(root, f"recipes/{name}/Containerfile", f'{begins(name)}LABEL name="x" \\\n      version="1"\n')
    return root


@pytest.fixture
def adopted(checkout: Path, own: Catalog, tmp_path: Path) -> Adoption:
    return adopt(checkout, tmp_path / "catalog", own)


@pytest.mark.slow
def test_what_comes_out_is_a_catalog_with_a_release_of_all_that_it_can_make(adopted: Adoption) -> None:
    catalog = load.load_catalog(adopted.catalog)
    assert [(b.name, b.display) for b in catalog.bundles.values()] == [
        ("minimal", "Minimal"),
        ("two", "Two 1.0"),
        ("r", "R 4.3.1"),
        ("stabilitystudio", "Stable Studio"),
    ]
    assert [profile.stem for profile in catalog.releases["2023c"].profiles] == [
        "runtime-minimal-c9s-py39",
        "runtime-r-c9s-py39",
    ]
    assert (adopted.profiles, len(adopted.recipes)) == (2, 7)


@pytest.mark.slow
def test_nothing_is_left_out_without_a_word(adopted: Adoption) -> None:
    said = dict(note.split(": ", 1) for note in sorted(adopted.notes))
    assert said["snippets/bundles/10-stability-studio"].startswith("is called stabilitystudio here")
    assert said["snippets/bundles/2-two/builder"].startswith("was left out: stages that copy from each other")
    assert said["snippets/bundles/2-two/custom"].startswith(
        "was left out as a whole: a bundle here has no files of its own"
    )
    assert any(note.startswith("snippets/bundles/2-two/py39: has to be locked") for note in adopted.notes)
    assert said["snippets/bundles/2-two/py39/Pipfile:3"] == "is now: verify_ssl = true"
    assert said["snippets/bundles/8-r/os/os-packages.txt:4"].endswith("this is no name of a package: not a package")
    assert "snippets/bundles/8-r: has no Python that could be carried over: it got that of minimal" in adopted.notes
    assert said["snippets/bundles/2-two/py39/grap.txt"] == "was left out: nothing reads it"
    assert "Refit's own jupyter takes its place" in said["snippets/ides/1-jupyter"]
    assert said["snippets/ides/7-nothing"] == "was left out: it has no nothing.snippet, or one without instructions"
    assert said["base/c9s/os-packages.txt:2"] == "is not in Refit's c9s: unzip"
    assert said["base/c9s/os-packages.txt:4"] == "is not in Refit's c9s: perl"
    assert said["base/ubi9/os-packages.txt:1"] == "is not in Refit, which has no base ubi9: git"
    assert said["base/c9s/Containerfile:4"] == "may not be in Refit's c9s: RUN yum install -y epel-release"
    assert said["base/c9s/Containerfile:6"] == "may not be in Refit's c9s: RUN yum install ffmpeg"
    assert said["base/c9s/Containerfile:8"] == "may not be in Refit's c9s: ENV LC_ALL=en_US.UTF-8"
    assert said["base/c9s/mssql.repo"] == "was left out: Refit's own bases are there"
    assert said["snippets/ides/1-jupyter/os/os-packages.txt:3"] == "is not in Refit's jupyter: texlive"
    assert said["snippets/ides/1-jupyter/utils/elyra.patch"] == "was left out: Refit's own jupyter is there"
    assert said["snippets/bundles/2-two/custom/custom.snippet:1"] == "was left out: COPY --from=builder /spark /spark"
    assert said["snippets/bundles/8-r/custom/custom.snippet:6"].startswith("/opt/app-root/src is /home/dev here")
    label = "was left out, as in all recipes that have it: LABEL"
    assert said["recipes/base-c9s-py311_2023c_20230925/Containerfile:2"] == f'{label} name="x"'
    assert said["recipes/base-c9s-py311_2023c_20230925/Containerfile:3"] == f'{label} version="1"'
    assert said["cuda-layer/base/Containerfile:3"] == "was left out: ENV NVARCH x86_64"
    assert {"base", "cuda-layer"} <= said.keys()


@pytest.mark.slow
def test_each_recipe_is_in_the_release_or_left_out_with_its_reason(adopted: Adoption) -> None:
    told = {recipe.name.partition("_20")[0]: recipe.why for recipe in adopted.recipes}
    assert not told["runtime-minimal-c9s-py39"] and not told["runtime-r-c9s-py39"]
    assert told["stable-studio-rhel9-no_py-"].startswith("its name isn't that of a profile of the bundles")
    assert told["jupyter-minimal-c9s-py311"].startswith("bundle minimal has no 'py311'")
    assert "snippets/bundles/2-two/builder and snippets/bundles/2-two/custom" in told["stability-studio-two-c9s-py39"]
    assert told["cuda-runtime-minimal-c9s-py39"].startswith(
        "it stands on CUDA 11.8.0 (cuda-layer/base/Containerfile:4), and Refit's is 13.5: choose a level by --cuda"
    )
    report = (adopted.catalog / REPORT).read_text()
    assert "7 recipes: 2 are in the release, as 2 profiles that can be assembled; 5 are left out" in report
    assert report.count("\n- [ ] ") == len(adopted.notes) and report.count("| no |") == 5


@pytest.mark.slow
def test_a_person_chooses_another_cuda_than_theirs(checkout: Path, own: Catalog, tmp_path: Path) -> None:
    def levels(name: str, cuda: str = "") -> list[str]:
        made = adopt(checkout, tmp_path / name, own, cuda)
        return [recipe.level for recipe in made.recipes if recipe.level and not recipe.why]

    assert levels("theirs") == [] and levels("driver", "driver") == ["driver"]
    write(checkout, "cuda-layer/base/Containerfile", "ENV CUDA_VERSION=13.1.0\n")
    assert levels("same") == ["runtime-cudnn"]


@pytest.mark.slow
def test_a_version_without_operator_is_an_exact_one_and_its_lock_stays(
    checkout: Path, own: Catalog, tmp_path: Path
) -> None:
    bare = PIPFILE.replace('"~=1.16"', '"1.16.0"')
    folder = checkout / "snippets/bundles/1-minimal/py39"
    (folder / "Pipfile").write_text(bare)
    (folder / "Pipfile.lock").write_text(LOCK % digest(tomllib.loads(bare)))
    made = adopt(checkout, tmp_path / "new", own)
    assert 'six = "==1.16.0" # a comment' in (made.catalog / "bundles/1-minimal/py39/Pipfile").read_text()
    python_lockfile.verify(made.catalog / "bundles/1-minimal/py39")


@pytest.mark.slow
def test_a_pipfile_gets_the_category_of_an_ide_where_no_lock_is_lost(
    checkout: Path, own: Catalog, tmp_path: Path
) -> None:
    write(checkout, "snippets/ides/3-vscode/vscode.snippet", "USER 1001\n")
    write(checkout, "snippets/bundles/3-own/py39/Pipfile", PIPFILE)
    write(checkout, "snippets/bundles/3-own/py39/Pipfile.lock", LOCK % DIGEST)
    for bundle in ("two", "minimal", "own"):  # without a lock, with one that `runtime` has too, with one of its own
        name = f"vscode-{bundle}-c9s-py39_2023c_20230925"
        write(checkout, f"recipes/{name}/Containerfile", begins(name))
    made = adopt(checkout, tmp_path / "new", own)
    folders = {bundle: made.catalog / "bundles" / bundle / "py39" for bundle in ("1-minimal", "2-two", "3-own")}
    for bundle in ("2-two", "3-own"):
        assert 'jupyter-server = "~=' in (folders[bundle] / "Pipfile").read_text()
        assert [path.name for path in folders[bundle].iterdir()] == ["Pipfile"]
        [said] = [note for note in made.notes if note.startswith(f"bundles/{bundle}/py39: got [web]")]
        assert "which vscode needs: lock it; Refit locks that section for py311, py313 alone" in said
    assert {recipe.why != "" for recipe in made.recipes if recipe.name.startswith("vscode")} == {True}


@pytest.mark.slow
def test_a_lock_that_serves_others_stays_and_a_bundle_beside_it_has_the_section(
    checkout: Path, own: Catalog, tmp_path: Path
) -> None:
    write(checkout, "snippets/ides/3-vscode/vscode.snippet", "USER 1001\n")
    for name in ("vscode-minimal-c9s-py39_2023c_20230925", "vscode-r-c9s-py39_2023c_20230925"):
        write(checkout, f"recipes/{name}/Containerfile", begins(name))
    made = adopt(checkout, tmp_path / "new", own)
    python_lockfile.verify(made.catalog / "bundles/1-minimal/py39")
    [said] = [note for note in made.notes if note.startswith("bundles/1-minimal/py39: lacks [web]")]
    assert "its lock serves runtime, and stays as it is: the bundle minimalweb extends it with that section; " in said
    assert "name minimalweb in the release, and lock it" in said
    catalog = load.load_catalog(made.catalog)
    beside = catalog.bundles["minimalweb"]
    assert beside.categories["py39"] == ("packages", "web") and beside.lineage[0].name == "1-minimal"
    assert catalog.bundles["rweb"].packages == catalog.bundles["r"].packages != ()
    [why] = [recipe.why for recipe in made.recipes if recipe.name.startswith("vscode-minimal")]
    assert "[web]" in why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "brought"),
    [
        ('"nvidia-cuda-runtime-cu11": {"hashes": ["sha256:aa"], "version": "==11.7.99"}', "runtime-cu11 11.7.99"),
        ('"torch": {"hashes": ["sha256:aa"], "version": "==2.0.1+cu118"}', "torch 2.0.1+cu118"),
    ],
)
def test_python_packages_keep_the_cuda_that_they_bring(
    checkout: Path, own: Catalog, tmp_path: Path, package: str, brought: str
) -> None:
    lock = (LOCK % DIGEST).replace('"default": {', f'"default": {{{package}, ')
    write(checkout, "snippets/bundles/1-minimal/py39/Pipfile.lock", lock)
    made = adopt(checkout, tmp_path / "new", own, "runtime-cudnn")
    [level] = {recipe.level for recipe in made.recipes if recipe.name.startswith("cuda") and not recipe.why}
    [said] = [note for note in made.notes if "CUDA of their own" in note]
    assert level == "driver" and brought in said and "CUDA 11.8.0 (cuda-layer/base/Containerfile:4) beside them" in said


@pytest.mark.slow
def test_locks_that_fit_come_along_and_profiles_can_be_assembled(adopted: Adoption) -> None:
    python_lockfile.verify(adopted.catalog / "bundles/1-minimal/py39")
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_pipfile_that_a_catalog_refuses_is_left_out_with_the_reason(
    checkout: Path, own: Catalog, tmp_path: Path
) -> None:
    write(checkout, "snippets/bundles/2-two/py39/Pipfile", PIPFILE.replace("[dev-packages]", '[studio]\nsix = "*"'))
    notes = adopt(checkout, tmp_path / "catalog", own).notes
    assert "snippets/bundles/2-two/py39/Pipfile:6: was left out: no IDE has the category 'studio'" in notes
    assert "snippets/bundles/2-two: has no Python that could be carried over: it got that of minimal" in notes


@pytest.mark.slow
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
@settings(max_examples=several(8), deadline=None, suppress_health_check=list(HealthCheck))
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
