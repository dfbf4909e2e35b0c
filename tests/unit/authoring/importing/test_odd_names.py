"""Checkouts whose names and locks are as nobody expects them: each item came over or stands in the report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.authoring.importing.report import REPORT
from tests.support.accounts import lost
from tests.support.checkout import DIGEST, LOCK, PIPFILE, RECIPE, STUDIO, Import, begins, write


def named(root: Path) -> None:
    """Names with marks of Markdown and of terminals, line ends, dashes, numbers twice, and twins but for their case."""
    write(root, "snippets/bundles/2-Minimal/py39/Pipfile", PIPFILE.replace("six", "itemtwin1"))
    write(root, "snippets/bundles/1-other/py39/Pipfile", PIPFILE.replace("six", "itemsame2"))
    write(root, "snippets/bundles/3-minimal/py39/Pipfile", PIPFILE.replace("six", "itemagain3"))
    write(root, "snippets/bundles/0004-zeros/py39/Pipfile", PIPFILE.replace("six", "itemzeros4"))
    write(root, "snippets/bundles/99999999999999999999-big/os/os-packages.txt", "itembig5\n")
    write(root, "snippets/bundles/5-a-b-c/py39/Pipfile", PIPFILE.replace("six", "itemdashes6"))
    write(root, "snippets/bundles/6-/py39/Pipfile", PIPFILE.replace("six", "itemnoname7"))
    write(root, "snippets/bundles/-7-dash/py39/Pipfile", PIPFILE.replace("six", "itemdash8"))
    write(root, "snippets/bundles/8-con.txt/py39/Pipfile", PIPFILE.replace("six", "itemdot9"))
    write(root, "snippets/bundles/9-two\nlines/py39/Pipfile", PIPFILE.replace("six", "itemlines10"))
    write(root, "snippets/bundles/10-esc\x1b[31m/os/os-packages.txt", "itemescape11\n")
    write(root, "snippets/bundles/11-`rm`|<b>[x](y)/os/os-packages.txt", "itemmark12\n")
    write(root, "snippets/ides/2-studio/studio.snippet", "COPY files /opt/\nRUN echo itemstudio13\n")
    write(root, "snippets/ides/2-studio/files/- [ ] x", "itembox14\n")
    write(root, "snippets/ides/2-studio/files/a: b:3: c", "itemcolon15\n")
    write(root, "snippets/ides/2-studio/files/..\\up", "itemback16\n")
    write(root, "snippets/ides/2-other/other.snippet", "RUN echo itemide17\n")
    write(root, "snippets/ides/3-Studio/studio.snippet", "RUN echo itemide18\n")
    write(root, "snippets/ides/4-base/base.snippet", "RUN echo itemide19\n")
    write(root, f"recipes/{STUDIO}/Containerfile", begins(STUDIO) + "COPY files /opt/\nRUN echo itemstudio13\n")
    for name in ("runtime-Minimal-c9s-py39_2023c_20230925", "runtime-a-b-c-c9s-py39_2023c_20230925"):
        write(root, f"recipes/{name}/Containerfile", begins(name) + "RUN echo itemrecipe20\n")
    for name in ("-", "a\nb", "runtime-minimal-c9s-py39_2023c_20230925\x1b[0m", "..x", "ü" * 120):
        write(root, f"recipes/{name}/Containerfile", "FROM x\nRUN echo itemodd21\n")
    write(root, "base/c9s/" + os.fsdecode(b"caf\xe9") + "/x", "itemraw22\n")
    write(root, "base/c9s/" + "d/" * 90 + "deep", "itemdeep23\n")


def locked(root: Path) -> None:
    """Locks that say other things than their Pipfiles: categories, hashes, sources, Pythons, versions, packages."""
    texts = {
        "category": ('[packages]\nsix = "*"\n[web]\nitemweb1 = "*"\n[gpu]\nitemgpu2 = "*"\n', {}),
        "less": (PIPFILE + '\n[docs]\nitemdocs3 = "*"\n', {"default": {}}),
        "more": (PIPFILE, {"itemlate4": {"itemlate5": {"version": "==1"}}}),
        "develop": (PIPFILE, {"develop": {"itemdev6": {"version": "==1", "hashes": ["sha256:cc"]}}}),
        "unhashed": (PIPFILE, {"default": {"six": {"version": "==1.16.0"}, "itembare7": {"version": "==1"}}}),
        "md5": (PIPFILE, {"default": {"anmd5": {"version": "==1", "hashes": ["md5:aa"]}}}),
        "git": (PIPFILE, {"default": {"itemgit9": {"git": "https://example.org/x.git", "ref": "main"}}}),
        "file": (PIPFILE, {"default": {"itemfile12": {"file": "https://example.org/x.whl", "hashes": ["sha256:aa"]}}}),
        "star": (PIPFILE, {"default": {"itemstar14": {"version": "*", "hashes": ["sha256:aa"]}}}),
        "marked": (
            PIPFILE,
            {"default": {"itemmarked15": {"version": "==1", "hashes": ["sha256:aa"], "markers": "x = y"}}},
        ),
        "strange": (PIPFILE, {"default": {"itemlist17": ["1"], "itemnull18": None, "itemtext19": "==1"}}),
        "sources": (PIPFILE, {"_meta": {"sources": [{"name": "x", "url": "https://u:secret@example.org/simple"}]}}),
        "number": (PIPFILE, {"default": {"anumber": {"version": 1.5, "hashes": "sha256:aa"}}}),
        "other": (PIPFILE.replace('"3.9"', '"3.7"'), {}),
    }
    for number, (name, (pipfile, changed)) in enumerate(texts.items(), 2):
        place = f"snippets/bundles/{number}-{name}/py39"
        write(root, f"{place}/Pipfile", pipfile)
        write(
            root,
            f"{place}/Pipfile.lock",
            json.dumps({**json.loads(LOCK % DIGEST), **changed}, indent=4, sort_keys=True),
        )
        recipe = RECIPE.replace("minimal", name)
        write(root, f"recipes/{recipe}/Containerfile", begins(recipe) + "USER 1001\n")
        write(root, f"recipes/{recipe}/requirements.txt", f"six==1.16.0\nitemwanted{number}==1\n")


def generated(root: Path) -> None:
    """Containerfiles of a generator: no line ends but one, thousands of small instructions, quotes that never end."""
    long = " && ".join(f"echo itemchain{number}" for number in range(60))
    write(
        root, "base/c9s/Containerfile", f"FROM x\nRUN {long}\n" + "".join(f"ENV A{n}=itemenv{n}\n" for n in range(90))
    )
    quotes = 'ENV A=\'itemquote1\nRUN echo "itemquote2\nLABEL a="itemquote3 \\"b\\" # itemquote4"\nENV B=$(itemquote5\n'
    write(root, "base/ubi9/Containerfile", "FROM x\n" + quotes)
    escapes = "RUN printf '\\x1b[2J itemescape1\\r' \\\\\n && echo itemescape2 \\ \n && echo itemescape3 \\\t\n"
    write(root, "snippets/ides/2-studio/studio.snippet", "USER 0\n" + quotes + escapes)
    write(root, f"recipes/{STUDIO}/Containerfile", begins(STUDIO) + "USER 0\n" + quotes + escapes)
    mixed = "FROM x AS a\rRUN echo itemmac1\rENV B=itemmac2\r\nRUN echo itemmac3\n\rRUN echo itemmac4\n"
    (root / "cuda-layer/devel").mkdir(parents=True)
    (root / "cuda-layer/devel/Containerfile").write_bytes(mixed.encode())
    lines = "RUN a \\\n\x0b && itemvertical1 \\\n\x0c && itemform2 \\\n\x85 && itemnext3\nRUN echo \u2028 itemline4\n"
    write(root, "cuda-layer/runtime/Containerfile", "FROM x\n" + lines)
    nul = b"FROM x\nRUN echo itemnul1\x00 && echo itemnul2\nENV A=itemnul3\n"
    (root / "base/c8s").mkdir(parents=True)
    (root / "base/c8s/Containerfile").write_bytes(nul)
    heredocs = "RUN <<A <<-'B' python3 -c 'itemdoc1'\nitemdoc2\nA\n\titemdoc3 <<C\n\tB\n"
    heredocs += "RUN echo itemdoc4\nCOPY <<X <<Y /\nitemdoc5\n"
    write(root, "snippets/bundles/1-minimal/custom/custom.snippet", heredocs)
    bundle = "FROM a AS b\nRUN " + "\\\n".join(f"itempart{number} " for number in range(40)) + "\nCOPY --from=b x y\n"
    write(root, "snippets/bundles/2-built/builder/builder.snippet", bundle)
    write(root, f"recipes/{RECIPE}/Containerfile", f"{begins(RECIPE)}USER 1001\nRUN --security=insecure itemsecure1\n")


ODD: list[Callable[[Path], None]] = [named, locked, generated]


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_each_item_under_an_odd_name_or_in_an_odd_lock_came_over_or_is_told(
    checkout: Path, imported: Import, odd: Callable[[Path], None]
) -> None:
    odd(checkout)
    made = imported()
    told = [path.encode("unicode_escape", "surrogatepass").decode() for path in lost(checkout, made)]
    assert "\n".join(told) == ""
    report = (made.catalog / REPORT).read_text()
    assert "secret" not in report and "\x1b" not in report and "can't be used (" not in report
    assert all(recipe.why or recipe.line for recipe in made.recipes)
