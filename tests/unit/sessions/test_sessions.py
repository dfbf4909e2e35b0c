"""Decisions about sessions without Podman: names, records, uids, labels, what a cell said."""

from __future__ import annotations

import json
import pwd
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from flows.catalog.model import Access
from flows.core.database import open_database
from flows.core.errors import RefitError, UnknownName
from flows.core.settings import Settings
from flows.core.settings.spans import Span
from flows.sessions import engines
from flows.sessions.containers.podman_records import as_container, labels
from flows.sessions.homes.copying import described
from flows.sessions.homes.pool import read_size
from flows.sessions.homes.space_reservation import SPARE, lacking
from flows.sessions.ide import jupyter
from flows.sessions.ide.jupyter import Jupyter, JupyterError
from flows.sessions.model import Container, HomeRef, IllegalName, Running, Session, TokenRef, check_name, nearest_legal
from flows.sessions.recovery import recover, without_record
from flows.sessions.store import Exhausted, NameTaken, Store
from tests.support.processes import in_a_process
from tests.support.simulated.fleet import fleet
from tests.support.waiting import PATIENCE

UIDS = Span(first=300_000, last=300_099)


def session(name: str = "ana", uid: int = 300_000) -> Session:
    access = Access(port=8888, health="/api", page="/lab?token={token}", protocol="jupyter", own_paths=(".cache/",))
    home, token = HomeRef(f"/homes/{name}"), TokenRef(f"/sessions/{name}/token")
    return Session(name, "p", "2026a", "sha256:1", uid, home, token, access, {"COLOUR": "blue"})


def maker(name: str) -> Callable[[int], Session]:
    return lambda uid: session(name, uid)


def add(store: Store, name: str, uids: Span = UIDS, avoid: tuple[int, ...] = ()) -> Session:
    return store.add(name, maker(name), uids=uids, avoid=avoid)


@pytest.fixture
def database(tmp_path: Path) -> Engine:
    return open_database(f"sqlite:///{tmp_path / 'refit.db'}")


@pytest.fixture
def store(database: Engine) -> Store:
    return Store(database)


def box(name: str, generation: int, running: Running) -> Container:
    made = replace(session(name), generation=generation)
    return Container(made.container, name, generation, made.image, running, made)


@pytest.mark.parametrize(
    ("states", "first"),
    [
        ((Running.running, Running.created), 1),
        ((Running.running, Running.running), 1),  # the new one waits for the home
        ((Running.stopped, Running.running), 2),
        ((Running.stopped, Running.created), 1),
    ],
)
def test_of_a_move_that_was_cut_short_the_container_is_the_session_that_has_its_home(
    states: tuple[Running, Running], first: int
) -> None:
    containers = [box("ana", number, state) for number, state in enumerate(states, 1)]
    [family] = without_record([*containers, box("bob", 1, Running.running)], {"bob"})
    assert [one.generation for one in family] == [first, 3 - first]
    [family] = without_record([containers[0], replace(containers[1], warm=True)], ())
    assert [one.generation for one in family] == [1, 2]
    unreadable = replace(containers[0], made_from=None)
    assert without_record([unreadable, containers[1]], ())[0] == (containers[1], unreadable)


@pytest.mark.slow
def test_sessions_whose_records_are_lost_are_recorded_again_as_they_are(tmp_path: Path) -> None:
    with fleet(tmp_path / "home") as simulated:
        ada, bob, cyd = (simulated.add(number, simulated.image("old")) for number in (1, 2, 3))
        sessions = simulated.sessions
        with simulated.world.person():
            sessions.stop(bob.name)
            sessions.remove(cyd.name)
        for lost in (ada, bob, cyd):
            sessions.store.forget(lost.name)
            sessions.store.forget_home(lost.name)
        told = [(one.session, one.runs, one.problem) for one in recover(sessions)]
        assert told == [(ada.name, True, ""), (bob.name, False, ""), (cyd.name, False, "")]
        assert sessions.store.find(ada.name) == (ada, True) and sessions.store.find(bob.name) == (bob, False)
        assert sessions.store.homes() == {each.name: each.uid for each in (ada, bob, cyd)} and recover(sessions) == ()
        assert simulated.executor().carry_out(simulated.to(ada, simulated.image("new"))).moved


def test_nobody_gets_back_what_belongs_to_another_by_now(store: Store) -> None:
    add(store, "ana")
    with pytest.raises(NameTaken):
        store.bring_back(session("ana"), should_run=True)
    with pytest.raises(RefitError, match="belongs to another"):
        store.bring_back(session("bob"), should_run=True)
    store.forget("ana")
    with pytest.raises(RefitError, match="belongs to another"):
        store.bring_back(session("ana", uid=300_050), should_run=True)
    store.bring_back(session("ana"), should_run=True)
    assert store.find("ana") == (session("ana"), True)


