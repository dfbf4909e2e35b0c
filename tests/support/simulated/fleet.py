"""A simulated fleet with the real journal, database, registry client and executor around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest.mock import patch

from sqlalchemy import Engine as Database
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session as Transaction

from flows.catalog.model import Access
from flows.core.database import now, open_database
from flows.core.errors import UnknownName
from flows.core.leases import LEASE_SECONDS, Lease
from flows.core.settings import Settings
from flows.core.settings.personal_builds import OWNER_LABEL
from flows.core.settings.policy import RolloutPolicy
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Also, Journal
from flows.migrations.move import Entry, Move, Phase
from flows.migrations.planning.rollout import Action, Decision
from flows.publishing.signatures import PublicationRow
from flows.sessions import own_folder
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import HomeRef, Session, TokenRef
from flows.sessions.store import HomeRow, SessionRow, Store
from tests.support.simulated.engine import SimulatedEngine, SimulatedSessions
from tests.support.simulated.world import GOOD, Image, World, digest
from tests.support.waiting import serving

PROFILE, RELEASE = "jupyter-minimal-deb12-py311", "2026a"
OWN = ("/.cache/",)
ACCESS = Access(port=8888, health="/api", protocol="jupyter", own_paths=OWN)
LATE = ACCESS.model_copy(update={"late_home": True})
# As of VS Code, RStudio or a terminal: nobody can ask it whether anybody has used it.
SILENT = LATE.model_copy(update={"protocol": "none"})
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class MortalJournal(Journal):
    """A process may die before and after each line that it writes, and writes none afterwards."""

    def __init__(self, database: Database, world: World) -> None:
        super().__init__(database)
        self._world = world

    def begin(self, held: Lease, before: Session, *words: object, **more: object) -> Move:
        self._world.at("begin", before.name)
        self._world.consents[before.name] = str(more.get("consent") or "")
        return super().begin(held, before, *words, **more)  # type: ignore[arg-type]

    def write(self, held: Lease, move: Move, entry: Entry, also: Also | None = None) -> None:
        self._world.step = entry.step if entry.phase is Phase.intent else ""
        self._world.at("journal", move.before.name)
        super().write(held, move, entry, also)
        self._world.at("journal", move.before.name, "after")

    def note(self, held: Lease, move: Move, entry: Entry) -> None:
        self._world.at("journal", move.before.name)
        super().note(held, move, entry)
        self._world.at("journal", move.before.name, "after")

    def end(self, held: Lease, move: Move, *words: object, **more: object) -> Move:
        self._world.at("end", move.before.name)
        return super().end(held, move, *words, **more)  # type: ignore[arg-type]


@dataclass
class Fleet:
    """Sessions that are simulated, and what really carries their moves out."""

    settings: Settings
    database: Database
    world: World
    references: dict[str, bytes] = field(default_factory=dict)

    def image(self, name: str, image: Image = GOOD, size: int = 0, maker: str = "") -> str:
        """Publish an image, of which so many bytes have to be pulled, maybe of a person's own; returns its digest."""
        layers = [digest(name.encode())] if size else []
        labels = {"io.refit.profile": PROFILE, "io.refit.release": RELEASE, **({OWNER_LABEL: maker} if maker else {})}
        config = json.dumps({"config": {"Labels": labels}, "rootfs": {"diff_ids": layers}}).encode()
        described = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config)}
        document = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": described | {"size": len(config)},
            "layers": [{"mediaType": _LAYER, "digest": layer, "size": size} for layer in layers],
            "annotations": {"name": name},
        }
        manifest = json.dumps(document).encode()
        new = digest(manifest)
        self.references |= {digest(config): config, new: manifest, f"{PROFILE}_{RELEASE}": manifest}
        self.world.images[new] = image
        # Another process of this fleet may do the same just now.
        with suppress(IntegrityError), Transaction(self.database) as transaction, transaction.begin():
            row = PublicationRow(digest=new, profile=PROFILE, release=RELEASE, key="of the fleet", at=now())
            transaction.merge(row)
        return new

    def add(self, number: int, image: str, access: Access = ACCESS) -> Session:
        """A session that runs, in whose home somebody worked."""
        name, store = f"s{number}", Store(self.database)
        token, uids = self._token(), self.settings.session_uids
        made = store.add(name, lambda uid: self._session(number, image, uid, token, access), uids=uids)
        store.want(name, True)
        self.adopt(made)
        return made

    def fill(self, number: int, image: str) -> None:
        """Add so many sessions at once."""
        first, token, at = self.settings.session_uids.first, self._token(), now()
        made = [self._session(each, image, first + each, token) for each in range(number)]
        with Transaction(self.database) as transaction, transaction.begin():
            homes = [{"name": one.name, "uid": one.uid, "created": at} for one in made]
            transaction.execute(insert(HomeRow), homes)
            rows = [{"name": one.name, "spec": one.to_json(), "should_run": True, "created": at} for one in made]
            transaction.execute(insert(SessionRow), rows)
        for session in made:
            self.adopt(session)

    def _session(self, number: int, image: str, uid: int, token: TokenRef, access: Access = ACCESS) -> Session:
        name, late = f"s{number}", access.late_home
        own_folder.ssh(self.settings, name).mkdir(parents=True, exist_ok=True)  # else root makes it, for 10 ms each
        return Session(name, PROFILE, RELEASE, image, uid, self.home(name), token, access, late_home=late)

    def _token(self) -> TokenRef:
        token = self.settings.folder("sessions") / "token"
        token.touch()
        return TokenRef(str(token))

    def adopt(self, session: Session) -> None:
        """Let a session that is on record run in this world, and somebody work in it."""
        engine = SimulatedEngine(self.world)
        with self.world.person():
            for homes in (self.world.homes, self.world.owed):
                homes.setdefault(str(session.home), {})
            self.world.uids[str(session.home)] = session.uid
            engine.create(session)
            engine.start(session.container)
            self.world.boxes[session.container].led = True
            for text in ("notes", "results", "a notebook"):
                self.world.work(session.name, text)
            self.world.boxes[session.container].used = False

    def home(self, name: str) -> HomeRef:
        return HomeRef(str(self.settings.home / "homes" / name))

    @property
    def sessions(self) -> SimulatedSessions:
        return SimulatedSessions(self.settings, self.world, self.database)

    @property
    def journal(self) -> Journal:
        return Journal(self.database)

    def executor(self) -> MoveExecutor:
        """A process that has just begun."""
        self.world.alive = True
        return MoveExecutor(self.settings, self.sessions, MortalJournal(self.database, self.world))

    def to(self, session: Session, image: str, **more: object) -> Decision:
        return Decision(session.name, Action.migrate, session.image, image, **more)  # type: ignore[arg-type]

    def generation(self, name: str) -> int | None:
        with suppress(UnknownName):
            return Store(self.database).session(name).generation
        return None

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Inside the `with` block, flows find these sessions in the place of Podman's."""

        def opened(settings: Settings, database: Database | None = None) -> Sessions:
            return SimulatedSessions(settings, self.world, database or self.database)

        with patch.object(Sessions, "open", opened):
            yield


