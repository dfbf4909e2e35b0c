"""Homes that begin as copies of others, in the pool and in folders."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.migrations.snapshots import snapshot_actions
from flows.migrations.snapshots.clone_session import remove_killed
from flows.sessions.homes import enclosed, person_home_limits
from flows.sessions.homes.cloning import draft_of
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.pool import Pool
from flows.sessions.homes.volumes import Wanted
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import HOME, Session
from tests.support.homes_alone import added
from tests.support.moving import manifest

UID = 234_575


@pytest.fixture
def ada(sessions: Sessions) -> Session:
    ada = added(sessions)
    volume = sessions.homes.mounted("ada", Wanted("data", "/data"))
    ada = replace(ada, volumes=(volume,))
    sessions.homes.make_volumes(ada)
    for path in ("project/.git", ".ssh", ".config/refit", ".local/share/jupyter/runtime", ".config/keep"):
        (folder_of(ada.home) / path).mkdir(parents=True)
    for path in ("project/work.py", "project/poetry.lock", "project/.git/index.lock", ".ssh/id_ed25519"):
        (folder_of(ada.home) / path).write_text(path)
    (folder_of(ada.home) / ".config/refit/hold").write_text("2h")
    (folder_of(ada.home) / ".local/share/jupyter/runtime/jpserver-1.json").write_text("{}")
    (folder_of(ada.home) / "link").symlink_to("/etc/shadow")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(ada.home)  # the path of a socket is short
        listener.bind("ide.sock")
        os.chdir("/")
    (folder_of(volume.ref) / "rows").write_text("1")
    command.run(["chown", "-R", "-h", f"{ada.uid}:0", folder_of(ada.home), folder_of(volume.ref)], root=True)
    (folder_of(ada.home) / "project/work.py").chmod(0o640)
    return ada


def cloned(sessions: Sessions, ada: Session, name: str = "ada2", access: Access | None = None) -> Session:
    snapshot = snapshot_actions.take(sessions, "ada", "ada", called=f"for-{name}")
    new = replace(ada, name=name, uid=UID, home=sessions.homes.home_of(name), volumes=(), access=access or ada.access)
    new = replace(new, volumes=(sessions.homes.mounted(name, Wanted("data", "/data")),))
    # The snapshot was taken of the session on record, which has no volumes there.
    sessions.homes.copy(ada, snapshot.id)
    sessions.homes.draft_clone(ada, snapshot.id, new)
    assert not folder_of(new.home).exists()
    sessions.homes.finish_clone(new, ada.uid)
    return new


def test_a_clone_has_the_files_and_none_of_what_is_one_sessions_alone(sessions: Sessions, ada: Session) -> None:
    before = manifest(ada.home)
    new = cloned(sessions, ada)
    assert manifest(ada.home) == before
    files = manifest(new.home)
    gone = {".ssh", ".ssh/id_ed25519", ".config/refit/hold", "project/.git/index.lock", "ide.sock"}
    gone |= {".local/share/jupyter/runtime", ".local/share/jupyter/runtime/jpserver-1.json"}
    assert before.keys() - files.keys() == gone and not files.keys() - before.keys()
    assert {entry[1] for entry in files.values()} == {UID}
    assert files["project/work.py"][0] == before["project/work.py"][0] and folder_of(new.home).lstat().st_uid == UID
    assert oct(folder_of(new.home).stat().st_mode)[-3:] == "700" and (folder_of(new.home) / "link").readlink() == Path(
        "/etc/shadow"
    )
    assert Path("/etc/shadow").stat().st_uid == 0
    assert (folder_of(new.volumes[0].ref) / "rows").read_text() == "1" and folder_of(
        new.volumes[0].ref
    ).stat().st_uid == UID


def test_secrets_that_either_profile_names_stay_with_their_session(sessions: Sessions, ada: Session) -> None:
    ada = replace(ada, access=Access(secrets=(".netrc", ".config/tool/token", "keys", "-rf", "plain", "up", "out")))
    for path in (".config/tool/token", ".config/tool/config", "keys/a/b", "-rf/x", "dotfiles/netrc", "dotfiles/gone"):
        (folder_of(ada.home) / path).parent.mkdir(parents=True, exist_ok=True)
        (folder_of(ada.home) / path).write_text("secret")
    (folder_of(ada.home) / ".netrc").symlink_to("/home/dev/dotfiles/netrc")  # as the session sees it
    (folder_of(ada.home) / "plain").symlink_to("dotfiles/gone")
    (folder_of(ada.home) / "up").symlink_to("../../../..")
    (folder_of(ada.home) / "out").symlink_to("/usr/bin")
    (folder_of(ada.home) / ".ssh/id_ed25519").rename(folder_of(ada.home) / "dotfiles/id_ed25519")
    (folder_of(ada.home) / ".ssh").rmdir()
    (folder_of(ada.home) / ".ssh").symlink_to("dotfiles")  # goes with what is in it
    (folder_of(ada.home) / "work").symlink_to("project")
    command.run(["chown", "-R", "-h", f"{ada.uid}:0", ada.home], root=True)
    before = manifest(ada.home)
    files = manifest(cloned(sessions, ada, access=Access(secrets=("of-the-other", "project/work.py"))).home)
    assert manifest(ada.home) == before and Path("/usr/bin/env").exists()
    secret = {".netrc", ".config/tool/token", "plain", "up", "out", "project/work.py"}
    whole = ("keys", "-rf", "dotfiles", ".ssh")
    secret |= {path for path in before if path in whole or path.startswith(tuple(f"{each}/" for each in whole))}
    others = {".config/refit/hold", "project/.git/index.lock", "ide.sock", ".local/share/jupyter/runtime"}
    assert before.keys() - files.keys() == secret | others | {".local/share/jupyter/runtime/jpserver-1.json"}
    assert {".config/tool/config", "work", "project/poetry.lock"} <= files.keys()


def test_secrets_behind_links_go_also_where_refits_python_lies_below_the_path_of_homes(
    sessions: Sessions, ada: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on the machine of an operator who is called dev, and whose Python is one of uv's."""
    system = (*enclosed._system(), "--ro-bind", str(tmp_path), f"{HOME}/.local/share/uv")
    monkeypatch.setattr(enclosed, "_system", lambda: system)
    (folder_of(ada.home) / "private").mkdir()
    (folder_of(ada.home) / "private/netrc").write_text("secret")
    (folder_of(ada.home) / ".netrc").symlink_to(f"{HOME}/private/netrc")
    command.run(["chown", "-R", "-h", f"{ada.uid}:0", ada.home], root=True)
    new = cloned(sessions, replace(ada, access=Access(secrets=(".netrc",))))
    assert (folder_of(new.home) / "private").is_dir() and list((folder_of(new.home) / "private").iterdir()) == []
    assert not (folder_of(new.home) / ".netrc").is_symlink() and (folder_of(new.home) / "project/work.py").exists()
    assert (folder_of(ada.home) / "private/netrc").read_text() == "secret" and tmp_path.is_dir()


