"""Kubernetes keeps the contract of engines on a real cluster; and what only a cluster can be asked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flows.catalog.model import Access
from flows.core.errors import RefitError
from flows.sessions.kubernetes import isolation, manifests
from flows.sessions.kubernetes.cluster import Cluster
from flows.sessions.kubernetes.engine import Kubernetes
from flows.sessions.model import HomeRef, Running, Session, TokenRef
from tests.support.cluster import Lab, kubectl
from tests.support.engine_contract import EngineContract
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long]
_numbers = itertools.count(1)
TOKEN = "a-token-of-this-test"


class Door:
    """The way in, as far as the engine needs it: it remembers where it leads."""

    def __init__(self) -> None:
        self.leads: dict[str, str] = {}

    def route_to_waiting_page(self, session: str) -> str:
        return self.leads.pop(session, "")

    def route(self, session: str, target: str) -> None:
        self.leads[session] = target


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def engine(cluster: Lab, door: Door) -> Kubernetes:
    return Kubernetes(cluster.options, cluster.configuration, door, Path)


@pytest.fixture
def session(cluster: Lab, engine: Kubernetes) -> Iterator[Session]:
    number = next(_numbers)
    name, home = f"contract-{number}", HomeRef(f"refit-home-contract-{number}")
    access = Access(port=8888, late_home=True)
    session = Session(name, "p", "2026a", cluster.images["one"], 300_000 + number, home, TokenRef("token"), access)
    asked = Cluster(cluster.options)
    cluster.claim(home)
    asked.create("secrets", manifests.token(session, cluster.options, TOKEN))
    yield session
    for container in engine.containers(name):
        engine.stop(container.name, grace=1)
        engine.remove(container.name)
    asked.delete("persistentvolumeclaims", home)
    asked.delete("secrets", manifests.secret(session.name))


@pytest.fixture
def another_home(cluster: Lab, session: Session) -> Iterator[HomeRef]:
    name = f"{session.home}-more"
    cluster.claim(name)
    yield HomeRef(name)
    Cluster(cluster.options).delete("persistentvolumeclaims", name)


@pytest.fixture
def running(engine: Kubernetes, session: Session) -> Session:
    engine.create(session)
    engine.start(session.container)
    return session


def pods(session: Session) -> list[dict[str, object]]:
    return list(json.loads(kubectl("get", "pods", "-l", f"io.refit.session={session.name}", "-o", "json"))["items"])


class TestKubernetes(EngineContract):
    def test_programs_run_as_the_sessions_user(self, engine: Kubernetes, running: Session) -> None:
        assert engine.execute(running.container, ["id", "-u"]) == f"{running.uid}\n"
        assert engine.execute(running.container, ["cat"], stdin="as it came\n") == "as it came\n"
        with engine.dialogue(running.container, ["cat"]) as ask:
            assert (ask("one"), ask("two")) == ("one\n", "two\n")
        with pytest.raises(RefitError, match="exit code 3"):
            engine.execute(running.container, ["sh", "-c", "exit 3"])
        with pytest.raises(RefitError, match="more than 100 bytes"):
            engine.execute(running.container, ["sh", "-c", "while :; do echo more; done"], most=100)
        with pytest.raises(RefitError, match="longer than 1 s"):
            engine.execute(running.container, ["sleep", "60"], limit=1)

    def test_a_move_stays_in_the_pod_and_leaves_the_other_slot_alone(
        self, engine: Kubernetes, running: Session, cluster: Lab
    ) -> None:
        engine.execute(running.container, ["sh", "-c", "echo kept >/home/dev/notes"])
        after = replace(running, generation=2, image=cluster.images["two"])
        engine.pull(after.image)
        engine.create(after)
        engine.warm(after, wait=False)
        seen = {each.generation: (each.running, each.warm) for each in engine.containers(running.name)}
        assert seen == {1: (Running.running, False), 2: (Running.running, True)}
        engine.stop(running.container, grace=5)
        engine.start(after.container)
        assert engine.execute(after.container, ["cat", "/home/dev/notes", "/etc/word"]) == "kept\ntwo\n"
        (pod,) = pods(running)
        assert {each["name"]: each["restartCount"] for each in pod["status"]["containerStatuses"]} == {"a": 0, "b": 1}  # type: ignore[index]
        engine.stop(after.container, grace=5)  # and back
        engine.start(running.container)
        assert engine.execute(running.container, ["cat", "/etc/word"]) == "one\n"

    def test_a_session_is_kept_apart_before_its_pod_is_there(
        self, engine: Kubernetes, session: Session, cluster: Lab
    ) -> None:
        def blocks() -> list[str]:
            told = json.loads(kubectl("get", "networkpolicy", isolation.NAME, "-o", "json"))
            return [peer["ipBlock"]["cidr"] for peer in told["spec"]["ingress"][0]["from"] if "ipBlock" in peer]

        for cidrs in (("10.99.0.1/32",), ("10.99.0.0/24", "192.0.2.0/24")):
            options = replace(cluster.options, gateways=cidrs)
            Kubernetes(options, cluster.configuration, Door(), Path).create(session)
            assert blocks() == [*cidrs] and pods(session) == []
        kubectl("delete", "networkpolicy", isolation.NAME, isolation.OF_TRIALS)

    def test_a_program_that_ends_by_itself_is_seen_to_have_ended(self, engine: Kubernetes, running: Session) -> None:
        with suppress(RefitError):  # the connection may end with the container
            engine.execute(running.container, ["sh", "-c", "kill -KILL -1"])
        wait_until(lambda: engine.containers(running.name)[0].running is Running.stopped)
        wait_until(lambda: "one is running" in engine.logs(running.container))
        engine.start(running.container)
        assert engine.execute(running.container, ["true"]) == ""

    def test_one_that_is_started_as_soon_as_its_program_has_ended_is_known_where_it_runs(
        self, engine: Kubernetes, running: Session
    ) -> None:
        for _ in range(2):  # kubelet waits longer each time
            before = {each.container for pod in engine._placement.pods(running.name) for each in pod.slots}
            with suppress(RefitError):  # as above
                engine.execute(running.container, ["sh", "-c", "kill -KILL -1"])
            engine.start(running.container)

            def is_told(before: set[str] = before) -> bool:
                seen = {each.container for pod in engine._placement.pods(running.name) for each in pod.slots}
                return "" not in seen and seen != before

            wait_until(is_told)
            assert engine.containers(running.name)[0].running is Running.running
            assert engine.execute(running.container, ["true"]) == ""

    def test_an_engine_that_was_taken_for_dead_does_nothing_more(self, engine: Kubernetes, running: Session) -> None:
        engine.execute(running.container, ["sh", "-c", "touch /run/refit/slots/a/leases/9"])
        with pytest.raises(RefitError, match="out of date"):
            engine.stop(running.container, grace=1)
        assert engine.containers(running.name)[0].running is Running.running
        engine.execute(running.container, ["rm", "/run/refit/slots/a/leases/9"])

    def test_what_somebody_changes_in_a_pod_is_named(self, engine: Kubernetes, running: Session, cluster: Lab) -> None:
        assert engine.by_hand(running) == ()
        other = cluster.options.reference(cluster.images["two"])
        kubectl("set", "image", f"pod/{running.container}", f"a={other}")
        assert engine.by_hand(running) == ("image of slot a",)

    def test_the_token_is_nowhere_but_in_its_file(self, engine: Kubernetes, running: Session) -> None:
        assert engine.execute(running.container, ["cat", "/run/refit/token"]) == TOKEN
        assert TOKEN not in json.dumps(pods(running))
