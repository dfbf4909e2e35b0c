"""Open documents, kernels and terminals of a session's Jupyter: runs in its container, and prints JSON."""

from __future__ import annotations

import http.client
import json
import os
import sys
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 5


def look(port: int) -> dict[str, Any]:
    """Documents with a kernel, and terminals; to ask doesn't count as activity."""
    documents = [
        {name: session[name] for name in ("path", "name", "type")}
        | {"kernel": session["kernel"]["name"], "kernel_id": session["kernel"]["id"]}
        for session in _get(port, "/api/sessions")
        if session["kernel"]
    ]
    return {"documents": documents, "terminals": [terminal["name"] for terminal in _get(port, "/api/terminals")]}


def _get(port: int, path: str) -> Any:
    token = Path(os.environ["REFIT_TOKEN_FILE"]).read_text().strip()
    below = os.environ.get("NB_PREFIX", "").rstrip("/")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    connection.request("GET", f"{below}{path}?no_track_activity=1", headers={"Authorization": f"token {token}"})
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        raise ConnectionError(f"{path} answers {answer.status}")
    return json.loads(answer.read())


if __name__ == "__main__":
    json.dump(look(int(sys.argv[1])), sys.stdout)
