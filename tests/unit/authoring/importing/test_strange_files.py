"""Files and instructions unlike those of workbench-images: each line of the report is true, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows.authoring.importing import template as template_of
from flows.authoring.importing.adoption import adopt
from flows.authoring.importing.report import Adoption
from flows.catalog import load
from flows.catalog.model import Catalog
from flows.core.errors import RefitError
from tests.support.checkout import PIPFILE, RECIPE, Import, begins, said, why, write


def template(made: Adoption, name: str) -> str:
    [file] = made.catalog.glob(f"*/*-{name}/**/*.snippet.j2")
    return file.read_text()


def studio(checkout: Path, snippet: str, *files: str) -> None:
    """An IDE that Refit hasn't, with a recipe."""
    write(checkout, "snippets/ides/2-studio/studio.snippet", snippet)
    for file in files:
        write(checkout, f"snippets/ides/2-studio/files/{file}", "#!/bin/sh\n")
    name = RECIPE.replace("runtime", "studio")
    write(checkout, f"recipes/{name}/Containerfile", begins(name) + snippet)


@pytest.mark.slow
def test_a_plain_checkout_is_taken_over_whole(imported: Import) -> None:
    made = imported()
    assert made.profiles == 1 and not why(made, RECIPE)


@pytest.mark.parametrize(
    ("snippet", "expected"),
    [
        ("run\ttrue\n", "run\t{{ shell.begin() }} true\n"),
        ("  RUN true\n", "  RUN {{ shell.begin() }} true\n"),
        ("RUN true\r\nENV A=1\r\n", "RUN {{ shell.begin() }} true\nENV A=1\n"),
        ("RUN --mount=type=cache,target=/x a\n", "RUN --mount=type=cache,target=/x {{ shell.begin() }} a\n"),
        (
            "RUN --network=none \\\n  --mount=type=tmpfs a\n",
            "RUN --network=none --mount=type=tmpfs {{ shell.begin() }} a\n",
        ),
        ('RUN ["sh", "-c", "true"]\n', 'RUN ["sh", "-c", "true"]\n'),
        ("RUN [ -f /x ] || true\n", "RUN {{ shell.begin() }} [ -f /x ] || true\n"),
        ("RUN a && \\\n# no\n\n    RUN=1 b\n", "RUN {{ shell.begin() }} a && \\\n# no\n\n    RUN=1 b\n"),
        ("RUN echo ${CUDA:-x} $CUDA_HOME $CUDA.\n", "RUN {{ shell.begin() }} echo ${CUDA:-x} $CUDA_HOME .\n"),
        ("RUN a {% b %} {{c}} ${#d}\n", "a {{ '{%' }} b %} {{ '{{' }}c}} ${{ '{#' }}d}\n"),
        ('COPY ["a b", "./c", "/x/"]\n', 'COPY ["files/a b", "files/c", "/x/"]\n'),
        ("copy --chown=1:0 \\\n   c \\\n   ../c /x/\n", "COPY --chown=1:0 files/c files/c /x/\n"),
        ("ADD https://x.org/y /z\n", "ADD https://x.org/y /z\n"),
        ("COPY . /x\n", "COPY files/ /x\n"),
        ("WORKDIR /opt/app-root/src/Ünï\n", "WORKDIR /home/dev/Ünï\n"),
    ],
)
def test_instructions_come_over_in_each_of_their_forms(
    checkout: Path, imported: Import, snippet: str, expected: str
) -> None:
    studio(checkout, "USER 0\n" + snippet, "a b", "c")
    made = imported()
    assert template(made, "studio").endswith(expected)
    assert not why(made, "studio")


@pytest.mark.parametrize(
    ("snippet", "reason"),
    [
        ("FROM x AS y\nRUN a\n", "begins another stage"),
        ("ARG V=1\nFROM x:$V\n", "begins another stage"),
        ("COPY --from=builder /a /b\n", "copies from another stage or image"),
        ("RUN <<EOF\nRUN x\nCOPY a b\nEOF\nENV A=1\n", "has a heredoc"),
        ("COPY <<'E' /x\n{{ a }}\nE\n", "has a heredoc"),
        ("apt install x\n", "is no instruction of a Containerfile"),
        ("# escape=`\nRUN a `\n  && b\n", "its lines are continued by `"),
        ("COPY requirements-studio.txt ./\n", "copies requirements-studio.txt, which is not among its files"),
    ],
)
def test_an_ide_that_can_t_be_built_as_it_is_is_in_no_release(
    checkout: Path, imported: Import, snippet: str, reason: str
) -> None:
    studio(checkout, snippet)
    made = imported()
    assert any(note.partition(": ")[2].startswith(reason) for note in made.notes)
    assert why(made, "studio") and made.profiles == 1


