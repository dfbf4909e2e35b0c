"""Is anybody at work? Real programs in a real session, one row each; every row is looked at more than once.

A row that is busy has to be so at the first look; one that isn't may need a moment until its programs have started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest

from flows.catalog import load
from flows.catalog.model import Access, Catalog, Profile
from flows.core.settings import Settings
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Stage
from flows.sessions.activity.probes import ProbeSpec, Watch, probe, ready_to_look
from flows.sessions.activity.seen import Seen
from flows.sessions.activity.verdict import judge
from flows.sessions.lifecycle import Sessions
from tests.support.activity import jupyter, programs, rest
from tests.support.activity.room import BUSY, IDLE, Room, Row
from tests.support.machine import build_all
from tests.support.variants import JUPYTER, LIGHT, light, variant
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until

TOOLS = ("curl", "dbus", "dirmngr", "gcc", "gdb", "gnupg", "gpg-agent", "libc6-dev", "make", "python3-pylsp", "rsync")
# The work of images by themselves, now and then; every row has it.
SLEEPER = "(while sleep 2; do date >/dev/null; done) &"
LOOKS = 2
ROWS = (*programs.ROWS, *jupyter.ROWS, *rest.ROWS)


@pytest.fixture(scope="module")
def plain(shared: Settings, registry: Registry, base: Built) -> Iterator[Room]:
    """A light session, for the quick rows."""
    yield from _room(
        shared, light(shared, registry, base, "rows", SLEEPER.removesuffix("&") + "& true"), "plain", LIGHT
    )


@pytest.fixture(scope="module")
def full(
    shared: Settings, registry: Registry, builder: Builder, catalog: Catalog, assembler: Assembler
) -> Iterator[Room]:
    """A session with JupyterLab and the programs that people work with."""
    top = _with_tools(builder, assembler, load.profile(catalog, "2026a", "jupyter-minimal-deb12-py311"))
    start = ["sh", "-c", f"{SLEEPER} exec start-jupyter"]
    image = variant(shared, registry, top.digest, f"{shared.repository}/stages", "rows", start)
    yield from _room(shared, image, "full", JUPYTER)


@pytest.fixture(scope="module", params=["terminal", "vscode"])
def other(
    request: pytest.FixtureRequest,
    shared: Settings,
    registry: Registry,
    builder: Builder,
    catalog: Catalog,
    assembler: Assembler,
) -> Iterator[Room]:
    """A session with another IDE, and the same programs."""
    first, ide = load.profile(catalog, "2026a", "jupyter-minimal-deb12-py311"), catalog.ides[request.param]
    top = _with_tools(builder, assembler, replace(first, stem=f"{ide.name}-minimal-deb12-py311", ide=ide))
    image = variant(shared, registry, top.digest, f"{shared.repository}/stages", f"rows-{ide.name}")
    yield from _room(shared, image, ide.name, ide.config.access)


def _with_tools(builder: Builder, assembler: Assembler, profile: Profile) -> Built:
    with_tools = replace(profile, bundle=replace(profile.bundle, name="tools", packages=TOOLS))
    chain = assembler.chain(profile)
    tools: Stage = assembler.chain(with_tools)[1]
    above = replace(tools, name=f"{profile.stem}-tools", parent=chain[-1].name, text=f"USER 0\n{tools.text}")
    return build_all(builder, (*chain, above))[-1]


def _room(settings: Settings, image: str, name: str, access: Access) -> Iterator[Room]:
    sessions = Sessions.open(settings)
    session = sessions.create(name, "jupyter-minimal-deb12-py311", "2026a", image, access)
    yield Room(settings, sessions, session, ExitStack())
    sessions.remove(name, purge=True)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[] if row.quick else [pytest.mark.long]) for row in ROWS]
)
def test_row(request: pytest.FixtureRequest, row: Row) -> None:
    room: Room = request.getfixturevalue("plain" if row.quick else "full")
    try:
        check(room, row)
    finally:
        room.clear()


@pytest.mark.long
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name) for row in ROWS if isinstance(row.start, str) and not row.jupyter]
)
def test_row_beside_another_ide(other: Room, row: Row) -> None:
    try:
        check(other, row)
    finally:
        other.clear()


@pytest.mark.long
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
def test_row_on_a_busy_machine(full: Room, row: Row) -> None:
    burn = [sys.executable, "-c", "while True: pass"]  # each in a session, or they would share what one gets
    burners = [subprocess.Popen(burn, start_new_session=True) for _ in range(os.cpu_count() or 1)]
    try:
        check(full, row)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        full.clear()


def check(room: Room, row: Row) -> None:
    if isinstance(row.start, str):
        # A reader that waits for output waits for the last that might write some.
        room.run(f"exec >/dev/null 2>&1\n{textwrap.dedent(row.start)}")
    else:
        row.start(room)
    wait_until(lambda: room.is_so(row.until))
    said = list[str]()

    def agrees() -> bool:
        seen = room.probe(row.quiet)
        said.append("\n".join(map(str, seen.evidence)))
        return seen.verdict is row.says and any(row.because in text for text in seen.reasons)

    def agree() -> bool:
        return all(agrees() for _ in range(LOOKS))

    if row.says is BUSY:
        assert agree(), said[-1]
        return
    try:
        # A program that wakes up, and waits for a core that the machine has lost, is one that computes for a moment.
        wait_until(agree)
    except AssertionError as error:
        error.add_note(said[-1])
        raise


def answers(room: Room) -> bool:
    try:
        return httpx.get(f"{room.url}/api", **{**PATIENTLY, "timeout": 1}).status_code == 200
    except httpx.TransportError:
        return False


def watch_of(room: Room) -> Watch:
    return Watch(room.settings.model_copy(update={"idle_minutes": 0.0}), room.sessions.engine)


def stays_if_busy(seen: Seen) -> str:
    return "; ".join(map(str, seen.evidence)) if seen.verdict is BUSY else ""


def test_nobody_gets_in_after_the_last_look_at_an_idle_session(plain: Room) -> None:
    session = plain.session
    with httpx.Client(**{**PATIENTLY, "timeout": 1}) as connected:
        assert connected.get(f"{plain.url}/api", timeout=PATIENCE).status_code == 200
        # A look that takes too long, on a machine that gets nothing done for a while, opens it again.
        wait_until(lambda: not watch_of(plain).look_last(session, stays_if_busy))
        try:
            assert not answers(plain)
            with pytest.raises(httpx.TimeoutException):
                connected.get(f"{plain.url}/api")
        finally:
            plain.sessions.start(session.name)  # what its owner would do, had a move been killed just then
        wait_until(lambda: answers(plain))


def test_a_busy_session_is_open_again_at_once_and_what_was_sent_meanwhile_arrives(plain: Room) -> None:
    plain.run("sleep 900 >/dev/null 2>&1 &")
    try:
        with ThreadPoolExecutor() as pool:
            last = pool.submit(watch_of(plain).look_last, plain.session, stays_if_busy)
            sent = 0
            while not last.done():
                httpx.get(f"{plain.url}/api", **PATIENTLY).raise_for_status()
                sent += 1
        assert "sleep 900" in last.result()
        assert sent
        wait_until(lambda: answers(plain))
    finally:
        plain.clear()


def test_f14_what_cant_be_looked_at_is_busy(plain: Room) -> None:
    gone = replace(plain.session, name="gone")
    assert probe(plain.sessions.engine, gone, 0).verdict is BUSY
    hurried = probe(plain.sessions.engine, plain.session, 0, ProbeSpec(seconds=5, limit=0.5))
    assert hurried.verdict is BUSY and "nobody could look" in hurried.reasons[0]


def test_looks_are_remembered_and_change_nothing(plain: Room) -> None:
    watch = watch_of(plain)
    looks = [watch.look(plain.session) for _ in range(3)]
    assert {seen.verdict for seen in looks} == {IDLE} and looks[0].since == looks[2].since
    plain.run("sleep 900 >/dev/null 2>&1 &")
    try:
        working = [watch.look(plain.session) for _ in range(2)]
    finally:
        plain.clear()
    wait_until(lambda: watch.look(plain.session).verdict is IDLE)  # what was ended is reaped soon
    rested = watch.look(plain.session)
    assert working[0].since == working[1].since > looks[2].since
    assert rested.since > working[0].since and rested.may_interrupt and not working[1].may_interrupt


@pytest.mark.long
def test_to_ask_jupyter_is_no_activity(full: Room) -> None:
    def last_activity() -> object:
        url = f"{full.url}/api/status?no_track_activity=1"
        return httpx.get(url, headers=full.headers, **PATIENTLY).json()["last_activity"]

    try:
        full.cell("answer = 42")
        before = last_activity()
        for _ in range(LOOKS):
            assert "answer (int)" in full.probe().reasons[0]
        assert last_activity() == before
    finally:
        full.clear()


def test_looks_at_the_same_time_know_each_other(plain: Room) -> None:
    with ready_to_look(plain.sessions.engine, plain.session) as look:
        wait_until(lambda: plain.probe().verdict is IDLE)
        wait_until(lambda: judge(look(), quiet=0).verdict is IDLE)
