"""Ends the kernels of a session in an orderly way, from inside: runs in its container, with the image's own Python.

From outside nobody may come in any more when a session is stopped. It begins with the number of the port on a line: to
start it takes longer than to end kernels, so it is started before anybody is turned away, and waits.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ANSWER_SECONDS = 10
AT_ONCE = 4


def end_kernels(port: int) -> int:
    """End them, several at the same time; returns how many there were."""
    below = os.environ.get("NB_PREFIX", "").rstrip("/")
    token = Path(os.environ["REFIT_TOKEN_FILE"]).read_text().strip()

    def ask(method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
        connection.request(method, f"{below}/api/kernels{path}", headers={"Authorization": f"token {token}"})
        return connection.getresponse().read()

    kernels = json.loads(ask("GET", "?no_track_activity=1"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return len([*pool.map(lambda kernel: ask("DELETE", f"/{kernel['id']}"), kernels)])


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        print(end_kernels(int(line)), flush=True)
