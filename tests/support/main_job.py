"""Somebody who types `make run` and looks at Prefect's pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.core.settings import Settings
from tests.support.machine import another_registry, private_home, serve_registry
from tests.support.waiting import free_port

REFIT = Path(sys.executable).parent / "refit"


@dataclass(frozen=True)
class Person:
    """Somebody at a shell, with settings of their own."""

    settings: Settings

    def types(self, *words: str, exit_code: int = 0) -> subprocess.CompletedProcess[str]:
        mine = {
            "REFIT_HOME": str(self.settings.home),
            "REFIT_REGISTRY": self.settings.registry_host,
            "REFIT_REPOSITORY": self.settings.repository,
            "REFIT_PREFECT_PORT": str(self.settings.prefect_port),
            "REFIT_GATEWAY_PORT": str(self.settings.gateway_port),
            "REFIT_GATEWAY_API_PORT": str(self.settings.gateway_api_port),
            "REFIT_HUB_PORT": str(self.settings.hub_port),
            "REFIT_JUMP_PORT": str(self.settings.jump_port),
            "COLUMNS": "160",
            **({} if self.settings.hub is None else {"REFIT_HUB": str(self.settings.hub).lower()}),
        }
        done = subprocess.run([REFIT, *words], env={**os.environ, **mine}, capture_output=True, text=True, check=False)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done

    def reads(self, *words: str) -> Any:
        return json.loads(self.types(*words, "--json").stdout)


@contextmanager
def new_user(factory: pytest.TempPathFactory, *, empty: bool = False, hub: bool | None = None) -> Iterator[Person]:
    """Somebody whose registry has the stages of the first image; with `empty`, nothing."""
    folder = factory.mktemp("person")
    names = ("prefect_port", "gateway_port", "gateway_api_port", "hub_port", "jump_port")
    ports = {name: free_port() for name in names}
    # Images that other tests have published are none of this person's.
    registry = serve_registry(folder / "registry") if empty else another_registry(factory)
    with (
        registry as server,
        private_home(folder / "home", server.port, gateway=True, hub=hub, used=not empty, **ports) as settings,
    ):
        person = Person(settings.model_copy(update={"registry": settings.registry_host}))
        try:
            yield person
        finally:
            person.types("down", "--sessions")


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Such a person, whose sessions ask for no login."""
    with new_user(tmp_path_factory, hub=False) as person:
        yield person


def state(prefect: httpx.Client, run: str) -> str:
    return str(prefect.get(f"/flow_runs/{run}").json().get("state_type"))
