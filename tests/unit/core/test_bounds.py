"""Files and texts that are more than may be read: each is a mistake with its place, and no crash, hang or traceback."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from flows.catalog import npm
from flows.catalog.model import BaseConfig, BundleConfig, IdeConfig
from flows.catalog.pins import FirstLock
from flows.catalog.release import ReleaseFile
from flows.core import documents, settings
from flows.core.documents import Mistakes, bounds
from flows.locks.pipfile import read_pipfile
from flows.locks.python_lockfile import exact, locked, verify
from flows.sessions.gpus.gpu import read_spec
from tests.support.apart import apart

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
YAML = {
    "5,000 lists": ("[" * 5_000, 1, "64 lists and mappings"),
    "200,000 lists": ("[" * 200_000, 1, "64 lists and mappings"),
    "200,000 lists that are closed": ("[" * 200_000 + "]" * 200_000, 1, "64 lists and mappings"),
    "200,000 mappings": ("{a: " * 200_000, 1, "64 lists and mappings"),
    "a mapping 1,500 deep": ("".join(f"{' ' * n}a:\n" for n in range(1_500)), 65, "64 lists and mappings"),
    "a list 1,500 deep on one line": ("- " * 1_500, 1, "64 lists and mappings"),
    "keys 1,500 deep on one line": ("? " * 1_500, 1, "64 lists and mappings"),
    "lists behind brackets in texts": ('- "]"\n' * 9 + "- " + "[" * 99, 10, "64 lists and mappings"),
    "a thousand million laughs": (LAUGHS, 6, "200,000 values"),
    "laughs in merged keys": (
        "a: &a {x: 1}\n" + "".join(f"b{n}: &{'ab'[n % 2]}{n} {{<<: [*{p}, *{p}]}}\n" for n, p in
                                   zip(range(40), ["a", *(f"{'ab'[m % 2]}{m}" for m in range(39))], strict=True)),
        16,
        "200,000 values",
    ),
    "a list in itself": ("a: &a [*a]", 1, "stands within what it stands for"),
    "a mapping in itself": ("&a\nb: *a", 2, "stands within what it stands for"),
    "an alias of nothing": ("a: *b", 1, "undefined alias"),
    "a number to base 60": ("a: 1" + ":1" * 400_000, 1, "1,000 characters"),
    "a float to base 60": ("a: 1" + ":1" * 400 + ":1.5", 1, "too large"),
    "a number of 5,000 digits": ("a: " + "9" * 5_000, 1, "1,000 characters"),
    "5 MB": ("# " + "x" * 5_000_000, 1, "4 MB"),
    "600,000 values": ("[" + "a," * 600_000 + "]", 1, "200,000 values"),
    "an empty number": ('a: !!int ""', 1, "not valid YAML"),
    "a day that is none": ("a: !!timestamp x", 1, "not valid YAML"),
    "a yes that is none": ("a: !!bool x", 1, "not valid YAML"),
    "an object of Python's": ("a: !!python/object/apply:os.system [id]", 1, "could not determine a constructor"),
    "control characters": ("a: \x1b[31m", 1, "not valid YAML"),
}  # fmt: skip
MODELS = [ReleaseFile, BaseConfig, BundleConfig, IdeConfig, FirstLock, settings.Settings]


@pytest.mark.slow
@pytest.mark.parametrize("name", YAML)
def test_yaml_that_is_too_much_is_a_mistake_with_its_line(name: str, tmp_path: Path) -> None:
    text, line, what = YAML[name]
    file = tmp_path / "file.yaml"
    file.write_text(text)
    for model in MODELS if len(text) < 10_000 else MODELS[:1]:
        told = apart(lambda model=model: documents.read(file, model))  # type: ignore[misc]
        assert told.startswith("Mistakes: ") and len(told) < 20_000, told
        assert f"{file}:{line}: " in told or "4 MB" in told, told
        assert what in told, told
    assert apart(lambda: documents.parse_plain(text, Path("x"))).startswith("Mistakes: ")


def test_laughs_are_no_matter_where_there_are_few(tmp_path: Path) -> None:
    text = "x: &x {a: 1}\ny: [*x, *x]\nz: {<<: *x, a: 2}\n"
    for _ in range(2):
        assert documents.parse_plain(text, Path("x")) == {"x": {"a": 1}, "y": [{"a": 1}, {"a": 1}], "z": {"a": 2}}


def test_a_merged_key_may_be_said_otherwise() -> None:
    class Anything(BaseModel):
        model_config = ConfigDict(extra="allow")

    for _ in range(2):
        read = documents.parse("x: &x {a: 1}\nz: {<<: *x, a: 2}\n", Path("x"), Anything)
        assert read.model_extra == {"x": {"a": 1}, "z": {"a": 2}}


@pytest.mark.slow
def test_many_mistakes_are_looked_for_and_told_in_part(tmp_path: Path) -> None:
    text = "release: 2026a\nreach:\n" + "".join(f"  package{n}: farther\n" for n in range(50_000))
    told = apart(lambda: documents.parse(text, tmp_path, ReleaseFile))
    assert told.startswith("Mistakes: ") and told.count("\n") < 110, told[:2000]


PIPFILES = {
    "20,000 lists": ("a = " + "[" * 20_000 + "\n", "10,000 characters"),
    "9,000 lists": ("[packages]\n\na = " + "[" * 9_000 + "\n", "in each other"),
    "20,000 tables": ("a = " + "{a=" * 3_000 + "\n", "in each other"),
    "lists on lines of their own": ("a = " + "[\n" * 20_000, "in each other"),
    "a key of 400,000 parts": ("a." * 400_000 + "a = 1\n", "10,000 characters"),
    "a header of 500,000 parts": ("[" + "a." * 400_000 + "a]\n", "10,000 characters"),
    "a key of 4,000 parts": ("a." * 4_000 + "a = 1\n", "64 lists and tables"),
    "headers one in the other": ("".join(f"[{'.'.join('a' * n)}]\n" for n in range(1, 500)), "64 lists and tables"),
    "2 MB": ("# x\n" * 500_000, "1 MB"),
    "a number of 5,000 digits": ("a = " + "9" * 5_000 + "\n", "not valid TOML"),
    "a quote without end": ("a = '''" + "x\n" * 99, "not valid TOML"),
    "a day that is none": ("a = 2026-02-31\n", "not valid TOML"),
    "NUL": ("\0", "not valid TOML"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPFILES)
def test_a_pipfile_that_is_too_much_is_a_mistake_with_its_line(name: str, tmp_path: Path) -> None:
    text, what = PIPFILES[name]
    (tmp_path / "Pipfile").write_text(text)
    told = apart(lambda: read_pipfile(tmp_path / "Pipfile"))
    assert told.startswith("Mistakes: ") and f"{tmp_path}/Pipfile" in told and what in told, told


DEEP = [200, 990, 300_000]


@pytest.mark.slow
@pytest.mark.parametrize("depth", DEEP)
def test_json_that_is_too_deep_is_a_mistake_with_its_line(depth: int, tmp_path: Path) -> None:
    (tmp_path / "Pipfile").write_text("[packages]\n")
    for text in ('{"a":\n' * depth + "1" + "}" * depth, '{"_meta": {"sources": ["]", \n' + "[" * depth + "]" * depth):
        (tmp_path / "Pipfile.lock").write_text(text)
        assert locked(tmp_path) == {}
        told = apart(lambda: verify(tmp_path))
        assert told.startswith("Mistakes: ") and "64 lists and objects" in told, told
        assert "Pipfile.lock:65: " in told or "Pipfile.lock:2: " in told, told
        assert "64 lists" in apart(lambda text=text: list(npm.mistakes(Path("package-lock.json"), text)))  # type: ignore[misc]
        assert apart(lambda text=text: read_spec(text, Path("nvidia.json"))).startswith("RefitError: ")  # type: ignore[misc]


def test_brackets_in_texts_of_json_are_none() -> None:
    text = json.dumps({"a": ["[" * 500, '\\"[' * 500, "]{\\"]})
    assert documents.parse_plain_json(text, Path("x")) == json.loads(text)


def test_a_variable_that_is_too_deep_is_a_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFIT_HOME", str(tmp_path))
    monkeypatch.setenv("REFIT_NOTIFY", "[" * 50_000 + "hush")
    told = apart(settings.load)
    assert told.startswith("Mistakes: ") and "REFIT_NOTIFY: more than 64 lists" in told and "hush" not in told, told


def fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        before = Path.cwd()
        os.chdir(path.parent)
        try:
            server.bind(path.name)  # a path to a socket may have 107 bytes
        finally:
            os.chdir(before)


ODD: dict[str, Callable[[Path], None]] = {
    "a FIFO": fifo,
    "a link to a FIFO": lambda path: fifo(path.with_name("fifo")) or path.symlink_to("fifo"),
    "a socket": a_socket,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to the terminal": lambda path: path.symlink_to("/dev/tty"),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a file without end": lambda path: path.write_bytes(b"#") and os.truncate(path, 1 << 40),
    "the kernel's messages": lambda path: path.symlink_to("/proc/kmsg"),
    "a file in Latin-1": lambda path: path.write_bytes(b"a: \xe4\n") and None,
}
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "YAML": ("file.yaml", lambda path: documents.read(path, ReleaseFile)),
    "Pipfile": ("Pipfile", read_pipfile),
    "text": ("display.txt", documents.text_of),
    "requirements": ("requirements.txt", exact),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_is_a_mistake(odd: str, kind: str, tmp_path: Path) -> None:
    name, read = READERS[kind]
    ODD[odd](tmp_path / name)
    told = apart(lambda: read(tmp_path / name))
    assert told.startswith("Mistakes: ") and str(tmp_path / name) in told, told


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
@pytest.mark.parametrize("name", ["Pipfile.lock", "requirements.txt"])
def test_a_lock_that_is_a_fifo_is_a_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "Pipfile").write_text("[packages]\n")
    digest = read_pipfile(tmp_path / "Pipfile").digest
    sources = [{"url": "https://pypi.org/simple"}]
    (tmp_path / "Pipfile.lock").write_text(
        json.dumps({"_meta": {"hash": {"sha256": digest}, "sources": sources}, "default": {}})
    )
    (tmp_path / "requirements.txt").write_text("")
    verify(tmp_path)
    (tmp_path / name).unlink()
    fifo(tmp_path / name)
    told = apart(lambda: verify(tmp_path))
    assert told.startswith("Mistakes: ") and f"{tmp_path / name}: this file can't be read: it is a FIFO" in told, told


def test_settings_that_are_a_fifo_are_a_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFIT_HOME", str(tmp_path))
    fifo(tmp_path / "settings.yaml")
    assert "it is a FIFO, and no file" in apart(settings.load)


def test_a_link_must_not_lead_out_of_a_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file").write_text("in")
    (tmp_path / "secret").write_text("out")
    (inside / "fine").symlink_to("file")
    (inside / "away").symlink_to("../secret")
    (inside / "folder").symlink_to("..")
    assert bounds.read_bytes(inside / "fine", 9, str(inside)) == b"in"
    for path in (inside / "away", inside / "folder" / "secret"):
        with pytest.raises(bounds.NotAFile, match="leads out of"):
            bounds.read_bytes(path, 9, str(inside))


def test_a_file_may_have_as_many_bytes_as_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert bounds.read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(bounds.NotAFile, match="more than"):
        bounds.read_bytes(tmp_path / "file", 4)


BRACKETS = st.text(alphabet="[]{}:,&*ab- \n'\"!?<#|>%@1.=\\", max_size=400)


@pytest.mark.slow
@given(BRACKETS | st.text())
def test_no_text_does_more_than_make_mistakes(text: str) -> None:
    for read in (
        lambda: documents.parse(text, Path("x"), ReleaseFile),
        lambda: documents.parse_plain(text, Path("x")),
        lambda: documents.parse_toml(text, Path("x")),
        lambda: documents.parse_plain_json(text, Path("x")),
    ):
        try:
            read()
        except Mistakes as found:
            assert all(mistake.line >= 1 and mistake.what for mistake in found.mistakes)