def test_a_bundle_with_a_custom_that_can_t_come_over_is_in_no_release(checkout: Path, imported: Import) -> None:
    write(checkout, "snippets/bundles/1-minimal/custom/custom.snippet", "RUN <<E\ntrue\nE\n")
    made = imported()
    assert why(made, RECIPE).startswith("what its bundle installs did not come over: snippets/bundles/1-minimal/custom")
    assert said(made, "snippets/bundles/1-minimal/custom/custom.snippet:1")


def test_an_empty_snippet_says_nothing_and_is_no_mistake(checkout: Path, imported: Import) -> None:
    write(checkout, "snippets/bundles/1-minimal/custom/custom.snippet", "# nothing\n\n")
    write(checkout, "snippets/ides/2-empty/empty.snippet")
    made = imported()
    assert said(made, "snippets/bundles/1-minimal/custom/custom.snippet") == [
        "has no instruction: there is nothing to carry over"
    ]
    assert said(made, "snippets/ides/2-empty")[0].startswith("was left out") and not why(made, RECIPE)


def test_onbuild_and_what_only_their_base_has_are_named(checkout: Path, imported: Import) -> None:
    write(checkout, "base/c9s/Containerfile", "FROM x\nENV HOME=/h \\\n    APP_ROOT=/opt/app-root\n")
    studio(checkout, "ONBUILD RUN a\nENV B=1\nRUN fix-permissions ${APP_ROOT}/$B $HOME && echo '\\$APP_ROOT'\n")
    made = imported()
    place = "snippets/ides/2-studio/studio.snippet"
    assert said(made, f"{place}:1")[0].startswith("images of Refit's have no ONBUILD")
    [variable, program] = said(made, f"{place}:3")
    assert variable.endswith("there it is /opt/app-root (base/c9s/Containerfile:3)") and "$APP_ROOT" in variable
    assert program.startswith("calls fix-permissions") and "`true` is called" in program
    assert "{{ shell.begin() }} true && echo" in template(made, "studio")


@pytest.mark.parametrize("spelling", ["fix-permissions", "fix'-'permissions", '"fix-permissions"', "fix\\-permissions"])
def test_a_program_is_found_however_a_shell_may_spell_it(spelling: str) -> None:
    assert [*template_of.programs(f"RUN true && {spelling} /opt\n", template_of.HELPERS)] == [(1, "fix-permissions")]


def test_nothing_outside_of_the_checkout_is_read(checkout: Path, imported: Import, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("TOPSECRET\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.snippet").write_text("ENV A=TOPSECRET\n")
    studio(checkout, "RUN true\n", "a")
    for place in (
        "snippets/bundles/1-minimal/display.txt",
        "snippets/ides/2-studio/files/b",
        "snippets/ides/2-studio/files/c",
        f"recipes/{RECIPE}/extra",
        "base/c9s/Containerfile",
        "cuda-layer/base/Containerfile",
        "snippets/bundles/2-linked",
        "snippets/bundles/1-minimal/os",
    ):
        (checkout / place).parent.mkdir(parents=True, exist_ok=True)
        (checkout / place).symlink_to(tmp_path / "folder" if "." not in place and place[-1] in "ds" else secret)
    (checkout / "snippets/ides/2-studio/files/c").unlink()
    (checkout / "snippets/ides/2-studio/files/c").symlink_to("a")
    os.mkfifo(checkout / "base" / "fifo")
    made = imported()
    for file in made.catalog.rglob("*"):
        assert not file.is_file() or b"TOPSECRET" not in file.read_bytes()
    assert sum("leads out of the checkout" in note for note in made.notes) == 7
    assert said(made, "base/fifo") == ["was left out: it is no file: a FIFO, a socket or a device"]
    [folder] = made.catalog.glob("ides/*-studio")
    assert sorted(path.name for path in (folder / "files").iterdir()) == ["a", "c"]


@pytest.mark.parametrize("part", ["snippets", "snippets/bundles", "recipes"])
def test_a_part_that_is_a_link_to_another_place_is_not_followed(
    checkout: Path, own: Catalog, tmp_path: Path, part: str
) -> None:
    (checkout / part).rename(tmp_path / "elsewhere")
    (checkout / part).symlink_to(tmp_path / "elsewhere")
    if part == "recipes":
        assert adopt(checkout, tmp_path / "catalog", own).recipes == []
    else:
        with pytest.raises(RefitError, match="no checkout"):
            adopt(checkout, tmp_path / "catalog", own)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["snippets/ides/2-studio/files/model.bin", "snippets/ides/2-studio/studio.snippet"])
