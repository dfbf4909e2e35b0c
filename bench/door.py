"""A thousand requests a second of 200 people through the gateway: the cost of knowing who they are."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from bench.results import Row
from flows import services
from flows.core.settings import Settings
from flows.gateway import routes
from flows.gateway.proxy import NODE, Gateway
from flows.web.authorizer import passes
from tests.support.machine import private_home
from tests.support.people import People, people_alone
from tests.support.waiting import free_port, wait_until

PEOPLE, RATE, SECONDS, ROUNDS = 200, 1000, 5, 6
MOST = 1.1
# The Hub tells of rights as they change, and the authorizer looks each second: that is a part of what logins cost.
_SERVICES = ("gateway", "authorizer", "hub")
# Where other programs have the cores, the waiting page answers some in the place of the IDE.
MOST_FAILED = 0.01
_REQUESTS = str(Path(__file__).with_name("requests.mjs"))


@dataclass(frozen=True)
class Round:
    """Milliseconds of CPU for a request, by service, and the median of how long it took."""

    cpus: dict[str, float]
    latency: float

    @property
    def cpu(self) -> float:
        """Of all services."""
        return sum(self.cpus.values())


def run() -> list[Row]:
    """1,000 requests a second of 200 people through the gateway, with logins and without, in turns."""
    with ExitStack() as stack:
        ides = stack.enter_context(_ide())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refit-door-")))
        people = stack.enter_context(people_alone(folder / "with"))
        cookies = _logged_in(people, ides)
        open_to_all = stack.enter_context(_without(folder / "without", ides))
        ours, plain = list[Round](), list[Round]()
        for _ in range(ROUNDS):
            ours.append(_measured(people.hub.settings, cookies, _SERVICES))
            plain.append(_measured(open_to_all, cookies, ("gateway",)))
    apart = {f"{name} with": median(one.cpus[name] for one in ours) for name in _SERVICES}
    return [
        _row("CPU for a request", [one.cpu for one in ours], [one.cpu for one in plain], apart),
        _row("median of a request's time", [one.latency for one in ours], [one.latency for one in plain]),
    ]


def _row(what: str, ours: list[float], plain: list[float], apart: Mapping[str, float] | None = None) -> Row:
    name = f"gateway with logins, {PEOPLE} people, {RATE:,} requests a second: {what}"
    taken, without = median(ours), median(plain)
    return Row(
        name,
        "ms",
        "≤ 110 % of the time without",
        taken,
        taken <= MOST * without,
        {"gateway without": without, **(apart or {})},
    )


@contextmanager
def _ide() -> Iterator[list[str]]:
    """An IDE for each person, each at an address of its own."""
    port = free_port()
    with subprocess.Popen([NODE, _REQUESTS, "serve", str(port), str(PEOPLE)]) as ide:
        try:
            yield [f"http://127.0.1.{number + 1}:{port}" for number in range(PEOPLE)]
        finally:
            ide.kill()


@contextmanager
def _without(folder: Path, ides: list[str]) -> Iterator[Settings]:
    """The gateway of a home without a Hub."""
    ports = {"gateway_port": free_port(), "gateway_api_port": free_port()}
    with private_home(folder, free_port(), gateway=True, **ports) as settings:
        try:
            services.up(settings, only=("gateway", "waiting-page"))
            wait_until(lambda: routes.COMPLETE in (Gateway(settings).table() or {}))
            for number, ide in enumerate(ides):
                Gateway(settings).route(_session(number), ide)
            yield settings
        finally:
            services.down(settings)


def _session(number: int) -> str:
    return f"p{number}"


def _logged_in(people: People, ides: list[str]) -> list[str]:
    """Cookies of people with a session each."""
    hub = people.hub
    admin = hub.person("root", "--admin")
    key = (hub.settings.home / "services/authorizer/key").read_text()
    cookies = []
    for number, ide in enumerate(ides):
        name = _session(number)
        admin.api("POST", f"/users/{name}")
        login = admin.api("POST", f"/users/{name}/tokens").json()["id"]
        people.session(name, name, url=ide)
        cookies.append(f"{passes.PASS}={passes.seal(key, passes.PASS, 3600, person=name, login=login)}")
    return cookies


def _measured(settings: Settings, cookies: list[str], of: tuple[str, ...]) -> Round:
    urls = [f"{settings.gateway_url}{routes.path(_session(number))}/api" for number in range(PEOPLE)]
    asked = json.dumps({"urls": urls, "cookies": cookies, "rate": RATE, "seconds": SECONDS})
    before = _cpus(settings, of)
    told = json.loads(
        subprocess.run([NODE, _REQUESTS, "ask"], input=asked, text=True, capture_output=True, check=True).stdout
    )
    if told["failed"] > MOST_FAILED * told["asked"]:
        raise SystemExit(f"{told['failed']} of {told['asked']} requests failed: {told['reasons']}")
    after = _cpus(settings, of)
    cpus = {name: 1000 * (after[name] - before[name]) / told["asked"] for name in of}
    return Round(cpus, median(told["milliseconds"]))


def _cpus(settings: Settings, of: tuple[str, ...]) -> dict[str, float]:
    """Seconds of CPU that each of these services has taken so far."""
    pids = {state.name: state.pid for state in services.status(settings) if state.name in of and state.pid}
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    return {name: one.user + one.system for name, one in times.items()}