@pytest.mark.parametrize("name", ["", "Ana", "1st", "a_b", "a/b", "..", "-a", "a b", "a\n", "ä", "a" * 41])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(IllegalName):
        check_name(name)


@given(st.text(max_size=60))
def test_the_nearest_legal_name_is_legal_and_a_legal_one_is_its_own_nearest(name: str) -> None:
    near = nearest_legal(name)
    assert near == "" or check_name(near) == near
    assert nearest_legal(near) == near


def test_a_session_survives_its_json() -> None:
    assert Session.from_json(session().to_json()) == session()
    with pytest.raises(ValueError, match="name"):
        Session.from_json("{}")


def test_a_token_stands_in_records_as_in_those_of_before() -> None:
    """Containers go on that were made when it was a path of this machine, and so does what reads their labels."""
    written = json.loads(session().to_json())
    assert written["token_file"] == "/sessions/ana/token" and "token_ref" not in written
    assert Session.from_json(json.dumps(written)).token_ref == "/sessions/ana/token"


@pytest.mark.parametrize(
    ("engine", "token"), [("podman", "{home}/sessions/ana/token"), ("kubernetes", "refit-token-ana")]
)
def test_a_token_is_called_as_its_keeper_calls_it(tmp_path: Path, engine: str, token: str) -> None:
    settings = Settings(home=tmp_path, engine=engine)  # type: ignore[arg-type]
    keeper = engines.tokens(settings)
    assert keeper.token_of("ana") == token.format(home=tmp_path)
    with pytest.raises(IllegalName):
        keeper.token_of("../ana")


def test_a_container_is_known_by_its_labels() -> None:
    listed = {"Names": ["refit-ana-1"], "State": "exited", "Labels": labels(session())}
    container = as_container(listed)
    assert (container.name, container.session, container.generation) == ("refit-ana-1", "ana", 1)
    assert (container.image, container.running, container.made_from) == ("sha256:1", Running.stopped, session())
    assert container.started is None is as_container({**listed, "StartedAt": -62135596800}).started
    assert as_container({**listed, "StartedAt": 1795280400}).started == datetime(2026, 11, 21, 17, tzinfo=UTC)


def test_a_container_of_another_version_of_refit_is_seen_all_the_same() -> None:
    written = {**labels(session()), "io.refit.spec": '{"name": "ana", "colour": "blue"}'}
    assert as_container({"Names": ["x"], "State": "running", "Labels": written}).made_from is None


def test_a_record_is_kept_changed_and_forgotten(store: Store) -> None:
    made = add(store, "ana")
    assert store.sessions() == (made,)
    assert store.intents() == frozenset()
    store.want("ana", True)
    moved = session("ana", made.uid)
    store.update(moved)
    assert (store.session("ana"), store.intents()) == (moved, {"ana"})
    store.forget("ana")
    store.forget("ana")
    assert (store.sessions(), store.homes()) == ((), {"ana": made.uid})
    store.forget_home("ana")
    assert store.homes() == {}


def test_a_name_can_be_taken_or_mistyped(store: Store) -> None:
    add(store, "ana")
    with pytest.raises(NameTaken):
        add(store, "ana")
    with pytest.raises(UnknownName) as missing:
        store.session("anna")
    assert "Did you mean 'ana'?" in str(missing.value)


def test_a_home_that_is_kept_keeps_its_uid_and_nobody_else_gets_it(store: Store) -> None:
    first = add(store, "ana")
    store.forget("ana")
    assert add(store, "ben").uid != first.uid
    assert add(store, "ana").uid == first.uid


def test_uids_of_the_host_and_of_homes_without_a_record_are_left_alone(store: Store) -> None:
    somebody = max(pwd.getpwall(), key=lambda entry: entry.pw_uid % 60_000).pw_uid
    assert add(store, "ana", Span(first=somebody, last=somebody + 2), avoid=(somebody + 1,)).uid == somebody + 2


def test_when_no_uid_is_left_the_setting_is_named(store: Store) -> None:
    add(store, "ana", Span(first=300_000, last=300_000))
    with pytest.raises(Exhausted, match="Every uid") as exhausted:
        add(store, "ben", Span(first=300_000, last=300_000))
    assert "session_uids" in str(exhausted.value)


def _add_some(url: str, number: int, start: object) -> None:
    store = Store(open_database(url))
    start.wait()  # type: ignore[attr-defined]
    for count in range(5):
        add(store, f"s{number}-{count}")


