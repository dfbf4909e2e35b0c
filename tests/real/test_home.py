"""Homes on the real file system keep their contract, as root, with what people really have in a home."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes.folders import folder_of, ref_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.homes.volumes import Wanted
from flows.sessions.model import HomeRef, Session, TokenRef
from tests.support.homes_contract import Files, HomesContract, with_volume
from tests.support.waiting import some_long

UID = 234_567


@pytest.fixture(params=some_long(["folders", "pool"], "folders"))
def homes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalHomes]:
    """Homes do the same wherever they lie."""
    settings = Settings(home=tmp_path / "refit")
    if request.param == "folders":
        yield LocalHomes(settings)
        return
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    yield homes
    command.run(["umount", homes.pool.folder], root=True)


@pytest.fixture
def session(homes: LocalHomes, tmp_path: Path) -> Session:
    home = homes.make("ana", UID)
    return Session("ana", "p", "2026a", "sha256:0", UID, home, TokenRef(str(tmp_path / "token")), Access())


class FilesOnDisk:
    """Implements `homes_contract.Files`."""

    def write(self, place: HomeRef, path: str, text: str) -> None:
        folder = folder_of(place)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)

    def delete(self, place: HomeRef, path: str) -> None:
        (folder_of(place) / path).unlink()

    def all(self, place: HomeRef) -> dict[str, str]:
        folder = folder_of(place)
        return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


class TestLocalHomes(HomesContract):
    """The whole contract."""

    @pytest.fixture
    def files(self) -> Files:
        return FilesOnDisk()


def shell(script: str, home: Path) -> str:
    """A script of the session's user in the home."""
    as_user = ["setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", "bash", "-euc", script]
    # The user reaches the home as the container does: not by its path, which leads through root's folders.
    return command.run([*as_user, "bash"], root=True, cwd=home).stdout


def seen(folder: Path) -> str:
    """Every name with type, mode, owner, link target, time and number of links, and every content."""
    listed = ["find", ".", "-printf", r"%P %y %m %U:%G %l %T@ %n\n"]
    names = command.run(listed, root=True, cwd=folder).stdout.splitlines()
    sums = command.run(["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"], root=True, cwd=folder).stdout
    return "\n".join(sorted([*names, *sums.splitlines()]))


RICH = """
mkdir -p work/.hidden empty
echo one > work/notes.txt
ln work/notes.txt work/same.txt
ln -s /etc/passwd work/link
ln -s ../nowhere dangling
printf x > $'odd name\\nwith newline'
truncate -s 64M sparse.img
chmod 600 work/notes.txt
setfattr -n user.colour -v blue work/notes.txt 2>/dev/null || true
mkfifo pipe
"""


def test_a_home_is_its_owners_alone(homes: LocalHomes) -> None:
    home = homes.make("ana", UID)
    status = folder_of(home).stat()
    assert (oct(status.st_mode & 0o7777), status.st_uid, status.st_gid) == ("0o700", UID, 0)
    assert homes.make("ana", UID) == home
    assert homes.owners() == {"ana": UID}


def test_home_and_volumes_are_one_set(homes: LocalHomes, session: Session) -> None:
    session, volume = with_volume(homes, session)
    data = folder_of(volume)
    shell("echo one > notes.txt", folder_of(session.home))
    shell("echo 1 > rows.csv", data)
    homes.check_room(session)
    homes.copy(session, "one")
    shell("echo 2 >> rows.csv", data)
    homes.delta(session, "one")
    before = seen(folder_of(session.home)), seen(data)
    copy = homes.spare(session, most=10**9)
    assert (seen(folder_of(copy.home)), seen(folder_of(copy.volumes[0].ref))) == before

    shell("rm notes.txt", folder_of(session.home))
    shell("echo broken > rows.csv; echo x > more", data)
    changed = {"gone: notes.txt", "changed: rows.csv (volume data)", "new: more (volume data)"}
    assert set(homes.differences(session, "one")) == changed
    homes.forget_spare("ana")
    homes.restore(session, "one")
    assert (seen(folder_of(session.home)), seen(data)) == before and homes.differences(session, "one") == ()

    shell("rm notes.txt", folder_of(session.home))
    half = homes.snapshot("ana", "one")
    command.run(["mv", f"{half}.data", f"{half}.away"], root=True)
    with pytest.raises(RefitError, match="no snapshot 'one'"):
        homes.restore(session, "one")
    assert not (folder_of(session.home) / "notes.txt").exists()  # none, where not all
    command.run(["mv", f"{half}.away", f"{half}.data"], root=True)
    homes.forget("ana", "one")
    assert not list(half.parent.iterdir())
    assert list(homes.volumes("ana")) == ["data"]
    homes.remove("ana")
    assert not data.exists() and not homes.volumes("ana")


