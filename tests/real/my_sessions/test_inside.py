"""The `refit` command inside of a session, for real: it reaches its own session, and no other."""

from __future__ import annotations

import json
import re
import time
from datetime import timedelta

import psutil
import pytest

from flows import services
from flows.core.database import now
from flows.core.programs import command
from flows.core.settings.policy import Mode
from flows.host import tools
from flows.migrations.notifications.notice import Notice
from flows.services import embedded
from flows.services.process import alone, end
from flows.sessions import own_folder
from flows.sessions.history import History
from flows.sessions.homes.folders import folder_of
from flows.sessions.inside import folder
from flows.sessions.inside.folder import COMMAND_INSIDE, INSIDE
from flows.sessions.wishes import PreferenceStore
from flows.web.my_sessions.inside import CONNECTIONS
from tests.support.hub import SERVICES, Hub, Person
from tests.support.my_sessions import api
from tests.support.waiting import PATIENCE, wait_until

CONNECT = f"""
import socket, sys, time
made = []
for _ in range(int(sys.argv[1])):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout({PATIENCE})
    try:
        one.connect({INSIDE + "/socket"!r})
        one.sendall(b"GET /session HTTP/1.1\\r\\nHost: refit\\r\\n\\r\\n" if sys.argv[2] == "ask" else b"GET /ses")
    except OSError:
        continue
    made.append(one)
answers = 0
for one in made if sys.argv[2] == "ask" else []:
    try:
        answers += bool(one.recv(1))
    except OSError:
        pass
print(answers)
time.sleep(float(sys.argv[3]))
"""


ENDLESS_BYTES = 1 << 26
ENDLESS = f"""
import socket
one, piece, sent = socket.socket(socket.AF_UNIX), b"10000\\r\\n" + bytes(0x10000) + b"\\r\\n", 0
one.settimeout({PATIENCE})
try:
    one.connect({INSIDE + "/socket"!r})
    one.sendall(b"POST /session/snooze HTTP/1.1\\r\\nHost: refit\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
    while sent < {ENDLESS_BYTES}:
        one.sendall(piece)
        sent += 0x10000
except OSError:
    pass
print(sent)
"""


def inside(hub: Hub, name: str, *words: str, user: str = "", status: int = 0) -> str:
    """The output of a program in a session, as its user or another."""
    session = hub.sessions.store.session(name)
    as_user = [f"--user={user}"] if user else []
    call = [*tools.podman(hub.settings), "exec", *as_user, session.container, *words]
    done = command.run(call, root=True, accepted=(0, 1, 2), limit=PATIENCE)
    assert done.exit_code == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def reachable(hub: Hub, ada: Person, eve: Person) -> None:
    sessions = [hub.sessions.store.session(name) for name in ("ada", "eve")]
    wait_until(lambda: all((own_folder.api(hub.settings, session.name) / "socket").exists() for session in sessions))


def test_a_session_shows_itself_and_says_when_it_moves(hub: Hub, ada: Person) -> None:
    assert "owner        ada" in inside(hub, "ada", "refit", "session", "show")
    mine = api(ada)

    def tells_the_same() -> bool:
        """Both look by themselves, and some of it is of the moment."""
        told = json.loads(inside(hub, "ada", "refit", "session", "show", "--json"))
        return bool(told == mine("GET", "/sessions/ada").json())

    wait_until(tells_the_same)
    inside(hub, "ada", "refit", "session", "snooze", "3h")
    wish = PreferenceStore(hub.sessions.store.database).of("ada")
    assert wish.snoozed_until and now() + timedelta(hours=2) < wish.snoozed_until < now() + timedelta(hours=4)
    inside(hub, "ada", "refit", "session", "mode", "ask")
    assert PreferenceStore(hub.sessions.store.database).of("ada").mode is Mode.ask
    assert any("from inside" in event.by for event in History(hub.sessions.store.database).events("ada"))


def test_the_commands_of_a_notice_work_in_the_session_that_reads_it(hub: Hub, ada: Person) -> None:
    session = hub.sessions.store.session("ada")
    assert folder.is_there(hub.settings, session.name)
    told = Notice("ada", "sha256:f9", "", (), 60, 15, 8, "at night", None, page="http://hub", command=True).text
    commands = re.findall("`(refit [^`]*)`", told)
    assert len(commands) == told.count("refit session") > 1
    for one in commands:
        inside(hub, "ada", *one.split())
    inside(hub, "ada", "refit", "session", "hold", "--end")


