"""Refit's services with the flow `trial`: settings for them, its deployment, its runs and what they start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flows import services
from flows.core.settings import Settings
from tests.support.prefect_api import cancel_run, start_run
from tests.support.waiting import PATIENCE, free_port

TRIAL = "trial/refit"
ENDLESS = 10 * PATIENCE  # seconds: a process that is gone before was ended
DEPLOY = """
import os
from flows import services
from flows.core import settings
os.environ.update(services.prefect_environment(settings.load()))
from flows.orchestration.deployments import deploy
from {module} import {flow}
print(*deploy([{flow}]))
"""


def until(ask: Callable[[], Any], good: Callable[[Any], bool], limit: float = PATIENCE) -> Any:
    deadline = time.monotonic() + limit
    while not good(answer := ask()):
        assert time.monotonic() < deadline, f"after {limit} s still {answer!r}"
        time.sleep(0.1)
    return answer


def make_settings(home: Path, catalog: Path | None = None) -> Settings:
    """Settings with free ports; where there is no catalog, the home stands for it."""
    ports = {"registry_port": free_port(), "prefect_port": free_port()}
    return Settings(home=home, catalog=catalog or home, gateway=False, **ports)


def deploy(settings: Settings, module: str = "tests.support.trial_flow", flow: str = "trial", **more: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "REFIT_HOME": str(settings.home),
        "REFIT_PREFECT_PORT": str(settings.prefect_port),
        **more,
    }
    code = DEPLOY.format(module=module, flow=flow)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass
class Run:
    """A flow run that was started through the API."""

    client: httpx.Client
    id: str

    def state(self) -> str:
        return str(self.client.get(f"/flow_runs/{self.id}").json()["state_type"])

    def logs(self) -> str:
        lines = self.client.post("/logs/filter", json={"logs": {"flow_run_id": {"any_": [self.id]}}}).json()
        return "\n".join(line["message"] for line in lines)

    def cancel(self) -> None:
        cancel_run(self.client, self.id)


def launch(client: httpx.Client, **wait: Any) -> Run:
    return Run(client, start_run(client, TRIAL, parameters={"wait": wait}))


def pids(note: Path) -> list[int]:
    return [int(line) for line in note.read_text().split()] if note.exists() else []


def pid_of(settings: Settings, name: str) -> int:
    pid = next(state.pid for state in services.status(settings) if state.name == name)
    assert pid is not None
    return pid
