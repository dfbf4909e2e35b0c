"""Single files that are brought back from a snapshot, in the pool and from a copy, whatever links are in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.core.errors import RefitError
from flows.core.programs import command
from flows.migrations.snapshots import snapshot_actions
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.pool import Pool
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from flows.sessions.snapshots.model import Kind
from tests.support.homes_alone import added


@pytest.fixture
def ada(sessions: Sessions) -> Session:
    """A session that has changed since its snapshot `then`."""
    ada = added(sessions)
    (folder_of(ada.home) / "project/data").mkdir(parents=True)
    (folder_of(ada.home) / "project/work.py").write_text("then")
    (folder_of(ada.home) / "project/data/-rf; *").write_text("odd")
    (folder_of(ada.home) / "way").symlink_to("project")
    command.run(["chown", "-R", "-h", f"{ada.uid}:0", ada.home], root=True)
    (folder_of(ada.home) / "project/work.py").chmod(0o751)
    snapshot_actions.take(sessions, "ada", "ada", called="then")
    (folder_of(ada.home) / "project/work.py").write_text("now")
    command.run(["rm", "-r", folder_of(ada.home) / "project/data"], root=True)
    (folder_of(ada.home) / "project/new").write_text("since")
    return ada


def back(sessions: Sessions, *paths: str, to: str = "") -> str:
    return snapshot_actions.bring_back(sessions, "ada", "then", paths, "ada", to=to)


def test_files_and_folders_come_back_into_place(sessions: Sessions, ada: Session) -> None:
    told = back(sessions, "project/work.py", "/home/dev/project/data")
    work = folder_of(ada.home) / "project/work.py"
    assert work.read_text() == "then" and oct(work.stat().st_mode)[-3:] == "751" and work.stat().st_uid == ada.uid
    assert (folder_of(ada.home) / "project/data/-rf; *").read_text() == "odd"
    assert (folder_of(ada.home) / "project/new").read_text() == "since"
    if folder_of(ada.home) in Pool(sessions._settings):
        [safety] = [one for one in snapshot_actions.all_of(sessions, ada) if one.kind is Kind.safety]
        assert safety.name in told
        assert (Path(sessions.homes.snapshot_place("ada", safety.id)) / "project/work.py").read_text() == "now"
    else:
        (kept,) = (folder_of(ada.home) / "project").glob("work.py.before-*")
        assert kept.read_text() == "now" and kept.name.removeprefix("work.py") in told


def test_or_beside_what_is_there(sessions: Sessions, ada: Session) -> None:
    back(sessions, "project/work.py", to="from then")
    assert (folder_of(ada.home) / "from then/project/work.py").read_text() == "then"
    assert (folder_of(ada.home) / "from then").stat().st_uid == ada.uid
    assert (folder_of(ada.home) / "project/work.py").read_text() == "now"
    with pytest.raises(RefitError, match="can't be made"):
        back(sessions, "project/work.py", to="from then")


@pytest.mark.parametrize("path", ["../ada", "project/../../x", "/etc/passwd", "/home/dev", ".", "", "missing", "a/b"])
def test_a_path_that_is_none_in_the_snapshot_brings_nothing(sessions: Sessions, ada: Session, path: str) -> None:
    with pytest.raises(RefitError):
        back(sessions, "project/work.py", path)
    assert (folder_of(ada.home) / "project/work.py").read_text() == "now"


def test_no_link_leads_anywhere(sessions: Sessions, ada: Session, tmp_path: Path) -> None:
    with pytest.raises(RefitError, match="over a link"):
        back(sessions, "way/work.py")
    outside = tmp_path / "outside"
    outside.mkdir()
    command.run(["rm", "-r", folder_of(ada.home) / "project"], root=True)
    (folder_of(ada.home) / "project").symlink_to(outside)
    back(sessions, "project/work.py", "way")
    assert not list(outside.iterdir()) and (folder_of(ada.home) / "project/work.py").read_text() == "then"
    assert not (folder_of(ada.home) / "project").is_symlink() and (folder_of(ada.home) / "way").readlink() == Path(
        "project"
    )
    (folder_of(ada.home) / "elsewhere").symlink_to(outside)
    with pytest.raises(RefitError):
        back(sessions, "project/work.py", to="elsewhere/below")
    assert not list(outside.iterdir())
