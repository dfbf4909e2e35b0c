"""The verbs of engine, homes and sessions on a simulated fleet: what Podman, a disk and an IDE do for real."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from sqlalchemy import Engine as Database

from flows.core.errors import RefitError
from flows.core.settings import Settings
from flows.images.registry_errors import NoImage
from flows.sessions.homes.folders import beside, ref_of
from flows.sessions.homes.space_reservation import NoRoom
from flows.sessions.homes.volumes import DiskUse, Part, is_own, parts
from flows.sessions.ide.jupyter import Jupyter, JupyterError
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Container, Running, Session, session_of
from flows.sessions.store import Store
from tests.support.simulated.sshd import SimulatedSshd
from tests.support.simulated.volumes import SimulatedVolumes, draft_of
from tests.support.simulated.world import Box, Content, World, differing, nothing_at_work, somebody_at_work


class SimulatedEngine:
    """Implements `engine.Engine`."""

    on_this_machine = True
    at_once = 600
    sshd = SimulatedSshd()

    def __init__(self, world: World) -> None:
        self._world = world

    def containers(self, session: str = "") -> tuple[Container, ...]:
        self._world.at("containers", session)
        return tuple(box.seen for box in self._world.of(session))

    def pull(self, image: str) -> None:
        self._world.at("pull", "")
        if image not in self._world.images:
            raise NoImage(f"There is no image {image}.")
        self._world.at("pull", "", "after")

    def create(self, session: Session) -> Container:
        self._world.at("create", session.name)
        box = self._world.make(session)
        if box.session != session:
            raise RefitError(f"There is a container {session.container!r} already, made with other options.")
        self._world.at("create", session.name, "after")
        return box.seen

    def start(self, container: str) -> None:
        self._world.at("start", session_of(container))
        box = self._world.boxes.get(container)
        if box and not box.writes and (others := self._world.writers(box.session)):
            raise RefitError(f"{container} is not started: {', '.join(others)} may write into its home.")
        self._world.start(container)
        self._world.at("start", session_of(container), "after")

    def binds_late(self) -> bool:
        return True

    def has_place(self, session: Session) -> bool:
        return True

    def warm(self, session: Session, wait: bool = True) -> None:
        self._world.at("warm", session.name)
        self._world.warm(session.container)
        self._world.at("warm", session.name, "after")

    def favour(self, container: str, favoured: bool) -> None:
        self._world.at("favour" if favoured else "level", session_of(container))
        if (box := self._world.boxes.get(container)) and box.running is Running.running:
            box.favoured = favoured
        self._world.at("favour" if favoured else "level", session_of(container), "after")

    def address(self, container: str, port: int) -> tuple[str, int]:
        self._world.at("address", session_of(container))
        return self._world.address(container, port)

    def stop(self, container: str, grace: float, settle: bool = True) -> None:
        self._world.at("stop", session_of(container))
        self._world.stop(container)
        self._world.at("stop", session_of(container), "after")

    def remove(self, container: str) -> None:
        self._world.at("remove", session_of(container))
        self._world.remove(container)
        self._world.at("remove", session_of(container), "after")

    def childless(self, container: str) -> bool:
        return False

    def by_hand(self, session: Session) -> tuple[str, ...]:
        return ()

    def changed_files(self, container: str) -> None:
        return None

    def execute(
        self, container: str, argv: Sequence[str], stdin: str = "", limit: float = 600.0, most: int = 1 << 20
    ) -> str:
        self._world.at("execute", session_of(container))
        self._check_runs(container)
        return "0" if "-I" in argv else ""  # kernels that were ended

    @contextmanager
    def dialogue(self, container: str, argv: Sequence[str], limit: float = 600.0) -> Iterator[Callable[[str], str]]:
        self._world.at("ready to look", session_of(container))
        self._check_runs(container)

        def answer(line: str) -> str:
            if not line.startswith("{"):
                return "0"
            asked = json.loads(line)
            if "run" not in asked:
                return self._look(container)
            return json.dumps({"code": 0, "said": self.execute(container, asked["run"]), "why": ""})

        yield answer

    def _look(self, container: str) -> str:
        self._world.at("probe", session_of(container))
        box = self._check_runs(container)
        session = box.session.name
        busy = session in self._world.busy
        self._world.found_idle(session, not busy)
        return somebody_at_work() if busy else nothing_at_work(connections=int(box.used))

    def _check_runs(self, container: str) -> Box:
        box = self._world.boxes.get(container)
        if box is None or box.running is not Running.running:
            raise RefitError(f"{container} doesn't run.")
        return box

    def block_ingress(self, container: str, ports: Sequence[int]) -> Callable[[], None]:
        self._world.at("shut out", session_of(container))
        self._world.door(container, True)
        return lambda: self.allow_ingress(container)

    def allow_ingress(self, container: str) -> None:
        self._world.at("let in", session_of(container))
        self._world.door(container, False)

    def attach(self, container: str, argv: Sequence[str], terminal: bool) -> NoReturn:
        raise RefitError("Nobody can sit in a simulated session.")

    def logs(self, container: str, lines: int = 100) -> str:
        return ""


class SimulatedHomes(SimulatedVolumes):
    """Implements `engine.Homes`. A copy has a middle, in which it may be cut off."""

    keeps_snapshots = True

    def owners(self) -> dict[str, int]:
        return {Path(path).name: uid for path, uid in self._world.uids.items() if Path(path).parent == self._folder}

    def draft_clone(self, source: Session, id: str, new: Session) -> None:
        self._world.at("clone", new.name)
        taken = self._world.snapshots[source.name, id]
        for part in parts(new):
            draft = draft_of(part.ref)
            self._world.homes[draft] = _half(taken[part.volume])
            self._world.at("clone", new.name, "middle")
            self._world.homes[draft] = dict(taken[part.volume])
        self._world.at("clone", new.name, "after")

    def finish_clone(self, new: Session, old: int) -> None:
        self._world.at("finish", new.name)
        for part in reversed(parts(new)):
            content = self._world.homes.pop(draft_of(part.ref))
            self._world.homes[part.ref], self._world.uids[part.ref] = content, new.uid
            self._world.owed[part.ref] = dict(content)
        self._world.at("finish", new.name, "after")

    def disk_use(self, session: Session) -> tuple[DiskUse, ...]:
        return ()

    def disk_limit(self, own: int | None) -> int | None:
        return None

    def remove(self, name: str) -> None:
        self._world.at("remove home", name)
        if not self._world.by_hand and self.home_of(name) in self._world.homes:
            raise self._world.never(f"I4: the home of {name} is removed, and no person wants that")
        for folder in (self.home_of(name), *self._below(".volumes", name)):
            self.remove_volume(folder)
        for key in [key for key in self._world.snapshots if key[0] == name]:
            del self._world.snapshots[key]
        self._world.at("remove home", name, "middle")
        self._world.homes.pop(draft_of(self.home_of(name)), None)
        self._world.at("remove home", name, "after")

    def snapshot_place(self, session: str, id: str) -> str:
        return str(self._folder / "snapshots" / session / id)

    def has_snapshot(self, session: str, id: str) -> bool:
        return (session, id) in self._world.snapshots

    def check_room(self, session: Session) -> None:
        self._world.at("check room", session.name)

    def snapshot_cost(self, session: Session) -> int:
        return 0

    def prices(self) -> Mapping[str, str]:
        return {}

    def own_size(self, session: Session, id: str) -> int | None:
        return sum(len(text) for content in self._world.snapshots[session.name, id].values() for text in content)

    def touched(self, session: Session, id: str) -> tuple[str, ...] | None:
        return tuple(change.partition(": ")[2] for change in self.differences(session, id))

    def spare(self, session: Session, most: int) -> Session:
        self._world.at("spare", session.name)
        contents = {part: self._world.homes[part.ref] for part in parts(session)}
        if sum(len(text) for content in contents.values() for text in content.values()) > most:
            raise NoRoom(f"a copy may take {most} bytes")
        top = self._folder / ".rehearsals" / session.name / "home"
        copies = {part.volume: ref_of(beside(part, top)) for part in contents}
        for part, content in contents.items():
            self._world.homes[copies[part.volume]] = dict(content)
        volumes = tuple(
            replace(volume, ref=copies[volume.name]) if is_own(volume) else replace(volume, read_only=True)
            for volume in session.volumes
        )
        return replace(session, home=copies[""], volumes=volumes)

    def forget_spare(self, name: str) -> None:
        for folder in self._below(".rehearsals", name):
            del self._world.homes[folder]

    def prepare(self, session: Session, id: str, others: Collection[str] = ()) -> None:
        pass

    def release(self, session: str) -> None:
        pass

    def copy(self, session: Session, id: str) -> None:
        self._take("copy", session, id)

    def delta(self, session: Session, id: str) -> None:
        self._take("snapshot", session, id)

    def _take(self, verb: str, session: Session, id: str) -> None:
        self._world.at(verb, session.name)
        taken = {part.volume: dict(self._world.homes[part.ref]) for part in parts(session)}
        self._world.snapshots[session.name, id] = {volume: _half(content) for volume, content in taken.items()}
        self._world.at(verb, session.name, "middle")
        self._world.snapshots[session.name, id] = taken
        self._world.at(verb, session.name, "after")

    def differences(
        self, session: Session, id: str, except_paths: Collection[str] = (), *, at_a_glance: bool = False
    ) -> tuple[str, ...]:
        self._world.at("compare", session.name)
        results = []
        for part, taken in self._taken(session, id).items():
            excepted = () if part.volume else tuple(except_paths)
            changes = differing(taken, self._world.homes[part.ref], excepted)
            results += [part.named(f"{how}: {path}") for path, how in changes.items()]
        return tuple(results)

    def restore(self, session: Session, id: str) -> None:
        self._world.at("restore", session.name)
        taken = self._taken(session, id)
        if any(box.writes for box in self._world.of(session.name)):
            raise self._world.never(f"the home of {session.name} is restored while a container writes into it")
        for part, content in taken.items():
            self._world.homes[part.ref].update(_half(content))
        self._world.at("restore", session.name, "middle")
        self._world.homes |= {part.ref: dict(content) for part, content in taken.items()}
        self._world.at("restore", session.name, "after")

    def _taken(self, session: Session, id: str) -> dict[Part, Content]:
        taken = self._world.snapshots.get((session.name, id), {})
        if any(part.volume not in taken for part in parts(session)):
            raise RefitError(f"There is no snapshot {id!r} of the session {session.name!r}.")
        return {part: taken[part.volume] for part in parts(session)}

    def bring_files(self, session: Session, id: str, paths: Iterable[str], *, to: str = "", suffix: str = "") -> None:
        self._world.at("bring", session.name)
        content, home = self._world.snapshots[session.name, id][""], self._world.homes[session.home]
        chosen = {path: [one for one in content if f"{one}/".startswith(f"{path}/")] for path in paths}
        if missing := [path for path in paths if not chosen[path]]:
            raise RefitError(f"{missing[0]!r} isn't in the snapshot.")
        for path in (one for some in chosen.values() for one in some):
            if suffix and path in home:
                home[path + suffix] = home[path]
            home[f"{to}/{path}" if to else path] = content[path]

    def drafts(self) -> tuple[str, ...]:
        drafts = [path.name[1:-6] for path in map(Path, self._world.homes) if path.name.endswith(".clone")]
        return tuple(name for name in sorted(drafts) if self.home_of(name) not in self._world.homes)

    def note(self, session: str, id: str, text: str) -> None:
        self._world.at("note", session)
        self._world.notes[session, id] = text
        self._world.at("note", session, "after")

    def notes(self, session: str) -> tuple[str, ...]:
        return tuple(text for (name, _), text in self._world.notes.items() if name == session)

    def forget(self, session: str, id: str) -> None:
        self._world.notes.pop((session, id), None)
        self._world.at("forget", session)
        self._world.snapshots.pop((session, id), None)
        self._world.at("forget", session, "after")


class SimulatedJupyter(Jupyter):
    """The server of a simulated session."""

    def __init__(self, world: World, session: Session) -> None:
        self._world, self._session = world, session

    def used(self, limit: float = 30.0) -> bool:
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
        super().__init__(settings, SimulatedEngine(world), homes, Store(database, settings.lease_seconds))
        self.world = world

    def wait_answering(self, session: Session) -> float:
        self.world.at("ready", session.name)
        if not self.world.images[self.world.reached(session).session.image].answers:
            raise JupyterError(f"Nothing was ready at {session.container}.")
        return 0.0

    def route_traffic(self, session: Session) -> None:
        self.world.at("lead", session.name)
        self.world.boxes[session.container].led = True
        self.world.at("lead", session.name, "after")

    def jupyter(self, session: Session) -> Jupyter:
        return SimulatedJupyter(self.world, session)


def _half(content: Content) -> Content:
    return {path: content[path] for path in list(content)[: len(content) // 2]}
