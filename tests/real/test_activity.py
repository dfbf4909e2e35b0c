"""Is anybody at work? Real programs in a real session, one row each; every row is looked at more than once.

A row that is busy has to be so at the first look; one that isn't may need a moment until its programs have started.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

import httpx
import pytest
from playwright.sync_api import Page
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from flows.catalog import load
from flows.catalog.model import Access, Catalog, Profile
from flows.core.settings import Settings
from flows.host import tools
from flows.images.build import Builder, Built
from flows.images.recipe import Assembler
from flows.images.registry import Registry
from flows.images.stages import Stage
from flows.sessions.activity.evidence import Activity, Verdict
from flows.sessions.activity.probes import ProbeSpec, Watch, probe, ready_to_look
from flows.sessions.activity.seen import Seen
from flows.sessions.activity.verdict import PROBE, judge
from flows.sessions.ide.jupyter import execute_request
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import USER, Session
from tests.support.browser import open_page
from tests.support.machine import build_all
from tests.support.terminal import Terminal
from tests.support.variants import JUPYTER, LIGHT, light, variant
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until

BUSY, STATE, IDLE = Verdict.busy, Verdict.state, Verdict.idle
TOOLS = ("curl", "dbus", "dirmngr", "gcc", "gdb", "gnupg", "gpg-agent", "libc6-dev", "make", "python3-pylsp", "rsync")
# What images do by themselves, now and then; every row has it.
SLEEPER = "(while sleep 2; do date >/dev/null; done) &"
LOOKS = 3

# Ends all but the init, what came with it, and itself.
_CLEAR = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    pid = int(folder.name)
    try:
        if os.getsid(pid) not in (1, os.getsid(0)):
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""
_TIDY = "find ~ -mindepth 1 -maxdepth 1 ! -name '.[ijlc]*' -exec rm -rf {} +; rm -rf /tmp/tmux-* /tmp/ssh-*"


@dataclass
class Room:
    """A session, and a person's hands in it."""

    settings: Settings
    sessions: Sessions
    session: Session
    things: ExitStack

    def run(self, script: str) -> str:
        return self.sessions.engine.execute(self.session.container, ["bash", "-c", textwrap.dedent(script)])

    def is_so(self, condition: str) -> bool:
        return self.run(f"cd; if {{ {condition}; }} >/dev/null 2>&1; then echo so; fi") == "so\n"

    def probe(self, quiet: float = 0.0) -> Activity:
        return probe(self.sessions.engine, self.session, quiet, ProbeSpec(seconds=0.5))

    @property
    def podman(self) -> list[str]:
        return [*([] if os.geteuid() == 0 else ["sudo", "-n"]), *tools.podman(self.settings)]

    def terminal(self, *argv: str) -> Terminal:
        """A person's own terminal, with a program in the session."""
        call = [*self.podman, "exec", "-it", self.session.container, *argv]
        terminal = Terminal([tools.program(call[0]) or call[0], *call[1:]])
        self.things.callback(terminal.close)
        return terminal

    def feed(self, *argv: str, text: str) -> None:
        """Let a program in the session read a text, as `session exec` does, and leave it running."""
        call = [*self.podman, "exec", "-i", self.session.container, *argv]
        program = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.things.callback(program.wait, PATIENCE)
        self.things.callback(program.kill)
        assert program.stdin
        program.stdin.write(text.encode())
        if argv[-1] == "-":
            program.stdin.close()
        else:
            program.stdin.flush()

    def clear(self) -> None:
        """End whatever the row has started."""
        self.things.close()
        self.run("kill -CONT -1")
        if self.session.access.protocol == "jupyter":
            self.sessions.end_kernels(self.session)
        self.sessions.engine.execute(self.session.container, ["python3", "-c", _CLEAR])
        self.run(_TIDY)

    # --- Jupyter

    @property
    def url(self) -> str:
        return self.sessions.direct_url(self.session)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"token {self.sessions.token(self.session)}"}

    def post(self, path: str) -> dict[str, str]:
        answer = httpx.post(f"{self.url}{path}", headers=self.headers, **PATIENTLY).raise_for_status()
        return dict(answer.json())

    def channel(self, path: str) -> Connection:
        url = f"ws{self.url.removeprefix('http')}{path}"
        return connect(url, additional_headers=self.headers, proxy=None, open_timeout=PATIENCE, max_size=None)

    def cell(self, code: str, *, ended: bool = True, stdin: bool = False) -> None:
        """Let a new kernel execute a cell; go away once it has ended, or at once."""
        kernel = self.post("/api/kernels")["id"]
        request = execute_request(textwrap.dedent(code))
        request["content"]["allow_stdin"] = stdin
        with self.channel(f"/api/kernels/{kernel}/channels") as channel:
            channel.send(json.dumps(request))
            wanted = ("input_request",) if stdin else ("execute_reply",) if ended else ("execute_input",)
            while True:
                message = json.loads(channel.recv(timeout=PATIENCE))
                ours = message["parent_header"].get("msg_id") == request["header"]["msg_id"]
                if ours and message["header"]["msg_type"] in wanted:
                    return


