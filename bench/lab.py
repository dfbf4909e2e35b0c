"""A machine for sessions with JupyterLab in them, and a client that sees when one of them is away."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

from flows import services
from flows.catalog import load
from flows.catalog.model import Profile
from flows.core.settings import Settings
from flows.core.settings.policy import RolloutPolicy
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.locks import system
from flows.migrations.executor import MoveExecutor
from flows.migrations.move_steps import State
from flows.migrations.planning.rollout import Action, Decision
from flows.migrations.results import Result
from flows.publishing.publish import push_labelled
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import Session
from tests.support.machine import FIRST, private_home, serve_registry
from tests.support.variants import sign, variant
from tests.support.waiting import free_port, wait_until

ROOT = Path(__file__).parents[1]
RELEASE = "2026a"
GATEWAY = ("gateway", "waiting-page")
EVERY_SECONDS = 0.05
ANSWER_SECONDS = 1.0
SEEN_SECONDS = 60.0


@dataclass(frozen=True)
class Lab:
    """Sessions, and the image of a profile to make others of."""

    settings: Settings
    sessions: Sessions
    profile: Profile
    origin: str

    def image(self, name: str, command: Sequence[str] = ()) -> str:
        """Digest of an image that is the profile's but for a label, and maybe what it starts."""
        registry, repository = Registry(self.settings), self.settings.repository
        return variant(self.settings, registry, self.origin, repository, name, command, _labels(self.profile))

    def create(self, name: str, patience: float = 1.0) -> Session:
        """A session that runs and is ready; `patience`: how many times `ready_timeout_seconds` it may need."""
        access = self.profile.ide.config.access.model_copy(update={"patience": patience})
        return self.sessions.create(name, self.profile.stem, self.profile.release, self.origin, access)

    def move(self, name: str, image: str, *, agreed: bool = False) -> Result:
        """Let a session be moved to an image, as soon as nothing works in it; at once if its owner has agreed."""
        decision = Decision(name, Action.migrate, self.sessions.store.session(name).image, image, agreed=agreed)
        until = time.monotonic() + SEEN_SECONDS
        while True:
            result = MoveExecutor.open(self.settings).carry_out(decision)
            if result.state is not State.deferred or time.monotonic() > until:  # it has still to do with its start
                return result


@contextmanager
def machine(images: Path | None = None, **settings: object) -> Iterator[Settings]:
    """A home in which nothing is, and a registry; `settings` are other ones than those by default.

    The images of a registry that were kept as `images` are in this one, too.
    """
    with tempfile.TemporaryDirectory(prefix="refit-bench-") as folder:
        registry = Path(folder, "registry")
        if images:
            shutil.copytree(images, registry / "images")
        with (
            serve_registry(registry) as server,
            private_home(Path(folder) / "home", server.port, **settings) as private,
        ):
            yield private


@cache
def _images() -> Path:
    """The registry's folder with the stages of the catalog's first image: built once for all benchmarks of a run, from
    the images that tests have kept, if there are any.
    """
    kept = Path(tempfile.mkdtemp(prefix="refit-bench-"))
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    before = Path(os.environ.get("REFIT_TEST_IMAGES", ""), "images")
    with machine(before if before.is_absolute() and before.is_dir() else None) as private:
        deque(built(private), maxlen=0)
        shutil.copytree(private.home.parent / "registry" / "images", kept / "images")
    return kept / "images"


@contextmanager
def lab(**settings: object) -> Iterator[Lab]:
    """Such a machine with the gateway in front of its sessions, and the catalog's first image on it."""
    gateway = {"gateway": True, "gateway_port": free_port(), "gateway_api_port": free_port()}
    chosen = {"migration": RolloutPolicy(), **gateway, **settings}
    with machine(_images(), **chosen) as private:
        profile, top = _profile(), [*built(private)][-1]
        image, labels = push_labelled(Registry(private), profile, top), (profile.stem, profile.release)
        sign(
            private, Registry(private), image, dict(zip(("io.refit.profile", "io.refit.release"), labels, strict=True))
        )
        services.up(private, only=GATEWAY)
        try:
            yield Lab(private, Sessions.open(private), profile, image.digest)
        finally:
            services.down(private)


def _labels(profile: Profile) -> dict[str, str]:
    return {"io.refit.profile": profile.stem, "io.refit.release": profile.release}


def built(settings: Settings) -> Iterator[Built]:
    """The stages of that image, its base first, each built when it is asked for."""
    builder, below = Builder(settings, Registry(settings)), None
    assembler = Assembler(load.load_catalog(ROOT), partial(system.resolve, settings=settings))
    for stage in assembler.chain(_profile()):
        below = builder.build(stage, below)
        yield below


def _profile() -> Profile:
    return load.profile(load.load_catalog(ROOT), RELEASE, FIRST)


@dataclass(frozen=True)
class Answer:
    """The server that answered, told by when it started, and when it did (seconds since the epoch)."""

    server: str
    at: float


class Client:
    """Somebody who looks every 50 ms whether a Jupyter server is there, from a process of their own."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._answers = pipe, list[Answer]()

    def answers(self) -> list[Answer]:
        """All answers so far."""
        self._pipe.send("what has answered since?")
        self._answers += self._pipe.recv()
        return self._answers

    def back(self) -> float:
        """When another server than the first answered for the first time, which is waited for."""
        wait_until(self._others, SEEN_SECONDS)
        return self._others()[0].at

    def away(self) -> float:
        """For how many seconds nothing answered between the first server and the next, which is waited for."""
        back = self.back()
        return back - max(answer.at for answer in self._answers if answer.server == self._answers[0].server)

    def _others(self) -> list[Answer]:
        seen = self.answers()
        return [answer for answer in seen if answer.server != seen[0].server]


@contextmanager
def client(url: str, token: str) -> Iterator[Client]:
    """Let a server be looked at inside the `with` block, which begins when it has answered."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_look, args=(url, token, theirs), daemon=True)
    process.start()
    try:
        result = Client(ours)
        wait_until(result.answers, SEEN_SECONDS)
        yield result
    finally:
        process.terminate()
        process.join()


def _look(url: str, token: str, pipe: Connection) -> None:
    asyncio.run(_look_again_and_again(url, token, pipe))


async def _look_again_and_again(url: str, token: str, pipe: Connection) -> None:
    # A new connection each time, and no question waits for another: the answer is the state of now.
    options = {"timeout": ANSWER_SECONDS, "limits": httpx.Limits(max_keepalive_connections=0), "trust_env": False}
    headers = {"Authorization": f"token {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, **options) as asking:  # type: ignore[arg-type]
        questions, answers = set[asyncio.Task[None]](), list[Answer]()
        while True:
            question = asyncio.create_task(_ask(asking, answers))
            questions.add(question)
            question.add_done_callback(questions.discard)
            await asyncio.sleep(EVERY_SECONDS)
            if pipe.poll():  # unasked, a pipe that nobody reads would be full after some seconds
                pipe.recv()
                pipe.send(answers)
                answers.clear()


async def _ask(asking: httpx.AsyncClient, answers: list[Answer]) -> None:
    try:
        answer = await asking.get("/api/status?no_track_activity=1")
        answers.append(Answer(answer.raise_for_status().json()["started"], time.time()))
    except (httpx.HTTPError, ValueError, KeyError):  # nobody is there, or somebody else
        return
