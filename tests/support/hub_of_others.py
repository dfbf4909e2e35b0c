"""A real JupyterHub whose servers are small programs that answer as Jupyter does; their image is an option alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flows.gateway.proxy import NODE
from tests.support.machine import ROOT
from tests.support.waiting import PATIENTLY, free_port, wait_until

SCOPES = ("list:users", "read:servers", "start:servers", "delete:servers", "tokens")
TOKEN, POOR = "the-token-of-refit", "the-token-of-nobody"
_CONFIGURATION = """
import sys
sys.path.insert(0, {root!r})
from tests.support.hub_spawner import SmallServer

c.JupyterHub.spawner_class = SmallServer
c.JupyterHub.bind_url = {public!r}
c.JupyterHub.hub_bind_url = {api!r}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.cleanup_servers = True
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = {proxy_api!r}
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.services = [
    {{"name": "refit", "api_token": "the-token-of-refit"}},
    {{"name": "poor", "api_token": "the-token-of-nobody"}},
    {{"name": "root", "api_token": "the-token-of-root"}},
]
c.JupyterHub.load_roles = [
    {{"name": "refit", "scopes": {scopes!r}, "services": ["refit"]}},
    {{"name": "poor", "scopes": ["list:users"], "services": ["poor"]}},
    {{"name": "root", "scopes": ["admin:users", "admin:servers"], "services": ["root"]}},
]
c.Spawner.http_timeout = c.Spawner.start_timeout = 20
"""


@dataclass
class HubOfOthers:
    """Such a Hub; `folder` has a file for each server, by which a test says what goes on in it."""

    url: str
    folder: Path

    @property
    def api(self) -> str:
        return f"{self.url}/hub/api"

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Ask as an administrator of the Hub."""
        headers = {"Authorization": "token the-token-of-root"}
        answer = httpx.request(method, self.api + path, headers=headers, **PATIENTLY, **options)
        assert answer.is_success, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def server(self, person: str, name: str = "") -> Mapping[str, Any] | None:
        """A server of a person; none: it is stopped."""
        servers: Mapping[str, Any] = self.ask("GET", f"/users/{person}")["servers"]
        return servers.get(name)

    def start(self, person: str, options: Mapping[str, Any], name: str = "") -> None:
        """Start a server, as its person does."""
        self.ask("POST", f"/users/{person}/servers/{name}" if name else f"/users/{person}/server", json=dict(options))
        wait_until(lambda: (self.server(person, name) or {}).get("ready"))

    def stop(self, person: str) -> None:
        """Stop a server, as its person does."""
        self.ask("DELETE", f"/users/{person}/server")
        wait_until(lambda: self.server(person) is None)


@contextmanager
def hub_of_others(folder: Path, proxy: Path) -> Iterator[HubOfOthers]:
    """Such a Hub; `proxy` is the script of configurable-http-proxy."""
    folder.mkdir(mode=0o700)
    port = free_port()
    told = _CONFIGURATION.format(
        root=str(ROOT),
        public=f"http://127.0.0.1:{port}",
        api=f"http://127.0.0.1:{free_port()}",
        proxy=[str(NODE), str(proxy)],
        proxy_api=f"http://127.0.0.1:{free_port()}",
        scopes=[*SCOPES],
    )
    (folder / "jupyterhub_config.py").write_text(told, encoding="utf-8")
    command = [sys.executable, "-m", "jupyterhub", "--config", str(folder / "jupyterhub_config.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SERVERS": str(folder)}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    hub = HubOfOthers(f"http://127.0.0.1:{port}", folder)
    try:
        wait_until(lambda: _answers(f"{hub.url}/hub/health"))
        yield hub
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, **PATIENTLY).is_success
    except httpx.TransportError:
        return False
