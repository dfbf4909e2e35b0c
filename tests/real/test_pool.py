"""The pool of homes on a real file system of btrfs in a file. Homes in it are the matter of `test_home`."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.services import doctor_sessions
from flows.sessions.homes import person_home_limits, subvolumes, subvolumes_as_root
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.model import Session, TokenRef
from tests.support.waiting import wait_until

UID, GROWN = 234_568, 64 << 20


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    settings = Settings(home=tmp_path / "refit")
    yield settings
    command.run(["umount", Pool(settings).folder], root=True, accepted=(0, 1, 32))


def session_of(homes: LocalHomes, name: str = "ana") -> Session:
    return Session(name, "p", "2026a", "sha256:0", UID, homes.make(name, UID), TokenRef("/token"), Access())


def subvolumes_of(pool: Pool) -> list[str]:
    listed = command.run(["btrfs", "subvolume", "list", pool.folder], root=True).stdout.splitlines()
    return sorted(line.split(" path ", 1)[1] for line in listed)


def test_a_home_in_the_pool_from_its_first_day_to_its_last(settings: Settings) -> None:
    early = LocalHomes(settings).make("early", UID + 1)
    room = Pool(settings).create(LEAST)
    assert 0 < room.free < room.size == LEAST
    assert oct((settings.home / "pool.btrfs").stat().st_mode)[-3:] == "600"
    homes = LocalHomes(settings)
    assert homes.home_of("early") == early and folder_of(early) not in homes.pool
    session = session_of(homes)
    assert folder_of(session.home) in homes.pool and homes.owners() == {session.name: UID, "early": UID + 1}

    (folder_of(session.home) / "notes").write_text("one")
    homes.check_room(session)
    homes.copy(session, "move")
    (folder_of(session.home) / "notes").write_text("saved at the end")
    homes.delta(session, "move")
    (folder_of(session.home) / "notes").unlink()
    (folder_of(session.home) / ".cache").mkdir()
    (folder_of(session.home) / ".cache/a file").write_text("the image's own")
    changed = homes.pool.touched(folder_of(session.home), homes.snapshot("ana", "move"))
    assert changed == {"notes", ".cache", ".cache/a\\ file"}
    assert homes.differences(session, "move", ("/.cache/",)) == ("gone: notes",)
    homes.restore(session, "move")
    assert (folder_of(session.home) / "notes").read_text() == "saved at the end"
    assert homes.differences(session, "move") == ()
    homes.release("ana")
    homes.forget("ana", "move")
    assert subvolumes_of(homes.pool) == ["homes/ana"]

    with pytest.raises(RefitError, match="only grow"):
        homes.pool.grow(LEAST - 1)
    assert homes.pool.grow(LEAST + GROWN).size == LEAST + GROWN
    command.run(["umount", homes.pool.folder], root=True)  # as after a reboot
    assert (folder_of(session_of(LocalHomes(settings)).home) / "notes").read_text() == "saved at the end"
    homes.remove("ana")
    assert subvolumes_of(homes.pool) == []


@pytest.mark.long
def test_what_a_snapshot_wouldnt_hold_is_refused_before_anything_is_stopped(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session = session_of(homes)
    command.run(["btrfs", "subvolume", "create", folder_of(session.home) / "mine"], root=True)
    command.run(["btrfs", "subvolume", "create", folder_of(session.home) / "mine/deeper"], root=True)
    for verb in (homes.check_room, lambda s: homes.delta(s, "x"), lambda s: homes.spare(s, 0)):
        with pytest.raises(RefitError, match=r"subvolumes .* mine, mine/deeper"):
            verb(session)
    homes.remove("ana")
    assert subvolumes_of(homes.pool) == []
    other = session_of(homes, "other")
    (folder_of(other.home) / "data").mkdir()
    command.run(["mount", "--types", "tmpfs", "refit-test", folder_of(other.home) / "data"], root=True)
    try:
        with pytest.raises(RefitError, match=f"mounted inside .*: {other.home}/data"):
            homes.check_room(other)
    finally:
        command.run(["umount", folder_of(other.home) / "data"], root=True)


def test_subvolumes_that_a_session_made_are_told_and_deleted_whatever_they_are_called(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session = session_of(homes)
    above = folder_of(session.home) / "a"
    above.mkdir()
    for name in ("new\nline", os.fsdecode(b"\xff path x"), "-rf"):
        subvolumes.create(above := above / name)
    for number in range(300):  # the kernel tells 255 at a time
        subvolumes.create(above / str(number))
    outside = settings.home / "outside"
    outside.mkdir()
    (above / "link").symlink_to(outside)
    with pytest.raises(RefitError, match="more") as refused:
        homes.check_room(session)
    assert r"a/new\nline, a/new\nline/\udcff path x, " in refused.value.what
    with pytest.raises(RefitError, match="subvolumes"):
        homes.delta(session, "move")
    homes.remove("ana")
    assert subvolumes_of(homes.pool) == [] and outside.is_dir()


def test_what_the_kernel_refuses_is_told_in_words(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session = session_of(homes)
    homes.delta(session, "move")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(subvolumes, "snapshot", full)
    for verb in (homes.copy, homes.delta):
        with pytest.raises(RefitError, match="The pool can't have a copy of") as refused:
            verb(session, "move")
        assert "quota" in refused.value.why and "grow" in refused.value.hint
    monkeypatch.undo()
    homes.delta(session, "move")
    subvolumes.create(homes.pool.snapshots / "ana" / "inner")  # in the way, and not to be deleted
    subvolumes.create(homes.pool.snapshots / "ana" / "inner" / "deeper")
    with pytest.raises(RefitError, match="The pool can't have a copy of") as refused:
        homes.copy(session, "inner")
    assert "not empty" in refused.value.why


def test_what_was_in_the_place_of_a_home_is_deleted_when_nobody_waits(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session = session_of(homes)
    homes.delta(session, "move")
    (folder_of(session.home) / "notes").write_text("later")
    subvolumes.create(folder_of(session.home) / "mine")  # of the session's, since the snapshot
    subvolumes.create(folder_of(session.home) / "mine" / "deeper")
    subvolumes.create(homes.pool.homes / ".ana.next")  # of a process that was killed
    homes.restore(session, "move")
    assert list(folder_of(session.home).iterdir()) == [] and not (homes.pool.homes / ".ana.next").exists()
    removed = homes.pool.folder / "removed"
    assert sorted(path.name for old in removed.iterdir() for path in old.iterdir()) == ["mine", "notes"]
    assert oct(removed.stat().st_mode)[-3:] == "700"
    homes.release("ana")
    assert list(removed.iterdir()) == [] and subvolumes_of(homes.pool) == ["homes/ana", "snapshots/ana/move"]


@pytest.mark.long
def test_where_files_share_blocks_a_copy_takes_no_space_without_a_pool_either(settings: Settings) -> None:
    pool = Pool(settings)
    pool.create(LEAST)
    homes = LocalHomes(Settings(home=pool.folder / "another"))
    session = session_of(homes)
    (folder_of(session.home) / "data").write_bytes(os.urandom(600 << 20))  # there is no room for another
    homes.check_room(session)
    copy = folder_of(homes.spare(session, most=0).home)
    assert (copy / "data").stat().st_size == 600 << 20
    homes.copy(session, "move")
    assert homes.differences(session, "move") == ()


@pytest.mark.long
def test_who_isnt_root_has_a_program_for_it(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    session, copy = session_of(homes), homes.pool.snapshots / "copy"
    removed = homes.pool.folder / "removed"
    calls: dict[str, tuple[Path, ...]] = {
        "take": (folder_of(session.home), copy),
        "restore": (removed, copy, folder_of(session.home)),
    }
    for verb, paths in {**calls, "delete": (copy,), "sweep": (removed,)}.items():
        command.run([sys.executable, "-I", "-m", subvolumes.__name__, verb, *paths], root=True)
    assert subvolumes_of(homes.pool) == ["homes/ana"]


@pytest.mark.long
@pytest.mark.parametrize("left", [".ana.new", ".ana.next"])
def test_what_a_killed_run_has_left_is_in_nobodys_way(settings: Settings, left: str) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    command.run(["btrfs", "subvolume", "create", homes.pool.homes / left], root=True)
    session = session_of(homes)
    (folder_of(session.home) / "notes").write_text("one")
    homes.delta(session, "move")
    homes.restore(session, "move")
    assert (folder_of(session.home) / "notes").read_text() == "one"
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


def write_as_owner(home: Path, name: str, megabytes: int) -> command.Completed:
    """As a program in the session would, which isn't root."""
    owner = ["setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups"]
    wrote = ["dd", "if=/dev/urandom", f"of={name}", "bs=1M", f"count={megabytes}", "conv=fsync", "status=none"]
    return command.run([*owner, *wrote], root=True, cwd=home)


