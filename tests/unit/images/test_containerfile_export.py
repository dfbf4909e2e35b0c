from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.images.containerfile_export import UV, UV_HASHES, containerfile
from flows.images.grafting.configuration import instructions
from flows.images.stages import Kind, Stage
from tests.support.machine import ROOT

BASE = "registry.example/images/stages@sha256:" + 64 * "0"
SYSTEM = tuple(sorted(f"package{number}=1:2.{number}~deb12u1" for number in range(100)))
FIRST = Stage("base-os-py", Kind.bootstrap, None, "ADD base.tar /\nRUN true\n", system=SYSTEM, suite="bookworm")


def plain(text: str, files: dict[str, bytes] | None = None, *, secure: bool = True) -> str:
    stage = Stage("top", Kind.instructions, FIRST.name, text, files or {})
    return containerfile("ide-bundle-os-py", "2000a", (FIRST, stage), BASE, secure=secure)


def part(text: str, start: str) -> str:
    """The lines after a FROM, up to the next."""
    return next(one for one in re.split(r"(?m)^FROM ", text) if one.startswith(start)).partition("\n")[2]


def own(text: str) -> list[str]:
    """The instructions that the stage `top` has become, without the last, which tidies up."""
    return [step.written for step in instructions(part(text, f"{BASE}\n"))][:-1]


def test_the_base_is_taken_by_digest_and_its_origin_told() -> None:
    text = plain("RUN true\n")
    assert set(re.findall(r"(?m)^FROM (\S+)", text)) == {BASE}
    told = "".join(line.removeprefix("# ") for line in text.partition("\nFROM ")[0].splitlines(True))
    options = re.findall(r"^ *--include=(\S+) \\$", told, re.M)
    assert tuple(",".join(options).split(",")) == SYSTEM
    assert "FROM scratch\nADD base.tar /\nRUN true\n" in told
    assert max(map(len, text.splitlines())) < 400


def test_instructions_stay_what_they_are_but_see_the_stage_s_files() -> None:
    text = plain('# why\nRUN one; \\\n    two\nENV A="b c"\nrun ["three"]\nUSER 1001:0\nCMD ["x"]\n', {"a": b"a\n"})
    mount = "--mount=type=bind,from=files-of-top,source=/mnt,target=/mnt,rw"
    steps = [re.sub(r"\s+", " ", step) for step in own(text)]
    assert steps == [
        f"RUN {mount} one; two",
        'ENV A="b c"',
        f'RUN {mount} ["three"]',
        "USER 1001:0",
        'CMD ["x"]',
    ]
    assert "\n# why\n" in text


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("COPY --chmod=0644 a /b", "COPY --from=files-of-top --chmod=0644 /mnt/files/a /b"),
        ("copy a/ /c/d /e/", "COPY --from=files-of-top /mnt/files/a/ /mnt/files/c/d /e/"),
        ('COPY --chown=1:0 ["a b", "/c d"]', 'COPY --from=files-of-top --chown=1:0 ["/mnt/files/a b", "/c d"]'),
        ("COPY a \\\n    b", "COPY --from=files-of-top /mnt/files/a b"),
        ("COPY --from=other a b", "COPY --from=other a b"),
    ],
)
def test_a_copy_takes_from_the_stage_s_files(written: str, becomes: str) -> None:
    assert own(plain(f"{written}\n", {"a": b""})) == [becomes]


def test_wheels_come_from_a_stage_of_their_own_in_which_alone_compilers_are() -> None:
    system = Stage("os", Kind.instructions, FIRST.name, "RUN apt-get install -y libfoo\n")
    wheels = Stage("wheels", Kind.wheels, FIRST.name, "RUN gcc\n", {"sources.txt": b"foo==1\n"})
    python = Stage("top", Kind.closed, "os", "RUN install\n", {"requirements.txt": b""}, wheels=wheels)
    text = containerfile("ide-bundle-os-py", "2000a", (FIRST, system, python), BASE)
    names = re.findall(r"(?m)^FROM (\S+)(?: AS (\S+))?$", text)[1:]
    assert names == [
        ("machine", "files-of-wheels"),
        (BASE, "wheels"),
        ("machine", "files-of-top"),
        (BASE, ""),
    ]
    assert "COPY --from=wheels /wheels/ /mnt/built/" in part(text, "machine AS files-of-top\n")
    assert text.count("gcc") == 1 and "gcc" in part(text, f"{BASE} AS wheels\n")
    assert text.count("libfoo") == 1 and "libfoo" in part(text, f"{BASE}\n")


def test_an_add_that_needs_a_build_context_is_refused() -> None:
    with pytest.raises(RefitError, match="can't be shown as plain text"):
        plain("ADD a.tar /\n", {"a.tar": b""})


CONTENTS = {
    "empty": b"",
    "text": '# first\n\n  it\'s "quoted" $HOME `x` \\\n\tü\n%s\\n\n-n\n'.encode(),
    "apostrophes": b"python >= '3'\n",
    "no end": b"one\ntwo",
    "only ends": b"\n\n",
    "here-text": b"cat <<EOF\nx\nEOF\n",
    "dos": b"a\r\nb\r\n",
    "binary": bytes(range(256)) * 1000,
    "long line": b"x" * 200_000 + b"\n",
    "long text": b"".join(b"%d '$x'\n" % number for number in range(40_000)),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_are_written_byte_by_byte(tmp_path: Path, name: str) -> None:
    text = plain("COPY . /\n", {f"folder/it's {name}": CONTENTS[name]})
    *steps, _ = instructions(part(text, "machine AS files-of-top\n"))
    for step in steps:
        assert len(step.rest) < 131_072  # one word of a command line has no more on Linux
        subprocess.run(["sh", "-euc", step.rest.replace("/mnt", str(tmp_path))], check=True)
    assert (tmp_path / "files" / "folder" / f"it's {name}").read_bytes() == CONTENTS[name]


def test_lines_are_no_longer_than_a_builder_reads() -> None:
    text = plain("COPY . /\n", CONTENTS)
    assert max(map(len, text.splitlines())) < 65_536


def test_uv_is_installed_where_it_is_called_and_is_that_of_refit() -> None:
    assert "uv==" not in plain("RUN pip install x\n")
    assert f"uv=={UV} " in plain("RUN /mnt/uv pip install x\n")
    packages = {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    assert packages["uv"]["version"] == UV
    assert {f"sha256:{digest}" for digest in UV_HASHES} <= {wheel["hash"] for wheel in packages["uv"]["wheels"]}


def test_a_registry_without_tls_is_named_in_the_command() -> None:
    command = "buildah build --timestamp 315532800 --tls-verify=false --tag ide-bundle-os-py --file Containerfile ."
    assert command in plain("RUN true\n", secure=False)
    assert "--tls-verify" not in plain("RUN true\n")
