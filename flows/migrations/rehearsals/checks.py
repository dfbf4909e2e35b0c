"""Checks of a rehearsed session: this runs in its container, with nothing but the image's own Python.

`checks.py home` writes into the home; `checks.py ide` waits for the IDE; `checks.py kernel` starts a kernel, and says
how a cell is sent to it; `checks.py cores` says how much its programs worked. Each reads JSON from its argument and
prints JSON: what was seen, or why it isn't as it should be, and whether that is because it took too long.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.1
# Run by the kernel's own Python: it is the one that surely has what speaks with kernels. It asks for no heartbeats:
# a kernel that begins a second later than who asks would count as dead, as on a machine where others have the cores.
CELL = """
import sys
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels(hb=False)
try:
    client.wait_for_ready(timeout=float(sys.argv[2]))
    reply = client.execute_interactive(sys.argv[3], timeout=float(sys.argv[2]))
except (RuntimeError, TimeoutError) as error:
    print(error, file=sys.stderr)
    sys.exit(75)  # it took too long
client.stop_channels()
sys.exit(reply["content"]["status"] != "ok")
"""


def home(_: dict[str, Any]) -> str:
    """Write a file into the home, read it, remove it."""
    file = Path.home() / f".refit-rehearsal-{os.getpid()}"
    file.write_text("written")
    read = file.read_text()
    file.unlink()
    return read


def ide(asked: dict[str, Any]) -> str:
    """Wait until the IDE answers that it is ready."""
    until, seen = time.monotonic() + asked["limit"], "nothing answers"
    while time.monotonic() < until:
        try:
            status, _ = _ask("GET", asked["port"], asked["prefix"] + asked["health"])
        except OSError as error:
            seen = str(error)
        else:
            seen = f"{asked['health']} answers {status}"
            if status == http.client.OK:
                return seen
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"{seen}, not 200 within {asked['limit']:g} s")


def kernel(asked: dict[str, Any]) -> dict[str, str]:
    """Let the server start its kernel; returns that kernel's Python, and the file by which it is reached."""
    status, answer = _ask("POST", asked["port"], f"{asked['prefix']}/api/kernels", asked["limit"])
    if status != http.client.CREATED:
        raise ConnectionError(f"/api/kernels answers {status}")
    until = time.monotonic() + asked["limit"]
    while time.monotonic() < until:
        for argv in _running():
            files = [word for word in argv if json.loads(answer)["id"] in word and word.endswith(".json")]
            if files and Path(files[0]).exists():
                return {"python": argv[0], "file": files[0]}
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no kernel runs after {asked['limit']:g} s")


def cores(_: dict[str, Any]) -> list[float]:
    """For how many seconds its programs had a core, and for how many they waited for one: proc(5), schedstat.

    Its programs are those that its first process has started, and not such as this one.
    """
    worked = waited = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            session = os.getsid(int(folder.name))
            counted = [file.read_text().split() for file in folder.glob("task/[0-9]*/schedstat")]
        except OSError:  # it has ended
            continue
        if session != os.getsid(0):
            worked += sum(int(times[0]) for times in counted)
            waited += sum(int(times[1]) for times in counted)
    return [worked / 1e9, waited / 1e9]


def _ask(method: str, port: int, path: str, limit: float = ANSWER_SECONDS) -> tuple[int, bytes]:
    token = Path(os.environ["REFIT_TOKEN_FILE"]).read_text().strip()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit)
    try:
        body = "{}" if method == "POST" else None
        connection.request(method, path, body=body, headers={"Authorization": f"token {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"{path}: {type(error).__name__}") from None
    finally:
        connection.close()


def _running() -> list[list[str]]:
    """The command lines of all processes."""
    commands = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                commands.append((folder / "cmdline").read_bytes().decode(errors="replace").split("\0"))
            except OSError:  # it has ended
                continue
    return commands


def _answer(gate: str, asked: dict[str, Any]) -> dict[str, Any]:
    gates = {"home": home, "ide": ide, "kernel": kernel, "cores": cores}
    try:
        return {"seen": gates[gate](asked)}
    except Exception as error:  # whatever it is, the gate stays shut
        return {"problem": f"{type(error).__name__}: {error}", "late": isinstance(error, TimeoutError)}


if __name__ == "__main__":
    json.dump(_answer(sys.argv[1], json.loads(sys.argv[2])), sys.stdout)