@pytest.fixture
def bounded(settings: Settings) -> LocalHomes:
    Pool(settings).create(LEAST)
    return LocalHomes(settings.model_copy(update={"session_home": 0.05}))


def test_a_home_takes_no_more_than_its_limit_and_moves_all_the_same(bounded: LocalHomes) -> None:
    ana, ben = session_of(bounded), session_of(bounded, "ben")
    assert bounded.pool.bounds_homes
    write_as_owner(folder_of(ana.home), "mine", 20)
    bounded.copy(ana, "move")
    with pytest.raises(command.ProgramFailed, match="quota exceeded"):
        write_as_owner(folder_of(ana.home), "too much", 60)
    write_as_owner(folder_of(ben.home), "his", 20)

    bounded.check_room(ana)
    bounded.delta(ana, "move")  # a full home can be moved
    assert bounded.differences(ana, "move") == ()
    (folder_of(ana.home) / "too much").unlink()
    bounded.restore(ana, "move")
    assert (folder_of(ana.home) / "too much").exists()
    with pytest.raises(command.ProgramFailed, match="quota exceeded"):
        write_as_owner(folder_of(ana.home), "again", 60)
    with pytest.raises(command.ProgramFailed, match="quota exceeded"):
        write_as_owner(folder_of(bounded.spare(ana, 0).home), "rehearsed", 60)


