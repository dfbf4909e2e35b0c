"""Looks at a session from inside: runs in its container, with nothing but the image's own Python.

It says that it is ready, reads a line of JSON, looks, and prints a line of JSON; its meaning is judged elsewhere
(`activity`). It changes nothing, and whoever asks whether anybody works here doesn't count as somebody who does.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import platform
import shutil
import subprocess
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Row = dict[str, Any]

ANSWER_SECONDS = 5
AT_ONCE = 4
# Device numbers of pseudo-terminals: 136 to 143 in major, 256 of them each.
_FIRST_TERMINAL = 136
_CONNECTED, _LOOPBACK = "01", "0100007F"
_GPU = ("/dev/nvidia", "/dev/dri/", "/dev/kfd")
_HOLD, _LONGEST = ".config/refit/hold", 200
# Where JupyterLab notes which documents its pages have open; its server knows of those alone that have a kernel.
_WORKSPACES = ".jupyter/lab/workspaces/*.jupyterlab-workspace"
# The variable by which looks at a session know each other; its value is nobody else's to know.
_LOOKER = "REFIT_LOOK"
_COUNTED = ("cpu", "waited", "moved")
# Numbers of Linux' system calls: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h there.
# `select` and its kin wait for several files; of some it can be told if that is the first one alone.
_CALLS: dict[str, dict[str, tuple[int, ...]]] = {
    "x86_64": {
        **{"read": (0,), "one": (23, 270), "any": (7, 23, 232, 270, 271, 281)},
        **{"child": (61, 247), "sleep": (35, 230), "lock": (202,)},
    },
    "aarch64": {
        **{"read": (63,), "one": (72,), "any": (22, 72, 73)},
        **{"child": (95, 260), "sleep": (101, 115), "lock": (98,)},
    },
}
_NUMBERS = _CALLS.get(platform.machine(), {})
# Names of the kernel's functions in which a process waits, where the kernel doesn't tell the call.
_WAITS_FOR = {
    **{"n_tty_read": "terminal", "do_wait": "child", "hrtimer_nanosleep": "sleep", "do_nanosleep": "sleep"},
    **dict.fromkeys(("pipe_read", "anon_pipe_read"), "pipe"),
    **dict.fromkeys(("futex_wait_queue", "futex_wait_queue_me", "futex_do_wait"), "lock"),
}
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_MULTIPLEX = ("do_select", "do_sys_poll", "do_poll", "ep_poll", "poll_schedule_timeout")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAUSE = 0.005  # seconds between two looks at a thread that waits for a core


def look(asked: Row) -> Row:
    """Everything that can be seen: twice, `seconds` apart, because work shows in what changes."""
    started = time.monotonic()
    problems: list[str] = []
    before, received = _processes(asked["seconds"]), _network()
    time.sleep(asked["seconds"])
    after = _processes(asked["seconds"])
    seconds = time.monotonic() - started
    processes = [_compared(before.get(pid), process, seconds) for pid, process in after.items()]
    server = _attempt(problems, "Jupyter", _jupyter, asked) if asked["protocol"] == "jupyter" else None
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sessions_of_kernels = (server or {}).get("kernels", [])
        kernels = [
            *pool.map(
                lambda kernel: {**kernel, "variables": _variables(kernel, processes, asked["ask"])}, sessions_of_kernels
            )
        ]
    return {
        "at": time.time(),
        "probe": [os.getpid(), *_others_who_look(processes)],
        "processes": processes,
        "terminals": {name: Path(name).stat().st_atime for name in _terminals(processes)},
        "network": max(0, _network() - received) / seconds,  # an interface that goes takes its count with it
        "connections": _attempt(problems, "connections", _connections, asked["port"]) or 0,
        "kernels": kernels,
        "saved": (server or {}).get("saved"),
        "heartbeat": _heartbeat(asked["heartbeat"]),
        "hold": _attempt(problems, "the hold", _hold),
        "gpu": _attempt(problems, "the GPU", _gpu) if any(p["gpu"] for p in processes) else 0.0,
        "problems": problems,
    }


def _attempt(problems: list[str], what: str, action: Callable[..., Any], *arguments: object) -> Any:
    try:
        return action(*arguments)
    except Exception as error:  # whatever it is, it means that we don't know
        problems.append(f"{what}: {type(error).__name__} {error}".strip())
        return None


def _others_who_look(processes: Iterable[Row]) -> Iterator[int]:
    """Other looks of Refit's at this session: started from outside, with the same nonce in their environment."""
    if not (nonce := os.environ.get(_LOOKER)):
        return
    mark, from_outside = f"{_LOOKER}={nonce}".encode(), [each["pid"] for each in processes if each["parent"] == 0]
    for pid in from_outside:
        with contextlib.suppress(OSError):  # it has ended
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                yield pid


def _processes(settles: float) -> dict[int, Row]:
    processes, until = {}, time.monotonic() + settles
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                processes[int(folder.name)] = _process(folder, until)
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
    return processes