@pytest.mark.long
def test_what_sessions_share_is_for_all_of_them_to_write_and_never_goes_back(
    homes: LocalHomes, session: Session
) -> None:
    folder = folder_of(homes.make_shared("scratch"))
    with pytest.raises(RefitError, match="already"):
        homes.make_shared("scratch")
    session = replace(session, volumes=(homes.mounted("ana", Wanted("scratch", "/scratch")),))
    homes.make_volumes(session)
    shell("mkdir -m 755 deep; umask 022; echo one > deep/mine", folder)
    as_other = ["setpriv", f"--reuid={UID + 1}", "--regid=0", "--clear-groups", "sh", "-c", "echo two >> deep/mine"]
    command.run(as_other, root=True, cwd=folder)
    homes.delta(session, "one")
    shell("rm deep/mine", folder)
    assert homes.differences(session, "one") == ()
    homes.restore(session, "one")
    assert not (folder / "deep/mine").exists()
    homes.remove("ana")
    assert (folder / "deep").is_dir()
    homes.remove_volume(ref_of(folder))
    with pytest.raises(RefitError, match="'scratch' of the session 'ana' is gone"):
        homes.make_volumes(session)


@pytest.mark.long
def test_volumes_go_into_the_pool_with_their_home(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "refit")
    homes = LocalHomes(settings)
    session, _ = with_volume(
        homes,
        Session("ana", "p", "2026a", "sha256:0", UID, homes.make("ana", UID), TokenRef(str(tmp_path / "t")), Access()),
    )
    shell("echo 1 > rows.csv", folder_of(session.volumes[0].ref))
    Pool(settings).create(LEAST)
    try:
        homes = LocalHomes(settings)
        pooled = homes.copy_to_pool(session)
        homes.forget_folder("ana")
        assert not folder_of(session.home).exists() and not folder_of(session.volumes[0].ref).exists()
        assert folder_of(pooled.home) in homes.pool and folder_of(pooled.volumes[0].ref) in homes.pool
        assert homes.mounted("ana", Wanted("data", "/data")) == pooled.volumes[0]
        homes.make_volumes(pooled)
        assert (folder_of(pooled.volumes[0].ref) / "rows.csv").read_text() == "1\n"
        homes.delta(pooled, "one")
        command.run(["btrfs", "subvolume", "create", folder_of(pooled.volumes[0].ref) / "mine"], root=True)
        with pytest.raises(RefitError, match=r"subvolumes .* mine"):
            homes.check_room(pooled)
        with pytest.raises(RefitError, match=r"subvolumes .* mine"):
            homes.delta(pooled, "two")
        assert not homes.snapshot("ana", "two").exists()
        homes.remove("ana")
    finally:
        command.run(["umount", homes.pool.folder], root=True)


@pytest.mark.parametrize("id", ["", "..", "a/b", ".", "-x"])
def test_a_snapshot_has_a_plain_name(homes: LocalHomes, id: str) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        homes.snapshot("ana", id)


def test_a_snapshot_is_the_home_to_the_last_attribute(homes: LocalHomes, session: Session) -> None:
    shell(RICH, folder_of(session.home))
    homes.copy(session, "one")
    homes.delta(session, "one")
    snapshot = homes.snapshot("ana", "one")
    assert seen(snapshot) == seen(folder_of(session.home))
    assert homes.differences(session, "one") == ()
    assert (snapshot / "sparse.img").stat().st_blocks < 1_000


def test_delta_brings_in_what_changed_after_the_copy(homes: LocalHomes, session: Session) -> None:
    shell("echo one > notes.txt; echo gone > gone.txt", folder_of(session.home))
    homes.copy(session, "one")
    shell("echo two > new.txt; rm gone.txt; mkdir -p a/b", folder_of(session.home))
    assert sorted(homes.differences(session, "one")) == ["gone: gone.txt", "new: a/", "new: a/b/", "new: new.txt"]
    homes.delta(session, "one")
    assert seen(homes.snapshot("ana", "one")) == seen(folder_of(session.home))


def test_delta_sees_a_change_of_the_same_size_within_the_same_second(homes: LocalHomes, session: Session) -> None:
    file = folder_of(session.home) / "notes.txt"
    shell("echo one > notes.txt", folder_of(session.home))
    os.utime(file, ns=(0, 1_000_000_001))
    homes.copy(session, "one")
    shell("echo two > notes.txt", folder_of(session.home))
    os.utime(file, ns=(0, 1_000_000_002))
    homes.delta(session, "one")
    assert (homes.snapshot("ana", "one") / "notes.txt").read_text() == "two\n"