def in_tmux(*lines: str) -> str:
    """Shell text that types lines into a terminal that nobody looks at."""
    typed = [f"tmux send-keys -t work -l {shlex.quote(line)}; tmux send-keys -t work Enter" for line in lines]
    return "\n".join(["cd; tmux new-session -d -s work bash", *typed])


def ssh(*words: str) -> str:
    """Shell text that logs in by ssh, as people do from outside."""
    return f"""
        mkdir -p ~/.ssh ~/keys && cd ~/keys && chmod 700 ~/.ssh
        for key in host mine; do ssh-keygen -q -t ed25519 -N '' -f $key; done
        cp mine.pub ~/.ssh/authorized_keys
        /usr/sbin/sshd -f /dev/null -p 2222 -h ~/keys/host -o PidFile=none -o StrictModes=no -o UsePAM=no
        tmux new-session -d -s ssh ssh -p 2222 -i mine -o StrictHostKeyChecking=no 127.0.0.1 {" ".join(words)}
    """


def open_jupyter_terminal(room: Room, *typed: str) -> None:
    """Open a terminal in JupyterLab, type, close the tab."""
    name = room.post("/api/terminals")["name"]
    with room.channel(f"/terminals/websocket/{name}") as channel:
        for line in typed:
            channel.send(json.dumps(["stdin", f"{line}\r"]))
        while "$" not in (said := json.loads(channel.recv(timeout=PATIENCE)))[-1]:
            assert said


def log_in_from_outside(room: Room, *tunnel: str) -> None:
    """Log in by ssh from this machine, through a pipe: no port of the session is open for it."""
    room.run(f"exec >/dev/null 2>&1\n{textwrap.dedent(ssh('true'))}")
    server = "/usr/sbin/sshd -i -f /dev/null -h keys/host -o StrictModes=no -o UsePAM=no"
    way = shlex.join([*room.podman, "exec", "-i", room.session.container, *shlex.split(server)])
    options = ["UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=no", f"ProxyCommand={way}"]
    key = room.settings.home / "key"
    key.touch(0o600)
    key.write_text(room.run("cat ~/keys/mine"))
    how = tunnel or ("-tt",)
    call = ["ssh", *how, "-i", str(key), *(f"-o{option}" for option in options), f"{USER}@session"]
    terminal = Terminal([tools.program(call[0]) or call[0], *call[1:]])
    room.things.callback(terminal.close)
    if not tunnel:
        terminal.wait_for("$")


def open_a_tab(room: Room) -> None:
    """Open JupyterLab in a real browser, with a notebook, and leave it."""
    room.sessions.jupyter(room.session).write_notebook("open.ipynb", ["1 + 1"])
    page = show(room, "open.ipynb")
    page.locator(".jp-Dialog button.jp-mod-accept").click()  # it asks which kernel to start
    kernels = f"{room.url}/api/kernels?token={room.sessions.token(room.session)}"
    wait_until(lambda: httpx.get(kernels, **PATIENTLY).json())