def _process(folder: Path, until: float) -> Row:
    text = (folder / "stat").read_text(errors="replace")
    name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    state, parent, group, session, terminal, foreground, *more = rest.split()
    argv = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return {
        "pid": int(folder.name),
        "name": name,
        "argv": argv if argv != [""] else [f"[{name}]"],
        "state": state,
        "parent": int(parent),
        "group": int(group),
        "session": int(session),
        "terminal": _terminal(int(terminal)),
        "foregrounds": [int(foreground)],
        # utime, stime and those of children that it has waited for
        "cpu": sum(map(int, more[5:9])) / _TICKS,
        "scheduled": (scheduled := _scheduled(folder / "task", until)),
        "waited": sum(waited for _, waited, _ in scheduled.values()),
        "started": _boot() + int(more[13]) / _TICKS,
        "moved": _moved(folder),
        "stdin": _link(folder / "fd" / "0"),
        "memory": int(more[15]) * os.sysconf("SC_PAGE_SIZE"),
        "gpu": any(_link(file).startswith(_GPU) for file in _files(folder / "fd")),
        "waits": _waits(folder, _terminal(int(terminal))),
        "threads": [_waits(thread, "") for thread in _files(folder / "task") if thread.name != folder.name],
    }


def _waits(folder: Path, terminal: str) -> str:
    """The thing that a thread waits for; empty: it doesn't wait.

    `terminal`: the next key of its person. `line`: a whole line of theirs. `timed`: a key, but not for ever. `key`: a
    key or something else. `pipe`: the output of another program. `child`: the end of another program. `sleep`: a time.
    `lock`: another thread. `any`: one of several files. `other`: anything else, a connection for instance.
    """
    try:
        number, *arguments = (folder / "syscall").read_text().split()
    except OSError:  # only whoever may trace a process is told: proc(5), ptrace_scope
        return _waits_in(folder, terminal)
    if number == "running":
        return ""
    call = next(
        (name for name in ("read", "one", "child", "sleep", "lock") if int(number) in _NUMBERS.get(name, ())), ""
    )
    if call == "read":
        file = _link(folder / "fd" / str(int(arguments[0], 16)))
        return _typed(file) if file.startswith(_TERMINALS) else "pipe" if file.startswith("pipe:") else "other"
    if call == "one":
        return _waits_for_one(folder, [int(each, 16) for each in arguments])
    if int(number) in _NUMBERS.get("any", ()):
        return "key" if terminal and _is_raw(terminal) else "any"
    return call or "other"


def _waits_for_one(folder: Path, arguments: list[int]) -> str:
    """As `_waits`, of `select`: the first argument counts the files, the fifth says for how long, or is 0."""
    if arguments[0] != 1:
        return "any"
    if not (file := _link(folder / "fd" / "0")).startswith(_TERMINALS):
        return "other"
    typed = _typed(file)
    return typed if arguments[4] == 0 else "timed" if typed == "terminal" else "sleep"


def _waits_in(folder: Path, terminal: str) -> str:
    """As `_waits`, by the name of the kernel's function; for a terminal only if a line is edited there just now."""
    try:
        function = (folder / "wchan").read_text()
    except OSError:
        return "other"
    if function.startswith((*_MULTIPLEX, "wait_woken")):
        edits = bool(terminal) and _is_raw(terminal)
        return "key" if edits else "other" if function == "wait_woken" else "any"
    return _WAITS_FOR.get(function, "other" if function != "0" else "")


def _typed(terminal: str) -> str:
    return "terminal" if _is_raw(terminal) else "line"


