"""People on their own machine who ask it for sessions that are elsewhere are told where these are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flows.cli import elsewhere
from tests.support.command_line import in_process

URL = "https://refit.example.org"


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configuration with a login."""
    (tmp_path / "refit").mkdir()
    (tmp_path / "refit" / "login.json").write_text(json.dumps({"url": URL, "token": "secret"}))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_an_account_that_is_logged_in_elsewhere_is_told_of_its_sessions_there(login: Path) -> None:
    done = in_process(login / "home", "session", "show", "ada", XDG_CONFIG_HOME=str(login))
    assert done.returncode == 1
    assert (
        f"There is no session 'ada'.\nNo session is known yet.\nFor your sessions at {URL}: `refit mine`."
        in done.stderr
    )
    assert "secret" not in done.stderr
    as_json = in_process(login / "home", "session", "show", "ada", "--json", XDG_CONFIG_HOME=str(login))
    assert f"For your sessions at {URL}" in as_json.stderr and URL not in as_json.stdout


@pytest.mark.parametrize("words", [(), ("build",), ("mine", "list"), ("login", URL), ("--help",)])
def test_other_commands_tell_nothing_of_it(login: Path, words: tuple[str, ...]) -> None:
    assert elsewhere.after_failure(words) == ""


@pytest.mark.parametrize(("code", "told"), [(0, False), (1, True)])
def test_an_account_without_root_is_told_how_to_log_in(
    no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, told: bool
) -> None:
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text(f"#!/bin/sh\nexit {code}\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert ("`refit login URL`" in elsewhere.after_failure(("session", "list"))) == told


def test_root_is_told_nothing_where_it_is_logged_in_nowhere(no_login: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert elsewhere.after_failure(("session", "list")) == ""


def test_a_file_that_is_no_login_is_none(no_login: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "refit").mkdir()
    for content in ("", "[]", "{}", "\udcff"):
        (tmp_path / "refit" / "login.json").write_bytes(content.encode(errors="surrogateescape"))
        assert elsewhere.after_failure(("session", "list")) == ""