@pytest.mark.slow
def test_processes_that_allocate_at_once_never_get_the_same(database: Engine) -> None:
    start, url = get_context("fork").Barrier(4), str(database.url)
    processes = [in_a_process(partial(_add_some, url, number, start)) for number in range(4)]
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * 4
    made = Store(database).sessions()
    assert len({one.uid for one in made}) == 20


def test_what_rsync_itemises_is_said_in_words() -> None:
    items = [
        ">f+++++++++ new.txt",
        ">fc.t...... two words.txt",
        "*deleting   gone.txt",
        ".d...p..... ./",
        "cd+++++++++ .local/",
        "cd+++++++++ .local/share/",
        "cd+++++++++ other/",
    ]
    assert described(items, [".local/share/jupyter/"]) == (
        "new: new.txt",
        "changed: two words.txt",
        "gone: gone.txt",
        "changed: ./",
        "new: other/",
    )


def reply(kind: str, **content: object) -> dict[str, object]:
    return {"header": {"msg_type": kind}, "content": content}


def test_what_a_cell_says_ends_with_idle() -> None:
    replies = [
        reply("status", execution_state="busy"),
        reply("stream", name="stdout", text="printed\n"),
        reply("execute_result", data={"text/plain": "42"}),
        reply("status", execution_state="idle"),
        reply("stream", name="stdout", text="too late"),
    ]
    assert jupyter.output(iter(replies)) == "printed\n42\n"
    with pytest.raises(JupyterError, match="exception") as raised:
        jupyter.output(iter([reply("error", ename="NameError", evalue="x")]))
    assert "NameError: x" in str(raised.value)


def test_a_notebook_is_plain_nbformat() -> None:
    written = json.loads(json.dumps(jupyter.notebook(["a", "b"])))
    assert [(cell["source"], cell["cell_type"]) for cell in written["cells"]] == [("a", "code"), ("b", "code")]
    assert (written["nbformat"], len({cell["id"] for cell in written["cells"]})) == (4, 2)


@pytest.fixture
def broken_server() -> Iterator[str]:
    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_waiting_says_what_the_last_answer_was(broken_server: str) -> None:
    with pytest.raises(JupyterError, match=r"within 1 s") as late:
        jupyter.wait_answer(broken_server, 1)
    assert "It answers 503." in str(late.value)


@pytest.mark.slow
def test_waiting_ends_with_what_is_waited_for(broken_server: str) -> None:
    with pytest.raises(JupyterError, match="Nothing is ready") as ended:
        jupyter.wait_answer(broken_server, 60, alive=lambda: False)
    assert "has ended" in str(ended.value)


@pytest.fixture
def server_that_is_gone() -> Iterator[str]:
    """As of a container that has ended: a connection isn't even refused."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as others:
        address = listener.getsockname()
        with suppress(OSError):  # until no more of them find room to wait
            while True:
                others.enter_context(socket.create_connection(address, timeout=0.2))
        yield f"http://{address[0]}:{address[1]}"


@pytest.mark.slow
def test_waiting_ends_where_nobody_says_that_the_server_is_gone(server_that_is_gone: str) -> None:
    with pytest.raises(JupyterError, match="Nothing is ready") as ended:
        jupyter.wait_answer(server_that_is_gone, 60, alive=lambda: False)
    assert "has ended" in str(ended.value)


@pytest.mark.slow
def test_a_server_that_takes_its_time_to_say_whether_it_was_used_is_not_waited_for(server_that_is_gone: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # it takes up connections, and never answers
        for url in (server_that_is_gone, f"http://127.0.0.1:{mute.getsockname()[1]}"):
            with pytest.raises(JupyterError, match="doesn't answer"):
                Jupyter(url, "token").used(limit=0.2)


def test_a_server_that_is_not_there_is_an_error_without_its_token(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RefitError, match="doesn't answer") as absent:
        Jupyter(f"http://127.0.0.1:{port}", "my-token").used()
    assert "my-token" not in str(absent.value)


@pytest.mark.parametrize(
    ("home", "free", "missing"),
    [(0, SPARE, 0), (0, SPARE - 1, 1), (1000, SPARE + 1100, 0), (1000, SPARE + 1000, 100), (2**40, 0, None)],
)
def test_a_snapshot_needs_the_size_of_the_home_a_tenth_and_something_to_spare(
    home: int, free: int, missing: int | None
) -> None:
    assert lacking(home, free) == (home + home // 10 + SPARE if missing is None else missing)


@pytest.mark.parametrize(("text", "size"), [("50 GB", 50 * 10**9), ("1.5GiB", 1_610_612_736)])
def test_the_size_of_a_pool_is_a_number_with_its_unit(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "50", "GB", "-1 GB", "0 GB", "5 TB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(RefitError, match="no size"):
        read_size(text)