def type_a_text(room: Room) -> None:
    """Type into a text file in JupyterLab, which saves it by itself after two minutes; no kernel knows of it."""
    room.run("cd; echo a >text; touch -d yesterday text")
    page = show(room, "text")
    page.locator(".jp-FileEditor .cm-content").click()
    page.keyboard.type("more")
    page.keyboard.press("Control+s")


def type_without_saving(room: Room) -> None:
    """Type into a text file in JupyterLab that was last saved long ago, and save nothing."""
    room.run("cd; echo a >text; touch -d yesterday text; rm -f .local/share/jupyter/heartbeat")
    page = show(room, "text")
    page.locator(".jp-FileEditor .cm-content").click()
    page.keyboard.type("more")


def show(room: Room, path: str) -> Page:
    """JupyterLab in a real browser, with a document."""
    page = room.things.enter_context(open_page())
    page.goto(f"{room.url}/lab/tree/{path}?token={room.sessions.token(room.session)}")
    return page


@dataclass(frozen=True)
class Row:
    """A situation and its verdict.

    Attributes:
        start: what makes it: shell text, or what is done to the room.
        until: shell condition that says it is so.
        because: what the evidence has to say.
        quick: whether it needs no more than the base, and runs with the quick tests.
        quiet: seconds without typing after which nobody is there; 0, so that making the row doesn't decide it.
        jupyter: whether it is so in images with JupyterLab alone.
    """

    name: str
    says: Verdict
    start: str | Callable[[Room], object]
    until: str = "true"
    because: str = ""
    quick: bool = False
    quiet: float = 0.0
    jupyter: bool = False


