"""The verbs of engine, homes and sessions on a simulated fleet: what Podman, a disk and an IDE do for real."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

from sqlalchemy import Engine as Database

from flows.errors import RefitError
from flows.sessions.homes.home import Homes
from flows.sessions.ide.jupyter import Jupyter, JupyterError
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session
from flows.sessions.store import Store
from flows.sessions.watching.activity import PROBE
from flows.settings import Settings
from tests.simulated.world import Violation, World, differing, nothing_at_work, somebody_at_work


class SimulatedEngine:
    """Implements `engine.Engine`."""

    at_once = 600

    def __init__(self, world: World) -> None:
        self._world = world

    def containers(self, session: str = "") -> tuple[Container, ...]:
        self._world.at("containers", session)
        return tuple(box.seen for box in self._world.of(session))

    def pull(self, image: str) -> None:
        self._world.at("pull", "")
        if image not in self._world.images:
            raise RefitError(f"There is no image {image}.")
        self._world.at("pull", "", "after")

    def create(self, session: Session) -> Container:
        self._world.at("create", session.name)
        box = self._world.make(session)
        if box.session != session:
            raise RefitError(f"There is a container {session.container!r} already, and it is made otherwise.")
        self._world.at("create", session.name, "after")
        return box.seen

    def start(self, container: str) -> None:
        self._world.at("start", _session(container))
        self._world.start(container)
        self._world.at("start", _session(container), "after")

    def binds_late(self) -> bool:
        return True

    def warm(self, session: Session) -> None:
        self._world.at("warm", session.name)
        self._world.warm(session.container)
        self._world.at("warm", session.name, "after")

    def address(self, container: str, port: int) -> tuple[str, int]:
        self._world.at("address", _session(container))
        return self._world.address(container, port)

    def stop(self, container: str, grace: float, settle: bool = True) -> None:
        self._world.at("stop", _session(container))
        self._world.stop(container)
        self._world.at("stop", _session(container), "after")

    def remove(self, container: str) -> None:
        self._world.at("remove", _session(container))
        self._world.remove(container)
        self._world.at("remove", _session(container), "after")

    def childless(self, container: str) -> bool:
        return False

    def by_hand(self, session: Session) -> tuple[str, ...]:
        return ()

    def execute(self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0) -> str:
        asks = tuple(argv[: len(PROBE)]) == PROBE
        self._world.at("probe" if asks else "execute", _session(container))
        box = self._world.boxes.get(container)
        if box is None or box.running is not Running.running:
            raise RefitError(f"{container} doesn't run.")
        if not asks:
            return ""
        if len(argv) == len(PROBE) + 1 and argv[-1].startswith("{"):
            busy = box.session.name in self._world.busy
            self._world.found_idle(box.session.name, not busy)
            return somebody_at_work() if busy else nothing_at_work()
        return "0"  # kernels that were ended

    def shut_out(self, container: str, ports: Sequence[int]) -> Callable[[], None]:
        self._world.at("shut out", _session(container))
        self._world.door(container, True)
        return lambda: self.let_in(container)

    def let_in(self, container: str) -> None:
        self._world.at("let in", _session(container))
        self._world.door(container, False)

    def attach(self, container: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        raise RefitError("Nobody can sit in a simulated session.")

    def logs(self, container: str, lines: int = 100) -> str:
        return ""


class SimulatedHomes(Homes):
    """The homes of a simulated fleet. A copy has a middle, in which it may be cut off."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self._folder = world, folder

    def path(self, name: str) -> Path:
        return self._folder / name

    def owners(self) -> frozenset[int]:
        return frozenset()

    def make(self, name: str, uid: int) -> Path:
        self._world.homes.setdefault(str(self.path(name)), {})
        self._world.owed.setdefault(str(self.path(name)), {})
        return self.path(name)

    def remove(self, name: str) -> None:
        if not self._world.by_hand:
            raise Violation(f"I4: the home of {name} is removed, and no person wants that")
        self._world.homes.pop(str(self.path(name)), None)
        for key in [key for key in self._world.snapshots if key[0] == name]:
            del self._world.snapshots[key]

    def snapshot(self, session: str, id: str) -> Path:
        return self._folder / "snapshots" / session / id

    def has_snapshot(self, session: str, id: str) -> bool:
        return (session, id) in self._world.snapshots

    def check_room(self, session: Session) -> None:
        self._world.at("check room", session.name)

    def copy(self, session: Session, id: str) -> Path:
        return self._take("copy", session, id)

    def delta(self, session: Session, id: str) -> Path:
        return self._take("snapshot", session, id)

    def _take(self, verb: str, session: Session, id: str) -> Path:
        self._world.at(verb, session.name)
        home = dict(self._world.homes[str(session.home)])
        self._world.snapshots[session.name, id] = {path: home[path] for path in list(home)[: len(home) // 2]}
        self._world.at(verb, session.name, "middle")
        self._world.snapshots[session.name, id] = home
        self._world.at(verb, session.name, "after")
        return self.snapshot(session.name, id)

    def differences(self, session: Session, id: str, except_paths: Collection[str] = ()) -> tuple[str, ...]:
        self._world.at("compare", session.name)
        if (session.name, id) not in self._world.snapshots:
            raise RefitError(f"There is no snapshot {id!r} of the session {session.name!r}.")
        taken, home = self._world.snapshots[session.name, id], self._world.homes[str(session.home)]
        return tuple(f"{how}: {path}" for path, how in differing(taken, home, tuple(except_paths)).items())

    def restore(self, session: Session, id: str) -> None:
        self._world.at("restore", session.name)
        if (session.name, id) not in self._world.snapshots:
            raise RefitError(f"There is no snapshot {id!r} of the session {session.name!r}.")
        if any(box.writes for box in self._world.of(session.name)):
            raise Violation(f"the home of {session.name} is restored while a container writes into it")
        home, taken = self._world.homes[str(session.home)], self._world.snapshots[session.name, id]
        half = list(taken)[: len(taken) // 2]
        home.update({path: taken[path] for path in half})
        self._world.at("restore", session.name, "middle")
        self._world.homes[str(session.home)] = dict(taken)
        self._world.at("restore", session.name, "after")

    def forget(self, session: str, id: str) -> None:
        self._world.at("forget", session)
        self._world.snapshots.pop((session, id), None)
        self._world.at("forget", session, "after")


class SimulatedJupyter(Jupyter):
    """The server of a simulated session."""

    def __init__(self, world: World, session: Session) -> None:
        self._world, self._session = world, session

    def used(self) -> bool:
        self._world.at("used", self._session.name)
        return self._world.reached(self._session).used

    def leave_notice(self, *words: object, **more: object) -> None: ...

    def execute(self, code: str, limit: float = 60.0) -> str:
        self._world.at("cell", self._session.name)
        return self._world.images[self._world.reached(self._session).session.image].cell


class SimulatedSessions(Sessions):
    """Sessions whose IDEs are simulated as well; everything else is what runs for real."""

    def __init__(self, settings: Settings, world: World, database: Database) -> None:
        homes = SimulatedHomes(world, settings.home / "homes")
        super().__init__(settings, SimulatedEngine(world), homes, Store(database))
        self.world = world

    def wait_ready(self, session: Session) -> float:
        self.world.at("ready", session.name)
        if not self.world.images[self.world.reached(session).session.image].answers:
            raise JupyterError(f"Nothing was ready at {session.url}.")
        return 0.0

    def jupyter(self, session: Session) -> Jupyter:
        return SimulatedJupyter(self.world, session)


def _session(container: str) -> str:
    return container.removeprefix("refit-").rpartition("-")[0]