def test_differences_compare_content_whatever_the_time_says(homes: LocalHomes, session: Session) -> None:
    file = folder_of(session.home) / "notes.txt"
    shell("echo one > notes.txt", folder_of(session.home))
    homes.copy(session, "one")
    times = file.stat()
    file.write_text("two\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert homes.differences(session, "one") == ("changed: notes.txt",)
    assert homes.differences(session, "one", at_a_glance=True) == ()
    file.write_text("two\n")
    assert homes.differences(session, "one", at_a_glance=True) == ("changed: notes.txt",)


def test_what_the_ide_writes_is_no_difference(homes: LocalHomes, session: Session) -> None:
    shell("echo one > notes.txt; mkdir .cache", folder_of(session.home))
    homes.copy(session, "one")
    shell(
        "mkdir -p .local/share/jupyter .cache/ide; echo x > .local/share/jupyter/runtime; echo x > .cache/ide/y",
        folder_of(session.home),
    )
    own = (".local/share/jupyter/", ".cache/ide/")
    assert homes.differences(session, "one", own) == ()
    shell("mkdir -p deep/.cache/ide; echo mine > .local/share/mine", folder_of(session.home))
    assert sorted(homes.differences(session, "one", own)) == [
        "new: .local/share/mine",
        "new: deep/",
        "new: deep/.cache/",
        "new: deep/.cache/ide/",
    ]


def test_a_home_is_restored(homes: LocalHomes, session: Session) -> None:
    shell(RICH, folder_of(session.home))
    homes.delta(session, "one")
    before = seen(folder_of(session.home))
    shell("rm -r work; echo broken > new.txt; chmod 755 .", folder_of(session.home))
    homes.restore(session, "one")
    assert seen(folder_of(session.home)) == before
    homes.restore(session, "one")
    assert homes.differences(session, "one") == ()


@pytest.mark.parametrize("verb", ["copy", "delta"])
def test_links_lead_nobody_out_of_a_home(homes: LocalHomes, session: Session, tmp_path: Path, verb: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    write: Callable[[Session, str], None] = getattr(homes, verb)
    shell("mkdir folder; echo one > folder/notes.txt", folder_of(session.home))
    write(session, "one")
    # Where the snapshot has a folder there is a link out now, and then the other way round.
    shell(f"rm -r folder; ln -s {outside} folder", folder_of(session.home))
    write(session, "one")
    assert (homes.snapshot("ana", "one") / "folder").is_symlink()
    shell("rm folder; mkdir folder; echo two > folder/notes.txt", folder_of(session.home))
    write(session, "one")
    homes.restore(session, "one")
    assert [path.name for path in outside.iterdir()] == ["secret"]
    shell(f"rm -r folder; ln -s {outside} folder", folder_of(session.home))
    homes.remove("ana")
    assert (outside / "secret").read_text() == "secret"


def test_where_nothing_can_be_enclosed_nothing_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    homes = LocalHomes(Settings(home=tmp_path / "refit"))
    session = Session(
        "ana", "p", "2026a", "sha256:0", UID, homes.make("ana", UID), TokenRef(str(tmp_path / "token")), Access()
    )
    shell("echo one > notes.txt", folder_of(session.home))
    homes.delta(session, "one")
    (programs := tmp_path / "programs").mkdir()
    (programs / "bwrap").write_text("#!/bin/sh\necho 'bwrap: Creating new namespace failed' >&2\nexit 1\n")
    (programs / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    verbs: tuple[Callable[[], object], ...] = (
        lambda: homes.copy(session, "two"),
        lambda: homes.delta(session, "one"),
        lambda: homes.differences(session, "one"),
        lambda: homes.restore(session, "one"),
        lambda: homes.remove("ana"),
    )
    for verb in verbs:
        with pytest.raises(RefitError, match="can't be read or written here") as refused:
            verb()
        assert "refit doctor" in refused.value.hint
    assert (folder_of(session.home) / "notes.txt").read_text() == "one\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command.run(["mount", "-t", "tmpfs", "-o", "size=300m", "refit-test", folder], root=True)
    yield folder
    command.run(["umount", folder], root=True)


def test_f08_a_home_whose_snapshot_the_disk_cant_take_is_told_before_the_move(small_disk: Path, tmp_path: Path) -> None:
    homes = LocalHomes(Settings(home=small_disk))
    session = Session(
        "ana", "p", "2026a", "sha256:0", UID, homes.make("ana", UID), TokenRef(str(tmp_path / "token")), Access()
    )
    (folder_of(session.home) / "holes").touch()
    os.truncate(folder_of(session.home) / "holes", 10 * 2**30)  # takes no space, neither here nor in the copy
    homes.check_room(session)
    (folder_of(session.home) / "data").write_bytes(bytes(40 * 2**20))
    with pytest.raises(RefitError, match=r"no room .* 'ana': \d+ MB are missing") as refused:
        homes.check_room(session)
    assert "The home takes 42 MB, and 273 MB are free" in str(refused.value)
    (folder_of(session.home) / "data").unlink()
    homes.check_room(session)
    assert sorted(path.name for path in small_disk.rglob("*")) == [
        "ana",
        "holes",
        "homes",
        "room",
        "shared",
        "snapshots",
        "spares",
        "volumes",
    ]
