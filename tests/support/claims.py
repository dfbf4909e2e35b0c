"""The files in claims of sessions, as their users would write and read them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flows.sessions.kubernetes import manifests
from flows.sessions.kubernetes.snapshot_ways import PART
from flows.sessions.model import HOME
from tests.support.cluster import kubectl
from tests.support.volume_snapshots import folder_of
from tests.support.waiting import wait_until


class FilesOfClaims:
    """Implements `homes_contract.Files`: what the user of a session would do, done in the folder of its volume."""

    def _folder(self, claim: Path) -> Path:
        name = claim.name
        wait_until(lambda: kubectl("get", "pvc", name, "-o", "jsonpath={.status.phase}") == "Bound")
        labels = json.loads(kubectl("get", "pvc", name, "-o", "json"))["metadata"]["labels"]
        of_volume = labels.get(manifests.VOLUME) or labels.get(PART)
        return folder_of(name) / ("" if of_volume else HOME.rpartition("/")[2])

    def _uid(self, claim: Path) -> int:
        told = json.loads(kubectl("get", "pvc", claim.name, "-o", "json"))
        return int(told["metadata"]["annotations"][manifests.UID])

    def write(self, folder: Path, path: str, text: str) -> None:
        top, uid = self._folder(folder), self._uid(folder)
        file = top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for each in (file, *file.relative_to(top).parents):
            os.chown(top / each, uid, 0)

    def delete(self, folder: Path, path: str) -> None:
        (self._folder(folder) / path).unlink()

    def all(self, folder: Path) -> dict[str, str]:
        top = self._folder(folder)
        return {str(file.relative_to(top)): file.read_text() for file in top.rglob("*") if file.is_file()}
