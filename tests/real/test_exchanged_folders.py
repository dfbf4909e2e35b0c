"""The owner of a home exchanges a folder in it with a link to root's files, while root's programs are at work there.

The rule: nothing of root's is ever in a copy, in what is told of a home or in the home, and nothing of
root's is changed. Verbs may fail meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.compatibility.scan import of_folder
from flows.core.errors import RefitError
from flows.core.programs import command
from flows.core.settings import Settings
from flows.sessions.homes.folders import folder_of
from flows.sessions.homes.home import LocalHomes
from flows.sessions.homes.pool import LEAST, Pool
from flows.sessions.homes.volumes import Wanted
from flows.sessions.model import HomeRef, Session, TokenRef
from tests.support.waiting import some_long

UID, FILES = 234_569, 150
SECRET, OWN = b"root's own: canary", b"of the session's u"
STOLEN = '{"argv": ["/stolen/python"], "display_name": "x", "language": "x"}'
LARGE = 300 << 20  # bytes of root's: a sum of a home that has them has followed a link
# A scan looks into the second one.
FOLDERS = ("work", ".local/share/jupyter/kernels/mine")

# As soon as anybody opens a file in the folder, else after a moment, a link is in its place; then the folder is back.
ATTACK = r"""
import ctypes, os, random, select, sys, time
libc = ctypes.CDLL(None)
def exchange():
    for folder in folders:
        libc.renameat2(-100, folder.encode(), -100, (folder + "-link").encode(), 2)
folders, heard = sys.argv[1:], libc.inotify_init()
for folder in folders:
    libc.inotify_add_watch(heard, folder.encode(), 0x20)
print("begins", flush=True)
while True:
    if select.select([heard], [], [], random.random() / 100)[0]:
        os.read(heard, 1 << 16)
    exchange()
    time.sleep(random.choice([0, 0.001, 0.005, 0.02]) * random.random())
    exchange()
"""


class Canary:
    """Root's folder, in which files are called as in the home, have the same size and are as old."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        fill(folder, SECRET)
        (folder / "only-here").write_bytes(SECRET)
        (folder / "kernel.json").write_text(STOLEN)
        with (folder / "large").open("wb") as large:
            os.posix_fallocate(large.fileno(), 0, LARGE)
        self._before = self._seen()

    def check(self) -> None:
        """Nothing of it has changed."""
        assert self._seen() == self._before

    def _seen(self) -> list[object]:
        results = []
        for path in [self.folder, *sorted(self.folder.iterdir())]:
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and status.st_size < 1000 else b""
            results.append((path.name, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, content))
        return results


def fill(folder: Path, content: bytes, uid: int = 0) -> None:
    for number in range(FILES):
        file = folder / f"file-{number:03d}"
        file.write_bytes(content)
        file.chmod(0o600)
        os.chown(file, uid, 0)
        os.utime(file, ns=(10**18, 10**18))
    os.utime(folder, ns=(10**18, 10**18))