def test_removing_either_takes_nothing_from_the_other(sessions: Sessions, ada: Session) -> None:
    first, second = cloned(sessions, ada), cloned(sessions, ada, "ada3")
    (folder_of(first.home) / "project/work.py").write_text("mine")
    assert (folder_of(ada.home) / "project/work.py").read_text() == "project/work.py"
    sessions.homes.remove(first.name)
    assert not folder_of(first.home).exists() and (folder_of(ada.home) / "project/work.py").exists()
    sessions.homes.remove("ada")
    assert (
        not folder_of(ada.home).exists()
        and (folder_of(second.home) / "project/work.py").read_text() == "project/work.py"
    )
    assert (folder_of(second.volumes[0].ref) / "rows").read_text() == "1"


def test_a_killed_clone_leaves_no_home_that_could_be_taken_for_one(sessions: Sessions, ada: Session) -> None:
    snapshot = snapshot_actions.take(sessions, "ada", "ada", called="one")
    new = replace(ada, name="ada2", uid=UID, home=sessions.homes.home_of("ada2"), volumes=())
    plain = replace(ada, volumes=())
    sessions.homes.draft_clone(plain, snapshot.id, new)
    assert "ada2" not in sessions.homes.owners()
    with pytest.raises(RefitError, match="is incomplete"):
        sessions.homes.make("ada2", UID)
    sessions.homes.draft_clone(plain, snapshot.id, new)  # again, from the beginning
    with sessions.alone("ada2"):
        assert remove_killed(sessions) == ()  # somebody makes it
    assert sessions.homes.drafts() == ("ada2",) == remove_killed(sessions)
    assert not draft_of(folder_of(new.home)).exists()
    assert folder_of(sessions.homes.make("ada2", UID)).is_dir()


def test_a_removal_that_is_killed_leaves_what_says_that_the_clone_is_half(
    sessions: Sessions, ada: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = snapshot_actions.take(sessions, "ada", "ada", called="one")
    new = replace(ada, name="ada2", home=sessions.homes.home_of("ada2"), volumes=())
    sessions.homes.draft_clone(replace(ada, volumes=()), snapshot.id, new)
    with monkeypatch.context() as patched:
        patched.setattr(person_home_limits, "choose", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_killed(sessions)
    assert sessions.homes.drafts() == ("ada2",) == remove_killed(sessions)
    assert sessions.homes.drafts() == () and not draft_of(folder_of(new.home)).exists()


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_clone_in_the_pool_copies_nothing(sessions: Sessions, ada: Session) -> None:
    if folder_of(ada.home) not in (pool := Pool(sessions._settings)):
        pytest.skip("in folders all is copied")
    (folder_of(ada.home) / "large").write_bytes(os.urandom(150 << 20))
    command.run(["sync", "--file-system", pool.folder])
    free = pool.room().free
    cloned(sessions, ada)
    assert free - pool.room().free < 20 << 20
