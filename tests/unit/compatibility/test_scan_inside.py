"""The reader of homes that goes to where a session runs: what it reads there, and what may answer in its place."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from flows.catalog.model import Access
from flows.compatibility import scan_inside
from flows.compatibility.facts import Home, Kind
from flows.compatibility.read_home import BOUNDS, Bounds, Reader
from flows.compatibility.scan_inside import NotRead, read
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.sessions.engine import Engine
from flows.sessions.model import HomeRef, Session, TokenRef, Volume

# A Python that has nothing but its own library.
PLAIN = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")


@dataclass
class Beside:
    """The one verb of an engine that the scan needs."""

    answer: Callable[[list[str], str], str]
    bounds: dict[str, Any] = field(default_factory=dict)

    def execute(self, _container: str, argv: Sequence[str], stdin: str = "", **bounds: Any) -> str:
        self.bounds = bounds
        return self.answer([*argv], stdin)


def here(argv: list[str], stdin: str) -> str:
    """The output of a program of this machine, in the place of one beside a session."""
    return command.run([PLAIN, *argv[1:]], stdin=stdin).stdout


def asked(answer: Callable[[list[str], str], str], session: Session, bounds: Bounds = BOUNDS) -> dict[str, Home]:
    return read(cast("Engine", Beside(answer)), session, bounds)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose home is a link, as it is in a slot, and that has a volume and a shared one."""
    for folder in ("claim", "data"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dev").symlink_to(tmp_path / "claim")
    monkeypatch.setattr(scan_inside, "HOME", str(tmp_path / "dev"))
    own = Volume("data", str(tmp_path / "data"), HomeRef("data"), read_only=False)
    shared = Volume("all", "/nowhere", HomeRef("all"), read_only=False, shared=True)
    home = HomeRef("home")
    return Session(
        "ada",
        "p",
        "2026a",
        "sha256:1",
        300_000,
        home,
        TokenRef(str(tmp_path / "token")),
        Access(),
        volumes=(own, shared),
    )


def test_home_and_own_volumes_are_read_as_on_this_machine(session: Session, tmp_path: Path) -> None:
    (tmp_path / "claim/tool").mkdir()
    shutil.copy("/bin/ls", tmp_path / "claim/tool/own")
    shutil.copy("/bin/ls", os.fsencode(tmp_path / "claim/tool") + b"/lib\xff.so")
    (tmp_path / "data/.venv").mkdir()
    (tmp_path / "data/.venv/pyvenv.cfg").write_text("version = 3.11.7\n")
    told = asked(here, session)
    assert [*told] == [str(tmp_path / "dev"), str(tmp_path / "data")]
    home, data = told.values()
    assert "libc.so.6" in home.groups[0].native.libraries and "GLIBC" in home.groups[0].native.versions
    assert home.libraries == ("lib?.so",)
    top = os.open(tmp_path / "data", os.O_RDONLY)
    assert data == Reader(top, str(tmp_path / "data"), BOUNDS).read() and data.groups[0].kind is Kind.venv
    os.close(top)


def test_modules_of_the_home_are_not_imported_in_the_place_of_the_readers(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("elftools", "flows", "base64", "json", "sitecustomize"):
        (tmp_path / f"claim/{module}.py").write_text("raise SystemExit(5)\n")
    monkeypatch.chdir(tmp_path / "claim")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "claim"))
    assert next(iter(asked(here, session).values())).files == 5


def test_a_look_has_its_bounds(session: Session, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"claim/{number}").touch()
    beside = Beside(here)
    home = next(iter(read(cast("Engine", beside), session, Bounds(seconds=10, files=5)).values()))
    assert home.missed == ("there are more than 5 files",)
    assert beside.bounds == {"limit": 2 * 10 + scan_inside.GRACE_SECONDS, "most": scan_inside.MOST_TOLD}


def test_it_ends_by_itself_where_nobody_ends_it(session: Session) -> None:
    def slow(argv: list[str], stdin: str) -> str:
        request, archive = stdin.split("\n", 1)
        endless = argv[-1].replace(
            "main(request)",
            "from flows.compatibility import read_inside as r\nr._read = "
            "lambda *_: __import__('time').sleep(1000)\nmain(request)",
        )
        return here([*argv[:-1], endless], f"{json.dumps({**json.loads(request), 'seconds': 1})}\n{archive}")

    with pytest.raises(NotRead):
        asked(slow, session)


@pytest.mark.parametrize(
    "told",
    [
        "",
        "null",
        "[]",
        "[{}]",
        "[{}, {}, {}]",
        '[{}, {"files": "many"}]',
        '[{}, {"programs": [1]}]',
        '[{}, {"groups": [{"path": "x", "kind": "another"}]}]',
        json.dumps([{}, {"groups": [{"path": "x" * 9_000, "kind": "own files"}]}]),
        "[" * 100_000,
        "[{}, {}",
    ],
)
def test_anything_else_than_a_report_is_no_report(session: Session, told: str) -> None:
    with pytest.raises(NotRead, match=r"can't be read") as refused:
        asked(lambda *_: told, session)
    assert refused.value.brief and refused.value.brief.isprintable()


@pytest.mark.parametrize(
    ("code", "tail", "reason"),
    [
        (127, "sh: 1: python3: not found", "its image has no python3"),
        (71, "", "the Python of its image is older than 3.11"),
        (1, "Traceback:\nMemoryError", "MemoryError"),
        (1, "\x1b[2Jhello\x07", "\\x1b[2Jhello\\x07"),
        (142, "", "its reader ended without a word"),
    ],
)
def test_the_reason_is_told_where_nothing_can_be_read(session: Session, code: int, tail: str, reason: str) -> None:
    def fails(argv: list[str], _stdin: str) -> str:
        raise ProgramFailed(argv, f"ended with exit code {code}", tail, None, code)

    with pytest.raises(NotRead) as refused:
        asked(fails, session)
    assert refused.value.brief == reason


def test_a_python_that_is_too_old_says_so(session: Session) -> None:
    def old(argv: list[str], stdin: str) -> str:
        return here([*argv[:-1], argv[-1].replace("sys.version_info < (3, 11)", "sys.version_info < (9, 0)")], stdin)

    with pytest.raises(NotRead) as refused:
        asked(old, session)
    assert refused.value.brief == "the Python of its image is older than 3.11"
