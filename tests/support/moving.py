"""Things that tests of moves look at: the files of a home, the kernels of a server, and what is left of a session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flows.core.settings import Settings
from flows.images.build import Built
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Entry, Phase
from flows.migrations.move_steps import FINAL, State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.results import Result
from flows.sessions.containers import weight
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from tests.support.variants import light
from tests.support.waiting import PATIENTLY

TRIES = 5


@dataclass(frozen=True)
class Scene:
    """A machine for sessions, and images to move between, which `shared` builds on `base`."""

    settings: Settings
    sessions: Sessions
    registry: Registry
    shared: Settings
    base: Built

    def image(self, name: str, before: str = "true", **labels: str) -> str:
        """An image without an IDE that runs `before` first; returns its digest."""
        written = {f"io.refit.{label}": value for label, value in labels.items()}
        return light(self.shared, self.registry, self.base, name, before, written)


@contextmanager
def opened(settings: Settings, name: str) -> Iterator[Sessions]:
    """The sessions of these settings; afterwards the one of this name is gone, and its home."""
    sessions = Sessions.open(settings)
    yield sessions
    if name in sessions.store.homes():
        sessions.remove(name, purge=True)


def to(sessions: Sessions, name: str, image: str) -> Decision:
    """The decision to move a session to an image."""
    return Decision(name, Action.migrate, sessions.store.session(name).image, image)


def carry_out(executor: MoveExecutor, decision: Decision, packages: str = "", **more: Any) -> Result:
    """Move a session that nobody works in; again where a machine that gets nothing done for a while put that off."""
    for _ in range(TRIES):
        result = executor.carry_out(decision, packages, **more)
        if result.state is not State.deferred:
            break
    return result


def furnish(sessions: Sessions, name: str) -> None:
    """Let a session write what people have in their homes, through the session itself."""
    script = """
        mkdir -p 'project/a folder' .config/private && echo data >'project/a folder/data.csv'
        printf 'x = 1\\n' >project/work.py && chmod 750 project/work.py && ln -s ../project .config/link
        head -c 200000 /dev/urandom >project/blob && ln project/blob project/same-blob
        touch -d '2020-02-02 02:02:02.123456789' project/old && chmod 700 .config/private
    """
    sessions.execute(name, ["sh", "-euc", script])


def kernels(sessions: Sessions, session: Session) -> list[dict[str, Any]]:
    """The kernels of a session, as its server says."""
    return _asked(sessions, session, "/api/kernels")


def terminals(sessions: Sessions, session: Session) -> list[str]:
    """The names of a session's terminals, as its server says."""
    return [one["name"] for one in _asked(sessions, session, "/api/terminals")]


def _asked(sessions: Sessions, session: Session, path: str) -> list[dict[str, Any]]:
    url, headers = sessions.direct_url(session), {"Authorization": f"token {sessions.token(session)}"}
    answer = httpx.get(f"{url}{path}?no_track_activity=1", headers=headers, **PATIENTLY)
    return list(answer.raise_for_status().json())


def manifest(home: Path | str, without: tuple[str, ...] = ()) -> dict[str, tuple[object, ...]]:
    """Every path in a home with what must survive: kind and mode, owner, links, time of change, content."""
    home, results = Path(home), {}
    for path in sorted(home.rglob("*")):
        inside = path.relative_to(home)
        if inside.parts[0] in without:
            continue
        status = path.lstat()
        link = str(path.readlink()) if path.is_symlink() else ""
        plain = path.is_file() and not path.is_symlink()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if plain else link
        links, changed = (status.st_nlink, status.st_mtime_ns) if plain else (0, 0)
        results[str(inside)] = (oct(status.st_mode), status.st_uid, status.st_gid, links, changed, content)
    return results


def check_nothing_is_left(settings: Settings, sessions: Sessions, journal: Journal, name: str) -> None:
    """One container, running and ready, the recorded one; nothing of any move is left beside its history."""
    session = sessions.store.session(name)
    (container,) = sessions.engine.containers(name)
    assert container.made_from == session and container.running is Running.running
    sessions.wait_ready(session)
    assert weight_of(sessions, name) == own_weight(settings)
    assert not journal.unfinished()
    assert not list(settings.folder("running").iterdir())
    snapshots = settings.home / "snapshots" / name
    assert not snapshots.exists() or not list(snapshots.iterdir())
    for move in journal.history(name):
        assert move.state in FINAL
        check_no_gap(journal.entries(move))


def weight_of(sessions: Sessions, name: str) -> int:
    """The weight that the kernel gives the programs of a session, as its version of control groups counts it."""
    asks = "cat /sys/fs/cgroup/cpu.weight 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.shares"
    return int(sessions.execute(name, ["sh", "-c", asks]))


def own_weight(settings: Settings, *, favoured: bool = False) -> int:
    """The weight that it is to have."""
    shares = weight.shares(settings.session_cpu_shares, favoured)
    second = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return 1 + (shares - 2) * 9999 // 262_142 if second else shares


def check_no_gap(entries: tuple[Entry, ...]) -> None:
    """Every step that was begun has an outcome before the next is begun; nothing happened without an intent."""
    begun = ""
    for entry in entries:
        assert entry.at is not None
        if entry.phase is Phase.intent:
            assert not begun, f"{begun!r} has no outcome"
            begun = entry.step
        elif entry.phase in (Phase.done, Phase.interrupted) or begun:
            assert begun == entry.step, f"{entry.step!r} was never announced"
            begun = ""
    assert not begun, f"{begun!r} has no outcome"
