"""A session in a cluster that moves between images with a small web server, and what must hold of it afterwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flows.catalog.model import Access, Resources
from flows.core.database import open_database
from flows.core.settings import Settings
from flows.core.settings.cluster import ClusterSettings, Snapshots
from flows.core.settings.policy import RolloutPolicy
from flows.images.registry import Registry
from flows.migrations.executor import MoveExecutor
from flows.migrations.journal import Journal
from flows.migrations.move import Phase
from flows.migrations.move_steps import FINAL, State
from flows.migrations.recovery import recover_all
from flows.sessions import engines
from flows.sessions.kubernetes import manifests
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Running, Session
from tests.support import cluster_images, variants
from tests.support.cluster import NAMESPACE, REGISTRY, kubectl
from tests.support.cluster_images import SERVER
from tests.support.moving import check_no_gap
from tests.support.processes import in_a_process
from tests.support.waiting import wait_until

NAME = "ada"
_UID = 300_000
_numbers = itertools.count(1)
_PROFILE, _RELEASE = "light-minimal-deb12-py311", "2026a"
_FURNISH = 'mkdir -p "a folder" && echo data >"a folder/data.csv" && echo "x = 1" >work.py && ln -s ../work.py link'
_FILES = """
import hashlib, json, os, sys
there = {}
for folder, below, names in os.walk("/home/dev"):
    below[:] = [name for name in below if name not in sys.argv[1:]]
    for name in names:
        path = os.path.join(folder, name)
        link = os.path.islink(path)
        text = os.readlink(path).encode() if link else open(path, "rb").read()
        status = os.lstat(path)
        there[path] = [oct(status.st_mode), status.st_uid, hashlib.sha256(text).hexdigest()]
