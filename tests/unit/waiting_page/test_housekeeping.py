"""The tasks beside the waiting page: each goes on whatever becomes of the others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from flows.core.errors import RefitError
from flows.gateway import routes
from flows.waiting_page import housekeeping
from flows.waiting_page.app import WaitingPage
from flows.waiting_page.housekeeping import Housekeeping, knocked_at
from tests.support.waiting import wait_until

TASKS = (
    "restore_routes",
    "end_abandoned_moves",
    "follow_drains",
    "take_snapshots",
    "remove_previous_containers",
)


def test_a_task_that_fails_is_named_and_keeps_no_other_from_its_work(
    waiting_page: WaitingPage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = list[str]()

    def once(task: Callable[[], None], failed: Callable[[Exception], None], **_: float) -> None:
        try:
            task()
        except RefitError as error:
            failed(error)

    def task(name: str) -> Callable[[Housekeeping], None]:
        def work(_: Housekeeping) -> None:
            if name == "take_snapshots":
                raise RefitError("the pool is full")
            done.append(name)

        work.__name__ = name
        return work

    monkeypatch.setattr(housekeeping, "forever", once)
    for name in TASKS:
        monkeypatch.setattr(Housekeeping, name, task(name))
    Housekeeping(waiting_page).start()
    wait_until(lambda: len(done) == len(TASKS) - 1 and bool(caplog.records))
    assert {*done, "take_snapshots"} == {*TASKS}
    (record,) = caplog.records
    assert "take snapshots" in record.getMessage() and "the pool is full" in caplog.text


def test_a_place_that_never_answers_is_seen_by_those_who_wait_there() -> None:
    with socket.socket() as silent, ExitStack() as waiting:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)  # whoever comes after the first is answered nothing
        host, port = silent.getsockname()
        table = {
            "/": routes.WAITING_PAGE,
            "/session/ada": f"http://{host}:{port}",
            "/session/bob": "http://10.0.0.9:8888",
        }
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((host, port))
        wait_until(lambda: knocked_at(table) == ("ada",))
    wait_until(lambda: knocked_at(table) == ())
