"""Answers questions about a session from inside, one after the other: runs in its container, with `inspect_processes`.

It says that it is ready, and for each line of JSON it looks, or runs the program that the line names, and prints a line
of JSON. It ends with its input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

# As in `inspect_processes`.
_LOOKER = "REFIT_LOOK"
_TAIL = 2000


def answer(question: Row, look: Callable[[Row], Row]) -> Row:
    """The answer to a question."""
    return run(question) if "run" in question else look(question)


def run(asked: Row) -> Row:
    """Let a program run beside the session; it isn't one of those who look."""
    environment = {name: value for name, value in os.environ.items() if name != _LOOKER}
    bounds: Row = {"timeout": asked["limit"], "env": environment, "errors": "replace"}
    try:
        done = subprocess.run(asked["run"], input=asked["stdin"], capture_output=True, text=True, check=False, **bounds)
    except subprocess.TimeoutExpired:
        return {"code": None, "said": "", "why": ""}
    except OSError as error:
        return {"code": 126, "said": "", "why": str(error)}
    return {"code": done.returncode, "said": done.stdout[: asked["most"]], "why": done.stderr[-_TAIL:]}


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), globals()["look"])), flush=True)
