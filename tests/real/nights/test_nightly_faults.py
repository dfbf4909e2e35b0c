"""Nights for real that fail in part, are killed, or meet another one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from flows.core.programs import command
from flows.host import tools
from flows.images.builder.workspace import mounts
from flows.images.registry import Registry
from tests.support.nights import NEEDS, Scene, ended, made, new, news, profile, report, runs
from tests.support.package_index import write_page
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.long


def digests(night: Any) -> dict[str, str]:
    return {image["profile"]: image["digest"] for image in report(night)["images"]}


def test_a_profile_that_fails_stops_no_other_and_is_told(
    scene: Scene, prefect: httpx.Client, first: Any, tmp_path: Path
) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001b")
    scene.custom("one", "RUN echo the reason >&2; exit 7\n")
    scene.custom("two", "ENV BUNDLE=two\n")
    before = len(scene.told)
    night = scene.night(exit_code=1)
    assert list(night["failures"]) == [f"{profile('one')} of 2001b"]
    assert new(night) == {profile("two")}
    run = runs(prefect, "nightly")[0]
    assert run["state_type"] == "FAILED" and "1 new image, 0 unchanged, 1 failed" in run["state"]["message"]
    [message] = scene.told[before:]
    assert (
        "nightly failed" in message["title"] and "the reason" in message["message"] and run["id"] in message["message"]
    )


def test_a_lock_that_conflicts_stays_as_it_was_and_others_go_on(scene: Scene, settled: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001c")
    before = scene.night()
    locks = {path: path.read_bytes() for path in scene.catalog.glob("bundles/*-two/py311/*")}
    gone = scene.index / "cow" / "cow-1.0-py3-none-any.whl"
    content = gone.read_bytes()
    gone.unlink()
    try:
        with news(scene, "cow", "2.0", ["ant>=2"]), news(scene, "ant", "2.0"), news(scene, "elk", "2.0"):
            night = scene.night(exit_code=1)
    finally:
        gone.write_bytes(content)
        write_page(gone.parent)
    assert list(night["failures"]) == ["lock of two py311"]
    assert "contradict each other" in night["failures"]["lock of two py311"]
    assert {lock["bundle"]: lock["change"] for lock in night["locks"]} == {"one": "elk 1.0 → 2.0", "two": ""}
    assert {path: path.read_bytes() for path in locks} == locks
    assert made(night) == ["one-deb12-py311", profile("one")] and new(night) == {profile("one")}
    assert digests(night)[profile("two")] == digests(before)[profile("two")]
    [image] = night["releases"][0]["news"]
    assert image["packages"] == "elk 1.0 → 2.0"


@contextmanager
def gate() -> Iterator[tuple[int, Event, Event]]:
    """A server whose answers wait: its port, whether somebody has asked, and what lets everybody pass."""
    asked, opened = Event(), Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.set()
            opened.wait(PATIENCE)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, asked, opened
    finally:
        opened.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_after_a_kill_only_what_is_missing_is_made(scene: Scene, first: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001d")
    registry = Registry(scene.settings)
    alias = f"{profile('one')}_2001d"
    with gate() as (port, asked, opened):
        ask = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}')"
        scene.custom("one", f"ENV PORT={port}\n")
        scene.custom("two", f'RUN python3 -c "{ask}"\n')
        process = scene.start()
        wait_until(asked.is_set)
        wait_until(lambda: registry.digest(registry.repository, alias))
        process.kill()
        process.communicate()
        opened.set()
        night = scene.night()
    assert made(night) == ["two-custom-deb12-py311", profile("two")]
    assert new(night) == {profile("two")}
    assert command.run([*tools.buildah(scene.settings), "containers", "--quiet"], root=True).stdout == ""
    assert mounts(scene.settings) == ()


def test_two_nights_at_once_do_each_thing_once(scene: Scene, settled: Any, tmp_path: Path) -> None:
    scene = scene.with_catalog(tmp_path / "catalog", "2001e")
    for bundle in NEEDS:
        scene.custom(bundle, f"RUN sleep 2; echo {tmp_path.name} > /opt/mark\n")
    with news(scene, "elk", "3.0"), ThreadPoolExecutor() as pool:
        nights = list(pool.map(ended, [scene.start(), scene.start()]))
    assert sorted(made(nights[0]) + made(nights[1])) == sorted(
        ["one-deb12-py311", *(f"{b}-custom-deb12-py311" for b in NEEDS), *map(profile, NEEDS)]
    )
    assert sorted([*new(nights[0]), *new(nights[1])]) == sorted(map(profile, NEEDS))
    assert sorted(len(night["locks"]) for night in nights) == [0, 1]