def test_mistakes_are_refused_in_words(hub: Hub, ada: Person) -> None:
    assert "30 days at most" in inside(hub, "ada", "refit", "session", "snooze", "900d", status=1)
    assert "Choose a day" in inside(hub, "ada", "refit", "session", "mode", "pin", status=1)
    assert "no duration" in inside(hub, "ada", "refit", "session", "hold", "long", status=1)


def test_a_hold_is_a_file_in_the_home(hub: Hub, ada: Person) -> None:
    home = folder_of(hub.sessions.store.session("ada").home)
    assert "busy for 2h" in inside(hub, "ada", "refit", "session", "hold", "2h", "a", "long", "run")
    assert (home / ".config/refit/hold").read_text() == "2h a long run\n"
    inside(hub, "ada", "refit", "session", "hold", "--end")
    assert not (home / ".config/refit/hold").exists()


def test_a_session_has_no_other_verb_and_no_way_to_another_session(hub: Hub, ada: Person, eve: Person) -> None:
    ask = "import sys; sys.path[:0] = ['/tmp']; import importlib.machinery as m; c = m.SourceFileLoader('c', "
    ask += f"{COMMAND_INSIDE!r}).load_module(); "
    for method, path in (("POST", "/session/stop"), ("GET", "/sessions/eve"), ("POST", "/sessions/eve/snooze")):
        code = f"{ask}ch = c.Channel('refit'); ch.request({method!r}, {path!r}, '{{}}'); print(ch.getresponse().status)"
        assert inside(hub, "ada", "python3", "-c", code).split()[-1] == "404"
    assert "Read-only" in inside(hub, "ada", "sh", "-c", f"echo changed >{INSIDE}/refit", status=2)
    assert inside(hub, "ada", "ls", INSIDE).split() == ["refit", "socket"]


def test_another_user_of_the_machine_who_gets_at_the_socket_is_not_heard(hub: Hub, ada: Person, eve: Person) -> None:
    other = hub.sessions.store.session("eve").uid
    assert "doesn't answer" in inside(hub, "ada", "refit", "session", "show", user=f"{other}:0", status=1)
    assert "doesn't answer" in inside(hub, "ada", "refit", "session", "show", user="0:0", status=1)


def test_a_session_that_floods_its_socket_keeps_nobody_else_from_the_page(hub: Hub, ada: Person, eve: Person) -> None:
    session = hub.sessions.store.session("eve")
    flood = ["python3", "-c", CONNECT, "200", "hang", str(PATIENCE)]
    call = [*tools.podman(hub.settings), "exec", "--detach", session.container, *flood]
    command.run(call, root=True)
    begun = time.monotonic()
    answered = inside(hub, "eve", "python3", "-c", CONNECT, str(4 * CONNECTIONS), "ask", "0")
    assert int(answered) <= CONNECTIONS
    assert "owner        ada" in inside(hub, "ada", "refit", "session", "show")
    assert api(ada)("GET", "/sessions/ada").status_code == 200
    assert time.monotonic() - begun < PATIENCE


def test_a_body_that_never_ends_is_cut_and_the_page_goes_on(hub: Hub, ada: Person) -> None:
    [page] = [one for one in services.status(hub.settings) if one.name == "my-sessions"]
    before = psutil.Process(page.pid).memory_info().rss
    sent = int(inside(hub, "ada", "python3", "-c", ENDLESS).split()[-1])
    assert sent < ENDLESS_BYTES or psutil.Process(page.pid).memory_info().rss - before < ENDLESS_BYTES
    assert "owner        ada" in inside(hub, "ada", "refit", "session", "show")
    assert api(ada)("GET", "/sessions/ada").status_code == 200


def test_the_socket_comes_back_with_the_page_and_is_no_change_by_hand(hub: Hub, ada: Person) -> None:
    session = hub.sessions.store.session("ada")
    with alone(hub.settings):
        assert end(embedded.my_sessions(hub.settings))
    assert "doesn't answer" in inside(hub, "ada", "refit", "session", "show", status=1)
    services.up(hub.settings, only=SERVICES)
    wait_until(lambda: inside_answers(hub, "ada"))
    assert not [change for change in hub.sessions.engine.by_hand(session) if "api" in change or "bin" in change]


def inside_answers(hub: Hub, name: str) -> bool:
    try:
        return bool(inside(hub, name, "refit", "session", "show"))
    except AssertionError:
        return False
