"""Whether an ordinary user has a jump host here: programs, users, and a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.core.programs import command
from flows.core.programs.command import CommandTimeout, ProgramFailed
from flows.host import jump_enclosure, user_namespace
from flows.host.jump_enclosure import lack
from flows.host.user_namespace import NoNamespace, Uid


@pytest.fixture(autouse=True)
def all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    lack.cache_clear()
    monkeypatch.setattr("shutil.which", str)
    monkeypatch.setattr(user_namespace, "uid", lambda: Uid(10, 500_009))


def failing(kind: type[ProgramFailed]) -> Callable[..., None]:
    def run(argv: list[str], **_: object) -> None:
        raise kind(argv, "failed", "first\nbwrap: no permissions to make a \x1b[31mnamespace", None, 1)

    return run


@pytest.mark.parametrize("missing", ["bwrap", "haproxy", jump_enclosure.SSHD])
def test_a_program_that_isnt_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == missing else name)
    assert lack(tmp_path) == f"{missing} isn't installed."


def test_an_enclosure_that_cant_be_made_is_told_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run", failing(ProgramFailed))
    assert "bwrap: no permissions" in lack(tmp_path) and "\x1b" not in lack(tmp_path)


def test_a_machine_that_is_too_busy_to_answer_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run", failing(CommandTimeout))
    assert lack(tmp_path) == ""


@pytest.mark.parametrize(("kind", "why"), [(CommandTimeout, ""), (ProgramFailed, "none")])
def test_so_is_one_whose_namespace_comes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ProgramFailed], why: str
) -> None:
    def uid() -> Uid:
        raise NoNamespace("none") from kind(["unshare"], "failed", "", None, None)

    monkeypatch.setattr(user_namespace, "uid", uid)
    assert lack(tmp_path) == why


def test_the_trial_is_called_as_the_sshd_is_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(command, "run", lambda argv, **_: called.append([*argv]))
    assert (lack(tmp_path), lack(tmp_path)) == ("", "")
    [argv] = called
    enclosure = jump_enclosure.enclosed(10, tmp_path / "etc", tmp_path / "shared")
    assert argv == [*user_namespace.ENTER, *enclosure, "/refit/trial"]
    assert (tmp_path / "shared" / "trial").stat().st_mode & 0o777 == 0o755
