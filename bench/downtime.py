"""JupyterLab gets a new image: for how long is it away?

All start from images that are on the machine already, and the client is the same. Refit rehearses each move and looks
whether anybody works in the session; the others do neither.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles

from bench.lab import Lab, client, lab
from bench.results import Row
from flows.core.programs import command
from flows.host import tools
from flows.images.registry import Registry
from flows.sessions.containers.podman_options import TOKEN_FILE
from flows.sessions.model import HOME
from tests.support.waiting import free_port

MOVES = 15
MIDDLE, SLOW = 1.0, 2.5  # seconds
BUSY_SLOW = 3.0  # seconds, where others compute on all cores
OTHERS_PER_CORE = 2
COMPUTES = "while True: pass"
AUTO_UPDATE, BY_HAND = "podman auto-update's pull, stop, rm, run", "podman stop, rm, run"
WHY_NOT = "not measured, it restarts units of systemd, and this machine's are not to be touched"

Way = tuple[str, str, Callable[[str], None]]
"""Where JupyterLab answers, its token, and what brings it onto the image with a digest."""


def run() -> list[Row]:
    """JupyterLab gets a new image, seen by a client that asks every 50 ms: Refit, and Podman by itself."""
    seconds = _measured()
    return rows(seconds.pop("refit"), seconds)


def run_busy() -> list[Row]:
    """The same with a terminal open, while others compute on all cores: two programs for each."""
    seconds = _measured(terminal=True, others=OTHERS_PER_CORE * (os.cpu_count() or 1))
    ours, peers = seconds.pop("refit"), {peer: slow(taken) for peer, taken in seconds.items()}
    what = f"downtime of a JupyterLab session while {OTHERS_PER_CORE} other programs compute on each core: p95"
    taken = slow(ours)
    return [Row(what, "s", f"p95 ≤ {BUSY_SLOW:g} s", taken, taken <= BUSY_SLOW, peers, {"podman auto-update": WHY_NOT})]


@contextmanager
def _others(number: int) -> Iterator[None]:
    """Programs that compute and do nothing else, each in a session of its own, as those of other people are."""
    with ExitStack() as running:
        for _ in range(number):
            computes = subprocess.Popen([sys.executable, "-c", COMPUTES], start_new_session=True)
            running.callback(computes.wait)
            running.callback(computes.kill)
        yield


def _measured(*, terminal: bool = False, others: int = 0) -> dict[str, list[float]]:
    """By what a session gets a new image → for how many seconds it was away each time."""
    with lab(gateway_port=free_port(), gateway_api_port=free_port()) as machine:
        images = (machine.origin, machine.image("the next"))
        for image in images:
            machine.sessions.engine.pull(image)
        ways = {"refit": _by_refit(machine, terminal=terminal), AUTO_UPDATE: _plain(machine, "pulls", pull=True)}
        ways[BY_HAND] = _plain(machine, "by-hand", pull=False)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        with _others(others):
            for number in range(MOVES):  # in turn, so that what else the machine does is everybody's burden
                for name, (url, token, update) in ways.items():
                    with client(url, token) as somebody:
                        update(images[(number + 1) % 2])
                        seconds[name].append(somebody.away())
    return seconds


def rows(ours: list[float], peers: Mapping[str, list[float]]) -> list[Row]:
    """The rows about the seconds for which sessions were away."""
    what = (
        f"downtime of a JupyterLab session with staged image, {len(ours)} moves, seen by a client polling every 50 ms"
    )
    results = []
    for name, limit, figure in (("p50", MIDDLE, median), ("p95", SLOW, slow)):
        taken = figure(ours)
        others = {peer: figure(seconds) for peer, seconds in peers.items()}
        goal = f"{name} ≤ {limit:g} s"
        results.append(
            Row(f"{what}: {name}", "s", goal, taken, taken <= limit, others, {"podman auto-update": WHY_NOT})
        )
    return results


def slow(seconds: list[float]) -> float:
    """The value that one in twenty exceeds."""
    return quantiles(seconds, n=20, method="inclusive")[-1]


def _by_refit(machine: Lab, *, terminal: bool) -> Way:
    """One in which a terminal is open counts as used, so that its owner has to agree."""
    session = machine.create("refit")
    if terminal:
        machine.sessions.jupyter(session).open_terminal("1")

    def update(image: str) -> None:
        result = machine.move(session.name, image, agreed=terminal)
        if not result.moved:
            raise SystemExit(f"{session.name} was not moved: {result.reason}")

    return machine.sessions.url(session), machine.sessions.token(session), update


def _plain(machine: Lab, name: str, *, pull: bool) -> Way:
    """A container that is Podman's alone; home and token are those of a session that is stopped."""
    session, settings, port = machine.create(name), machine.settings, free_port()
    machine.sessions.stop(name)
    repository = f"{settings.registry_host}/{settings.repository}"
    options = [
        *("--detach", "--replace", "--name", name, "--init", "--user", f"{session.uid}:0"),
        *tools.run_limits(settings),
        *("--publish", f"127.0.0.1:{port}:{session.access.port}", "--env", f"REFIT_TOKEN_FILE={TOKEN_FILE}"),
        *("--mount", f"type=bind,src={session.home},dst={HOME}"),
        *("--mount", f"type=bind,src={session.token_ref},dst={TOKEN_FILE},ro"),
    ]

    def podman(*words: str) -> None:
        command.run([*tools.podman(settings), *words], root=True)

    def update(image: str) -> None:
        _point(name, image, machine)
        if pull:
            podman("pull", "--quiet", "--tls-verify=false", f"{repository}:{name}")
        podman("stop", name)
        podman("rm", "--force", name)
        podman("run", *options, f"{repository}:{name}" if pull else f"{repository}@{image}")

    podman("run", *options, f"{repository}@{machine.origin}")
    return f"http://127.0.0.1:{port}", machine.sessions.token(session), update


def _point(tag: str, image: str, machine: Lab) -> None:
    """Let a tag name an image, as whoever publishes a new one does."""
    registry, repository = Registry(machine.settings), machine.settings.repository
    manifest = registry.manifest(repository, image)
    registry.put_manifest(repository, tag, manifest.content, manifest.media_type)
