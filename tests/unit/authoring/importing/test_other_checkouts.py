"""More checkouts as other people have them: their spellings, their Pipfiles, their lists of packages, their CUDA."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.authoring.importing.report import REPORT
from tests.support.accounts import lost
from tests.support.checkout import DIGEST, LOCK, PIPFILE, RECIPE, STUDIO, Import, begins, said, why, write

SPELLED = """\
# syntax=docker/dockerfile:1
# check=skip=all
arg itemarg1=1
from --platform=linux/amd64 itemfrom2 as build
run  set -ex; \\
  # a comment in between

  echo itemrun3 \\
    | tee /itemrun4 ; \\
\techo itemrun5
Env itemold6 with blanks and itemold7
ENV itemnew8="a b" itemnew9='c d' \\
    itemnew10=e\\ f
LABEL "com.itemlabel11"="x" \\
      itemlabel12="a \\
b"
shell ["/bin/bash", "-o", "itemshell13"]
healthcheck --interval=5m CMD itemhealth14 || exit 1
expose 80/itemexpose15
Stopsignal itemstop16
maintainer itemmaintainer17 <a@b>
RUN --mount=type=cache,target=/itemmount18 \\
    --network=none \\
    if [ -e /itemif19 ]; then echo itemif20; fi
RUN ["itemjson21", "itemjson22"]
run <<-'ONE' cat <<TWO
\titemheredoc23
\tONE
itemheredoc24
TWO
volume ["/itemvolume25"]
onbuild run echo itemonbuild26
ADD --chown=1:2 https://example.org/itemadd27 /x
copy --from=build /itemcopy28 /y
COPY <<EOF /itemwrite29
itemwrite30
EOF
cmd itemcmd31
RUN echo itemlast32 \\"""


def spelled(root: Path) -> None:
    """Instructions in small letters, directives, comments in a RUN, the older ENV, heredocs, an end in the middle."""
    write(root, "base/c9s/Containerfile", SPELLED)
    write(root, "base/ubi9/Dockerfile", SPELLED.replace("item", "itemubi"))
    write(root, "cuda-layer/devel/Dockerfile", SPELLED.replace("item", "itemcuda"))
    write(root, "snippets/bundles/1-minimal/custom/custom.snippet", SPELLED.replace("item", "itemcustom"))
    write(root, "snippets/ides/2-studio/studio.snippet", SPELLED.replace("item", "itemide"))
    write(root, f"recipes/{STUDIO}/Containerfile", begins(STUDIO) + SPELLED.replace("item", "itemrecipe"))
    escape = "# escape=`\nFROM x\nRUN echo itemtick1 `\n && echo itemtick2\n"
    write(root, "base/windows/Containerfile", escape)
    for name in ("containerfile", "Containerfile.in", "Containerfile.j2", "DOCKERFILE", "c9s.Dockerfile"):
        write(root, f"base/c9s/{name}", "FROM itemother1\n")
        write(root, f"recipes/{RECIPE}/{name}", "FROM itemother2\n")


def nested(root: Path) -> None:
    """Snippets that include each other, folders in folders, files where folders are meant, and the other way round."""
    include = "# itemcomment0\n{% include '../common/itemshared1.snippet' %}\nRUN echo {{ itemvariable2 }} {# x #}\n"
    write(root, "snippets/common/shared.snippet", "RUN echo itemcommon1\nENV A=itemcommon2\n")
    write(root, "snippets/base/deep/er/x.snippet", "RUN echo itemdeep1\n")
    write(root, "snippets/README.md", "itemreadme1\n")
    write(root, "snippets/ides/README.md", "itemreadme2\n")
    write(root, "snippets/bundles/README.md", "itemreadme3\n")
    write(root, "snippets/ides/2-studio/studio.snippet", include)
    write(root, "snippets/ides/2-studio/nested/more.snippet", "RUN echo itemmore1\n")
    write(root, "snippets/ides/2-studio/os/os-packages.txt", "itempackage1\n")
    write(root, "snippets/ides/2-studio/py39/Pipfile", PIPFILE + "# itempipfile1\n")
    write(root, "snippets/ides/3-file/file.snippet/inside", "itemfolder1\n")
    write(root, "snippets/ides/1-runtime/more/bootstrapper.py", "itemboot1 = 1\n")
    write(root, "snippets/ides/unnumbered/x.snippet", "RUN echo itemunnumbered1\n")
    write(root, "snippets/bundles/unnumbered/py39/Pipfile", "# itemunnumbered2\n")
    write(root, "snippets/bundles/2-own/custom/custom.snippet", include)
    write(root, "snippets/bundles/2-own/custom/nested/file", "itemfile1\n")
    write(
        root, "snippets/bundles/2-own/builder/deep/builder.snippet", "FROM itembuilder1 AS b\nRUN echo itembuilder2\n"
    )
    write(root, "snippets/bundles/2-own/py39/deep/constraints.txt", "itemconstraint1==1\n")
    write(root, "snippets/bundles/2-own/py39/constraints.txt", "itemconstraint2==1\n")
    write(root, "snippets/bundles/2-own/py3.9/Pipfile", "# itempython1\n")
    write(root, "snippets/bundles/2-own/python39/Pipfile", "# itempython2\n")
    write(root, "snippets/bundles/2-own/display.txt/inside", "itemdisplay1\n")
    write(root, "snippets/bundles/2-own/os/more/os-packages.txt", "itempackage2\n")
    write(root, "snippets/bundles/2-own/os/other.txt", "itempackage3\n")
    write(root, "recipes/README.md", "itemreadme4\n")
    write(root, f"recipes/nested/{RECIPE}/Containerfile", begins(RECIPE) + "RUN echo itemnested1\n")
    write(root, f"recipes/{RECIPE}/deep/er/file", "itemnested2\n")
    write(root, "base/README.md", "itemreadme5\n")
    write(root, "base/c9s/py39/deep/Containerfile", "FROM x\nRUN echo itembase1\n")
    write(root, "cuda-layer/README.md", "itemreadme6\n")


ASKS = """\
[[source]]
url = "https://user:secret@itemindex1.example.org/simple"
verify_ssl = false
name = "itemindex2"