ROWS = (
    # --- Somebody or something works
    Row(
        "a silent nohup job",
        BUSY,
        "nohup python3 -c 'import time; time.sleep(900)' >/dev/null 2>&1 &",
        "pgrep -f time.sleep",
        "time.sleep(900)",
        quick=True,
    ),
    Row(
        "sleep in a terminal that nobody looks at",
        BUSY,
        in_tmux("sleep 900"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
        quick=True,
    ),
    Row(
        "a job in the background of a shell at its prompt",
        BUSY,
        in_tmux("sleep 900 &"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
        quick=True,
    ),
    Row("somebody types now and then", BUSY, in_tmux("true"), "pgrep bash", "somebody typed", quick=True, quiet=900),
    Row(
        "a loop in a shell",
        BUSY,
        in_tmux("while :; do :; done"),
        "ps -C bash -o time= | grep -v 00:00:00",
        "bash",
        quick=True,
    ),
    Row("a loop that mostly sleeps", BUSY, in_tmux("while sleep 0.5; do :; done"), "pgrep -fx 'sleep 0.5'"),
    Row("a loop that wakes up each minute", BUSY, in_tmux("while sleep 60; do date; done &"), "pgrep -fx 'sleep 60'"),
    Row(
        "a worker in the background of a shell, which waits for jobs",
        BUSY,
        in_tmux("mkfifo q; while read job <q; do date; done &"),
        "test -p q && test $(pgrep -c bash) -gt 1",
        "executes: bash",
        quick=True,
    ),
    Row(
        "the same worker in the foreground",
        BUSY,
        in_tmux("mkfifo q; while read job <q; do date; done"),
        "test -p q",
        "executes: bash",
        quick=True,
    ),
    Row(
        "a shell that waits for an answer from the network",
        BUSY,
        lambda room: room.run(
            in_tmux(f"exec 3<>/dev/tcp/127.0.0.1/{room.session.access.port}; touch there; read answer <&3")
        ),
        "test -e there",
        "runs: bash",
    ),
    Row(
        "a shell that waits for its job", BUSY, in_tmux("sleep 900 & wait"), "pgrep -fx 'sleep 900'", "runs: sleep 900"
    ),
    Row("a job that its shell has let go", BUSY, in_tmux("sleep 900 & disown"), "pgrep -fx 'sleep 900'", "sleep 900"),
    Row(
        "a shell that has ended before its job",
        BUSY,
        "tmux new-session -d -s work 'setsid sleep 900 & sleep 1'",
        "pgrep -fx 'sleep 900' && ! pgrep tmux",
        "sleep 900",
    ),
    Row("a program with a time limit", BUSY, in_tmux("timeout 1h sleep 900"), "pgrep -fx 'sleep 900'", "timeout 1h"),
    Row("a program that holds a lock", BUSY, in_tmux("flock lock sleep 900"), "pgrep -fx 'sleep 900'", "flock lock"),
    Row(
        "many jobs, one after the other",
        BUSY,
        in_tmux("seq 3 | xargs -n 1 sleep 90"),
        "pgrep -f 'sleep 90'",
        "xargs",
    ),
    Row(
        "a wait for ever without a terminal",
        BUSY,
        "setsid sleep infinity &",
        "pgrep -f 'sleep infinity'",
        "runs: sleep",
    ),
    Row(
        "a prompt of Python that executes",
        BUSY,
        in_tmux("python3", "open('there', 'w'); import time; time.sleep(900)"),
        "test -e there",
        "executes: python3",
        quick=True,
    ),
    Row(
        "a prompt of Python that waits for an answer from the network",
        BUSY,
        in_tmux(
            "python3",
            "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); open('there', 'w'); s.accept()",
        ),
        "test -e there",
        "executes: python3",
    ),
    Row(
        "a prompt of Python with a thread that works now and then",
        BUSY,
        in_tmux(
            "python3",
            "import threading, time; threading.Thread(target=time.sleep, args=(900,)).start(); open('there', 'w')",
        ),
        "test -e there",
        "executes: python3",
    ),
    Row(
        "a script without a terminal",
        BUSY,
        "setsid bash -c 'while :; do sleep 3; done' >/dev/null 2>&1 &",
        "pgrep -fx 'sleep 3'",
        "while :; do sleep 3",
    ),
    Row(
        "a shell that reads its commands from a pipe",
        BUSY,
        in_tmux("sleep 900 | bash"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
    ),
    Row("a pager behind a program that works", BUSY, in_tmux("(sleep 900; echo) | less"), "pgrep less", "sleep 900"),
    Row(
        "a command that a pager was asked to run",
        BUSY,
        in_tmux("less /etc/passwd"),
        "pgrep -fx 'sleep 900' || { pgrep less && tmux send-keys -t work '!sleep 900' Enter; false; }",
        "sleep 900",
    ),
    Row(
        "a commit whose message is being written",
        STATE,
        in_tmux("git init -q . && git -c user.name=x -c user.email=x commit --allow-empty"),
        "pgrep editor",
        "waits for",
    ),
    Row("tail -f of a log", STATE, in_tmux("tail -f /dev/null"), "pgrep tail", "waits for ever: tail -f"),
    Row(
        "a server that somebody has started",
        BUSY,
        in_tmux("python3 -m http.server 8765"),
        "pgrep -f 8765",
        "http.server",
    ),
    Row(
        "a script that asks its user something",
        BUSY,
        in_tmux("echo 'import code; code.interact()' >a.py; python3 a.py"),
        "pgrep -f a.py",
        "a.py",
    ),
    Row(
        "a prompt after a script, with what it has computed",
        STATE,
        in_tmux("echo 'x = 1' >a.py; python3 -i a.py"),
        "pgrep -f a.py",
        "open: python3 -i a.py",
    ),
    Row(
        "a debugger at a breakpoint of Python",
        STATE,
        in_tmux("echo 'x = 1' >a.py; python3 -m pdb a.py"),
        "pgrep -f a.py",
        "open: python3 -m pdb a.py",
    ),
    Row(
        "a debugger at a breakpoint of C",
        BUSY,
        in_tmux(
            "echo 'int main() { return 0; }' >a.c; gcc -g -o a.out a.c; gdb -q -ex 'break main' -ex starti ./a.out"
        ),
        "pgrep -x a.out",
        "stopped by a debugger",
    ),
    Row("an interactive program that nobody knows", BUSY, in_tmux("cat"), "pgrep -x cat", "cat"),
    Row(
        "a program that bears a helper's name, in a terminal",
        BUSY,
        in_tmux("cp /bin/sleep pylsp; ./pylsp 900"),
        "pgrep pylsp",
        "pylsp",
    ),
    Row("a build in tmux", BUSY, in_tmux(r"printf 'all:\n\tsleep 900\n' >Makefile; make"), "pgrep make", "make"),
    Row(
        "a compiler",
        BUSY,
        in_tmux("""python3 -c "print('int a[] = {' + '1,' * 2000000 + '};')" >a.c; while gcc -O2 -c a.c; do :; done"""),
        "pgrep cc1",
        "gcc",
    ),
    Row(
        "a download",
        BUSY,
        """
        cd; head -c 9M /dev/zero >big; python3 -m http.server 8766 & until pgrep -f 8766; do :; done
        curl --retry 9 --retry-connrefused --limit-rate 1k -o x http://127.0.0.1:8766/big &
        """,
        "test -s x",
        "curl",
    ),
    Row(
        "a copy",
        BUSY,
        "cd; head -c 90M /dev/zero >big; setsid rsync --bwlimit=1 big copy >/dev/null &",
        "pgrep rsync",
        "rsync",
    ),
    Row("an ssh login", BUSY, ssh(), "pgrep -f '^sshd: .*pts/'", "an ssh connection", quiet=900),
    Row("a command over ssh", BUSY, ssh("sleep", "900"), "pgrep -fx 'sleep 900'", "notty"),
    Row(
        "a kernel that computes silently",
        BUSY,
        lambda room: room.cell("import time; time.sleep(900)", ended=False),
        because="is busy",
    ),
    Row(
        "a kernel that asks its user something",
        BUSY,
        lambda room: room.cell("input('?')", stdin=True),
        because="is busy",
    ),
    Row(
        "a thread that outlives its cell",
        BUSY,
        lambda room: room.cell("import threading\ndef f():\n  while 1: pass\nthreading.Thread(target=f).start()"),
        because="CPU",
    ),
    Row(
        "a program that outlives its cell",
        BUSY,
        lambda room: room.cell("import subprocess; subprocess.Popen(['sleep', '900'])"),
        because="sleep 900",
    ),
    Row(
        "a process of Python that outlives its cell",
        BUSY,
        lambda room: room.cell("import multiprocessing as m, time; m.Process(target=time.sleep, args=(900,)).start()"),
        because="ipykernel_launcher",
    ),
    Row(
        "a thread of a kernel that writes something now and then",
        BUSY,
        lambda room: room.cell(
            """
            import threading, time
            def write():
                while True:
                    open("checkpoint", "w").write("x")
                    time.sleep(30)
            threading.Thread(target=write, daemon=True).start()
            """
        ),
        because="a kernel with a thread that works",
    ),
    Row(
        "a thread of a kernel that waits for another program",
        BUSY,
        lambda room: room.cell(
            """
            import subprocess, threading
            threading.Thread(target=subprocess.run, args=(["setsid", "--fork", "--wait", "sleep", "900"],)).start()
            """
        ),
        because="sleep 900",
    ),
    Row(
        "a copy of a kernel that init has adopted",
        BUSY,
        lambda room: room.cell(
            """
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep(900)
                os._exit(0)
            os.wait()
            """
        ),
        because="runs: /opt/app-root/bin/python3 -m ipykernel_launcher",
    ),
    Row(
        "a script that was given to `session exec`",
        BUSY,
        lambda room: room.feed("python3", "-I", "-", text="import time; open('there', 'w'); time.sleep(900)"),
        "test -e there",
        "runs: python3 -I -",
        quick=True,
    ),
    Row(
        "a program that looks like Refit's own look",
        BUSY,
        lambda room: room.feed(*PROBE, text="import time; open('there', 'w'); time.sleep(900)\n"),
        "test -e there",
        "runs: python3 -I -c",
        quick=True,
    ),
    Row("a kernel that was used a minute ago", BUSY, lambda room: room.cell("1"), because="was used", quiet=900),
    Row(
        "sleep in a terminal of JupyterLab that was closed",
        BUSY,
        lambda room: open_jupyter_terminal(room, "sleep 900"),
        "pgrep -fx 'sleep 900'",
        "sleep 900",
    ),
    Row(
        "somebody types into a text file of JupyterLab",
        BUSY,
        type_a_text,
        "grep -q more text && grep -q text .jupyter/lab/workspaces/*",
        "a document was saved",
        quiet=900,
    ),
    Row(
        "somebody types in JupyterLab and saves nothing",
        BUSY,
        type_without_saving,
        "test -e .local/share/jupyter/heartbeat && ! grep -q more text",
        "the IDE was used",
        quiet=900,
    ),
    Row("a server that hangs", BUSY, "pkill -STOP -x launch-jupyter", because="not known: Jupyter", jupyter=True),
    # --- Nothing works, and something would be lost
    Row("a file open in an editor", STATE, in_tmux("nano text"), "pgrep nano", "open: nano text", quick=True),
    Row(
        "a history in its pager",
        STATE,
        in_tmux(
            "git init -q . && git -c user.name=x -c user.email=x commit -q --allow-empty -m x",
            "git -c core.pager='less -+F' log",
        ),
        "pgrep less",
        "waits for less: git",
    ),
    Row(
        "a prompt of IPython",
        STATE,
        in_tmux("ipython"),
        "tmux capture-pane -p -t work | grep 'In \\[1'",
        "ipython",
        jupyter=True,
    ),
    Row(
        "a wait for ever at a terminal",
        STATE,
        in_tmux("sleep infinity &"),
        "pgrep -f 'sleep infinity'",
        "for ever: sleep",
    ),
    Row(
        "a tunnel of ssh that nobody uses",
        STATE,
        lambda room: log_in_from_outside(room, "-N", "-L", "/tmp/refit-tunnel:127.0.0.1:9"),
        f"pgrep -fx 'sshd: {USER}'",
        "a tunnel that nobody uses now",
        quiet=900,
    ),
    Row(
        "a program that is suspended",
        STATE,
        in_tmux("sleep 900"),
        "tmux send-keys -t work C-z; ps -o stat= -C sleep | grep -q T",
        "suspended: sleep 900",
    ),
    Row(
        "a loop that asks for lines",
        STATE,
        in_tmux("touch there; while read line; do date; done"),
        "test -e there",
        "asks for a line: bash",
        quick=True,
    ),
    Row("a prompt of Python", STATE, in_tmux("python3"), "pgrep python3 -t pts/0", "open: python3"),
    Row(
        "a pager that is suspended",
        STATE,
        in_tmux("less /etc/passwd"),
        "tmux send-keys -t work C-z; ps -o stat= -C less | grep -q T",
        "suspended: less",
    ),
    Row(
        "a person who looks at tmux",
        STATE,
        lambda room: room.terminal("tmux", "new-session", "bash"),
        "pgrep -f 'tmux new-session' && tmux list-clients | grep -q .",
        "attached: tmux",
    ),
    Row(
        "an ssh login in which nobody has typed for long",
        STATE,
        log_in_from_outside,
        "touch -a -d '-20 minutes' /dev/pts/[0-9]*",
        "nothing typed for 20 min",
        quiet=900,
    ),
    Row("a kernel with variables", STATE, lambda room: room.cell("import sys; answer = 42"), because="answer (int)"),
    # --- Nobody and nothing
    Row("nothing at all", IDLE, "true", quick=True),
    Row(
        "a shell at its prompt",
        IDLE,
        lambda room: room.terminal("bash").wait_for("$"),
        because="at its prompt",
        quick=True,
    ),
    Row("tmux at a prompt", IDLE, in_tmux("true"), "pgrep bash", "at its prompt", quick=True),
    Row("a shell in a shell", IDLE, in_tmux("sh", "bash -i"), "test $(pgrep -c bash) -gt 1", "at its prompt"),
    Row(
        "a terminal in which something has ended",
        IDLE,
        in_tmux("sleep 0.1", "touch ended"),
        "test -e ended",
        "at its prompt",
    ),
    Row(
        "a line that somebody has typed half",
        IDLE,
        in_tmux("true"),
        "tmux send-keys -t work -l rm; tmux capture-pane -p -t work | grep '\\$ rm'",
        "at its prompt",
    ),
    Row("another shell at its prompt", IDLE, in_tmux("dash"), "pgrep -x dash", "at its prompt: dash"),
    Row("an agent for ssh keys", IDLE, "eval $(ssh-agent)", "pgrep ssh-agent", "ssh-agent", quick=True),
    Row("agents of GnuPG", IDLE, "gpg-agent --daemon; dirmngr --daemon", "pgrep dirmngr", "gpg-agent"),
    Row("a message bus", IDLE, "dbus-daemon --session --fork", "pgrep dbus-daemon", "dbus-daemon"),
    Row("a server for ssh", IDLE, ssh("true"), "! tmux ls 2>/dev/null", "sshd"),
    Row(
        "git's memory for passwords",
        IDLE,
        "printf 'host=x\nprotocol=https\nusername=x\npassword=x\n' | git credential-cache store",
        "pgrep -f cache--daemon",
        "credential-cache",
    ),
    Row("a language server", IDLE, "mkfifo ~/asks; setsid pylsp <>~/asks >/dev/null 2>&1 &", "pgrep pylsp", "pylsp"),
    Row("a kernel that nobody has used", IDLE, lambda room: room.post("/api/kernels"), because="was never used"),
    Row("a tab of a browser that stays open", IDLE, open_a_tab, because="connected to the IDE"),
    Row("a terminal of JupyterLab that was closed", IDLE, open_jupyter_terminal, because="at its prompt"),
)


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
        # Whoever waits for output waits for the last that might write some.
        room.run(f"exec >/dev/null 2>&1\n{textwrap.dedent(row.start)}")
    else:
        row.start(room)
    wait_until(lambda: room.is_so(row.until))
    if row.says is not BUSY:
        wait_until(lambda: room.probe(row.quiet).verdict is row.says)
    for _ in range(LOOKS):
        seen = room.probe(row.quiet)
        said = "\n".join(map(str, seen.evidence))
        assert seen.verdict is row.says, said
        assert any(row.because in text for text in seen.reasons), said


def answers(room: Room) -> bool:
    try:
        return httpx.get(f"{room.url}/api", trust_env=False, timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def watch_of(room: Room) -> Watch:
    return Watch(room.settings.model_copy(update={"idle_minutes": 0.0}), room.sessions.engine)


def stays_if_busy(seen: Seen) -> str:
    return "; ".join(map(str, seen.evidence)) if seen.verdict is BUSY else ""


def test_nobody_gets_in_after_the_last_look_at_an_idle_session(plain: Room) -> None:
    session = plain.session
    with httpx.Client(trust_env=False, timeout=1) as connected:
        assert connected.get(f"{plain.url}/api").status_code == 200
        assert not watch_of(plain).look_last(session, stays_if_busy)
        try:
            assert not answers(plain)
            with pytest.raises(httpx.TimeoutException):
                connected.get(f"{plain.url}/api")
        finally:
            plain.sessions.start(session.name)  # what its owner would do, had a move been killed just then
        assert answers(plain)


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
        assert sent and answers(plain)
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
        assert plain.probe().verdict is IDLE
        assert judge(look(), quiet=0).verdict is IDLE