def test_a_limit_can_be_raised_and_taken_away(bounded: LocalHomes, settings: Settings) -> None:
    ana = session_of(bounded)
    with pytest.raises(command.ProgramFailed, match="quota exceeded"):
        write_as_owner(folder_of(ana.home), "a", 60)
    for chosen in (0.2, 0.0, "90%"):
        LocalHomes(settings.model_copy(update={"session_home": chosen})).make("ana", UID)
        write_as_owner(folder_of(ana.home), "a", 60)


def test_a_home_has_the_limit_of_its_person_and_others_the_general_one(bounded: LocalHomes, settings: Settings) -> None:
    person_home_limits.choose(settings, "ana", 20_000_000)
    ana, ben = session_of(bounded), session_of(bounded, "ben")
    write_as_owner(folder_of(ben.home), "his", 30)
    with pytest.raises(command.ProgramFailed, match="quota exceeded"):
        write_as_owner(folder_of(ana.home), "a", 30)
    person_home_limits.choose(settings, "ana", 100_000_000)  # as after a change of groups
    bounded.make("ana", UID)
    write_as_owner(folder_of(ana.home), "a", 60)
    bounded.copy(ana, "move")
    bounded.delta(ana, "move")
    bounded.restore(ana, "move")
    write_as_owner(folder_of(ana.home), "a", 60)
    spare = bounded.spare(ana, 0)
    write_as_owner(folder_of(spare.home), "b", 20)  # a rehearsal has room for what its session has
    bounded.remove("ana")
    assert person_home_limits.of(settings, "ana") is None


def test_the_part_of_its_limit_that_a_home_takes_is_told(bounded: LocalHomes, settings: Settings) -> None:
    person_home_limits.choose(settings, "ana", 80_000_000)
    ana, ben = session_of(bounded), session_of(bounded, "ben")
    [before] = bounded.disk_use(ana)
    assert before.allowed == 80_000_000 and before.volume == ""
    write_as_owner(folder_of(ana.home), "mine", 20)
    command.run(["sync", "--file-system", ana.home], root=True)  # btrfs counts what it has written to the disk
    [use] = bounded.disk_use(ana)
    assert 20 << 20 <= use.used - before.used < 21 << 20 and str(use) == f"home {use.used / 1e9:.3g} of 0.08 GB"
    [his] = bounded.disk_use(ben)
    assert his.used < 1 << 20 and his.allowed == 50_000_000
    assert (bounded.disk_limit(None), bounded.disk_limit(7), bounded.disk_limit(0)) == (50_000_000, 7, None)
    assert subvolumes_as_root.use_as_root(folder_of(ana.home)) == (use.used, 80_000_000)
    as_program = [sys.executable, "-I", "-m", "flows.sessions.homes.subvolumes", "use", ana.home]  # as of no root
    assert json.loads(command.run(as_program, root=True).stdout) == [use.used, 80_000_000]


def test_without_a_limit_the_pool_stays_one_that_older_kernels_mount(settings: Settings) -> None:
    Pool(settings).create(LEAST)
    homes = LocalHomes(settings.model_copy(update={"session_home": 0.0}))
    session_of(homes)
    assert not homes.pool.bounds_homes


def test_snapshots_take_milliseconds_with_limits_too(bounded: LocalHomes) -> None:
    ana = session_of(bounded)
    write_as_owner(folder_of(ana.home), "a", 40)
    took = list[float]()

    def are_quick() -> bool:
        """Three of all so far: what the file system itself takes is seen at its best, for others work here, too."""
        started = time.monotonic()
        bounded.delta(ana, f"move-{len(took)}")
        took.append(time.monotonic() - started)
        return len([seconds for seconds in took if seconds < 0.1]) == 3

    wait_until(are_quick)


def test_doctor_says_which_homes_have_no_limit(bounded: LocalHomes, settings: Settings) -> None:
    assert list(doctor_sessions.bounds(settings)) == []
    session_of(bounded)
    (finding,) = doctor_sessions.bounds(settings)
    assert finding.ok, finding.seen
    command.run(["install", "-d", "-o", str(UID + 1), settings.folder("homes") / "early"], root=True)
    (finding,) = doctor_sessions.bounds(settings)
    assert not finding.ok and "early" in finding.seen and "refit home pool add" in finding.hint


def test_who_makes_subvolumes_in_their_home_has_no_more_room(bounded: LocalHomes) -> None:
    ana = session_of(bounded)
    owner = ["setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups"]
    command.run([*owner, "btrfs", "subvolume", "create", "inside"], root=True, cwd=folder_of(ana.home))
    with pytest.raises(command.ProgramFailed, match="quota exceeded"):
        write_as_owner(folder_of(ana.home) / "inside", "too much", 60)
