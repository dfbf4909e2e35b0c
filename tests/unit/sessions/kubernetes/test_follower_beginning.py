"""Questions while the objects of a namespace are listed for the first time: a run with many sessions waits for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import httpx2
import pytest

from flows.sessions.kubernetes import follower as module
from flows.sessions.kubernetes.follower import Follower
from flows.sessions.kubernetes.manifests import KIND, SESSION
from flows.sessions.kubernetes.refusals import ClusterError
from tests.support.waiting import PATIENCE, wait_until

_NAMES = ("ada", "grace", "mary")


class Server:
    """A record of each session, which is told once `goes_on`; or a refusal in its place."""

    def __init__(self) -> None:
        self.asked, self.goes_on, self.refuses = Event(), Event(), False

    def page(self, resource: str, **params: str) -> dict[str, Any]:
        self.asked.set()
        self.goes_on.wait()
        if self.refuses:
            raise ClusterError("Refused.")
        labels = [{KIND: "record", SESSION: name} for name in _NAMES]
        items = [{"metadata": {"name": each[SESSION], "labels": each, "resourceVersion": "7"}} for each in labels]
        return {"metadata": {"resourceVersion": "7"}, "items": items}

    def stream(self, resource: str, **params: str) -> Any:
        Event().wait()  # nothing changes; the thread goes with its process


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.goes_on.set()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(len(_NAMES)) as pool:
        yield pool


def asked_by_all(follower: Follower, threads: ThreadPoolExecutor) -> list[Future[tuple[Any, ...] | None]]:
    return [threads.submit(follower.of, "configmaps", name) for name in _NAMES]


def be_patient(monkeypatch: pytest.MonkeyPatch, *, page: float = PATIENCE) -> None:
    """Wait for a list, and so long for each page of it."""
    monkeypatch.setattr(module, "_PAGE_SECONDS", page)
    monkeypatch.setattr(module, "_LIST_SECONDS", PATIENCE)


@pytest.fixture
def follower(server: Server, monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(module, "_ENOUGH", len(_NAMES))
    be_patient(monkeypatch)
    made = Follower(server)
    for name in _NAMES[1:]:
        assert made.of("configmaps", name) is None
    return made


def test_moves_of_many_are_answered_by_the_list(
    server: Server, follower: Follower, threads: ThreadPoolExecutor
) -> None:
    answers = asked_by_all(follower, threads)
    assert server.asked.wait(PATIENCE)
    assert not any(answer.done() for answer in answers)
    server.goes_on.set()
    assert [[one["metadata"]["name"] for one in answer.result(PATIENCE) or ()] for answer in answers] == [
        [name] for name in _NAMES
    ]


def test_a_list_that_is_refused_lets_all_go_on_by_themselves(
    server: Server, follower: Follower, threads: ThreadPoolExecutor
) -> None:
    server.refuses = True
    answers = asked_by_all(follower, threads)
    assert server.asked.wait(PATIENCE)
    server.goes_on.set()
    assert [answer.result(PATIENCE) for answer in answers] == [None] * len(_NAMES)


def test_a_list_that_takes_too_long_is_not_waited_for(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE_SECONDS", 0.05)
    assert follower.of("configmaps", "ada") is None


def test_many_questions_wait_for_a_slow_list_no_longer_than_one(
    server: Server, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE_SECONDS", 0.05)
    assert follower.of("configmaps", "ada") is None
    monkeypatch.setattr(module, "_PAGE_SECONDS", 3600.0)
    answers = SimpleQueue[object]()
    Thread(target=lambda: answers.put(follower.of("configmaps", "grace")), daemon=True).start()
    assert answers.get(timeout=PATIENCE) is None
    assert not server.goes_on.is_set()


def test_a_move_of_one_session_alone_waits_for_no_list(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ENOUGH", 2)
    follower = Follower(server)
    assert [follower.of("configmaps", "ada") for _ in range(4)] == [None] * 4
    assert server.asked.wait(PATIENCE)
    server.goes_on.set()
    wait_until(lambda: follower.of("configmaps", "ada") is not None)


def test_questions_for_a_third_session_are_those_of_a_run(server: Server) -> None:
    follower = Follower(server)
    assert [follower.of("configmaps", name) for name in ("ada", "grace", "ada", "grace")] == [None] * 4
    assert not server.asked.is_set()
    server.goes_on.set()
    (record,) = follower.of("configmaps", "mary") or ()
    assert record["metadata"]["name"] == "mary"


class Pages(Server):
    """A server whose list has two pages; the second one is told once it `goes_on`. `forgets`: at the first watch."""

    def __init__(self, before_it: Callable[[], None]) -> None:
        super().__init__()
        self._before_it, self.forgets = before_it, False
        self.second = SimpleQueue[bool]()

    def page(self, resource: str, **params: str) -> dict[str, Any]:
        if "continue" not in params:
            self._before_it()
            return {"metadata": {"resourceVersion": "7", "continue": "there is more"}, "items": []}
        self.second.put(True)
        return super().page(resource, **params)

    @contextmanager
    def stream(self, resource: str, **params: str) -> Iterator[httpx2.Response]:
        if not self.forgets:
            Event().wait()
        self.forgets = False
        self.goes_on.clear()
        yield httpx2.Response(410)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """A server of thousands: nobody would wait for the first page, and everybody waits for the next one."""
    be_patient(monkeypatch, page=0.0)
    made = Pages(lambda: be_patient(monkeypatch))
    yield made
    made.goes_on.set()


def begun(pages: Pages) -> Follower:
    """A follower whose list has come to its second page."""
    follower = Follower(pages)
    for name in _NAMES:
        follower.of("configmaps", name)
    pages.second.get(timeout=PATIENCE)
    return follower


def test_a_list_is_waited_for_as_long_as_its_pages_come(pages: Pages, threads: ThreadPoolExecutor) -> None:
    answers = asked_by_all(begun(pages), threads)
    pages.goes_on.set()
    assert all(answer.result(PATIENCE) for answer in answers)


def test_a_list_that_is_made_anew_is_waited_for_as_well(pages: Pages, threads: ThreadPoolExecutor) -> None:
    follower, pages.forgets = begun(pages), True
    pages.goes_on.set()
    pages.second.get(timeout=PATIENCE)  # the server had forgotten what came after the first list
    answers = asked_by_all(follower, threads)
    pages.goes_on.set()
    assert all(answer.result(PATIENCE) for answer in answers)


def test_a_list_whose_pages_never_end_is_waited_for_no_longer_than_a_list(
    pages: Pages, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_page(resource: str, **params: str) -> dict[str, Any]:
        more = {} if pages.goes_on.wait(0.01) else {"continue": "there is more"}
        return {"metadata": {"resourceVersion": "7", **more}, "items": []}

    be_patient(monkeypatch)
    monkeypatch.setattr(module, "_LIST_SECONDS", 0.2)
    monkeypatch.setattr(pages, "page", another_page)
    follower = Follower(pages)
    for name in _NAMES:
        follower.of("configmaps", name)
    assert [answer.result(PATIENCE) for answer in asked_by_all(follower, threads)] == [None] * len(_NAMES)
    assert not pages.goes_on.is_set()