class Scene:
    """A session with a volume, and what is tried while its user exchanges folders in both."""

    def __init__(self, homes: LocalHomes, canary: Canary, tmp_path: Path) -> None:
        self.homes, self.canary = homes, canary
        self.at_war, self.tries = False, 0
        self.session = Session(
            "ana", "p", "2026a", "sha256:0", UID, HomeRef("."), TokenRef(str(tmp_path / "token")), Access()
        )
        self.furnish()

    def furnish(self) -> None:
        """Home and volume as they are in peace."""
        session = replace(self.session, home=self.homes.make("ana", UID), volumes=())
        self.session = replace(session, volumes=(self.homes.mounted("ana", Wanted("data", "/data")),))
        self.homes.make_volumes(self.session)
        for place in self.places:  # a link may be where a folder was
            command.run(["find", place, "-mindepth", "1", "-delete"], root=True)
            for folder in FOLDERS:
                command.run(["install", "-d", "-o", str(UID), place / folder], root=True)
                fill(place / folder, OWN, UID)
                (place / f"{folder}-link").symlink_to(self.canary.folder)
            command.run(["chown", "-hR", str(UID), place], root=True)

    @property
    def places(self) -> tuple[Path, Path]:
        return folder_of(self.session.home), folder_of(self.session.volumes[0].ref)

    @contextmanager
    def attacked(self) -> Iterator[None]:
        """Let the session's user exchange folders inside the block."""
        as_user = ["setpriv", f"--reuid={UID}", "--regid=0", "--clear-groups", sys.executable, "-I", "-S", "-c", ATTACK]
        attackers = [
            subprocess.Popen([*as_user, *FOLDERS], cwd=place, stdout=subprocess.PIPE, text=True)
            for place in self.places
        ]
        try:
            for attacker in attackers:
                assert attacker.stdout and attacker.stdout.readline() == "begins\n"
            yield
            assert [attacker.poll() for attacker in attackers] == [None, None]
        finally:
            for attacker in attackers:
                attacker.kill()
                attacker.wait()

    def attempt(self, verb: Callable[[], object]) -> object:
        """The result of a verb in the middle of the attack; none: it failed, which it may. In peace it may not."""
        if not self.at_war:
            return verb()
        with self.attacked():
            self.tries += 1
            with suppress(RefitError, OSError):
                return verb()
        return None

    def check(self, *copies: Path) -> None:
        """Root's folder is as it was, and nothing of it is in the session's, or in these copies."""
        self.canary.check()
        for copy in (*self.places, *copies):
            for above, folders, files in os.walk(copy):
                assert not {"only-here", "kernel.json", "large"} & {*files, *folders}, above
                for name in files:
                    path = Path(above, name)
                    assert not path.is_file() or SECRET not in path.read_bytes(), path

    # The verbs, once each.

    def copy(self) -> None:
        self.attempt(lambda: self.homes.copy(self.session, "move"))
        self._check_snapshot()
        self.homes.forget("ana", "move")

    def delta(self) -> None:
        self.homes.delta(self.session, "move")
        self.attempt(lambda: self.homes.delta(self.session, "move"))
        self._check_snapshot()

    def compare(self) -> None:
        self.homes.delta(self.session, "move")
        told = self.attempt(lambda: self.homes.differences(self.session, "move"))
        assert "only-here" not in str(told) and "large" not in str(told)
        self.check()

    def restore(self) -> None:
        self.homes.delta(self.session, "move")
        for place in self.places:
            for path in sorted((place / FOLDERS[0]).iterdir())[::2]:
                path.unlink()
        self.attempt(lambda: self.homes.restore(self.session, "move"))
        self.check()
        self.furnish()

    def spare(self) -> None:
        self.attempt(lambda: self.homes.spare(self.session, most=10**10))
        pooled = self.homes.pool.rehearsals / "ana"
        plain = self.homes._spares / "ana" / "home"
        copies = pooled if folder_of(self.session.home) in self.homes.pool else plain
        self.check(copies, copies.with_name(f"{copies.name}.data"))
        self.homes.forget_spare("ana")

    def scan(self) -> None:
        for place in self.places:
            told = self.attempt(lambda place=place: of_folder(place, UID, "/home/dev"))  # type: ignore[misc]
            assert "stolen" not in str(told)
        self.check()

    def size(self) -> None:
        told = self.attempt(lambda: self.homes._refuse_what_cant_be_copied(self.session))
        assert told is None or (isinstance(told, int) and told < LARGE)
        self.check()

    def remove(self) -> None:
        self.attempt(lambda: self.homes.remove("ana"))
        self.canary.check()
        self.homes.remove("ana")
        self.furnish()

    def _check_snapshot(self) -> None:
        snapshot = self.homes.snapshot("ana", "move")
        self.check(snapshot, snapshot.with_name("move.data"))


@pytest.fixture(params=some_long(["folders", "pool"], short="folders"))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    settings = Settings(home=tmp_path / "refit")
    if request.param == "pool":
        Pool(settings).create(LEAST)
    homes = LocalHomes(settings)
    yield Scene(homes, Canary(tmp_path / "outside"), tmp_path)
    if request.param == "pool":
        command.run(["umount", homes.pool.folder], root=True)


@pytest.mark.parametrize("seconds", [1.0, pytest.param(60.0, marks=pytest.mark.long)])
@pytest.mark.parametrize("verb", ["copy", "delta", "compare", "restore", "spare", "scan", "size", "remove"])
def test_no_folder_that_becomes_a_link_leads_root_out_of_a_home(scene: Scene, verb: str, seconds: float) -> None:
    getattr(scene, verb)()
    scene.at_war, until = True, time.monotonic() + seconds
    while time.monotonic() < until or scene.tries < 3:
        getattr(scene, verb)()
