"""The home of Refit: nobody but its owner looks into it, whoever made it and whatever the umask was."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flows.core.database import open_database
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.programs.command import ProgramFailed
from flows.core.settings import Settings
from flows.services import doctor_home, privacy

STRANGER = 54321


@pytest.fixture
def settings() -> Iterator[Settings]:
    # pytest's own folders are closed to others.
    with TemporaryDirectory(prefix="refit-privacy-") as name:
        Path(name).chmod(0o755)
        before = os.umask(0o022)
        yield Settings(home=Path(name, "refit"))
        os.umask(before)


def looks(*words: str | Path) -> str:
    """Files that somebody else of this machine finds."""
    stranger = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
    return command.run([*stranger, *words], root=True).stdout


def open_as_before(settings: Settings) -> list[Path]:
    """A home as earlier versions of Refit made it."""
    files = [
        settings.home / name for name in ("refit.db", "refit.db-wal", "prefect/prefect.db", "logs/moves/ada.log")
    ] + [settings.home / "activity" / "ada.json"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("who works when")
    return files


@pytest.mark.slow
def test_a_stranger_reads_nothing_of_a_home_that_was_open(settings: Settings) -> None:
    files = open_as_before(settings)
    assert [looks("cat", file) for file in files] == ["who works when"] * len(files)
    privacy.close(settings)
    for attempt in (("ls", settings.home), *(("cat", file) for file in files)):
        with pytest.raises(ProgramFailed, match="exit code"):
            looks(*attempt)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert [file.read_text() for file in files] == ["who works when"] * len(files)
    privacy.close(settings)


@pytest.mark.slow
def test_what_is_made_is_private_from_its_first_moment(settings: Settings) -> None:
    with command.logged(settings.folder("logs", "stages") / "x.log") as log:
        command.run(["true"])
    open_database(settings.database).dispose()
    made = [settings.home, *(path for path in settings.home.rglob("*"))]
    assert log in made and settings.home / "refit.db" in made
    assert not [path for path in made if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_link_in_the_home_changes_nothing_elsewhere(settings: Settings) -> None:
    elsewhere = settings.home.parent / "elsewhere"
    elsewhere.write_text("")
    elsewhere.chmod(0o644)
    (settings.folder("logs") / "x.log").symlink_to(elsewhere)
    privacy.close(settings)
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644


def test_the_home_of_somebody_else_is_refused_and_named(settings: Settings) -> None:
    command.run(["install", "-d", "-o", str(STRANGER), settings.home], root=True)
    with pytest.raises(RefitError, match=f"belongs to uid {STRANGER}") as refused:
        privacy.close(settings)
    assert "chown" in refused.value.hint
    (finding,) = doctor_home.home(settings)
    assert not finding.ok and str(STRANGER) in finding.seen


def test_doctor_names_folders_above_in_which_others_may_exchange_the_home(settings: Settings) -> None:
    settings.folder()
    (finding,) = doctor_home.home(settings)
    assert finding.ok, finding.seen
    settings.home.parent.chmod(0o777)
    (finding,) = doctor_home.home(settings)
    assert not finding.ok and str(settings.home.parent) in finding.seen
    settings.home.parent.chmod(0o1777)
    (finding,) = doctor_home.home(settings)
    assert finding.ok
