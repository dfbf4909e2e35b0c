"""A JupyterHub that isn't Refit's, with its own proxy and people, configured as its operator would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from flows.core.settings.environment import variables
from flows.gateway.proxy import NODE
from tests.support.hub import PASSWORD, Hub, Person
from tests.support.machine import ROOT
from tests.support.waiting import PATIENTLY, free_port, wait_until

_CONFIGURATION = """
c.JupyterHub.bind_url = {public!r}
c.JupyterHub.hub_bind_url = {api!r}
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = {proxy_api!r}
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"root"}}
c.JupyterHub.services = [{{"name": "theirs", "api_token": "of-a-service-of-theirs"}}]
c.JupyterHub.load_roles = [{{"name": "theirs", "scopes": ["list:users"], "services": ["theirs"]}}]

from flows.web.hub import joining

joining.configure(c)
"""


@dataclass
class OtherHub:
    """Such a Hub, with its process."""

    hub: Hub
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until its proxy leads to it."""
        settings = self.hub.settings
        command = [sys.executable, "-m", "jupyterhub", "--config", str(self.folder / "jupyterhub_config.py")]
        environment = {**os.environ, **variables(settings), "PYTHONPATH": str(ROOT)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        wait_until(lambda: _answers(f"{settings.public_url}/hub/health"))

    def end(self) -> None:
        """End it with its proxy, as its operator would."""
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def person(self, name: str) -> Person:
        """Somebody who has logged in there."""
        person = Person(self.hub, name)
        person.client.base_url = httpx.URL(self.hub.settings.public_url)
        person.log_in()
        return person


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, **PATIENTLY).is_success
    except httpx.TransportError:
        return False


@contextmanager
def other_hub(hub: Hub, folder: Path) -> Iterator[OtherHub]:
    """The Hub that the settings of `hub` name as `other_hub`."""
    settings, folder = hub.settings, folder / "other-hub"
    folder.mkdir(mode=0o700)
    script = settings.home / "services/gateway/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    told = _CONFIGURATION.format(
        public=settings.public_url,
        api=settings.hub_url,
        proxy=[str(NODE), str(script)],
        proxy_api=f"http://127.0.0.1:{free_port()}",
        password=PASSWORD,
    )
    (folder / "jupyterhub_config.py").write_text(told, encoding="utf-8")
    other = OtherHub(hub, folder)
    try:
        other.start()
        yield other
    finally:
        other.end()