@contextmanager
def fleet(
    folder: Path, database_url: str = "", lease_seconds: float = LEASE_SECONDS, **policy: object
) -> Iterator[Fleet]:
    """An empty fleet whose home is `folder`, with a registry that knows its images."""
    references: dict[str, bytes] = {}
    rules = RolloutPolicy.model_validate({"rehearse": False, "scan": False, **policy})

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = references.get(self.path.rpartition("/")[2])
            self.send_response(200 if content is not None or self.path == "/v2/" else 404)
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Content-Length", str(len(content or b"")))
            if content is not None:
                self.send_header("Content-Type", _MANIFEST)
                self.send_header("Docker-Content-Digest", digest(content))
            self.end_headers()
            if content and self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 - so http.server wants it

        def log_message(self, format: str, *args: object) -> None: ...

    with serving(Answer) as port:
        place = {"home": folder, "registry_port": port, "database_url": database_url, "hub": False}
        # How much memory the machine has left just now changes nothing.
        settings = Settings(
            **place, lease_seconds=lease_seconds, migration=rules, stop_grace_seconds=1.0, warm_memory=0
        )
        new = Fleet(settings, open_database(settings.database), World(), references)
        new.world.current = new.generation
        try:
            yield new
            assert not new.world.violations, new.world.violations
        finally:
            new.database.dispose()


def sizes(world: World) -> Mapping[str, int]:
    """How much of what is there."""
    return {"containers": len(world.boxes), "homes": len(world.homes), "snapshots": len(world.snapshots)}