[[source]]
url = "https://pypi.org/simple"
verify_ssl = true
name = "pypi"

[packages]
itemplain3 = "*"
itemgit4 = {git = "https://github.com/x/itemgit5.git", ref = "itemref6"}
itempath7 = {path = "./itempath8", editable = true}
itemfile9 = {file = "https://example.org/itemfile10.whl"}
itemmarker11 = {version = "1.2.3", markers = "sys_platform == 'itemplatform12'", extras = ["itemextra13"]}
itemindexed14 = {version = ">=1", index = "itemindex2"}

[packages.itemtable15]
version = "2.0"
extras = ["itemextra16"]

[dev-packages]
itemdev17 = "*"

[itemcategory18]
itemcategory19 = "3.1"

[scripts]
itemscript20 = "python -m itemscript21"

[pipenv]
allow_prereleases = true

[requires]
python_full_version = "3.9.1"
"""


def pipfiles(root: Path) -> None:
    """Packages from git, folders and files, indexes with a password, tables, categories, and locks that are none."""
    texts = {
        "asks": ASKS,
        "windows": "\ufeff" + PIPFILE.replace("six", "itemwindows1").replace("\n", "\r\n"),
        "mistake": '[packages]\nitemmistake1 = "1"\nitemmistake1 = "2"\nitemmistake2 =\n',
        "list": '[[packages]]\nitemlist1 = "*"\n',
        "none": '[packages]\n[requires]\npython_version = "3.11" # itemnone1\n',
        "inline": 'packages = {itemline1 = "1.0", itemline2 = {version = "2"}}\n',
        "lines": '[packages]\nitemlines1 = """\n1.0"""\n"item.dotted2" = ">=1,<2"\n\'itemquoted3\' = \'4.5\'\n',
        "latin": "[packages]\nitemlatin1 = '*' # caf\udce9\n",
    }
    for number, (name, text) in enumerate(texts.items(), 2):
        place = f"snippets/bundles/{number}-{name}/py39"
        write(root, f"{place}/.keep")
        (root / place / "Pipfile").write_bytes(text.encode(errors="surrogateescape"))
        (root / place / ".keep").unlink()
        named = f"runtime-{name}-c9s-py39_2023c_20230925"
        write(root, f"recipes/{named}/Containerfile", begins(named))
    locks = {"windows": "{", "none": "[]", "inline": LOCK % DIGEST, "lines": "\x00\x01", "asks": '{"_meta": {}}'}
    for number, name in enumerate(texts, 2):
        if name in locks:
            write(root, f"snippets/bundles/{number}-{name}/py39/Pipfile.lock", locks[name])
    write(root, "snippets/bundles/20-exported/py39/requirements.txt", "itemexported1==1\n")
    write(root, "snippets/bundles/21-conda/py39/environment.yml", "dependencies: [itemconda1]\n")
    write(root, "snippets/bundles/22-poetry/py311/pyproject.toml", '[project]\ndependencies = ["itempoetry1"]\n')
    write(root, "snippets/bundles/23-lock/py39/Pipfile.lock", LOCK % DIGEST + "\n")
    write(root, "snippets/bundles/24-both/py39/Pipfile", PIPFILE)
    write(root, "snippets/bundles/24-both/py39/Pipfile.lock", LOCK % DIGEST)
    write(root, "snippets/bundles/24-both/py311/Pipfile", PIPFILE.replace("six", "itemboth1"))


LIST = """\
\ufeff# itemcomment0
itemname1
itemname2.x86_64
itemname3-1.2.3-4.el9
itemname4 = 1.2
itemname5>=2
itemname6 itemname7 \titemname8
  itemname9  # why itemwhy10
