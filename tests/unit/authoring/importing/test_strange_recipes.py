"""Recipes and Pipfiles as people write them: parts that can't come over are told with reasons, nothing is lost."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from flows.authoring.importing.adoption import adopt
from flows.catalog.model import Catalog
from flows.core.errors import RefitError
from flows.locks import python_lockfile
from flows.locks.pipfile import digest
from tests.support.checkout import DIGEST, LOCK, PIPFILE, RECIPE, Import, begins, said, why, write


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ('x = {git = "https://x.org/x.git", ref = "1.0"}', "'git' has no hash"),
        ('x = {path = "./x", editable = true}', "'editable' has no hash"),
        ('x = "not a version"', "x: "),
        ('x = ["1"]', "x: "),
        ("x = ", ""),
    ],
)
def test_a_pipfile_that_can_t_be_locked_takes_its_recipes_along(
    checkout: Path, imported: Import, asked: str, reason: str
) -> None:
    write(checkout, "snippets/bundles/1-minimal/py311/Pipfile", PIPFILE)
    write(checkout, "snippets/bundles/2-odd/py39/Pipfile", PIPFILE.replace("[requires]", f"{asked}\n[requires]"))
    name = RECIPE.replace("minimal", "odd")
    write(checkout, f"recipes/{name}/Containerfile", begins(name))
    made = imported()
    assert why(made, name) == "what its bundle installs did not come over: snippets/bundles/2-odd/py39"
    assert any(
        what.startswith("was left out") and reason in what
        for what in said(made, "snippets/bundles/2-odd/py39/Pipfile:11")
    )


def test_a_pipfile_with_markers_extras_and_odd_words_keeps_its_lock(checkout: Path, imported: Import) -> None:
    text = (
        '[[source]]\nurl = "https://pypi.org/simple"\nverify_ssl = false # why?\nname = "pypi"\n[ packages ]\r\n'
        '"six" = {version = "1.16.0", extras = [\'a\'], markers = "python_version >= \'3.8\'"} # six = "1"\n'
        "\tidna='3.4'\n[dev-packages]\nblack = \"1\"\n"
        "[requires]\npython_full_version = \"3.9.2\"\npython_version='3.9'\n"
    )
    lock = json.loads(LOCK % digest(tomllib.loads(text)))
    lock["default"]["idna"] = lock["default"]["six"] | {"version": "==3.4"}
    folder = checkout / "snippets/bundles/1-minimal/py39"
    (folder / "Pipfile").write_bytes(text.encode())
    (folder / "Pipfile.lock").write_text(json.dumps(lock))
    made = imported()
    python_lockfile.verify(made.catalog / "bundles/1-minimal/py39")
    ours = (made.catalog / "bundles/1-minimal/py39/Pipfile").read_text()
    assert 'version = "==1.16.0"' in ours and "# why?" in ours and "\tidna='==3.4'" in ours and "black" not in ours
    assert said(made, "snippets/bundles/1-minimal/py39/Pipfile:9") == ['was left out of it: black = "1"']
    assert not why(made, RECIPE)


def test_a_lock_for_another_python_is_not_taken(checkout: Path, imported: Import) -> None:
    text = PIPFILE.replace("3.9", "3.11")
    write(checkout, "snippets/bundles/1-minimal/py39/Pipfile", text)
    write(checkout, "snippets/bundles/1-minimal/py39/Pipfile.lock", LOCK % digest(tomllib.loads(text)))
    assert why(imported(), RECIPE) == "bundles/1-minimal/py39/Pipfile.lock: this file is missing (run `refit lock`)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no FROM"),
        ("FROM scratch\n", "it stands on scratch, which is no base of theirs"),
        ("FROM workbench-images:base-ubi9-py39_2023c_1\n", "and its name says otherwise"),
        ("FROM workbench-images:cuda-c9s-py39-runtime_2023c_1\n", "and its name says otherwise"),
        (
            f"{begins(RECIPE)}RUN pip install x && true\n",
            "2 instructions of its Containerfile are in none of its snippets",
        ),
    ],
)
def test_a_recipe_that_is_another_than_its_name_says_is_left_out(
    checkout: Path, imported: Import, text: str, reason: str
) -> None:
    write(checkout, f"recipes/{RECIPE}/Containerfile", text)
    made = imported()
    assert why(made, RECIPE).endswith(reason) and made.profiles == 0


def test_a_recipe_without_containerfile_and_one_of_two_bundles(checkout: Path, imported: Import) -> None:
    write(checkout, f"recipes/{RECIPE}/Containerfile")
    (checkout / f"recipes/{RECIPE}/Containerfile").unlink()
    write(checkout, "snippets/bundles/2-two/py39/Pipfile", PIPFILE)
    write(checkout, f"recipes/{RECIPE.replace('minimal', 'minimal-two')}/Containerfile", begins(RECIPE))
    made = imported()
    assert why(made, RECIPE) == "it has no Containerfile"
    assert why(made, "runtime-minimal-two").startswith("its name isn't that of a profile of the bundles")


def test_what_a_recipe_has_beside_its_snippets_is_told(checkout: Path, imported: Import) -> None:
    write(checkout, "snippets/bundles/1-minimal/py39/requirements.txt", "six==1.16.0\nidna==3.4 ; x\n")
    write(checkout, f"recipes/{RECIPE}/requirements.txt", "six==1.15.0\nidna==3.4\n")
    write(checkout, f"recipes/{RECIPE}/own.sh", "x\n")
    write(checkout, f"recipes/{RECIPE}/same", PIPFILE)
    made = imported()
    [versions] = said(made, f"recipes/{RECIPE}/requirements.txt")
    assert versions.endswith("came over: six 1.15.0 → 1.16.0")
    assert said(made, f"recipes/{RECIPE}/own.sh") == ["was left out: it is in no snippet"]
    assert not said(made, f"recipes/{RECIPE}/same")


def test_of_two_recipes_of_a_profile_the_newer_one_is_in_the_release(checkout: Path, imported: Import) -> None:
    older = "runtime-minimal-c9s-py39_2023b_20230101"
    write(checkout, f"recipes/{older}/Containerfile", begins(RECIPE))
    made = imported()
    assert why(made, older) == f"{RECIPE} is a newer one of the same profile" and not why(made, RECIPE)


def test_versions_of_cuda_that_differ_are_named(checkout: Path, imported: Import) -> None:
    name = f"cuda-{RECIPE}"
    write(checkout, "cuda-layer/base/Containerfile", "ENV CUDA_VERSION 11.8.0\n")
    write(checkout, "cuda-layer/next/Containerfile", "ENV A=1 \\\n  CUDA_VERSION=12.1.1\n")
    write(checkout, f"recipes/{name}/Containerfile", begins(name))
    made = imported()
    assert why(made, name).startswith(
        "it stands on CUDA 11.8.0 (cuda-layer/base/Containerfile:1) and 12.1.1 (cuda-layer/next/Containerfile:2), and "
        "Refit's is 13.5: choose a level"
    )


def test_a_recipe_stands_on_the_level_that_its_from_names(checkout: Path, imported: Import) -> None:
    name = f"cuda-{RECIPE}"
    write(checkout, "cuda-layer/base/Containerfile", "ENV CUDA_VERSION 13.1.0\n")
    write(checkout, f"recipes/{name}/Containerfile", begins(name).replace("runtime-cudnn", "devel-cudnn"))
    made = imported()
    assert [recipe.level for recipe in made.recipes if recipe.name == name] == ["devel-cudnn"] and not why(made, name)


@pytest.mark.slow
def test_each_python_of_a_bundle_has_the_cuda_that_its_own_packages_bring(checkout: Path, imported: Import) -> None:
    brought = '"default": {"torch": {"hashes": ["sha256:aa"], "version": "==2.0.1+cu118"}, '
    write(checkout, "snippets/bundles/1-minimal/py39/Pipfile.lock", (LOCK % DIGEST).replace('"default": {', brought))
    text = PIPFILE.replace("3.9", "3.11")
    lock = (LOCK % digest(tomllib.loads(text))).replace("3.9", "3.11")
    write(checkout, "snippets/bundles/1-minimal/py311/Pipfile", text)
    write(checkout, "snippets/bundles/1-minimal/py311/Pipfile.lock", lock)
    for version in ("py39", "py311"):
        name = f"cuda-runtime-minimal-c9s-{version}_2023c_20230925"
        write(checkout, f"recipes/{name}/Containerfile", begins(name))
    made = imported("runtime")
    assert {each.name.split("-")[4][:5]: each.level for each in made.recipes if each.level} == {
        "py39_": "driver",
        "py311": "runtime",
    }


def test_a_pipfile_that_is_left_out_is_the_reason_also_where_another_python_stays(
    checkout: Path, imported: Import
) -> None:
    write(checkout, "snippets/bundles/1-minimal/py311/Pipfile", PIPFILE.replace("six", "s i x"))
    name = RECIPE.replace("py39", "py311")
    write(checkout, f"recipes/{name}/Containerfile", begins(name))
    assert why(imported(), name) == "what its bundle installs did not come over: snippets/bundles/1-minimal/py311"


def test_a_level_that_there_isn_t_is_refused(checkout: Path, own: Catalog, tmp_path: Path) -> None:
    with pytest.raises(RefitError, match="no level 'none'"):
        adopt(checkout, tmp_path / "catalog", own, "none")


@pytest.mark.slow
def test_a_label_of_an_ide_that_came_over_is_not_called_left_out(checkout: Path, imported: Import) -> None:
    write(checkout, "snippets/ides/2-studio/studio.snippet", "LABEL theirs=1\nUSER 1001\n")
    name = RECIPE.replace("runtime", "studio")
    write(checkout, f"recipes/{name}/Containerfile", f"{begins(name)}LABEL shared=1\nLABEL theirs=1\nUSER 1001\n")
    made = imported()
    [label] = [note for note in made.notes if "LABEL" in note]
    assert label.startswith(f"recipes/{name}/Containerfile:2: was left out") and not why(made, name)


@pytest.mark.slow
def test_a_section_that_no_recipe_can_use_is_not_asked_for(checkout: Path, imported: Import) -> None:
    for path in ("py39/Pipfile", "py39/Pipfile.lock"):
        write(checkout, f"snippets/bundles/8-r/{path}", (checkout / "snippets/bundles/1-minimal" / path).read_text())
    write(checkout, "snippets/ides/3-rstudio/rstudio.snippet", "CMD run-rstudio.sh\n")
    name = RECIPE.replace("runtime-minimal", "rstudio-r")
    write(checkout, f"recipes/{name}/Containerfile", f"{begins(name)}CMD run-rstudio.sh\n")
    made = imported()
    assert why(made, name).startswith("rstudio goes only with os deb12") and not any("[web]" in n for n in made.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("yum config-manager --set-enabled crb", "crb"),
        ("dnf config-manager --enable powertools", "powertools"),
        ("yum-config-manager --add-repo https://x.org/cisco/openh264.repo", "openh264.repo"),
        ("dnf install -y https://x.org/epel-release-latest-9.noarch.rpm", "epel-release-latest-9.noarch.rpm"),
        ("curl -o /etc/yum.repos.d/mongodb.repo https://x.org", "mongodb.repo"),
        ("add-apt-repository -y ppa:deadsnakes/ppa", "ppa:deadsnakes/ppa"),
        ("echo deb x y >/etc/apt/sources.list.d/y.list", "y.list"),
    ],
)
def test_each_repository_of_their_base_is_named_where_packages_came_over(
    checkout: Path, imported: Import, command: str, named: str
) -> None:
    write(checkout, "base/c9s/Containerfile", f"FROM x\nRUN true && \\\n    {command}\n")
    write(checkout, "snippets/bundles/1-minimal/os/os-packages.txt", "R-core\n")
    made = imported()
    [note] = said(made, "snippets/bundles/1-minimal/os/os-packages.txt")
    assert f"{named} (base/c9s/Containerfile:3)" in note
    assert said(made, "base/c9s/Containerfile:3") == [f"may not be in Refit's c9s: RUN {command}"]
