"""Somebody at a shell whose Refit has its sessions in the cluster of these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from flows.core.settings import Settings
from flows.core.settings import load as load_settings
from tests.support.cluster import FOLDER, NAMESPACE, REGISTRY
from tests.support.waiting import free_port

REFIT = Path(sys.executable).with_name("refit")


@dataclass(frozen=True)
class Desk:
    """A person at a shell, with a Refit of their own.

    Attributes:
        home: its `REFIT_HOME`.
        images: digests by the word that they say.
        patience: seconds that a call may take.
    """

    home: Path
    images: dict[str, str]
    patience: float = 240

    @property
    def settings(self) -> Settings:
        """Its settings."""
        return load_settings()

    def refit(self, *words: str, code: int = 0) -> str:
        """Call `refit`; returns all that it writes."""
        path = f"{FOLDER}/bin:{os.environ['PATH']}"
        environment = {**os.environ, "REFIT_HOME": str(self.home), "PATH": path, "COLUMNS": "200"}
        call = [REFIT, *words]
        out = subprocess.PIPE
        done = subprocess.run(
            call, check=False, text=True, env=environment, timeout=self.patience, stdout=out, stderr=subprocess.STDOUT
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def write(self, **kubernetes: object) -> None:
        """Write `settings.yaml` for this cluster."""
        told = {
            "engine": "kubernetes",
            "kubernetes": {"namespace": NAMESPACE, "home_gb": 1, **kubernetes},
            "registry": REGISTRY,
            "registry_tls": False,
            **{port: free_port() for port in ("gateway_port", "gateway_api_port", "hub_port", "prefect_port")},
        }
        (self.home / "settings.yaml").write_text(yaml.safe_dump(told))
