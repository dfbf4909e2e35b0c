"""The chapter for developers: each of its commands is run, on a session that is simulated."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flows.cli import session as cli
from flows.cli import snapshots, system_packages
from flows.core.errors import RefitError
from flows.sessions import reconfigure
from flows.sessions.model import Session
from flows.sessions.packages.model import Outcome
from tests.support.machine import ROOT
from tests.support.simulated.fleet import Fleet, fleet

PAGE = ROOT / "docs" / "your-sessions.md"
# `tests/real/my_sessions/test_inside.py` runs those of a session's own terminal.
FROM_OUTSIDE = PAGE.read_text(encoding="utf-8").partition("## Snapshots")[2]
# Captures need what a simulated session lacks: `tests/real/test_capture.py` runs them.
COMMANDS = re.findall(r"(?m)^refit session (?!capture)(.*)$", FROM_OUTSIDE)
Call = Callable[..., Result]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "home") as simulated, simulated.in_charge():
        yield simulated


@pytest.fixture
def ada(sessions: Fleet) -> Session:
    ada = sessions.add(1, sessions.image("old"))
    sessions.world.homes[str(ada.home)] |= {"project/work.py": "x = 1", "notes": "one"}
    return ada


@pytest.fixture
def refit(sessions: Fleet, ada: Session, monkeypatch: pytest.MonkeyPatch) -> Call:
    for module in (snapshots, system_packages):
        monkeypatch.setattr(module, "load", lambda: sessions.settings)
    # `tests/real/test_session_packages.py` installs some.
    monkeypatch.setattr(reconfigure, "install", lambda _, __, names: Outcome(dict.fromkeys(names, "1.0")))

    def call(*words: str, answer: str = "") -> Result:
        sessions.world.consents[ada.name] = "agreed" if "--force" in words or answer else ""
        done = CliRunner().invoke(cli.app, [ada.name if word == "ada" else word for word in words], input=answer)
        if isinstance(done.exception, RefitError):
            raise done.exception
        return done

    return call


def test_each_command_of_the_chapter_does_what_it_says(refit: Call) -> None:
    assert len(COMMANDS) >= 8
    for command in COMMANDS:
        done = refit(*shlex.split(command))
        assert done.exit_code == 0, (command, done.output, done.exception)


def test_what_is_listed_is_data_as_well(refit: Call) -> None:
    refit("snapshot", "ada", "--name", "one", "--note", "a note")
    [one] = json.loads(refit("snapshots", "ada", "--json").output)
    assert (one["snapshot"]["name"], one["snapshot"]["note"], one["changed"]) == ("one", "a note", [])
    assert "nothing" in refit("snapshots", "ada").output
    assert json.loads(refit("diff", "ada", "one", "--json").output) == []


def test_who_says_no_changes_nothing_and_who_says_yes_goes_back(refit: Call, sessions: Fleet, ada: Session) -> None:
    refit("snapshot", "ada", "--name", "one")
    home = sessions.world.homes[str(ada.home)]
    home["notes"] = "two"
    sessions.world.busy.add(ada.name)
    asked = refit("rollback", "ada", "one", answer="n\n")
    assert asked.exit_code == 1 and "changed: notes" in asked.output and "train.py" in asked.output
    assert sessions.world.homes[str(ada.home)]["notes"] == "two"
    with pytest.raises(RefitError, match="in use"):
        refit("rollback", "ada", "one", "--yes")
    assert refit("rollback", "ada", "one", answer="y\n").exit_code == 0
    assert sessions.world.homes[str(ada.home)]["notes"] == "one"


def test_what_needs_a_snapshot_says_so(refit: Call) -> None:
    with pytest.raises(RefitError, match="--with-image"):
        refit("rollback", "ada", "--with-image")
    with pytest.raises(RefitError, match="--only"):
        refit("rollback", "ada", "--only", "notes")
