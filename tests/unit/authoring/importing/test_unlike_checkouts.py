"""Checkouts as other people have them: each thing in them came over, or stands in the report with its file and line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.authoring.importing.report import REPORT
from tests.support.accounts import lost
from tests.support.checkout import DIGEST, LOCK, PIPFILE, RECIPE, STUDIO, Import, begins, write


def windows(root: Path) -> None:
    """Files of an editor on Windows: tabs, CRLF, a byte-order mark, blanks at the end, no line end at the end."""
    snippet = "USER 0\r\nRUN\techo itemrun1 && \\\r\n\techo itemrun2   \r\nENV\tA=itemenv3\r\nLABEL x=itemlabel4"
    write(root, "snippets/ides/2-studio/studio.snippet", snippet)
    write(root, f"recipes/{STUDIO}/Containerfile", begins(STUDIO) + snippet + "\nLABEL y=itemlabel5\r\n")
    write(root, "snippets/bundles/1-minimal/os/os-packages.txt", "\ufeffitempackage1\r\n\titempackage2\t\r\n \r\n")
    write(
        root, "base/c9s/Containerfile", "\ufeffFROM itemfrom1\r\nRUN dnf install \\\r\n\titemdnf2 \\\r\n\titemdnf3\r\n"
    )
    write(root, "base/c9s/os-packages.txt", "itembase1\r\n\titembase2 # why\r\n")


def languages(root: Path) -> None:
    """Names and words of other languages, blanks in names, and bytes that are no UTF-8."""
    write(root, "snippets/ides/2-studio/studio.snippet", 'COPY ["été file", "/opt/"]\nENV NOM="itemenv1 é 日本"\n')
    write(root, "snippets/ides/2-studio/files/été file", "itemfile1 ü\n")
    write(root, "snippets/ides/2-studio/notes/読んで.md", "itemnote1\n")
    write(root, f"recipes/{STUDIO}/Containerfile", begins(STUDIO) + 'COPY ["été file", "/opt/"]\n')
    write(root, "snippets/bundles/1-minimal/display.txt", "Kleines Bündel itemdisplay1\n")
    write(root, "snippets/bundles/2-größe/display.txt", "itemdisplay2\n")
    write(root, "base/c9s/Containerfile", "FROM x\nENV STRASSE=Größe-itemenv2\n")
    (root / "base/c9s/latin").write_bytes(b"itemlatin1 caf\xe9\n")


def links(root: Path) -> None:
    """Links inside, outside, to nothing, in a circle, to folders, and a pipe."""
    write(root, "snippets/bundles/2-shared/os/os-packages.txt", "itempackage1\n")
    (root / "snippets/bundles/1-minimal/os").symlink_to("../2-shared/os")
    (root / "snippets/bundles/3-linked").symlink_to("1-minimal")
    write(root, "snippets/ides/2-studio/studio.snippet", "COPY there gone round out /opt/\n")
    for name, target in (
        ("gone", "nowhere"),
        ("round", "round"),
        ("out", "/etc/hostname"),
        ("there", "studio.snippet"),
    ):
        (root / f"snippets/ides/2-studio/{name}").symlink_to(target)
    write(root, "base/c9s/Containerfile", "FROM x\nRUN itembase1\n")
    (root / "base/ubi9").symlink_to("c9s")
    os.mkfifo(root / "base/c9s/pipe")
    (root / "recipes/a-link").symlink_to(RECIPE)


def nothing(root: Path) -> None:
    """Empty folders and empty files, in the place of each part."""
    for folder in ("bundles/2-none", "bundles/3-half/py39", "bundles/4-os/os", "ides/2-none", "ides/3-half/files"):
        (root / f"snippets/{folder}").mkdir(parents=True)
    for folder in ("base/empty", "cuda-layer/empty", "recipes/empty"):
        (root / folder).mkdir(parents=True)
    for file in ("snippets/bundles/5-mute/display.txt", "snippets/ides/4-mute/mute.snippet", "base/c9s/Containerfile"):
        write(root, file)
    write(root, "snippets/bundles/6-lock/py39/Pipfile.lock", "")
    write(root, "snippets/bundles/7-comments/custom/custom.snippet", "# nothing\n\n")


def large(root: Path) -> None:
    """A file of 200 MB, one of many lines, and one line of 100,000 letters."""
    with (root / "snippets/bundles/1-minimal/model.bin").open("wb") as file:
        file.truncate(200 << 20)
    write(root, "base/c9s/os-packages.txt", "".join(f"itemmany{number}\n" for number in range(290)))
    write(root, "snippets/ides/2-studio/studio.snippet", f"RUN echo itemlong1 {'x' * 100_000} && echo itemlong2\n")
    write(root, f"recipes/{STUDIO}/Containerfile", begins(STUDIO))
    write(root, "base/c9s/Containerfile", f"FROM x\nRUN itembase1 {'y' * 100_000}\n")


def many(root: Path) -> None:
    """Several Containerfiles in a place, Dockerfiles, stages of many names, a heredoc, and files that hide."""
    stages = "FROM a AS one\nRUN itemstage1\nFROM b AS two\nCOPY --from=one /x /itemstage2\nARG itemarg3=1\n"
    for name in ("Containerfile", "Containerfile.gpu", "Dockerfile", "gpu/Containerfile"):
        write(root, f"base/c9s/{name}", stages.replace("item", f"item{''.join(filter(str.isalpha, name)).lower()}"))
        write(root, f"recipes/{RECIPE}/extra-{name}", "RUN itemextra1\n")
    write(
        root, "cuda-layer/runtime/Containerfile", "RUN <<EOF\nitemheredoc1\nEOF\nCMD itemcmd2\nENTRYPOINT itementry3\n"
    )
    write(root, "snippets/ides/2-studio/studio.snippet", "RUN <<EOF\nitemheredoc4\nEOF\n")
    write(root, "snippets/ides/2-studio/studio2.snippet", "RUN itemsecond1\n")
    for hidden in ("base/c9s/.env", "snippets/ides/2-studio/.dockerignore", "snippets/bundles/1-minimal/.hidden/x"):
        write(root, hidden, "itemhidden1\n")


def builds(root: Path) -> None:
    """The report tells item by item a bundle's builds, its repositories and its labels."""
    write(
        root,
        "snippets/bundles/2-spark/builder/builder.snippet",
        "FROM x as builder\nRUN curl itemurl1 && \\\n    tar itemtar2\nENV A=itemenv3 \\\n    B=itemenv4\n",
    )
    write(root, "snippets/bundles/2-spark/builder/files/pom.xml", "<itempom1/>\n")
    write(
        root,
        "snippets/bundles/2-spark/custom/custom.snippet",
        "COPY --from=builder /itemspark1 /spark\nENV C=itemenv2\n",
    )
    write(root, "snippets/bundles/2-spark/py39/Pipfile", PIPFILE)
    write(root, "snippets/bundles/2-spark/py39/Pipfile.lock", LOCK % DIGEST)
    name = RECIPE.replace("minimal", "spark")
    labels = 'LABEL name="itemlabel1" \\\n      io.openshift.build.image="itemlabel2"\n'
    write(root, f"recipes/{name}/Containerfile", begins(name) + labels)
    write(root, f"recipes/{RECIPE}/Containerfile", begins(RECIPE) + labels.replace("itemlabel", "itemother"))
    write(root, "base/c9s/mssql.repo", "[itemrepo1]\nbaseurl=itemrepo2\n")
    write(
        root, "base/c9s/Containerfile", "FROM x\nRUN dnf config-manager --set-enabled itemrepo3\nLABEL l=itemlabel4\n"
    )


UNLIKE: list[Callable[[Path], None]] = [windows, languages, links, nothing, large, many, builds]


@pytest.mark.slow
@pytest.mark.parametrize("unlike", UNLIKE, ids=lambda unlike: unlike.__name__)
def test_whatever_a_checkout_has_came_over_or_stands_in_the_report(
    checkout: Path, imported: Import, unlike: Callable[[Path], None]
) -> None:
    unlike(checkout)
    made = imported()
    assert [*lost(checkout, made)] == []
    report = (made.catalog / REPORT).read_text()
    assert all(f"- [ ] {note}" in report for note in made.notes)


@pytest.mark.slow
def test_an_item_that_nobody_told_of_would_be_seen(checkout: Path, imported: Import) -> None:
    builds(checkout)
    made = imported()
    made.notes.clear()
    missed = "\n".join(lost(checkout, made))
    for part in ("builder.snippet:2: itemurl", "mssql.repo:1: itemrepo", "Containerfile:3: itemother"):
        assert part in missed, missed
