"""A spawner of a Hub of tests: each server is a small program that answers a few questions of Jupyter's API."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jupyterhub.spawner import Spawner

from tests.support.waiting import free_port


class SmallServer(Spawner):  # type: ignore[misc]
    """Starts this module as a program; one whose image is named `…bad` ends at once."""

    process: asyncio.subprocess.Process | None = None

    async def start(self) -> str:
        """Start it, and say where it is."""
        image = str(self.user_options.get("image", ""))
        port = free_port()
        words = [str(port), self.server.base_url, image, os.environ["SERVERS"]]
        self.process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, *words)
        return f"http://127.0.0.1:{port}"

    async def stop(self, now: bool = False) -> None:
        """Stop it, in a moment."""
        if self.process and self.process.returncode is None:
            await asyncio.sleep(0.3)
            self.process.kill()
            await self.process.wait()

    async def poll(self) -> int | None:
        """None while it runs."""
        return self.process.returncode if self.process else 0


class _Server(BaseHTTPRequestHandler):
    began = datetime.now(UTC).isoformat()
    below, folder = "/", Path()

    def do_GET(self) -> None:
        """Answer as Jupyter does; the file `busy` says that a kernel works."""
        path = self.path.partition("?")[0].removeprefix(self.below.rstrip("/"))
        with (self.folder / "shown").open("a") as shown:
            shown.write(f"{self.headers.get('Authorization', '')}\n")
        busy = (self.folder / "busy").exists()
        kernel = {"id": "1", "name": "python3", "execution_state": "busy", "last_activity": self.began}
        told: dict[str, Any] = {
            "/api": {"version": "2"},
            "/api/kernels": [kernel] if busy else [],
            "/api/terminals": [{"name": "1"}] if (self.folder / "terminal").exists() else [],
            "/api/status": {"started": self.began, "last_activity": self.began, "connections": 0, "kernels": 0},
        }
        self.send_response(200 if path in told or path == "/" else 404)
        self.end_headers()
        self.wfile.write(json.dumps(told.get(path)).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


if __name__ == "__main__":
    port, _Server.below, image, folder = sys.argv[1:]
    _Server.folder = Path(folder)
    if (Path(folder) / "bad").exists() and (Path(folder) / "bad").read_text() in image:
        raise SystemExit(3)
    ThreadingHTTPServer(("127.0.0.1", int(port)), _Server).serve_forever()