def _is_raw(terminal: str) -> bool:
    """Whether a terminal hands on each key: a shell or REPL sets that only while it reads a line."""
    try:
        opened = os.open(terminal, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not termios.tcgetattr(opened)[3] & termios.ICANON
    except termios.error:
        return False
    finally:
        os.close(opened)


def _compared(before: Row | None, after: Row, seconds: float) -> Row:
    if before is None or before["started"] != after["started"]:
        before = {**after, **dict.fromkeys(_COUNTED, 0)}
    changed = {what: max(0, after[what] - before[what]) / seconds for what in _COUNTED}
    changed["restless"] = _restless(before, after)
    after = {name: value for name, value in after.items() if name != "scheduled"}
    return {**after, **changed, "foregrounds": sorted({*before["foregrounds"], *after["foregrounds"]})}


@functools.cache  # the kernel derives it from the clock, so that it may change by a second
def _boot() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/stat").read_text().splitlines() if line[:5] == "btime")


def _terminal(number: int) -> str:
    major, minor = number >> 8 & 0xFFF, number & 0xFF | number >> 12 & 0xFFF00
    if not number:
        return ""
    return f"/dev/pts/{(major - _FIRST_TERMINAL) * 256 + minor}" if major >= _FIRST_TERMINAL else "/dev/console"


def _terminals(processes: Iterable[Row]) -> set[str]:
    return {name for process in processes if (name := process["terminal"]) and Path(name).exists()}


def _scheduled(folder: Path, until: float) -> dict[str, tuple[float, float, float]]:
    """For how many seconds each thread ran, and would have run, had there been a free core; and at what time."""
    threads = {}
    for thread in _files(folder):
        with contextlib.suppress(OSError):  # it has ended, or this kernel doesn't count
            threads[thread.name] = (*_settled(thread, until), time.monotonic())
    return threads


def _settled(thread: Path, until: float) -> tuple[float, float]:
    """As `_scheduled`: Linux adds a wait for a core when it ends, so a thread that waits is looked at until it runs."""
    first = counts = _counts(thread)
    while counts == first and _runs(thread) and time.monotonic() < until:
        time.sleep(_PAUSE)
        counts = _counts(thread)
    return counts


def _counts(thread: Path) -> tuple[float, float]:
    ran, waited, _ = (thread / "schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def _runs(thread: Path) -> bool:
    return (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "R"


def _restless(before: Row, after: Row) -> float:
    """For what share of the time between two looks that thread ran or waited for a core that did so most."""
    shares = [0.0]
    for name, now in after["scheduled"].items():
        then = before["scheduled"].get(name, now)
        ran, waited, seconds = (now[which] - then[which] for which in range(3))
        if ran > 0 and seconds > 0:
            shares.append((ran + waited) / seconds)
    return max(shares)


def _moved(folder: Path) -> int:
    """Bytes read and written, those of the page cache as well."""
    try:
        lines = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
    except PermissionError:  # it hides itself, like an agent that holds keys
        return 0
    return int(lines["rchar"]) + int(lines["wchar"])


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _network() -> int:
    """Bytes that came and went over all interfaces but the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    counters = {name.strip(): numbers.split() for name, numbers in (line.split(":") for line in lines)}
    return sum(int(numbers[0]) + int(numbers[8]) for name, numbers in counters.items() if name != "lo")


def _connections(port: int | None) -> int:
    """How many are connected to the IDE from outside."""
    tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    here = [row for row in rows if row[3] == _CONNECTED and int(row[1].rpartition(":")[2], 16) == port]
    return sum(not row[2].startswith(_LOOPBACK) for row in here)


def _heartbeat(path: str) -> float | None:
    file = Path.home() / path
    return file.stat().st_mtime if path and file.exists() else None


def _hold() -> tuple[float, str] | None:
    """When the owner has asked to be left alone, and in what words."""
    file = Path.home() / _HOLD
    if not file.is_file():
        return None
    with file.open(encoding="utf-8", errors="replace") as opened:
        return file.stat().st_mtime, opened.readline(_LONGEST).strip()


def _gpu() -> float:
    """The used share of a GPU, 0 to 1; GPUs about which nobody can be asked are left out."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("there is no nvidia-smi")
    command = [program, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True).stdout
    return max(map(float, output.split()), default=0.0) / 100


def _jupyter(asked: Row) -> Row:
    kept = os.environ.get("REFIT_TOKEN_FILE")  # a session that others own has none, or one of its server's own
    token = Path(kept).read_text().strip() if kept else os.environ.get("JUPYTER_TOKEN", "")
    kernels = _get(asked["port"], "/api/kernels", token)
    with_kernel = {session["path"] for session in _get(asked["port"], "/api/sessions", token)}
    documents = [Path.home() / path for path in with_kernel | _on_pages()]
    saved = [document.stat().st_mtime for document in documents if document.is_file()]
    return {"kernels": kernels, "saved": max(saved, default=None)}


def _on_pages() -> set[str]:
    """The documents that pages of JupyterLab have or had open, as it notes them for the next page."""
    pids: set[str] = set()
    for file in Path.home().glob(_WORKSPACES):
        with contextlib.suppress(OSError, ValueError):  # it may be written just now
            pids.update(_paths(json.loads(file.read_text())))
    return pids


def _paths(noted: Any) -> Iterator[str]:
    """All values under the name `path` in it, however deep."""
    if isinstance(noted, dict) and isinstance(noted.get("path"), str):
        yield noted["path"]
    for inner in noted.values() if isinstance(noted, dict) else noted if isinstance(noted, list) else ():
        yield from _paths(inner)


def _get(port: int, path: str, token: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    below = os.environ.get("NB_PREFIX", "").rstrip("/")
    connection.request("GET", f"{below}{path}?no_track_activity=1", headers={"Authorization": f"token {token}"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise ConnectionError(f"{path} answers {answer.status}")
    return json.loads(answer.read())


def _variables(kernel: Row, processes: Iterable[Row], ask: str) -> Any:
    """The variables of a kernel that waits, as the program `ask` tells them; none: it can't be asked."""
    mine = [p for p in processes if any(kernel["id"] in word for word in p["argv"])]
    files = [word for process in mine for word in process["argv"] if kernel["id"] in word]
    if not files or kernel["execution_state"] == "busy":
        return None
    # The kernel's own Python: it is the one that surely has what speaks with kernels.
    call = [mine[0]["argv"][0], "-c", ask, files[0]]
    try:
        output = subprocess.run(call, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True).stdout
        return json.loads(output)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


if __name__ == "__main__":
    print("ready", flush=True)
    print(json.dumps(look(json.loads(input()))), flush=True)
