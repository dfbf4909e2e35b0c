"""A session, and what people do in it whose activity is judged."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from flows.core.lazily import lazily
from flows.core.settings import Settings
from flows.host import tools
from flows.sessions.activity.evidence import Activity, Verdict
from flows.sessions.activity.probes import ProbeSpec, probe
from flows.sessions.ide.jupyter import execute_request
from flows.sessions.lifecycle import Sessions
from flows.sessions.model import USER, Session
from tests.support.terminal import CTRL_Z, Terminal
from tests.support.waiting import PATIENCE, PATIENTLY, wait_until

with lazily(globals()):  # Playwright takes 0.3 s of CPU, and unit tests read the tables of situations
    from playwright.sync_api import Page

    from tests.support.browser import open_page

BUSY, STATE, IDLE = Verdict.busy, Verdict.state, Verdict.idle

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
# The page of one row is no sign of a person in the next.
_TOUCHED = "~/.local/share/jupyter/heartbeat"
_TIDY = (
    f"find ~ -mindepth 1 -maxdepth 1 ! -name '.[ijlc]*' -exec rm -rf {{}} +; rm -rf /tmp/tmux-* /tmp/ssh-* {_TOUCHED}"
)


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
        """Whether it is so, or becomes so within a second: to ask anew takes 0.15 s of CPU."""
        again = f"for again in 1 2 3 4 5 6 7 8 9; do if {{ {condition}; }} >/dev/null 2>&1; then echo so; break; fi"
        return self.run(f"cd; {again}; sleep 0.1; done") == "so\n"

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
        if self.session.access.protocol == "jupyter":
            self.run("kill -CONT -1")
            self.sessions.end_kernels(self.session)
        self.run(f"kill -CONT -1; python3 -c {shlex.quote(_CLEAR)}; {_TIDY}")

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
            kinds = ("input_request",) if stdin else ("execute_reply",) if ended else ("execute_input",)
            while True:
                message = json.loads(channel.recv(timeout=PATIENCE))
                ours = message["parent_header"].get("msg_id") == request["header"]["msg_id"]
                if ours and message["header"]["msg_type"] in kinds:
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


def stop_in_jupyter_terminal(room: Room) -> None:
    """Start a program in a terminal of JupyterLab, and press Ctrl-Z."""
    name = room.post("/api/terminals")["name"]
    with room.channel(f"/terminals/websocket/{name}") as channel:
        channel.send(json.dumps(["stdin", "sleep 900\r"]))
        wait_until(lambda: room.is_so("pgrep -fx 'sleep 900'"))
        channel.send(json.dumps(["stdin", CTRL_Z]))
        wait_until(lambda: room.is_so("ps -o stat= -C sleep | grep -q T"))


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
        start: makes it, as shell text or a call with the room.
        until: shell condition that says it is so.
        because: text that the evidence has to have.
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
