"""Proves a session that others own from inside: runs in its container, with nothing but the image's own Python.

It reads a line of JSON, and prints what it left out. It fails where something doesn't work.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ANSWER_SECONDS, PAUSE_SECONDS = 10, 0.3
_NOBODY_ASKS = (401, 403)
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def prove(asked: dict[str, Any]) -> str:
    """Prove that the home takes a file, that the IDE answers, and that a kernel starts; returns what was left out."""
    with tempfile.TemporaryFile(dir=Path.home()) as file:
        file.write(b"written by Refit's proof")
    if not asked["health"]:
        return ""
    deadline = time.monotonic() + asked["seconds"]
    while (status := _answer(asked["url"] + asked["health"])) != 200:
        if time.monotonic() > deadline:
            raise SystemExit(f"the IDE answers {status or 'nothing'} to {asked['health']}")
        time.sleep(PAUSE_SECONDS)
    return _start_kernel(asked["url"], deadline) if asked["kernels"] else ""


def _answer(url: str) -> int:
    try:
        with _NO_PROXY.open(url, timeout=ANSWER_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _start_kernel(url: str, deadline: float) -> str:
    """Start a kernel, wait until it is idle, and end it."""
    try:
        kernel = _ask(f"{url}/api/kernels", "POST")["id"]
    except urllib.error.HTTPError as error:
        if error.code in _NOBODY_ASKS:
            return "its server asks for a token that it alone has, so no kernel was started"
        raise
    state, here = "", f"{url}/api/kernels/{kernel}"
    try:
        while (state := str(_ask(here)["execution_state"])) in ("starting", "restarting", "unknown"):
            if time.monotonic() > deadline:
                break
            time.sleep(PAUSE_SECONDS)
    finally:
        _ask(here, "DELETE")
    if state not in ("idle", "busy"):
        raise SystemExit(f"a kernel that was started is {state}")
    return ""


def _ask(url: str, method: str = "GET") -> dict[str, Any]:
    token = os.environ.get("JUPYTER_TOKEN", "")
    headers = {"Content-Type": "application/json", **({"Authorization": f"token {token}"} if token else {})}
    request = urllib.request.Request(url, b"{}" if method == "POST" else None, headers, method=method)
    with _NO_PROXY.open(request, timeout=ANSWER_SECONDS) as answer:
        document: dict[str, Any] = json.loads(answer.read() or b"{}")
        return document


if __name__ == "__main__":
    print(prove(json.loads(sys.stdin.readline())), flush=True)
