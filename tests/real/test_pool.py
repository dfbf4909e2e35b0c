"""The pool of homes on a real file system of btrfs in a file. What homes do in it, `test_home` says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import command
from flows.catalog.model import Access
from flows.errors import RefitError
from flows.sessions.homes import subvolumes
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.model import Session
from flows.settings import Settings

UID, GROWN = 234_568, 64 << 20


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    settings = Settings(home=tmp_path / "refit")
    yield settings
    command.run(["umount", Pool(settings).folder], root=True, accepted=(0, 1, 32))


def session_of(homes: LocalHomes, name: str = "ana") -> Session:
    return Session(name, "p", "2026a", "sha256:0", UID, None, homes.make(name, UID), Path("/token"), Access())


def subvolumes_of(pool: Pool) -> list[str]:
    listed = command.run(["btrfs", "subvolume", "list", pool.folder], root=True).stdout.splitlines()
    return sorted(line.split(" path ", 1)[1] for line in listed)


def test_a_home_in_the_pool_from_its_first_day_to_its_last(settings: Settings) -> None:
    early = LocalHomes(settings).make("early", UID + 1)
    room = Pool(settings).create(LEAST)
    assert 0 < room.free < room.size == LEAST
    assert oct((settings.home / "pool.btrfs").stat().st_mode)[-3:] == "600"
    homes = LocalHomes(settings)
    assert homes.path("early") == early and early not in homes.pool
    session = session_of(homes)
    assert session.home in homes.pool and homes.owners() == {session.name: UID, "early": UID + 1}

    (session.home / "notes").write_text("one")
    homes.check_room(session)
    homes.copy(session, "move")
    (session.home / "notes").write_text("saved at the end")
    homes.delta(session, "move")
    (session.home / "notes").unlink()
    (session.home / ".cache").mkdir()
    (session.home / ".cache/a file").write_text("the image's own")
    changed = homes.pool.touched(session.home, homes.snapshot("ana", "move"))
    assert changed == {"notes", ".cache", ".cache/a\\ file"}
    assert homes.differences(session, "move", ("/.cache/",)) == ("gone: notes",)
    homes.restore(session, "move")
    assert (session.home / "notes").read_text() == "saved at the end"
    assert homes.differences(session, "move") == ()
    homes.forget("ana", "move")
    assert subvolumes_of(homes.pool) == ["homes/ana"]

    with pytest.raises(RefitError, match="only grow"):
        homes.pool.grow(LEAST - 1)
    assert homes.pool.grow(LEAST + GROWN).size == LEAST + GROWN
    command.run(["umount", homes.pool.folder], root=True)  # as after a reboot
    assert (session_of(LocalHomes(settings)).home / "notes").read_text() == "saved at the end"
    homes.remove("ana")
    assert subvolumes_of(homes.pool) == []


@pytest.mark.long
def test_what_a_snapshot_wouldnt_hold_is_refused_before_anything_is_stopped(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session = session_of(homes)
    command.run(["btrfs", "subvolume", "create", session.home / "mine"], root=True)
    command.run(["btrfs", "subvolume", "create", session.home / "mine/deeper"], root=True)
    for verb in (homes.check_room, lambda s: homes.delta(s, "x"), lambda s: homes.spare(s, Path("/x"), 0)):
        with pytest.raises(RefitError, match=r"subvolumes .* mine, mine/deeper"):
            verb(session)
    homes.remove("ana")
    assert subvolumes_of(homes.pool) == []
    other = session_of(homes, "other")
    (other.home / "data").mkdir()
    command.run(["mount", "--types", "tmpfs", "refit-test", other.home / "data"], root=True)
    try:
        with pytest.raises(RefitError, match=f"mounted inside .*: {other.home}/data"):
            homes.check_room(other)
    finally:
        command.run(["umount", other.home / "data"], root=True)


@pytest.mark.long
def test_where_files_share_blocks_a_copy_takes_no_space_without_a_pool_either(settings: Settings) -> None:
    pool = Pool(settings)
    pool.create(LEAST)
    homes = LocalHomes(Settings(home=pool.folder / "another"))
    session = session_of(homes)
    (session.home / "data").write_bytes(os.urandom(600 << 20))  # there is no room for another
    homes.check_room(session)
    copy = homes.spare(session, pool.folder / "copy", most=0).home
    assert (copy / "data").stat().st_size == 600 << 20
    homes.copy(session, "move")
    assert homes.differences(session, "move") == ()


@pytest.mark.long
def test_who_isnt_root_has_a_program_for_it(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session, copy = session_of(homes), homes.pool.snapshots / "copy"
    for verb, paths in (("take", (session.home, copy)), ("restore", (copy, session.home)), ("delete", (copy,))):
        command.run([sys.executable, "-I", "-m", subvolumes.__name__, verb, *paths], root=True)
    assert subvolumes_of(homes.pool) == ["homes/ana"]


@pytest.mark.long
@pytest.mark.parametrize("left", [".ana.new", ".ana.next"])
def test_what_a_killed_run_has_left_is_in_nobodys_way(settings: Settings, left: str) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    command.run(["btrfs", "subvolume", "create", homes.pool.homes / left], root=True)
    session = session_of(homes)
    (session.home / "notes").write_text("one")
    homes.delta(session, "move")
    homes.restore(session, "move")
    assert (session.home / "notes").read_text() == "one"
    homes.remove("ana")
    assert subvolumes_of(homes.pool) == []


@pytest.mark.long
def test_a_pool_that_cant_be_mounted_is_never_taken_for_empty_homes(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session_of(homes)
    command.run(["umount", homes.pool.folder], root=True)
    file = settings.home / "pool.btrfs"
    with file.open("r+b") as broken:
        broken.seek(65_536)
        broken.write(bytes(4096))
    with pytest.raises(RefitError):
        LocalHomes(settings)
    assert not list(homes.pool.folder.iterdir())


@pytest.mark.parametrize("size", [LEAST - 1, 1 << 60])
def test_a_pool_has_a_size_that_can_be(settings: Settings, size: int) -> None:
    with pytest.raises(RefitError, match="pool"):
        Pool(settings).create(size)
    assert not Pool(settings).exists
