"""Leftovers that no build may leave."""

from __future__ import annotations

import psutil

from flows.core.programs import command
from flows.core.settings import Settings
from flows.host import tools
from flows.images.builder.workspace import mounts


def working_containers(settings: Settings) -> list[str]:
    return command.run([*tools.buildah(settings), "containers", "--quiet"], root=True).stdout.split()


def assert_clean(settings: Settings) -> None:
    assert working_containers(settings) == []
    assert mounts(settings) == ()
    assert list(settings.folder("running").iterdir()) == []


def sleepers(nap: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", nap]]