def test_a_file_of_a_hundred_megabytes_is_left_out_alone(checkout: Path, imported: Import, place: str) -> None:
    studio(checkout, "COPY model.bin run.sh /x/\n", "model.bin", "run.sh")
    os.truncate(checkout / place, 100_000_000)
    made = imported()
    assert said(made, place)[0].startswith("was left out: it has more than")
    assert why(made, "studio") and not why(made, RECIPE)


def test_folders_without_number_twice_named_or_with_strange_names_are_told(checkout: Path, imported: Import) -> None:
    for name in ("plain", "3-minimal", "4-Mini-Mal", "5-日本", "6-" + "x" * 40, "07-ok", "7-"):
        write(checkout, f"snippets/bundles/{name}/py39/Pipfile", PIPFILE)
    write(checkout, "snippets/ides/9-runtime/runtime.snippet", "RUN other\n")
    made = imported()
    assert said(made, "snippets/bundles/plain/py39/Pipfile") == ["was left out: nothing reads it"]
    for name in ("3-minimal", "4-Mini-Mal"):
        assert said(made, f"snippets/bundles/{name}") == ["was left out: another one is called minimal here"]
    for name in ("5-日本", "6-" + "x" * 40):
        assert "can be a name of small letters and digits" in said(made, f"snippets/bundles/{name}")[0]
    assert said(made, "snippets/ides/9-runtime") == ["was left out: another one is called runtime here"]
    assert load.load_catalog(made.catalog).bundles.keys() == {"minimal", "ok"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("RUN a && \\\n    (b && c) && echo 'x && y'\n", {1: "RUN a", 2: "RUN (b && c)"}),
        ("RUN if a && b; then \\\n c; fi\n", {1: "RUN if a && b; then c; fi"}),
        ('ENV A="x y" \\\n  B=\\$z C=1\n', {1: 'ENV A="x y"', 2: "ENV B=\\$z"}),
        ("LABEL a=1 \\\n# no\n  b='c d'\n", {1: "LABEL a=1", 3: "LABEL b='c d'"}),
        ("ENV OLD style value\n", {1: "ENV OLD style value"}),
        ('RUN ["a", "b && c"]\n', {1: 'RUN ["a", "b && c"]'}),
        ("RUN <<E\na\nE\nENV X=1\n", {1: "RUN <<E a E", 4: "ENV X=1"}),
        ("RUN true \\\n", {1: "RUN true"}),
        ("RUN x <<< a && echo $((1<<n))\nENV X=1\n", {1: "RUN x <<< a", 2: "ENV X=1"}),
        ("ENV\nLABEL\nRUN\nCOPY\nFROM\n", {1: "ENV ", 5: "FROM "}),
    ],
)
def test_the_report_has_each_part_of_each_instruction_with_its_line(
    checkout: Path, imported: Import, text: str, parts: dict[int, str]
) -> None:
    write(checkout, "base/c9s/Containerfile", text)
    made = imported()
    for line, part in parts.items():
        assert f"may not be in Refit's c9s: {part}" in said(made, f"base/c9s/Containerfile:{line}")


def test_what_is_no_text_is_told(checkout: Path, imported: Import) -> None:
    studio(checkout, "RUN true\n")
    (checkout / "snippets/ides/2-studio/studio.snippet").write_bytes(b"USER 0\nRUN echo \xff\xfe\n")
    (checkout / "snippets/bundles/1-minimal/display.txt").write_bytes(b"\x00\x1b[31m\x07" + b"y" * 1000)
    (checkout / os.fsdecode(b"snippets/ides/2-studio/files")).mkdir(exist_ok=True)
    (checkout / os.fsdecode(b"snippets/ides/2-studio/files/\xff")).write_text("x")
    (checkout / "snippets/ides/2-studio/a | b\n- [ ] c").write_text("x")
    made = imported()
    assert said(made, "snippets/ides/2-studio/studio.snippet:2")[0].startswith("is not UTF-8")
    assert any("a | b\\n- [ ] c: was left out" in note for note in made.notes)
    assert "\x1b" not in (made.catalog / "bundles/1-minimal/display.txt").read_text()