@itemgroup11
@"itemgroup 12"
https://example.org/itemrpm13.rpm
./itemrpm14.rpm
/usr/bin/itemfile15
itemglob16*
--setopt=itemoption17
-itemminus18
itemname19:1.2
"itemname20"
itemname21,itemname22
itemname1
perl(itemperl23)
itemünï24
$itemvariable25
; itemsemicolon26
itemslash27 \\
itemslash28
"""


def packages(root: Path) -> None:
    """Lists of system packages with versions, machines, groups, addresses, options, several names on a line."""
    text = LIST.replace("itemcomment0", "a comment").replace("# why itemwhy10", "# why")
    write(root, "base/c9s/os-packages.txt", text)
    write(root, "base/c10/os-packages.txt", text.replace("item", "itemten").replace("\n", "\r\n"))
    write(root, "snippets/bundles/1-minimal/os/os-packages.txt", text.replace("item", "itembundle"))
    write(root, "snippets/ides/2-studio/studio.snippet", "USER 0\n")
    write(root, "snippets/ides/2-studio/os/os-packages.txt", text.replace("item", "itemide"))
    write(root, f"recipes/{RECIPE}/os-packages.txt", text.replace("item", "itemrecipe"))
    write(root, "base/c9s/os-packages-devel.txt", "itemdevel1\n")
    write(root, "snippets/bundles/2-only/os/os-packages.txt", "# nothing\n\n   \n")
    write(root, "snippets/bundles/3-upper/OS/os-packages.txt", "itemupper1\n")
    (root / "snippets/bundles/4-binary/os").mkdir(parents=True)
    (root / "snippets/bundles/4-binary/os/os-packages.txt").write_bytes(b"\xff\xfei\x00t\x00e\x00m\x00")


def cudas(root: Path) -> None:
    """Layers of several CUDAs, Pythons that bring different ones, recipes in odd shapes and under odd names."""
    for level, version in (("runtime", "11-8"), ("runtime-cudnn", "12-1"), ("devel", "11-7"), ("devel-cudnn", "13-0")):
        text = f"ARG BASE\nFROM $BASE\nENV CUDA_VERSION={version.replace('-', '.')}.0\nENV NV_X=item{level[:3]}1\n"
        write(root, f"cuda-layer/{level}/Containerfile", f"{text}RUN dnf install -y cuda-libraries-{version}\n")
    write(root, "cuda-layer/py39/NGC-DL-CONTAINER-LICENSE", "itemlicense1\n")
    lock = json.loads(LOCK % DIGEST)
    for number, python, brought in ((2, "py39", "nvidia-cuda-runtime-cu11"), (2, "py311", "nvidia-cuda-runtime-cu12")):
        version = f"3.{python[3:]}"
        write(root, f"snippets/bundles/{number}-torch/{python}/Pipfile", PIPFILE.replace("3.9", version))
        lock["default"][brought] = {"hashes": ["sha256:bb"], "version": "==11.8.89"}
        write(root, f"snippets/bundles/{number}-torch/{python}/Pipfile.lock", json.dumps(lock))
    odd = {
        "cuda-runtime-torch-c9s-py39_2023c_20230925": "",
        "cuda-runtime-torch-c9s-py311_2023c_20230925": "ENV CUDA_VERSION=12.4.1\nRUN echo itemown1\n",
        "cuda-runtime-minimal-c9s-py39_2023c_20230925": "RUN dnf install -y cuda-libraries-11-8\n",
        "runtime-torch-c9s-py39_2023c_20230925": "RUN echo itemplus1\n",
        "runtime-torch-c9s-py39_2023c_20230926": "",
        "runtime-torch-c9s-py39_2022b_20220101": "",
        "runtime-torch-c9s-no_py-_2023c_20230925": "RUN echo itemnone1\n",
        "runtime-torch-debian-py39_2023c_20230925": "",
        "RUNTIME-torch-c9s-py39_2023c_20230925": "",
        "runtime-torch-c9s-py39": "",
        "runtime-torch-c9s-py39_2023c_20230925.bak": "RUN echo itembackup1\n",
        "strange name (1)": "RUN echo itemblank1\n",
    }
    for name, more in odd.items():
        write(root, f"recipes/{name}/Containerfile", begins(RECIPE if "-" not in name else name) + more)
    write(root, "recipes/empty-minimal-c9s-py39_2023c_20230925/.keep")
    for suffix, content in (
        ("7", "FROM x\n".encode("utf-16")),
        ("8", b"\x00\xff" * 2000),
        ("9", b"FROM x\n" + b"RUN true && \\\n" * 50_000),
    ):
        folder = root / f"recipes/runtime-minimal-c9s-py39_2023c_2023092{suffix}"
        folder.mkdir()
        (folder / "Containerfile").write_bytes(content)
    linked = root / "recipes/runtime-minimal-c9s-py39_2023c_20230901"
    linked.mkdir()
    (linked / "Containerfile").symlink_to(f"../{RECIPE}/Containerfile")
    write(root, f"recipes/{RECIPE}/requirements.txt", "six==1.0\nitemleft1==1\n")
    write(root, f"recipes/{RECIPE}/Dockerfile", f"{begins(RECIPE)}RUN echo itemsecond1\n")


OTHERS: list[Callable[[Path], None]] = [spelled, nested, pipfiles, packages, cudas]


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
def test_each_item_of_another_checkout_came_over_or_is_told(
    checkout: Path, imported: Import, other: Callable[[Path], None]
) -> None:
    other(checkout)
    made = imported()
    assert "\n".join(lost(checkout, made)) == ""
    assert all(recipe.why or recipe.line for recipe in made.recipes)


def test_the_report_has_no_password_and_each_line_of_a_pipfile_that_was_left_out_once(
    checkout: Path, imported: Import
) -> None:
    pipfiles(checkout)
    made = imported()
    report = (made.catalog / REPORT).read_text()
    place = "snippets/bundles/2-asks/py39/Pipfile"
    assert "secret" not in report and "://***@itemindex1" in report
    assert said(made, f"{place}:16") == [
        "was left out with it: itemmarker11 = "
        '{version = "1.2.3", markers = "sys_platform == \'itemplatform12\'", extras = ["itemextra13"]}'
    ]
    assert said(made, f"{place}:13") == [
        "was left out: itemgit4: 'git' has no hash, so it can't be locked",
        'was left out with it: itemgit4 = {git = "https://github.com/x/itemgit5.git", ref = "itemref6"}',
    ]
    assert "is now" not in report.partition("### snippets/bundles/2-asks")[2].partition("###")[0]


def test_a_recipe_of_several_stages_is_left_out_with_each_of_its_bases(checkout: Path, imported: Import) -> None:
    path = f"recipes/{RECIPE}/Containerfile"
    write(checkout, path, f"FROM golang AS tools\nRUN make\n{begins(RECIPE)}USER 1001\nCOPY --from=tools /a /b\n")
    made = imported()
    assert why(made, RECIPE) == "4 instructions of its Containerfile are in none of its snippets"
    assert said(made, f"{path}:1") == ["was left out, for it is in none of the snippets: FROM golang AS tools"]