print(json.dumps(there, sort_keys=True))
"""


@dataclass(frozen=True)
class ClusterScene:
    """The session `ada` on one of two images that work; `bad` is one whose server ends at once.

    Folders of the home that are called as one of `own` are the IDE's.
    """

    settings: Settings
    sessions: Sessions
    journal: Journal
    good: tuple[str, str]
    bad: str
    own: tuple[str, ...] = ()

    @property
    def other(self) -> str:
        """A good image that the session is not on."""
        now = self.sessions.store.session(NAME).image
        return next(image for image in self.good if image != now)

    def renewed(self, image: str) -> str:
        """An image of its own that is the given one but for a label.

        Kubelet waits longer before each new start of a container with the same image, up to five minutes.
        """
        registry, repository = Registry(self.settings), self.settings.repository
        return variants.variant(self.settings, registry, image, repository, f"renewed {next(_numbers)}")

    def files(self) -> object:
        """Every file of the home with what must survive."""
        return json.loads(self.sessions.execute(NAME, ["python3", "-c", _FILES, *self.own]))

    def pods(self, kind: str = "session") -> list[str]:
        """The Pods of a kind, by name."""
        return kubectl("get", "pods", "-l", f"io.refit.kind={kind}", "-o", "name").split()

    def check(self, state: State, image: str, files: object) -> None:
        """One generation runs, the recorded one, ready, with the home; of its last move only the history is left."""
        move = self.journal.latest()[NAME]
        assert move.state is state, move.reason
        session = self.sessions.store.session(NAME)
        assert session.image == image
        # The watch of this process may tell a moment later what another one has removed.
        wait_until(lambda: len(self.sessions.engine.containers(NAME)) == 1)
        (container,) = self.sessions.engine.containers(NAME)
        assert container.made_from == session and container.running is Running.running and not container.warm
        self.sessions.wait_ready(session)
        assert self.files() == files
        assert len(self.pods()) == 1 and not self.pods("trial") and not self.pods("pull")
        assert not self.journal.unfinished()
        for each in self.journal.history(NAME):
            assert each.state in FINAL
            check_no_gap(self.journal.entries(each))

    def was_interrupted(self) -> bool:
        """Whether its last move was."""
        entries = self.journal.entries(self.journal.latest()[NAME])
        return Phase.interrupted in {entry.phase for entry in entries}

    def resume(self) -> None:
        """Bring all moves to their ends, in a process of its own, as the next run does."""
        process = in_a_process(lambda: recover_all(MoveExecutor.open(self.settings)))
        process.join()
        assert process.exitcode == 0


def settings_for_cluster(home: Path, **more: object) -> Settings:
    """Settings of a Refit whose sessions run in the cluster of these tests."""
    home.mkdir(mode=0o700, exist_ok=True)
    chosen = {
        "engine": "kubernetes",
        "kubernetes": ClusterSettings(namespace=NAMESPACE, home_gb=1, snapshots=Snapshots.none),
        "registry": REGISTRY,
        "registry_tls": False,
        "gateway": False,
        "migration": RolloutPolicy(rehearse=False, keep_hours=0),
        "stop_grace_seconds": 5.0,
        "ready_timeout_seconds": 30.0,
        "rehearsal_memory": 0.5,
        **more,
    }
    return Settings(home=home, **chosen)  # type: ignore[arg-type]


@contextmanager
def running(
    settings: Settings, name: str, image: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Session]:
    """A session of an image that runs inside the `with` block, on record nowhere."""
    engine, homes, tokens = engines.engine(settings), engines.homes(settings), engines.tokens(settings)
    parts = (name, "p", "2026a", image, _UID, homes.make(name, _UID), tokens.token_of(name))
    session = Session(*parts, SERVER, dict(environment))
    tokens.make(session)
    engine.create(session)
    engine.start(session.container)
    yield session
    engine.stop(session.container, grace=1)
    engine.remove(session.container)
    tokens.forget(name)
    homes.remove(name)


@contextmanager
def cluster_scene(
    folder: Path,
    *,
    late: bool,
    first: str = ":",
    bad: str = "exit 3",
    resources: Resources = Resources(),  # noqa: B008 - it is frozen
    **more: object,
) -> Iterator[ClusterScene]:
    """Such a session in the cluster that runs.

    Its images run `first`, shell text, as soon as they have the home, and the one that fails runs `bad` then.
    """
    settings = settings_for_cluster(folder / "refit", **more)
    kind = "late-" if late else ""
    one, two, failing = (
        cluster_images.push(f"{kind}{name}", f"{first}; {then}", folder, late=late)
        for name, then in {"server-one": ":", "server-two": ":", "server-bad": bad}.items()
    )
    registry = Registry(settings)
    for digest in (one, two, failing):
        variants.sign(settings, registry, registry.manifest(settings.repository, digest), {})
    access = cluster_images.LATE_SERVER if late else cluster_images.SERVER
    with session_between(settings, _PROFILE, access, (one, two), failing, resources=resources) as scene:
        yield scene


@contextmanager
def session_between(
    settings: Settings,
    profile: str,
    access: Access,
    good: tuple[str, str],
    bad: str,
    own: tuple[str, ...] = (),
    resources: Resources = Resources(),  # noqa: B008 - it is frozen
    owner: str = "",
) -> Iterator[ClusterScene]:
    """The session with some files in its home, on the first of these images, which are in the registry and signed."""
    sessions, journal = Sessions.open(settings), Journal(open_database(settings.database))
    sessions.create(NAME, profile, _RELEASE, good[0], access, resources=resources, owner=owner)
    try:
        sessions.execute(NAME, ["sh", "-euc", f"cd /home/dev; {_FURNISH}"])
        yield ClusterScene(settings, sessions, journal, good, bad, own)
    finally:
        sessions.remove(NAME, purge=True)
        give_up_namespace()


def give_up_namespace() -> None:
    """Let the next Refit have the namespace of these tests."""
    kubectl("delete", "configmap", manifests.OWNER, "--ignore-not-found")
